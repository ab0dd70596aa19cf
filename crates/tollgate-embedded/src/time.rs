//! The store's time: the wall clock while it is steady, else the last good time plus boot time.
//!
//! A temporarily wrong wall clock must not write future times, which would lock their subjects. There is no server to ask, so
//! a clock step is accepted only after [`STEP_STABLE_AFTER`]; until then time continues from before the step by the
//! boot-time clock. Every commit saves the readings, so that short commands detect a step between two of them.

use std::fmt;
use std::sync::{Arc, Mutex};

use tollgate::internal::steps::{Checked, Reading, STEP_STABLE_AFTER, StepDetector};
use tollgate::{Clock, Span, Timestamp};

use crate::sync::lock;

/// How far a stored time may be ahead of the clock. Within it, decisions use the entry's time; beyond it, a wrong clock wrote
/// the entry.
pub const AHEAD_MAX: Span = Span::from_mins(5);

/// The deciding clock.
#[derive(Debug)]
pub(crate) struct Time {
    clock: Arc<dyn Clock>,
    /// `None` if every reading is trusted.
    detector: Option<Mutex<StepDetector>>,
}

/// Saved readings of a clock: boot id, last good reading, reading after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Saved {
    boot_id: u128,
    pub(crate) good: Reading,
    pending: Option<Reading>,
}

impl Time {
    /// Resumes the clock of a store that last saved `saved`.
    pub(crate) fn new(clock: Arc<dyn Clock>, is_checked: bool, saved: Option<Saved>) -> Self {
        let detector = is_checked.then(|| {
            let detector = StepDetector::new().stable_after(STEP_STABLE_AFTER);
            let same_boot = saved.filter(|saved| {
                clock.boot_id() == Some(saved.boot_id) && saved.good.boot <= clock.boot_time()
            });
            Mutex::new(match same_boot {
                Some(saved) => detector.resume(saved.good, saved.pending),
                None => detector,
            })
        });
        Self { clock, detector }
    }

    /// Returns the clock of the process.
    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// Returns the deciding time.
    pub(crate) fn now(&self) -> Timestamp {
        self.check().0
    }

    /// Returns the deciding time, and whether a step was just detected or accepted.
    pub(crate) fn check(&self) -> (Timestamp, bool) {
        let reading = Reading::take(&*self.clock);
        let Some(detector) = &self.detector else { return (reading.wall, false) };
        let mut detector = lock(detector);
        match detector.check(reading) {
            Checked::Steady => (reading.wall, false),
            Checked::Accepted(step) => {
                tracing::warn!(%step, now = %reading.wall, "clock step accepted");
                (reading.wall, true)
            }
            Checked::Stepped { step, is_new } => {
                let now = detector.good().unwrap_or(reading).wall_at(reading.boot);
                if is_new {
                    tracing::warn!(
                        %step, %now,
                        "clock stepped; the time goes on from before the step until the clock has run steadily for {}",
                        STEP_STABLE_AFTER
                    );
                }
                (now, is_new)
            }
        }
    }

    /// Returns how far `at` is ahead of `now`, if a wrong clock wrote it.
    #[inline]
    pub(crate) fn beyond(&self, at: Timestamp, now: Timestamp) -> Option<Span> {
        let ahead = at.since(now);
        (AHEAD_MAX < ahead && self.detector.is_some()).then_some(ahead)
    }

    /// Returns the readings to save; `None` if the system has no boot id.
    pub(crate) fn saved(&self) -> Option<Saved> {
        let detector = lock(self.detector.as_ref()?);
        let (boot_id, pending) = (self.clock.boot_id()?, detector.pending());
        Some(Saved { boot_id, good: detector.good()?, pending })
    }
}

impl fmt::Display for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.boot_id)?;
        for reading in [Some(self.good), self.pending].into_iter().flatten() {
            write!(f, " {} {}", reading.wall.as_micros(), reading.boot.as_micros())?;
        }
        Ok(())
    }
}

impl Saved {
    /// Returns the earliest possible time, if the last good reading was right.
    pub(crate) fn earliest(&self, clock: &dyn Clock) -> Timestamp {
        if clock.boot_id() == Some(self.boot_id) {
            self.good.wall_at(clock.boot_time())
        } else {
            self.good.wall
        }
    }

    /// Parses saved readings.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let boot_id = u128::from_str_radix(words.next()?, 16).ok()?;
        let mut reading = || {
            let (wall, boot) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some(Reading { wall: Timestamp::from_micros(wall), boot: Span::from_micros(boot) })
        };
        Some(Self { boot_id, good: reading()?, pending: reading() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_readings_come_back() {
        let reading = |secs| Reading { wall: Timestamp::from_secs(secs), boot: Span::from_secs(7) };
        for pending in [None, Some(reading(9))] {
            let saved = Saved { boot_id: u128::MAX - 1, good: reading(5), pending };
            assert_eq!(Saved::parse(&saved.to_string()), Some(saved));
        }
        assert_eq!(["", "x 1 2", "1f 3"].map(Saved::parse), [None; 3]);
    }
}
