//! Posts local admissions in the background, until the store has them.
//!
//! One poster at a time works for an account, and only posters send, so a caller that goes away leaves nothing half done.
//! A poster that is stopped leaves the sent batch as it was, for the next one to send again under the same id.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use compact_str::CompactString;
use tokio::sync::{Notify, Semaphore};
use tollgate_core::{Permit, Policy, REQUESTS, Span, Timestamp};

use super::account::Account;
use super::ledger::Ledger;
use super::options::OptimisticOptions;
use super::outbox::{Call, Flushed, Refund};
use super::view::StoreReply;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::gate::{Gate, GateExt};
use crate::observe::{Event, Observer};
use crate::strategy::over_issue;
use crate::strategy::random::RandomSource;

/// The state that the gate and its posters share.
#[derive(Debug)]
pub(super) struct Shared<G> {
    pub(super) gate: G,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) options: OptimisticOptions,
    pub(super) ledger: Ledger,
    pub(super) observer: Option<Arc<dyn Observer>>,
    /// Notified after every attempt of every poster.
    pub(super) progress: Notify,
    posts: Semaphore,
    pub(super) random: RandomSource,
    /// Makes the ids of this instance unlike those of any other.
    pub(super) salt: String,
    ids: AtomicU64,
}

pub(super) type Key = (Policy, CompactString);

impl<G: Gate> Shared<G> {
    pub(super) fn new(gate: G, options: OptimisticOptions, clock: Arc<dyn Clock>) -> Self {
        let random = RandomSource::default();
        Self {
            gate,
            clock,
            ledger: Ledger::new(options.subjects_max),
            observer: None,
            progress: Notify::new(),
            posts: Semaphore::new(options.posts_max.clamp(1, Semaphore::MAX_PERMITS)),
            options,
            salt: random.id(),
            random,
            ids: AtomicU64::new(0),
        }
    }

    fn with<R>(
        &self,
        (policy, subject): &Key,
        change: impl FnOnce(&mut Account) -> R,
    ) -> Option<R> {
        self.ledger.with(policy, subject, change)
    }

    /// Works for one account until nothing is left to send.
    pub(super) async fn post(self: Arc<Self>, key: Key) {
        let mut guard = PosterGuard { shared: &self, key: &key, stopped: true };
        let Some(urgent) = self.with(&key, |account| account.outbox().urgent()) else { return };
        let mut pause = Span::from(self.options.post_every);
        let mut attempt = 0;
        loop {
            let until = self.clock.now() + pause;
            first(self.clock.sleep_until(until), urgent.notified()).await;
            let Ok(_turn) = self.posts.acquire().await else { return };
            let Some((call, version)) = self.next_call(&key) else {
                guard.stopped = false;
                return;
            };
            if self.run(&key, call, version).await {
                (pause, attempt) = (self.options.post_every.into(), 0);
                // Refunds are posted at once: unused room is lost.
                if self.with(&key, |account| account.outbox().has_refunds()) == Some(true) {
                    urgent.notify_one();
                }
            } else {
                pause = self.options.backoff.delay(attempt, self.random.draw());
                attempt = attempt.saturating_add(1);
            }
            self.progress.notify_waiters();
        }
    }

    /// Returns the next call and the version to send it under. On `None` the poster is done.
    fn next_call(&self, key: &Key) -> Option<(Call, u64)> {
        let id = || format!("o{}-{:x}", self.salt, self.ids.fetch_add(1, Ordering::Relaxed));
        self.with(key, |account| {
            let call = account.next_call(id, self.options.resend_for.into());
            account.posting = call.is_some();
            call
        })?
    }

    /// Runs `call` once, and returns whether it is done.
    async fn run(&self, key: &Key, call: Call, version: u64) -> bool {
        let done = match call {
            Call::Post(ask) => {
                self.report(key);
                let answer = self.in_time(self.gate.charge(&ask)).await;
                let standings = match &answer {
                    // A gate whose answer has no standings is queried for them.
                    Ok(permit) if permit.limits.is_empty() => {
                        self.in_time(self.gate.standing(ask.policy(), &key.1)).await.ok()
                    }
                    _ => None,
                };
                answer.map(|permit| {
                    let (at, limits) = match &standings {
                        Some(limits) => (None, limits),
                        None => (Some(permit.grant().at), &permit.limits),
                    };
                    if let Some(observer) = &self.observer {
                        over_issue::observe_charge(&**observer, &ask, limits);
                    }
                    let reply = StoreReply { policy: ask.policy(), limits, at };
                    self.posted(key, &permit, reply, version);
                })
            }
            Call::Refund(refund) => self.refund(key, &refund).await,
        };
        match done {
            Ok(()) => true,
            Err(error) => {
                self.with(key, |account| account.outbox_mut().failed(error));
                false
            }
        }
    }

