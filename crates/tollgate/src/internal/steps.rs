//! Detection of clock steps: a wall clock is trusted only while it agrees with the boot-time clock.
//!
//! The boot-time clock counts suspended time and cannot be set. When the wall clock moves by more than a tolerance
//! differently, it was set, and the readings alone do not show which of the two is right. A
//! [`StepDetector`] is pure: each store feeds it readings and decides what counts as evidence for the new time.

use std::fmt;

use tollgate_core::{Span, Timestamp};

use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::sync::{Mutex, lock};

/// How far the wall clock and the boot-time clock may drift apart between two readings.
pub const STEP_TOLERANCE: Span = Span::from_secs(1);

/// How long a stepped clock must run steadily before its new time is accepted where there is no other evidence.
pub const STEP_STABLE_AFTER: Span = Span::from_secs(60);

/// How far the time of a store's server may run ahead of the local boot-time clock between two replies.
pub const SERVER_AHEAD_MAX: Span = Span::from_mins(5);

/// A wall clock and the boot-time clock, read at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The wall clock.
    pub wall: Timestamp,
    /// The time since boot, suspended time included.
    pub boot: Span,
}

impl Reading {
    /// Reads both clocks.
    #[must_use]
    pub fn take(clock: &dyn Clock) -> Self {
        let (wall, boot) = clock.wall_and_boot();
        Self { wall, boot }
    }

    /// The wall clock when the boot-time clock shows `boot`, if neither is set in between.
    #[must_use]
    pub const fn wall_at(self, boot: Span) -> Timestamp {
        let elapsed = boot.as_micros().saturating_sub(self.boot.as_micros());
        Timestamp::from_micros(self.wall.as_micros().saturating_add(elapsed))
    }

    /// The step between this reading and `later`, if it exceeds `tolerance`.
    fn step_to(self, later: Self, tolerance: Span) -> Option<Step> {
        let expected = self.wall_at(later.boot);
        let (ahead, behind) = (later.wall.since(expected), expected.since(later.wall));
        if tolerance < ahead {
            Some(Step::Ahead(ahead))
        } else if tolerance < behind {
            Some(Step::Behind(behind))
        } else {
            None
        }
    }
}

/// By how much a clock was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Into the future.
    Ahead(Span),
    /// Into the past.
    Behind(Span),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ahead(span) => write!(f, "{} ahead", span.humanize()),
            Self::Behind(span) => write!(f, "{} behind", span.humanize()),
        }
    }
}

/// The verdict on one reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// Both clocks agree; the reading is the last good one from now on.
    Steady,
    /// The wall clock was set since the last good reading, so its time is suspect.
    Stepped {
        /// By how much.
        step: Step,
        /// Whether this is the first reading that shows this step.
        is_new: bool,
    },
    /// The stepped clock has run steadily for long enough; the reading is the last good one from now on.
    Accepted(Step),
}

/// Compares readings with the last good one.
///
/// ```
/// use tollgate::clock::ManualClock;
/// use tollgate::internal::steps::{Checked, Reading, Step, StepDetector};
/// use tollgate::{Clock, Span};
///
/// let clock = ManualClock::new();
/// let mut detector = StepDetector::new();
/// assert_eq!(detector.check(Reading::take(&clock)), Checked::Steady);
/// clock.step(clock.now() + Span::from_hours(1));
/// let step = Step::Ahead(Span::from_hours(1));
/// assert_eq!(detector.check(Reading::take(&clock)), Checked::Stepped { step, is_new: true });
/// ```
#[derive(Clone, Copy, Debug)]
pub struct StepDetector {
    tolerance: Span,
    stable_after: Option<Span>,
    good: Option<Reading>,
    /// The first reading after a step. Later readings are compared with it, too.
    pending: Option<Reading>,
}

impl StepDetector {
    /// A detector with [`STEP_TOLERANCE`] that trusts its first reading and never accepts a step by itself.
    #[must_use]
    pub const fn new() -> Self {
        Self { tolerance: STEP_TOLERANCE, stable_after: None, good: None, pending: None }
    }

    /// Accepts a step once the clock has run steadily for `span` since.
    #[must_use]
    pub const fn stable_after(mut self, span: Span) -> Self {
        self.stable_after = Some(span);
        self
    }

