//! Token buckets by replaying every charge from the beginning.

use tollgate_core::TokenBucket;

use super::meter::Exact;

/// Something that happened to a bucket, in order of time.
#[derive(Clone, Copy, Debug)]
enum Event {
    Charged { at: u64, amount: u64 },
    GivenBack { charged_at: u64, at: u64, amount: u64 },
}

/// A bucket that refills all the time. Levels are exact: a token has `period × scale` parts and each microsecond brings
/// back `refill × scale` of them.
#[derive(Clone, Debug)]
pub(super) struct Continuous {
    refill: u128,
    period: u128,
    /// What was used at the start, as an exact fraction of tokens.
    opening: (u64, Exact),
    events: Vec<Event>,
}

impl Continuous {
    pub(super) fn new(rule: &TokenBucket) -> Self {
        Self {
            refill: u128::from(rule.refill),
            period: u128::from(rule.period.as_micros()),
            opening: (0, Exact::whole(0)),
            events: Vec::new(),
        }
    }

    pub(super) fn used(&self, now: u64) -> Exact {
        let (mut last, opening) = self.opening;
        let scale = opening.parts_per_token;
        let token = self.period * scale;
        let rate = self.refill * scale;
        let mut level = opening.parts * self.period;
        let mut pass = |level: u128, at: u64| {
            let back = rate * u128::from(at - last);
            last = at;
            level.saturating_sub(back)
        };
        for event in &self.events {
            match *event {
                Event::Charged { at, amount } => {
                    level = pass(level, at) + u128::from(amount) * token;
                }
                Event::GivenBack { charged_at, at, amount } => {
                    // Time has given back a part already.
                    let by_time = rate * u128::from(at - charged_at);
                    let credit = (u128::from(amount) * token).saturating_sub(by_time);
                    level = pass(level, at).saturating_sub(credit);
                }
            }
        }
        Exact { parts: pass(level, now), parts_per_token: token }
    }

    pub(super) fn charge(&mut self, at: u64, amount: u64) {
        self.events.push(Event::Charged { at, amount });
    }

    pub(super) fn give_back(&mut self, charged_at: u64, at: u64, amount: u64) {
        // What was charged under another rate cannot be told from what that rate gave back.
        if self.opening.0 <= charged_at {
            self.events.push(Event::GivenBack { charged_at, at, amount });
        }
    }

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
    events: Vec<Event>,
}

impl Interval {
    pub(super) fn new(rule: &TokenBucket) -> Self {
        Self {
            refill: rule.refill,
            period: rule.period.as_micros(),
            opening: (0, 0),
            gives_back_from: 0,
            events: Vec::new(),
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
        for event in &self.events {
            match *event {
                Event::Charged { at, amount } => level = pass(level, at) + u128::from(amount),
                Event::GivenBack { charged_at, at, amount } => {
                    let same = self.boundary_before(charged_at) == self.boundary_before(at);
                    let credit = if same { u128::from(amount) } else { 0 };
                    level = pass(level, at).saturating_sub(credit);
                }
            }
        }
        pass(level, now)
    }

    pub(super) fn charge(&mut self, at: u64, amount: u64) {
        self.events.push(Event::Charged { at, amount });
    }

    pub(super) fn give_back(&mut self, charged_at: u64, at: u64, amount: u64) {
        if self.gives_back_from <= charged_at {
            self.events.push(Event::GivenBack { charged_at, at, amount });
        }
    }

    pub(super) fn take_over(&mut self, old: &Self, at: u64) {
        self.opening = (at, old.used(at));
        self.gives_back_from = if self.period == old.period { old.gives_back_from } else { at };
    }
}
