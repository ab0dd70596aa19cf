//! One limit of the model: its effective numbers, its rule with the complete history, and how to search in time.

use tollgate_core::{Headroom, Limit, Refill, Rule, Span, Timestamp};

use super::bucket::{Continuous, Interval};
use super::calendar::Calendar;
use super::rolling::Rolling;
use super::slots::Slots;

/// A limit with everything that was ever charged to it.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    pub(super) name: String,
    pub(super) unit: String,
    /// The number a person configured.
    pub(super) configured: u64,
    /// The most that can be issued at once.
    pub(super) most: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Continuous(Continuous),
    Interval(Interval),
    Rolling(Rolling),
    Calendar(Calendar),
    Slots(Slots),
}

/// Usage as an exact fraction of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exact {
    pub(super) parts: u128,
    pub(super) parts_per_token: u128,
}

impl Exact {
    pub(super) fn whole(tokens: u128) -> Self {
        Self { parts: tokens, parts_per_token: 1 }
    }

    /// Whether `cost` more is at most `most`.
    pub(super) fn plus_fits(self, cost: u64, most: u64) -> bool {
        self.parts + u128::from(cost) * self.parts_per_token
            <= u128::from(most) * self.parts_per_token
    }

    fn tokens_ceil(self) -> u64 {
        u64::try_from(self.parts.div_ceil(self.parts_per_token)).unwrap_or(u64::MAX)
    }
}

impl Meter {
    pub(super) fn new(limit: &Limit, block_ttl: Span) -> Self {
        let configured = limit.rule().limit();
        let reserve = match limit.headroom_setting() {
            Headroom::Units(units) => units,
            Headroom::Percent(percent) => {
                let hundredths = u128::from(configured) * u128::from(percent);
                u64::try_from(hundredths.div_ceil(100)).unwrap_or(u64::MAX)
            }
        };
        let margin = limit.margin_setting();
        let ahead = margin.as_micros() + block_ttl.as_micros();
        let issued = configured.saturating_sub(reserve);
        let (most, kind) = match limit.rule() {
            Rule::TokenBucket(rule) => {
                let (ahead, interval) = match rule.mode {
                    Refill::Continuous => (ahead, false),
                    Refill::Interval => (margin.as_micros(), true),
                };
                let inflow = (u128::from(rule.refill) * u128::from(ahead))
                    .div_ceil(u128::from(rule.period.as_micros()));
                let most = issued.saturating_sub(u64::try_from(inflow).unwrap_or(u64::MAX));
                if interval {
                    (most, Kind::Interval(Interval::new(rule)))
                } else {
                    (most, Kind::Continuous(Continuous::new(rule)))
                }
            }
            Rule::RollingWindow(rule) => (issued, Kind::Rolling(Rolling::new(rule, ahead))),
            Rule::CalendarWindow(rule) => (issued, Kind::Calendar(Calendar::new(rule, margin))),
            Rule::Concurrency(rule) => (issued, Kind::Slots(Slots::new(rule))),
            other => unreachable!("the model does not know the rule {}", other.name()),
        };
        Self {
            name: limit.name().to_owned(),
            unit: limit.unit().to_owned(),
            configured,
            most,
            kind,
        }
    }

    /// Exact usage at `at`, which is not before the last charge.
    pub(super) fn used_exact(&self, at: u64) -> Exact {
        match &self.kind {
            Kind::Continuous(rule) => rule.used(at),
            Kind::Interval(rule) => Exact::whole(rule.used(at)),
            Kind::Rolling(rule) => Exact::whole(rule.used(at)),
            Kind::Calendar(rule) => Exact::whole(rule.used(at)),
            Kind::Slots(rule) => Exact::whole(rule.used(at)),
        }
    }

    /// Usage at `at`, rounded up to whole tokens.
    pub(super) fn used(&self, at: u64) -> u64 {
        self.used_exact(at).tokens_ceil()
    }

    pub(super) const fn is_slots(&self) -> bool {
        matches!(self.kind, Kind::Slots(_))
    }

    pub(super) fn charge(&mut self, ticket: usize, now: u64, cost: u64) {
        match &mut self.kind {
            Kind::Continuous(rule) => rule.charge(Some(ticket), now, cost),
            Kind::Interval(rule) => rule.charge(Some(ticket), now, cost),
            Kind::Rolling(rule) => rule.charge(Some(ticket), now, cost),
            Kind::Calendar(rule) => rule.charge(Some(ticket), now, cost),
            Kind::Slots(rule) => rule.charge(ticket, now, cost),
        }
    }

