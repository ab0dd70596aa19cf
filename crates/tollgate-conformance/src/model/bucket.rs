//! Token buckets by replaying every charge from the beginning.

use tollgate_core::TokenBucket;

use super::meter::Exact;

/// A charge, as large as it is after all that was given back of it.
#[derive(Clone, Copy, Debug)]
struct Charge {
    ticket: Option<usize>,
    at: u64,
    amount: u64,
}

/// A bucket that refills all the time. Levels are exact: a token has `period × scale` parts and each microsecond brings
/// back `refill × scale` of them. Giving back makes a charge smaller and replays what came after it: the level
/// becomes what it would be had less been charged.
#[derive(Clone, Debug)]
pub(super) struct Continuous {
    refill: u128,
    period: u128,
    /// Time and usage at the start, exactly.
    opening: (u64, Exact),
    charges: Vec<Charge>,
}

impl Continuous {
    pub(super) fn new(rule: &TokenBucket) -> Self {
        Self {
            refill: u128::from(rule.refill),
            period: u128::from(rule.period.as_micros()),
            opening: (0, Exact::whole(0)),
            charges: Vec::new(),
        }
    }

    pub(super) fn used(&self, now: u64) -> Exact {
        let (mut last, opening) = self.opening;
        let scale = opening.parts_per_token;
        let token = self.period * scale;
        let rate = self.refill * scale;
        let mut level = opening.parts * self.period;
        for charge in &self.charges {
            level = level.saturating_sub(rate * u128::from(charge.at - last));
            level += u128::from(charge.amount) * token;
            last = charge.at;
        }
        level = level.saturating_sub(rate * u128::from(now - last));
        Exact { parts: level, parts_per_token: token }
    }

    pub(super) fn charge(&mut self, ticket: Option<usize>, at: u64, amount: u64) {
        self.charges.push(Charge { ticket, at, amount });
    }

    pub(super) fn give_back(&mut self, ticket: usize, amount: u64) {
        if let Some(charge) = self.charges.iter_mut().find(|charge| charge.ticket == Some(ticket)) {
            charge.amount = charge.amount.saturating_sub(amount);
        }
    }

    /// Charges under another rate are dropped, so they credit nothing.
    pub(super) fn take_over(&mut self, old: &Self, at: u64) {
        if self.refill * old.period == old.refill * self.period {
            self.clone_from(old);
        } else {
            self.opening = (at, old.used(at));
        }
    }
}

/// A bucket that gets its whole refill at each multiple of the period.
#[derive(Clone, Debug)]
pub(super) struct Interval {
    refill: u64,
    period: u64,
    opening: (u64, u128),
    /// From when on a charge can be given back.
    gives_back_from: u64,
    charges: Vec<Charge>,
}

impl Interval {
    pub(super) fn new(rule: &TokenBucket) -> Self {
        Self {
            refill: rule.refill,
            period: rule.period.as_micros(),
            opening: (0, 0),
            gives_back_from: 0,
            charges: Vec::new(),
        }
    }

    pub(super) const fn boundary_before(&self, at: u64) -> u64 {
        at - at % self.period
    }

    fn boundaries(&self, from: u64, to: u64) -> u128 {
        u128::from((self.boundary_before(to) - self.boundary_before(from)) / self.period)
    }

    pub(super) fn used(&self, now: u64) -> u128 {
        let (mut last, mut level) = self.opening;
        let mut pass = |level: u128, at: u64| {
            let back = u128::from(self.refill) * self.boundaries(last, at);
            last = at;
            level.saturating_sub(back)
        };
        for charge in &self.charges {
            level = pass(level, charge.at) + u128::from(charge.amount);
        }
        pass(level, now)
    }

    pub(super) fn charge(&mut self, ticket: Option<usize>, at: u64, amount: u64) {
        self.charges.push(Charge { ticket, at, amount });
    }

    /// A boundary since the charge has credited it already.
    pub(super) fn give_back(&mut self, ticket: usize, now: u64, amount: u64) {
        let (from, open) = (self.gives_back_from, self.boundary_before(now));
        let given = self.charges.iter_mut().find(|charge| charge.ticket == Some(ticket));
        if let Some(charge) = given.filter(|charge| from.max(open) <= charge.at) {
            charge.amount = charge.amount.saturating_sub(amount);
        }
    }

    pub(super) fn take_over(&mut self, old: &Self, at: u64) {
        if self.period == old.period {
            // Charges since the boundary can still be given back.
            let boundary = self.boundary_before(at);
            let recent = old.charges.iter().copied().filter(|charge| boundary <= charge.at);
            self.charges = recent.collect();
            let sum: u128 = self.charges.iter().map(|charge| u128::from(charge.amount)).sum();
            self.opening = (boundary, old.used(at) - sum);
            self.gives_back_from = old.gives_back_from;
        } else {
            self.opening = (at, old.used(at));
            self.gives_back_from = at;
        }
    }
}
