//! The share of one instance in a policy, for deciding without the store.
//!
//! Instances that cannot talk cannot share a limit, so each keeps to its part of it: what the limit issues at once,
//! divided by the number of instances. Every rounding is to the strict side.

use super::{Limit, Metered, Policy};
use crate::bounds::SPAN_MAX;
use crate::error::Error;
use crate::rule::{CalendarWindow, Concurrency, Period, Refill, RollingWindow, Rule, TokenBucket};
use crate::time::Span;

impl Policy {
    /// This policy as one of `instances` enforces it alone: the same names and units, with the instance's share of each
    /// limit. Headroom, margin and `block_ttl` are taken off before it is divided.
    ///
    /// A share below one stretches the time instead: 5 per minute over 10 instances is one per 2 minutes. A calendar
    /// window that has less than one for each becomes a rolling window of one, as long as the share takes to add up. A
    /// bucket refills at its part of the rate and holds at least one token.
    ///
    /// ```
    /// use tollgate_core::{CalendarWindow, Limit, Period, Policy, RollingWindow, Rule, Span};
    ///
    /// let gemini = Policy::new("gemini", [
    ///     Limit::new("rpm", "requests", RollingWindow::new(5, Span::from_mins(1))),
    ///     Limit::new("rpd", "requests", CalendarWindow::new(25, Period::Day)),
    /// ])?;
    /// let share = gemini.share(10)?;
    /// let rules: Vec<&Rule> = share.limits().map(Limit::rule).collect();
    /// assert_eq!(*rules[0], RollingWindow::new(1, Span::from_mins(2)).into());
    /// assert_eq!(*rules[1], CalendarWindow::new(2, Period::Day).into());
    /// # Ok::<(), tollgate_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if `instances` is zero, or if a concurrency limit has fewer slots
    /// than there are instances: time cannot stretch a slot.
    pub fn share(&self, instances: u64) -> Result<Self, Error> {
        if instances == 0 {
            return Err(Error::invalid("instances 0 must be at least 1"));
        }
        let limits =
            self.metered().iter().map(|limit| share_of(limit, instances, self.0.block_ttl));
        let limits = limits.collect::<Result<Vec<Limit>, Error>>().map_err(|error| {
            Error::new(error.kind(), format!("policy {:?}: {error}", self.name()))
        })?;
        Self::builder(self.name())
            .limits(limits)
            .shadow(self.0.shadow)
            .unlimited(self.0.unlimited)
            .may_block()
            .subjects_max(self.0.subjects_max)
            .weight(self.0.weight)
            .on_store_failure(self.0.on_store_failure)
            .build()
    }

    /// The rules of an account of what one of `instances` spends alone: a bucket refills at the instance's part of the
    /// rate, and everything else is as the store enforces it.
    pub(crate) fn drained_by_share(&self, instances: u64) -> Self {
        let instances = instances.max(1);
        let limits = self.metered().iter().map(|metered| {
            let limit = &metered.limit;
            let rule: Rule = match &limit.rule {
                rule if limit.is_blocked() => rule.clone(),
                Rule::TokenBucket(rule) => {
                    let most = metered.gauge.most();
                    let whole = bucket(limit, rule, most, instances);
                    // Where that is finer than every store can hold, the account is the share's.
                    return match whole.gauge(Span::ZERO) {
                        Ok(_) => whole,
                        Err(_) => bucket(limit, rule, (most / instances).max(1), instances),
                    };
                }
                Rule::RollingWindow(rule) => {
                    let window = rule.window.plus(self.0.block_ttl);
                    RollingWindow { window, ..*rule }.into()
                }
                rule => rule.clone(),
            };
            Limit::new(&*limit.name, &*limit.unit, rule).margin(limit.margin)
        });
        // Whatever numbers the builder refuses to divide drain as configured.
        Self::builder(self.name())
            .limits(limits)
            .may_block()
            .build()
            .unwrap_or_else(|_| self.clone())
    }