    /// Takes differences up to `span` for drift.
    #[must_use]
    pub const fn tolerance(mut self, span: Span) -> Self {
        self.tolerance = span;
        self
    }

    /// Continues from readings of an earlier detector on the same boot-time clock.
    #[must_use]
    pub const fn resume(mut self, good: Reading, pending: Option<Reading>) -> Self {
        self.good = Some(good);
        self.pending = pending;
        self
    }

    /// Checks `reading` against the last good one.
    pub fn check(&mut self, reading: Reading) -> Checked {
        let step = self.good.and_then(|good| good.step_to(reading, self.tolerance));
        let Some(step) = step else {
            self.trust(reading);
            return Checked::Steady;
        };
        let pending = self.pending.filter(|pending| {
            // The boot-time clock of another boot may be behind.
            pending.boot <= reading.boot && pending.step_to(reading, self.tolerance).is_none()
        });
        let since = pending.map_or(Span::ZERO, |pending| {
            Span::from_micros(reading.boot.as_micros() - pending.boot.as_micros())
        });
        if pending.is_some() && self.stable_after.is_some_and(|span| span <= since) {
            self.trust(reading);
            return Checked::Accepted(step);
        }
        self.pending = Some(pending.unwrap_or(reading));
        Checked::Stepped { step, is_new: pending.is_none() }
    }

    /// Makes `reading` the last good one.
    pub const fn trust(&mut self, reading: Reading) {
        self.good = Some(reading);
        self.pending = None;
    }

    /// The last good reading.
    #[must_use]
    pub const fn good(&self) -> Option<Reading> {
        self.good
    }

    /// The first reading after a step that is not accepted yet.
    #[must_use]
    pub const fn pending(&self) -> Option<Reading> {
        self.pending
    }
}

impl Default for StepDetector {
    fn default() -> Self {
        Self::new()
    }
}

/// The time of a server that decides, as its replies show it.
///
/// A reply whose time ran more than [`SERVER_AHEAD_MAX`] ahead since an earlier reply is an error: limits would refill
/// early, and entries written now would lock their subjects once the server's clock is set right. The new time is
/// accepted after [`STEP_STABLE_AFTER`] of steady replies. A time that falls back is harmless, since entries stay at the
/// later time.
#[derive(Debug)]
pub struct ServerTime {
    detector: Mutex<StepDetector>,
}

impl ServerTime {
    /// Trusts the first reply.
    #[must_use]
    pub fn new() -> Self {
        let detector = StepDetector::new().tolerance(SERVER_AHEAD_MAX);
        Self { detector: Mutex::new(detector.stable_after(STEP_STABLE_AFTER)) }
    }

    /// Whether `at` is farther ahead than the server's time can be when the boot-time clock shows `boot`. Nothing is
    /// learned from it.
    #[must_use]
    pub fn is_ahead(&self, at: Timestamp, boot: Span) -> bool {
        let good = lock(&self.detector).good();
        good.is_none_or(|good| SERVER_AHEAD_MAX < at.since(good.wall_at(boot)))
    }

    /// Checks the time `server` of a reply that arrives when the boot-time clock shows `boot`, and returns whether it is
    /// steady; it is not while it is behind earlier replies. `store` names the store in messages.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if it ran too far ahead since the last good reply.
    pub fn check(&self, store: &str, server: Timestamp, boot: Span) -> Result<bool, Error> {
        match lock(&self.detector).check(Reading { wall: server, boot }) {
            Checked::Stepped { step: Step::Ahead(by), .. } => Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{store}: the server's clock jumped ahead by {}, so its answer does not count; check time \
                     synchronization (NTP) on the server and whether a failover changed it. The new time is accepted \
                     after {STEP_STABLE_AFTER}; `tollgate repair` lists entries with times in the future",
                    by.humanize(),
                ),
            )),
            Checked::Stepped { .. } => Ok(false),
            Checked::Steady | Checked::Accepted(_) => Ok(true),
        }
    }
}

/// How far an entry of `at` is in the future, if the server's clock is evidence against it: it must agree with the `local`
/// one, since otherwise the server's clock may be what is wrong.
#[must_use]
pub fn from_future(at: Timestamp, server: Timestamp, local: Timestamp) -> Option<Span> {
    let apart = server.since(local).max(local.since(server));
    let ahead = at.since(server);
    (SERVER_AHEAD_MAX < ahead && apart <= SERVER_AHEAD_MAX).then_some(ahead)
}

