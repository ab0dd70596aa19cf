//! Simulated time. It moves only when nothing else can run, and then to the next alarm.
//!
//! Everything runs on one thread of tokio without a timer. When the runtime is about to park, no task can go on, so the
//! world sets its time to the earliest alarm and wakes its sleeper. Nothing depends on how fast the machine is:
//! the same seed gives the same run, and the trace's hash shows it.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tokio::runtime::Builder;
use tollgate::{Clock as _, Span, Timestamp};

use crate::clock::SimClock;

/// True time at the start of every run, in microseconds: a time like any other.
const START: u64 = 50 * 365 * 86_400 * 1_000_000;

/// A deadlock: every task waits for an event that will not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck;

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the simulated fleet is stuck: no task can run and none waits for a time")
    }
}

impl std::error::Error for Stuck {}

/// A simulated world. Clones are the same world.
#[derive(Clone)]
pub struct World(Arc<Mutex<Inner>>);

struct Inner {
    now: u64,
    next_alarm: u64,
    /// By time, then in the order of falling asleep; with the clock that the sleeper looks at.
    alarms: BTreeMap<(u64, u64), (u64, Waker)>,
    next_clock: u64,
    root: Option<Waker>,
    is_stuck: bool,
    hash: u64,
    lines: Option<Vec<String>>,
}

impl World {
    /// Runs `scenario` in a world of its own to its end. Jitter that the library draws comes from `seed` too.
    ///
    /// # Errors
    /// [`Stuck`] if no task can run and none waits for a time.
    pub fn run<T, F: Future<Output = T>>(
        seed: u64,
        scenario: impl FnOnce(Self) -> F,
    ) -> Result<(T, Self), Stuck> {
        Self::run_with(seed, false, scenario)
    }

    /// The same, and `traced` keeps the lines of the trace.
    ///
    /// # Errors
    /// [`Stuck`] if no task can run and none waits for a time.
    pub fn run_with<T, F: Future<Output = T>>(
        seed: u64,
        traced: bool,
        scenario: impl FnOnce(Self) -> F,
    ) -> Result<(T, Self), Stuck> {
        fastrand::seed(seed);
        let world = Self(Arc::new(Mutex::new(Inner {
            now: START,
            next_alarm: 0,
            alarms: BTreeMap::new(),
            next_clock: 0,
            root: None,
            is_stuck: false,
            hash: 0xcbf2_9ce4_8422_2325,
            lines: traced.then(Vec::new),
        })));
        let idle = world.clone();
        let runtime = Builder::new_current_thread()
            .on_thread_park(move || idle.advance())
            .build()
            .map_err(|_| Stuck)?;
        let answer = runtime.block_on(async {
            let mut future = pin!(scenario(world.clone()));
            poll_fn(|context| {
                let is_stuck = {
                    let mut inner = world.inner();
                    inner.root = Some(context.waker().clone());
                    std::mem::take(&mut inner.is_stuck)
                };
                match future.as_mut().poll(context) {
                    Poll::Ready(answer) => Poll::Ready(Ok(answer)),
                    Poll::Pending if is_stuck => Poll::Ready(Err(Stuck)),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await
        });
        Ok((answer?, world))
    }

    /// True time, which no clock in the world need show.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.micros())
    }

    /// How much true time has passed.
    #[must_use]
    pub fn elapsed(&self) -> Span {
        Span::from_micros(self.micros() - START)
    }

    /// A clock that shows true time.
    #[must_use]
    pub fn clock(&self) -> SimClock {
        SimClock::new(self)
    }

    /// Resolves when `span` of true time has passed.
    pub async fn sleep(&self, span: Span) {
        let clock = self.clock();
        clock.sleep_until(clock.now() + span).await;
    }

    /// Notes that something happened: `what` to `who`, with a number. The words go into the trace, and all of it into
    /// the hash.
    pub fn note(&self, what: &'static str, who: u64, number: u64, words: impl FnOnce() -> String) {
        let mut inner = self.inner();
        let mut hash = inner.hash;
        let numbers = [inner.now, who, number].map(u64::to_le_bytes);
        for byte in what.bytes().chain(numbers.into_iter().flatten()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        inner.hash = hash;
        let at = Span::from_micros(inner.now - START).as_micros();
        if let Some(lines) = &mut inner.lines {
            let (secs, micros) = (at / 1_000_000, at % 1_000_000);
            lines.push(format!("{secs:>4}.{micros:06}  {what:<10} {}", words()));
        }
    }

    /// A hash of everything that was noted.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.inner().hash
    }

    /// The trace, if it is kept.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.inner().lines.clone().unwrap_or_default()
    }

    pub(crate) fn micros(&self) -> u64 {
        self.inner().now
    }

    pub(crate) fn new_clock(&self) -> u64 {
        let mut inner = self.inner();
        inner.next_clock += 1;
        inner.next_clock
    }

    /// Sets an alarm, or replaces the waker of the one with this `key`. Returns its key.
    pub(crate) fn set_alarm(&self, at: u64, key: Option<u64>, clock: u64, waker: &Waker) -> u64 {
        let mut inner = self.inner();
        let key = key.unwrap_or_else(|| {
            inner.next_alarm += 1;
            inner.next_alarm
        });
        inner.alarms.insert((at, key), (clock, waker.clone()));
        key
    }

    pub(crate) fn clear_alarm(&self, at: u64, key: u64) {
        let alarm = self.inner().alarms.remove(&(at, key));
        // A waker may own the last part of a task, which may hold alarms: it is dropped after the lock.
        drop(alarm);
    }

    /// Wakes the sleepers of `clock`, because it was set.
    pub(crate) fn wake_clock(&self, clock: u64) {
        let wakers: Vec<Waker> = {
            let inner = self.inner();
            let of_clock = inner.alarms.values().filter(|(of, _)| *of == clock);
            of_clock.map(|(_, waker)| waker.clone()).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Advances to the next alarm, because no task can run. Wakes the scenario too, so that the runtime never really parks.
    fn advance(&self) {
        let (due, root) = {
            let mut inner = self.inner();
            let due = inner.alarms.pop_first();
            match &due {
                Some(((at, _), _)) => inner.now = inner.now.max(*at),
                None => inner.is_stuck = true,
            }
            (due, inner.root.clone())
        };
        if let Some((_, (_, waker))) = due {
            waker.wake();
        }
        if let Some(root) = root {
            root.wake();
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("elapsed", &self.elapsed()).finish_non_exhaustive()
    }
}
