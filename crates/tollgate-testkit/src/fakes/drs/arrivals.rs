//! The calls that reached the service.

use std::collections::BTreeMap;
use std::fmt;

use tollgate::{Span, Timestamp};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// On the clock of the service.
    pub at: Timestamp,
    pub operation: String,
}

/// All calls, first to last.
#[derive(Clone, Debug, Default)]
pub struct Arrivals(Vec<Arrival>);

/// More calls in a window than a bucket admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    pub from: Timestamp,
    pub window: Span,
    pub came: u64,
    /// The most that a bucket admits in the window.
    pub most: u64,
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, window, came, most } = self;
        write!(f, "{came} calls in the {window} from {from}, where a bucket gives out {most}")
    }
}

impl Arrivals {
    pub(super) fn record(&mut self, at: Timestamp, operation: &str) {
        self.0.push(Arrival { at, operation: operation.to_owned() });
    }

    pub fn all(&self) -> &[Arrival] {
        &self.0
    }

    /// Returns the number of calls of `operation`.
    pub fn count(&self, operation: &str) -> usize {
        self.0.iter().filter(|arrival| arrival.operation == operation).count()
    }

    /// Returns the number of calls by second and operation.
    pub fn by_second(&self) -> BTreeMap<(u64, &str), u64> {
        let mut seconds = BTreeMap::new();
        for Arrival { at, operation } in &self.0 {
            *seconds.entry((at.as_micros() / 1_000_000, operation.as_str())).or_default() += 1;
        }
        seconds
    }

    /// The first window in which more came than a bucket of `burst` that refills `per_second` gives out, with `slack` for
    /// the way from the bucket to here.
    pub fn over(&self, per_second: u64, burst: u64, slack: Span) -> Option<Over> {
        for (place, first) in self.0.iter().enumerate() {
            for (more, last) in self.0[place..].iter().enumerate() {
                let window = last.at.since(first.at);
                let micros = window.plus(slack).as_micros();
                let most = burst + per_second.saturating_mul(micros) / 1_000_000;
                let came = more as u64 + 1;
                if most < came {
                    return Some(Over { from: first.at, window, came, most });
                }
            }
        }
        None
    }
}

/// The token bucket of the service, independent of the code under test.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Throttle {
    /// In millionths of a call, at `at`.
    used: u64,
    at: Timestamp,
}

impl Throttle {
    /// Takes a token; false if there is none.
    pub(super) fn takes(&mut self, rate: Option<(u64, u64)>, now: Timestamp) -> bool {
        let Some((per_second, burst)) = rate else { return true };
        let back = now.since(self.at).as_micros().saturating_mul(per_second);
        self.used = self.used.saturating_sub(back);
        self.at = now.max(self.at);
        let used = self.used + 1_000_000;
        let takes = used <= burst.saturating_mul(1_000_000);
        if takes {
            self.used = used;
        }
        takes
    }
}