    /// The most that all `instances` together can issue of each limit, in order, if `cut_off` of them decide by their
    /// shares for some of the time: n·(1 + `cut_off`/`instances`), and n + `cut_off` where n is less than `instances`,
    /// because no instance can issue half of one. It counts one window as configured; for a bucket, what goes at once,
    /// while its rate grows by the same factor. A lower bound does not hold where every instance is cut off either: they
    /// come back one after the other. [`OnStoreFailure::Open`](super::OnStoreFailure::Open) has no bound.
    pub fn worst_case(
        &self,
        instances: u64,
        cut_off: u64,
    ) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.effective().map(move |most| {
            let share = (most / instances.max(1)).max(most.min(1));
            most.saturating_add(share.saturating_mul(cut_off))
        })
    }
}

fn share_of(metered: &Metered, instances: u64, block_ttl: Span) -> Result<Limit, Error> {
    let (limit, most) = (&metered.limit, metered.gauge.most());
    let share = most / instances;
    let rule: Rule = match &limit.rule {
        rule if limit.is_blocked() => rule.clone(),
        Rule::TokenBucket(rule) => return Ok(bucket(limit, rule, share.max(1), instances)),
        Rule::RollingWindow(rule) => {
            let window = rule.window.plus(block_ttl);
            let window = if share == 0 { stretched(window, instances, most) } else { window };
            RollingWindow { limit: share.max(1), window, resolution: rule.resolution }.into()
        }
        Rule::CalendarWindow(rule) if share == 0 => {
            RollingWindow::new(1, stretched(longest(rule.period), instances, most)).into()
        }
        Rule::CalendarWindow(rule) => CalendarWindow { limit: share, ..rule.clone() }.into(),
        Rule::Concurrency(rule) if share == 0 => {
            return Err(Error::invalid(format!(
                "limit {:?}: {} slots are less than one for each of {instances} instances, and time cannot stretch a \
                 slot; raise the limit, lower instances, or use on_store_failure = \"open\" or \"closed\"",
                limit.name, rule.limit
            )));
        }
        Rule::Concurrency(rule) => Concurrency { limit: share, ttl: rule.ttl }.into(),
    };
    Ok(Limit::new(&*limit.name, &*limit.unit, rule).margin(limit.margin))
}

/// A bucket of `share` tokens at the instance's part of the rate: exactly, or where that is finer than every store can
/// hold, rounded down.
fn bucket(limit: &Limit, rule: &TokenBucket, share: u64, instances: u64) -> Limit {
    let rounded = if instances <= rule.refill {
        (rule.refill / instances, rule.period)
    } else {
        (1, stretched(rule.period, instances, rule.refill))
    };
    let exact = (rule.refill, Span::from_micros(rule.period.as_micros().saturating_mul(instances)));
    let of = |(refill, period): (u64, Span)| {
        // The margin is taken off when the limit is built, and was taken off before.
        let inflow = u128::from(refill) * u128::from(limit.margin.as_micros());
        let inflow = inflow.div_ceil(u128::from(period.as_micros().max(1)));
        let capacity = share.saturating_add(u64::try_from(inflow).unwrap_or(u64::MAX));
        let rule = TokenBucket { capacity, refill, period, mode: rule.mode };
        Limit::new(&*limit.name, &*limit.unit, rule).margin(limit.margin)
    };
    let exact = of(exact);
    // Whole periods are boundaries that all instances know, so a share of a refill at boundaries keeps them.
    if rule.mode == Refill::Continuous && exact.gauge(Span::ZERO).is_ok() {
        exact
    } else {
        of(rounded)
    }
}

/// `window`·`instances`/`most`, rounded up.
fn stretched(window: Span, instances: u64, most: u64) -> Span {
    let micros = u128::from(window.as_micros()) * u128::from(instances);
    let micros = micros.div_ceil(u128::from(most.max(1)));
    Span::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)).min(SPAN_MAX)
}

/// The longest that a window of `period` can be, daylight saving included.
const fn longest(period: Period) -> Span {
    match period {
        Period::Minute => Span::from_mins(1),
        Period::Hour => Span::from_hours(2),
        Period::Day => Span::from_hours(25),
        Period::Week => Span::from_hours(7 * 24 + 1),
        Period::Month => Span::from_hours(31 * 24 + 1),
    }
}
