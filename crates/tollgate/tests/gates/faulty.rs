//! What the tests of resending and of fallback share: a store that fails on command, and time that runs by itself.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tollgate::clock::ManualClock;
use tollgate::observe::{AttemptResult, Event, Observer};
use tollgate::policy::{OnStoreFailure, Rule};
use tollgate::strategy::{Fallback, FallbackOptions, RandomSource, Resend, ResendOptions};
use tollgate::{Clock, GateExt, Limit, Memory, Policy, RollingWindow, Span};
use tollgate_conformance::faulty::Faulty;

pub(crate) type Store = Arc<Faulty<Arc<Memory>>>;

/// A store in memory that fails on command, and the clock of everything.
pub(crate) fn store() -> (Store, ManualClock) {
    let (memory, clock) = crate::memory();
    (Arc::new(Faulty::new(memory)), clock)
}

pub(crate) fn resend(store: &Store, clock: &ManualClock) -> Resend<Store> {
    let clock = Arc::new(clock.clone());
    Resend::new(Arc::clone(store), ResendOptions::default(), clock).random(chance())
}

pub(crate) type Gated = Fallback<Resend<Store>>;

/// A fallback for one of ten instances, and what it says.
pub(crate) fn fallback(store: &Store, clock: &ManualClock) -> (Arc<Gated>, Arc<Heard>) {
    fallback_with(store, clock, FallbackOptions::new(10))
}

/// A fallback with these settings, and what it says.
pub(crate) fn fallback_with(
    store: &Store,
    clock: &ManualClock,
    settings: FallbackOptions,
) -> (Arc<Gated>, Arc<Heard>) {
    let heard = Arc::new(Heard::default());
    let inner = resend(store, clock).observer(heard.clone());
    let gate = Fallback::new(inner, settings, Arc::new(clock.clone())).unwrap();
    (Arc::new(gate.random(chance()).observer(heard.clone())), heard)
}

/// Numbers that differ, and are the same in every run.
pub(crate) fn chance() -> RandomSource {
    let drawn = AtomicU32::new(1);
    RandomSource::new(move || {
        drawn.fetch_add(0x9e37_79b9, Ordering::Relaxed).wrapping_mul(0x85eb_ca6b)
    })
}

/// At most `limit` in any hour, and what to do without the store.
pub(crate) fn hourly(limit: u64, action: OnStoreFailure) -> Policy {
    with(RollingWindow::new(limit, Span::from_hours(1)), action)
}

pub(crate) fn with(rule: impl Into<Rule>, action: OnStoreFailure) -> Policy {
    let limit = Limit::new("only", "requests", rule);
    Policy::builder("test").limit(limit).on_store_failure(action).build().unwrap()
}

/// Runs `work`; whenever nothing else can go on, the clock goes to the next time that somebody waits for.
pub(crate) async fn drive<T>(clock: &ManualClock, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = idle() => clock.set(clock.next_alarm().expect("somebody waits for a time")),
        }
    }
}

/// Lets every task run as far as it can.
pub(crate) async fn idle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Moves time by `span` in the steps that others wait for.
pub(crate) async fn pass(clock: &ManualClock, span: Span) {
    drive(clock, clock.sleep_until(clock.now() + span)).await;
    idle().await;
}

/// Moves time by `span` at once.
pub(crate) async fn leap(clock: &ManualClock, span: Span) {
    clock.advance(span);
    idle().await;
}

/// What the memory inside knows, whatever the way to it is like.
pub(crate) async fn used(store: &Store, policy: &Policy, subject: &str) -> u64 {
    store.inner().standing(policy, subject).await.unwrap()[0].used
}

/// What an observer was told.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(crate) tried: Mutex<Vec<(u32, AttemptResult)>>,
    pub(crate) told: Mutex<Vec<String>>,
}

impl Observer for Heard {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Tried { attempt, result, .. } => {
                self.tried.lock().unwrap().push((*attempt, *result));
            }
            Event::DegradedBegan { error } => {
                self.told.lock().unwrap().push(format!("began: {error}"));
            }
            Event::DegradedEnded { lasted } => {
                self.told.lock().unwrap().push(format!("ended: {lasted}"));
            }
            _ => {}
        }
    }
}