    /// A charge that cannot be refunded.
    pub(super) fn charge_more(&mut self, now: u64, cost: u64) {
        match &mut self.kind {
            Kind::Continuous(rule) => rule.charge(None, now, cost),
            Kind::Interval(rule) => rule.charge(None, now, cost),
            Kind::Rolling(rule) => rule.charge(None, now, cost),
            Kind::Calendar(rule) => rule.charge(None, now, cost),
            Kind::Slots(_) => {}
        }
    }

    pub(super) fn give_back(&mut self, ticket: usize, now: u64, amount: u64) {
        match &mut self.kind {
            Kind::Continuous(rule) => rule.give_back(ticket, amount),
            Kind::Interval(rule) => rule.give_back(ticket, now, amount),
            Kind::Rolling(rule) => rule.give_back(ticket, amount),
            Kind::Calendar(rule) => rule.give_back(ticket, now, amount),
            Kind::Slots(_) => {}
        }
    }

    pub(super) fn free(&mut self, ticket: usize, now: u64) {
        if let Kind::Slots(rule) = &mut self.kind {
            rule.free(ticket, now);
        }
    }

    pub(super) fn renew(&mut self, ticket: usize, now: u64) -> Option<u64> {
        match &mut self.kind {
            Kind::Slots(rule) => rule.renew(ticket, now),
            _ => None,
        }
    }

    pub(super) fn expiry_of(&self, ticket: usize) -> Option<u64> {
        match &self.kind {
            Kind::Slots(rule) => rule.expiry_of(ticket),
            _ => None,
        }
    }

    pub(super) fn refilled_at(&self, now: u64) -> Option<u64> {
        match &self.kind {
            Kind::Continuous(_) => Some(now),
            Kind::Interval(rule) => Some(rule.boundary_before(now)),
            _ => None,
        }
    }

    /// Takes over what `before` had used when it last changed, at `at`.
    pub(super) fn take_over(&mut self, before: &Self, at: u64) {
        match (&mut self.kind, &before.kind) {
            (Kind::Continuous(rule), Kind::Continuous(old)) => rule.take_over(old, at),
            (Kind::Interval(rule), Kind::Interval(old)) => rule.take_over(old, at),
            (Kind::Rolling(rule), Kind::Rolling(old)) => rule.take_over(old, at),
            (Kind::Slots(rule), Kind::Slots(old)) => rule.take_over(old),
            (Kind::Calendar(rule), Kind::Calendar(old)) if rule.same_windows(old) => {
                rule.take_over(old);
            }
            _ => self.charge_more(at, before.used(at)),
        }
    }

    /// The first instant from `now` on at which `holds` is true, found by trying. Buckets are searched by bisection,
    /// because they change all the time; the others change only at the instants they name.
    pub(super) fn first(&self, now: u64, mut others: Vec<u64>, holds: &dyn Fn(u64) -> bool) -> u64 {
        if holds(now) {
            return now;
        }
        match &self.kind {
            Kind::Continuous(_) | Kind::Interval(_) => return bisect(now, holds),
            Kind::Rolling(rule) => others.extend(rule.instants()),
            Kind::Calendar(rule) => {
                let latest = others.iter().copied().max().unwrap_or(now).max(now);
                others.extend(rule.instants(now));
                others.extend(rule.instants(latest));
            }
            Kind::Slots(rule) => others.extend(rule.instants()),
        }
        others.sort_unstable();
        let found = others.into_iter().find(|at| now < *at && holds(*at));
        found.unwrap_or(Timestamp::MAX.as_micros())
    }
}

fn bisect(now: u64, holds: &dyn Fn(u64) -> bool) -> u64 {
    let mut step = 1;
    let mut before = now;
    while !holds(now + step) {
        before = now + step;
        if Timestamp::MAX.as_micros() <= before {
            return Timestamp::MAX.as_micros();
        }
        step *= 2;
    }
    let mut after = now + step;
    while 1 < after - before {
        let middle = before + (after - before) / 2;
        if holds(middle) {
            after = middle;
        } else {
            before = middle;
        }
    }
    after
}