    fn posted(&self, key: &Key, permit: &Permit, reply: StoreReply<'_>, version: u64) {
        let now = self.clock.now();
        self.with(key, |account| {
            account.posted(permit);
            account.learn(reply, version, now);
        });
        self.report(key);
    }

    async fn refund(&self, key: &Key, refund: &Refund) -> Result<(), Error> {
        match self.in_time(self.gate.settle(&refund.permit, &refund.actual)).await {
            // A refund that the store refuses stays charged.
            Err(error) if error.is_unavailable() || error.kind() == ErrorKind::Contended => {
                return Err(error);
            }
            _ => {}
        }
        self.with(key, |account| account.refunded(refund));
        Ok(())
    }

    pub(super) async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let timeout = Span::from(self.options.attempt_timeout);
        let late = self.clock.sleep_until(self.clock.now() + timeout);
        first(call, late).await.unwrap_or_else(|| {
            let text = format!("optimistic: the store did not answer within {timeout}");
            Err(Error::new(ErrorKind::TimedOut, text))
        })
    }

    fn report(&self, key: &Key) {
        let Some(observer) = &self.observer else { return };
        let (policy, _) = key;
        let unit_index = policy.units().position(|unit| unit == REQUESTS).unwrap_or(0);
        let unit = policy.units().nth(unit_index).unwrap_or(REQUESTS);
        let unposted_max = self.options.unposted_max_of(unit);
        if let Some(unposted) = self.with(key, |account| account.unposted().at(unit_index)) {
            observer.observe(&Event::Unposted { policy, unposted, unposted_max });
        }
    }

    /// Waits until the store has everything that was unposted when this was called. Returns whether there was anything.
    pub(super) async fn flush(&self, key: &Key) -> Result<bool, Error> {
        let Some(mark) = self.with(key, |account| account.mark()).flatten() else {
            return Ok(false);
        };
        loop {
            let Some(flushed) = self.with(key, |account| account.flushed(mark)) else {
                return Ok(true);
            };
            let progress = match flushed {
                Flushed::Yes => return Ok(true),
                Flushed::Failed(error) => return Err(error),
                Flushed::NotYet(progress) => progress,
            };
            // Listening begins before the second look, so that nothing is missed between the two.
            let more = progress.notified();
            let again = self.with(key, |account| {
                account.outbox().urge();
                account.flushed(mark)
            });
            if matches!(again, Some(Flushed::NotYet(_))) {
                more.await;
            }
        }
    }

    /// Waits until nothing is left to post, or until `deadline`.
    pub(super) async fn finish(&self, deadline: Timestamp) -> Result<(), Error> {
        loop {
            let more = self.progress.notified();
            let left = self.ledger.with_calls().len();
            if left == 0 {
                return Ok(());
            }
            if first(more, self.clock.sleep_until(deadline)).await.is_none() {
                let text = format!(
                    "optimistic: the admissions of {left} subjects could not be posted in time"
                );
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
        }
    }
}

/// Lets another poster begin if this one was stopped before it was done.
struct PosterGuard<'a, G: Gate> {
    shared: &'a Shared<G>,
    key: &'a Key,
    stopped: bool,
}

impl<G: Gate> Drop for PosterGuard<'_, G> {
    fn drop(&mut self) {
        if self.stopped {
            self.shared.with(self.key, |account| account.posting = false);
        }
    }
}

/// Returns the output of `wanted`, or `None` if `other` is ready before it.
async fn first<T>(wanted: impl Future<Output = T>, other: impl Future) -> Option<T> {
    let (mut wanted, mut other) = (pin!(wanted), pin!(other));
    poll_fn(|context| {
        if let Poll::Ready(output) = wanted.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        other.as_mut().poll(context).map(|_| None)
    })
    .await
}