impl Default for ServerTime {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    const HOUR: Span = Span::from_hours(1);

    fn stepped(step: Step, is_new: bool) -> Checked {
        Checked::Stepped { step, is_new }
    }

    /// Slewing by less than the tolerance between two readings is no step, however far it leads.
    #[test]
    fn drift_is_not_a_step() {
        let clock = ManualClock::new();
        let mut detector = StepDetector::new();
        for _ in 0..100 {
            clock.step(clock.now() + Span::from_millis(900));
            assert_eq!(detector.check(Reading::take(&clock)), Checked::Steady);
        }
    }

    #[test]
    fn a_step_is_suspect_until_the_clock_is_set_back_or_trusted() {
        let clock = ManualClock::new();
        let mut detector = StepDetector::new();
        detector.check(Reading::take(&clock));
        for step in [Step::Ahead(HOUR), Step::Behind(HOUR)] {
            let before = clock.now();
            clock.step(if step == Step::Ahead(HOUR) { before + HOUR } else { before - HOUR });
            assert_eq!(detector.check(Reading::take(&clock)), stepped(step, true));
            clock.advance(HOUR);
            assert_eq!(detector.check(Reading::take(&clock)), stepped(step, false));
            let good = detector.good().unwrap();
            assert_eq!(good.wall_at(clock.boot_time()), before + HOUR);
            clock.step(before + HOUR);
            assert_eq!(detector.check(Reading::take(&clock)), Checked::Steady);
        }
        clock.step(clock.now() + HOUR);
        detector.trust(Reading::take(&clock));
        assert_eq!(detector.check(Reading::take(&clock)), Checked::Steady);
    }

    #[test]
    fn a_step_is_accepted_after_running_steadily() {
        let clock = ManualClock::new();
        let mut detector = StepDetector::new().stable_after(STEP_STABLE_AFTER);
        detector.check(Reading::take(&clock));
        clock.step(clock.now() + HOUR);
        assert_eq!(detector.check(Reading::take(&clock)), stepped(Step::Ahead(HOUR), true));
        clock.advance(Span::from_secs(59));
        assert_eq!(detector.check(Reading::take(&clock)), stepped(Step::Ahead(HOUR), false));
        // Another step starts the time anew.
        clock.step(clock.now() + HOUR);
        let twice = Step::Ahead(Span::from_hours(2));
        assert_eq!(detector.check(Reading::take(&clock)), stepped(twice, true));
        clock.advance(STEP_STABLE_AFTER);
        assert_eq!(detector.check(Reading::take(&clock)), Checked::Accepted(twice));
        assert_eq!(detector.check(Reading::take(&clock)), Checked::Steady);
    }

    #[test]
    fn a_server_may_fall_back_but_not_jump_ahead() {
        let (server, ours) = (ManualClock::new(), ManualClock::new());
        let time = ServerTime::new();
        let check = || time.check("redis", server.now(), ours.boot_time());
        check().unwrap();
        for advance in [Span::from_mins(5), Span::ZERO] {
            server.advance(advance);
            check().unwrap();
        }
        server.set(server.now() - HOUR);
        assert!(!check().unwrap());
        // Replies of other nodes of a cluster are behind, too; the latest time stays the measure.
        server.set(server.now() + HOUR);
        check().unwrap();
        server.set(server.now() + HOUR);
        let error = check().unwrap_err();
        assert!(error.is_unavailable() && error.to_string().contains("ahead by 1h"), "{error}");
        server.advance(STEP_STABLE_AFTER);
        ours.advance(STEP_STABLE_AFTER);
        check().unwrap();
    }

    #[test]
    fn a_server_that_is_wrong_is_no_evidence() {
        let now = ManualClock::new().now();
        let minute = Span::from_mins(1);
        assert_eq!(from_future(now + HOUR, now, now + minute), Some(HOUR));
        assert_eq!(from_future(now + SERVER_AHEAD_MAX, now, now), None);
        assert_eq!(from_future(now, now - HOUR, now), None);
        assert_eq!(from_future(now + HOUR + HOUR, now + HOUR, now), None);
    }
}
