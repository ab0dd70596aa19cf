//! Clocks, which are passed in.
//!
//! Everything that waits takes a [`Clock`], so tests move time by hand and never sleep. The one clock that reads the
//! machine's is [`SystemClock`], in the edge module.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tollgate_core::{Span, Timestamp};

use crate::gate::BoxFuture;
pub use crate::internal::edge::SystemClock;

/// Tells the time, and waits for a time.
pub trait Clock: Debug + Send + Sync + 'static {
    /// Returns the present instant. It may go back if the machine's clock is set.
    fn now(&self) -> Timestamp;

    /// Returns the time since some fixed instant. It never goes back, whatever happens to the wall clock.
    fn monotonic(&self) -> Span;

    /// Returns the time since boot, suspended time included. Like [`monotonic`](Self::monotonic) it cannot be set; unlike it, a
    /// suspended machine does not stop it.
    fn boot_time(&self) -> Span {
        self.monotonic()
    }

    /// Identifies the boot that [`boot_time`](Self::boot_time) counts from. `None` if it is unknown, so that boot times of
    /// two processes cannot be compared.
    fn boot_id(&self) -> Option<u128> {
        None
    }

    /// Returns the wall clock and [`boot_time`](Self::boot_time), both read now: unlike [`now`](Self::now), never from a reading
    /// that this thread kept.
    fn wall_and_boot(&self) -> (Timestamp, Span) {
        (self.now(), self.boot_time())
    }

    /// Returns [`now`](Self::now) and [`monotonic`](Self::monotonic) from one reading.
    fn both(&self) -> (Timestamp, Span) {
        (self.now(), self.monotonic())
    }

    /// Returns a mark for [`passed_since`](Self::passed_since), which is cheaper than a time, for frequent measurements.
    fn mark(&self) -> u64 {
        self.monotonic().as_micros()
    }

    /// Returns the time since `mark` was taken. It never goes back either.
    fn passed_since(&self, mark: u64) -> Span {
        Span::from_micros(self.monotonic().as_micros().saturating_sub(mark))
    }

    /// Resolves when [`now`](Self::now) has reached `at`. A clock that may be set back also resolves once as much time
    /// has passed as was left at the call, so that no task waits for ever.
    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()>;
}

/// A clock that is moved by hand, for tests. Clones share the same time.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use tollgate::clock::ManualClock;
/// use tollgate::{Clock, Span};
///
/// let clock = ManualClock::new();
/// let alarm = tokio::spawn(clock.sleep_until(clock.now() + Span::from_secs(60)));
/// clock.advance(Span::from_secs(60));
/// alarm.await.unwrap();
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<Mutex<Dial>>);

#[derive(Debug, Default)]
struct Dial {
    /// Different for every clock.
    boot_id: u128,
    now: Timestamp,
    passed: Span,
    next_sleeper: u64,
    sleepers: BTreeMap<(Timestamp, u64), Waker>,
}

impl ManualClock {
    /// Creates a clock at the Unix epoch plus fifty years.
    #[must_use]
    pub fn new() -> Self {
        Self::at(Timestamp::from_secs(50 * 365 * 86_400))
    }

    /// Creates a clock at `now`.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        static BOOTS: AtomicU64 = AtomicU64::new(1);
        let clock = Self::default();
        clock.dial().boot_id = BOOTS.fetch_add(1, Ordering::Relaxed).into();
        clock.dial().now = now;
        clock
    }

    /// Moves time forward by `span` and wakes the sleepers up to then.
    pub fn advance(&self, span: impl Into<Span>) {
        let to = self.dial().now + span.into();
        self.set(to);
    }

    /// Sets the time, forward or back, and wakes the sleepers up to then. Forward, so much time passes;
    /// back, none does.
    pub fn set(&self, now: Timestamp) {
        self.turn(now, Span::plus);
    }

    /// Sets the wall clock, forward or back, while no time passes, as an administrator does.
    pub fn step(&self, now: Timestamp) {
        self.turn(now, |passed, _| passed);
    }

    fn turn(&self, now: Timestamp, passed: impl Fn(Span, Span) -> Span) {
        let due = {
            let mut dial = self.dial();
            dial.passed = passed(dial.passed, now.since(dial.now));
            dial.now = now;
            let later = dial.sleepers.split_off(&(now + Span::from_micros(1), 0));
            std::mem::replace(&mut dial.sleepers, later)
        };
        due.into_values().for_each(Waker::wake);
    }

    /// Returns the earliest wake-up time.
    #[must_use]
    pub fn next_alarm(&self) -> Option<Timestamp> {
        self.dial().sleepers.keys().next().map(|(at, _)| *at)
    }

    fn dial(&self) -> MutexGuard<'_, Dial> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.dial().now
    }

    fn monotonic(&self) -> Span {
        self.dial().passed
    }

    fn boot_id(&self) -> Option<u128> {
        Some(self.dial().boot_id).filter(|id| *id != 0)
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()> {
        let alarm = Alarm { clock: self.clone(), at, key: None };
        Box::pin(async move {
            let mut alarm = alarm;
            poll_fn(|context| alarm.poll(context.waker())).await;
        })
    }
}

/// A sleeper; dropping it removes its waker.
struct Alarm {
    clock: ManualClock,
    at: Timestamp,
    key: Option<u64>,
}

impl Alarm {
    fn poll(&mut self, waker: &Waker) -> Poll<()> {
        let mut dial = self.clock.dial();
        if self.at <= dial.now {
            return Poll::Ready(());
        }
        let key = *self.key.get_or_insert_with(|| {
            dial.next_sleeper += 1;
            dial.next_sleeper
        });
        dial.sleepers.insert((self.at, key), waker.clone());
        Poll::Pending
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.clock.dial().sleepers.remove(&(self.at, key));
        }
    }
}
