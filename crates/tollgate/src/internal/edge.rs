//! The edge: the only module that reads the machine's clock, sleeps, draws random numbers or reads the environment.
//!
//! Everything else takes these as values or traits, which clippy enforces.
#![allow(
    clippy::disallowed_methods,
    reason = "this is the one place where the outside world is read"
)]

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, SystemTime};

use tollgate_core::{Span, Timestamp};

use crate::clock::Clock;
use crate::gate::BoxFuture;

/// The machine's wall clock. It sleeps on the tokio runtime, or on a thread where there is none.
///
/// Reading the wall takes longer than a decision, so each thread reads it once per [`ANCHOR_TTL`] and counts processor
/// ticks from there. A wall clock that is set is noticed within that time; the drift in between is far below a
/// microsecond.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// How long a thread counts ticks from one reading of the wall clock.
pub const ANCHOR_TTL: Span = Span::from_millis(10);

static TICKS: LazyLock<quanta::Clock> = LazyLock::new(quanta::Clock::new);

thread_local! {
    /// Ticks and wall clock (in nanoseconds and microseconds) when this thread last read both.
    static ANCHOR: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

const ANCHOR_TTL_NANOS: u64 = ANCHOR_TTL.as_micros() * 1_000;

fn wall_micros() -> u64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let since_epoch = since_epoch.unwrap_or(Duration::ZERO);
    since_epoch.as_secs() * 1_000_000 + u64::from(since_epoch.subsec_micros())
}

#[cold]
fn anchor(ticks: u64) -> u64 {
    let wall = wall_micros();
    ANCHOR.set((ticks, wall));
    wall
}

#[inline]
fn wall_at(clock: &quanta::Clock, raw: u64) -> Timestamp {
    let (ticks, wall) = ANCHOR.get();
    let passed = clock.delta_as_nanos(ticks, raw);
    let micros =
        if wall != 0 && passed < ANCHOR_TTL_NANOS { wall + passed / 1_000 } else { anchor(raw) };
    Timestamp::from_micros(micros)
}

#[inline]
fn passed_at(clock: &quanta::Clock, raw: u64) -> Span {
    Span::from_micros(clock.delta_as_nanos(0, raw) / 1_000)
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        wall_at(&TICKS, TICKS.raw())
    }

    #[inline]
    fn monotonic(&self) -> Span {
        passed_at(&TICKS, TICKS.raw())
    }

    #[cfg(target_os = "linux")]
    fn boot_time(&self) -> Span {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let (secs, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
        Span::from_micros(secs.saturating_mul(1_000_000).saturating_add(nanos / 1_000))
    }

    fn wall_and_boot(&self) -> (Timestamp, Span) {
        // Threads that kept readings from before and after a step would disagree for a while.
        (Timestamp::from_micros(wall_micros()), self.boot_time())
    }

    #[cfg(target_os = "linux")]
    fn boot_id(&self) -> Option<u128> {
        static ID: LazyLock<Option<u128>> = LazyLock::new(|| {
            let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
            u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
        });
        *ID
    }

    #[inline]
    fn both(&self) -> (Timestamp, Span) {
        let raw = TICKS.raw();
        (wall_at(&TICKS, raw), passed_at(&TICKS, raw))
    }

    #[inline]
    fn mark(&self) -> u64 {
        TICKS.raw()
    }

    #[inline]
    fn passed_since(&self, mark: u64) -> Span {
        Span::from_micros(TICKS.delta_as_nanos(mark, TICKS.raw()) / 1_000)
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // The timer runs on another clock than the wall's: it ends the wait if the wall is set back, and looks at
            // the wall now and then in case that is set forward.
            let mut unslept = at.since(Self.now());
            while !unslept.is_zero() && Self.now() < at {
                let nap = unslept.min(LONGEST_SLEEP).min(at.since(Self.now()));
                sleep(nap.into()).await;
                unslept = Span::from_micros(unslept.as_micros().saturating_sub(nap.as_micros()));
            }
        })
    }
}

/// Sleeps on the tokio runtime, or on a thread of its own where there is none.
async fn sleep(span: Duration) {
    #[cfg(feature = "strategies")]
    if tokio::runtime::Handle::try_current().is_ok() {
        return tokio::time::sleep(span).await;
    }
    let alarm = Arc::new(Mutex::new((false, None::<Waker>)));
    let ring = Arc::clone(&alarm);
    thread::spawn(move || {
        thread::sleep(span);
        let (rung, waker) = &mut *ring.lock().unwrap_or_else(PoisonError::into_inner);
        *rung = true;
        waker.take().into_iter().for_each(Waker::wake);
    });
    poll_fn(|context| {
        let (rung, waker) = &mut *alarm.lock().unwrap_or_else(PoisonError::into_inner);
        if *rung {
            return Poll::Ready(());
        }
        *waker = Some(context.waker().clone());
        Poll::Pending
    })
    .await;
}

/// Runs `work` on the tokio runtime, or on a thread of its own where there is none.
pub(crate) fn spawn(mut work: BoxFuture<'static, ()>) {
    #[cfg(feature = "strategies")]
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(work);
        return;
    }
    let run = move || {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        while work.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            thread::park();
        }
    };
    // Without a thread, the work is lost as in a crash.
    drop(thread::Builder::new().name("tollgate-work".to_owned()).spawn(run));
}

/// Wakes a thread that polls a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A wall clock that is set forward is noticed at least this often.
const LONGEST_SLEEP: Span = Span::from_secs(60);

/// A number drawn uniformly from all of `u32`, for jitter.
#[must_use]
pub fn random() -> u32 {
    fastrand::u32(..)
}

/// Every environment variable whose name and value are valid text.
pub fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// The environment variable `name`, if it is set to valid text.
#[must_use]
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
