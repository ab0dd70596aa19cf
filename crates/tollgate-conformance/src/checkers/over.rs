//! Never over: in any stretch of time, the actual spending respects the rule.

use tollgate_core::{Limit, Policy, Refill, Rule};

use super::spent::{Spent, spent};
use crate::model::{Zone, window_of};
use crate::script::Record;

/// No stretch of time that ends with an admission holds more than the rule allows: any window, any interval of a
/// bucket, any calendar window, any instant of a concurrency limit.
pub fn never_over(policy: &Policy, history: &[Record]) -> Result<(), String> {
    let all = spent(policy, history);
    for (limit, most) in policy.limits().zip(policy.effective()) {
        if let Rule::Concurrency(_) = limit.rule() {
            super::slots::never_over(policy, limit, most, history)?;
            continue;
        }
        let allowance = Allowance::new(limit, most, policy.block_ttl().as_micros());
        for (last, end) in all.iter().enumerate().filter(|(_, spent)| spent.decided) {
            check_stretches(limit, &allowance, &all[..=last], end)?;
        }
    }
    Ok(())
}

/// Checks every stretch that ends with `end`, the last of `all`, from the shortest on.
fn check_stretches(
    limit: &Limit,
    allowance: &Allowance<'_>,
    all: &[Spent],
    end: &Spent,
) -> Result<(), String> {
    if end.amount(limit.unit()) == 0 {
        return Ok(());
    }
    let mut sum: u128 = 0;
    for start in all.iter().rev() {
        sum += u128::from(start.amount(limit.unit()));
        let (from, to) = (start.at.as_micros(), end.at.as_micros());
        if !allowance.allows(sum, from, to) {
            return Err(format!(
                "limit {:?} is over: {sum} {} from {} to {}, by {:?} with at most {} at once",
                limit.name(),
                limit.unit(),
                start.at,
                end.at,
                limit.rule(),
                allowance.most
            ));
        }
    }
    Ok(())
}

struct Allowance<'a> {
    most: u128,
    rule: &'a Rule,
    /// How much longer than configured a window counts.
    ahead: u64,
    margin: u64,
    zone: Option<Zone>,
}

impl<'a> Allowance<'a> {
    fn new(limit: &'a Limit, most: u64, block_ttl: u64) -> Self {
        let zone = match limit.rule() {
            Rule::CalendarWindow(rule) => Some(Zone::named(&rule.zone)),
            _ => None,
        };
        let margin = limit.margin_setting().as_micros();
        Self { most: u128::from(most), rule: limit.rule(), ahead: margin + block_ttl, margin, zone }
    }

    /// Whether `sum` may be spent from `from` to `to`, both included.
    fn allows(&self, sum: u128, from: u64, to: u64) -> bool {
        let passed = u128::from(to - from);
        match self.rule {
            Rule::TokenBucket(rule) => {
                let (refill, period) = (u128::from(rule.refill), rule.period.as_micros());
                match rule.mode {
                    Refill::Continuous => {
                        let period = u128::from(period);
                        sum * period <= self.most * period + refill * passed
                    }
                    Refill::Interval => {
                        sum <= self.most + refill * u128::from(to / period - from / period)
                    }
                }
            }
            Rule::RollingWindow(rule) => {
                u128::from(rule.window.as_micros() + self.ahead) <= passed || sum <= self.most
            }
            Rule::CalendarWindow(rule) => {
                let Some(zone) = &self.zone else { return true };
                if sum <= self.most {
                    return true;
                }
                // An amount admitted late in the window before may arrive in this one.
                let start = window_of(zone, rule.period, to).0;
                from < start.saturating_sub(self.margin)
                    || (from < start && window_of(zone, rule.period, from).1 != start)
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::{CalendarWindow, Period, RollingWindow, Span, TokenBucket};

    use super::*;
    use crate::checkers::samples::{admitted, at, policy, released};

    #[test]
    fn a_sixth_within_the_window_is_over_and_at_its_end_is_not() {
        let policy = policy(RollingWindow::new(5, Span::from_secs(60)));
        let right = [admitted(at(0), 0, 5), admitted(at(60), 1, 5)];
        assert_eq!(never_over(&policy, &right), Ok(()));
        let wrong = [admitted(at(0), 0, 5), admitted(at(59), 1, 1)];
        let error = never_over(&policy, &wrong).unwrap_err();
        assert!(error.contains("6 requests"), "{error}");
    }

    #[test]
    fn a_bucket_is_over_when_more_came_out_than_was_in_it_and_flowed_in() {
        let policy = policy(TokenBucket::per_second(1).burst(10));
        let right = [admitted(at(0), 0, 10), admitted(at(5), 1, 5)];
        assert_eq!(never_over(&policy, &right), Ok(()));
        let wrong = [admitted(at(0), 0, 10), admitted(at(5), 1, 6)];
        assert!(never_over(&policy, &wrong).is_err());
    }

    #[test]
    fn an_interval_bucket_is_over_before_its_boundary() {
        let policy = policy(TokenBucket::per_minute(5).at_boundaries());
        // The sample time begins 40 s after a full minute.
        let right = [admitted(at(0), 0, 5), admitted(at(20), 1, 5)];
        assert_eq!(never_over(&policy, &right), Ok(()));
        let wrong = [admitted(at(0), 0, 5), admitted(at(19), 1, 1)];
        assert!(never_over(&policy, &wrong).is_err());
    }

    #[test]
    fn a_calendar_day_is_over_on_the_same_date_only() {
        let policy = policy(CalendarWindow::new(5, Period::Day));
        let right = [admitted(at(0), 0, 5), admitted(at(86_400), 1, 5)];
        assert_eq!(never_over(&policy, &right), Ok(()));
        let wrong = [admitted(at(0), 0, 5), admitted(at(1), 1, 1)];
        assert!(never_over(&policy, &wrong).is_err());
    }

    /// Take 10, wait 10 s, take 10, release the first, take 10.
    #[test]
    fn giving_back_what_time_gave_back_is_over() {
        let policy = policy(TokenBucket::per_second(1).burst(10));
        let history = [
            admitted(at(0), 0, 10),
            admitted(at(10), 1, 10),
            released(at(10), 0),
            admitted(at(10), 2, 10),
        ];
        let error = never_over(&policy, &history).unwrap_err();
        assert!(error.contains("20 requests"), "{error}");
    }
}
