//! The clock of one machine: it starts off by an offset, drifts, and is set now and then.
//!
//! Sleeping follows the promise of [`Clock`]: it ends when the wall shows the time, or once as much time has passed as
//! was left. The clock of a crashed machine stops, so its tasks never wake.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tollgate::gate::BoxFuture;
use tollgate::{Clock, Span, Timestamp};

use crate::world::World;

const MILLION: i128 = 1_000_000;

/// The clock of one machine. Clones are the same clock.
#[derive(Clone)]
pub struct SimClock {
    world: World,
    id: u64,
    dial: Arc<Mutex<Dial>>,
}

#[derive(Clone, Copy)]
struct Dial {
    /// True time when the clock was last set, and what it showed then.
    true_anchor: u64,
    wall_anchor: u64,
    /// True time at which it was made.
    born: u64,
    drift_ppm: i32,
    is_dead: bool,
}

impl Dial {
    /// Converts a true time to the time that passes on this clock.
    fn local(&self, micros: u64) -> u64 {
        to_u64(i128::from(micros) * (MILLION + i128::from(self.drift_ppm)) / MILLION)
    }

    /// Converts a time on this clock to the true time, rounded up.
    fn real(&self, micros: u64) -> u64 {
        let rate = MILLION + i128::from(self.drift_ppm);
        to_u64((i128::from(micros) * MILLION + rate - 1) / rate)
    }

    fn wall(&self, now: u64) -> u64 {
        self.wall_anchor + self.local(now - self.true_anchor)
    }
}

fn to_u64(number: i128) -> u64 {
    u64::try_from(number.max(0)).unwrap_or(u64::MAX)
}

impl SimClock {
    pub(crate) fn new(world: &World) -> Self {
        let now = world.micros();
        let dial =
            Dial { true_anchor: now, wall_anchor: now, born: now, drift_ppm: 0, is_dead: false };
        Self { world: world.clone(), id: world.new_clock(), dial: Arc::new(Mutex::new(dial)) }
    }

    /// The same clock, which gains `drift_ppm` microseconds per second (loses, below zero).
    #[must_use]
    pub fn drifting(self, drift_ppm: i32) -> Self {
        self.dial().drift_ppm = drift_ppm;
        self
    }

    /// Sets the clock forward by `micros`, or back if below zero. Only the wall time changes.
    pub fn step(&self, micros: i64) {
        let now = self.world.micros();
        {
            let mut dial = self.dial();
            let stepped = i128::from(dial.wall(now)) + i128::from(micros);
            (dial.wall_anchor, dial.true_anchor) = (to_u64(stepped), now);
        }
        self.world.wake_clock(self.id);
    }

    /// Stops the clock of a crashed machine: its sleepers never wake.
    pub(crate) fn kill(&self) {
        self.dial().is_dead = true;
    }

    fn dial(&self) -> MutexGuard<'_, Dial> {
        self.dial.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let now = self.world.micros();
        Timestamp::from_micros(self.dial().wall(now))
    }

    /// Returns the time since this clock was made, which cannot be set.
    fn monotonic(&self) -> Span {
        let dial = *self.dial();
        Span::from_micros(dial.local(self.world.micros() - dial.born))
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()> {
        let left = at.since(self.now()).as_micros();
        let due = self.world.micros() + self.dial().real(left);
        let mut alarm = Alarm { clock: self.clone(), at, due, key: None };
        Box::pin(poll_fn(move |context| alarm.poll(context.waker())))
    }
}

impl fmt::Debug for SimClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimClock").field("now", &self.now()).finish_non_exhaustive()
    }
}

/// A sleeper; dropping it removes its alarm.
struct Alarm {
    clock: SimClock,
    at: Timestamp,
    /// True time by which enough time has passed, however the wall was set.
    due: u64,
    key: Option<u64>,
}

impl Alarm {
    fn poll(&mut self, waker: &Waker) -> Poll<()> {
        let clock = &self.clock;
        if clock.dial().is_dead {
            return Poll::Pending;
        }
        if self.due <= clock.world.micros() || self.at <= clock.now() {
            return Poll::Ready(());
        }
        self.key = Some(clock.world.set_alarm(self.due, self.key, clock.id, waker));
        Poll::Pending
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.clock.world.clear_alarm(self.due, key);
        }
    }
}
