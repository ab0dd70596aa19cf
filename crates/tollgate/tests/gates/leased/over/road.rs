//! The road from an instance to the store, with what goes wrong on it, and what an instance itself does wrong where it is
//! to be caught.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tollgate::clock::ManualClock;
use tollgate::core::Grant;
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{Ask, Clock, Decision, Error, ErrorKind, Gate, GateExt, Memory, Span};

/// How long returns take where nothing else is slow.
pub(super) const RETURN: Span = Span::from_secs(5);

/// What is wrong with an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// The end of a block counts from the answer to its lease.
    CountsFromAnswer,
    /// A return credits all that is left, although time has given some of it back.
    FullCredit,
    /// Blocks do not end where a rule starts afresh.
    CrossesBoundary,
}

/// The road to the store: slow, and sometimes it loses what goes either way.
#[derive(Debug)]
pub(super) struct Road {
    pub(super) store: Arc<Memory>,
    pub(super) truth: ManualClock,
    pub(super) random: Mutex<fastrand::Rng>,
    pub(super) fault: Fault,
    /// How much gets lost, in parts of 256.
    pub(super) losses: u8,
    /// How long answers were waited for; the sabotaged clock leaves it out.
    pub(super) waited: Arc<AtomicU64>,
}

impl Road {
    async fn travel(&self) -> Result<(), Error> {
        let (lost, delay) = {
            let mut random = self.random.lock().expect("nobody panicked");
            let delays = [0, 0, 0, 0, 0, 0, 5, 20, 60, 400];
            let delays = if self.losses == 0 { &delays[..1] } else { &delays };
            (random.u8(..) < self.losses, delays[random.usize(..delays.len())])
        };
        if delay != 0 {
            self.truth.sleep_until(self.truth.now() + Span::from_millis(delay)).await;
        }
        if lost {
            return Err(Error::new(ErrorKind::Unavailable, "lost on the road"));
        }
        Ok(())
    }

    async fn carried<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.travel().await?;
        let answer = work.await;
        self.travel().await?;
        answer
    }

    async fn ask(&self, ask: &Ask<'_>) -> Result<Decision, Error> {
        let began = self.truth.monotonic();
        let decision = self.carried(self.store.acquire(ask)).await;
        let took = self.truth.monotonic().as_micros() - began.as_micros();
        self.waited.fetch_add(took, Ordering::Relaxed);
        match decision? {
            // Whoever believes a block to be older sees no boundary in front of it.
            Decision::Admitted(permit) if self.fault == Fault::CrossesBoundary => {
                let earlier = permit.grant().at - Span::from_millis(250);
                let grant = Grant { at: earlier, ..*permit.grant() };
                Ok(Decision::Admitted(permit.with_grant(grant)))
            }
            decision => Ok(decision),
        }
    }
}

impl Gate for Road {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        match operation {
            Operation::Acquire(ask) => {
                Box::pin(async move { self.ask(ask).await.map(Outcome::Decided) })
            }
            Operation::Settle(permit, actual) => Box::pin(async move {
                if self.losses == 0 {
                    self.truth.sleep_until(self.truth.now() + RETURN).await;
                }
                let mut permit = permit.clone();
                if self.fault == Fault::FullCredit {
                    // Charged after everything there is, so nothing was lower since.
                    let stamp = permit.grant().stamp + (1 << 52);
                    let grant = Grant { at: self.truth.now(), stamp, ..*permit.grant() };
                    permit = permit.with_grant(grant);
                }
                self.carried(self.store.run(Operation::Settle(&permit, actual))).await
            }),
            Operation::Release(_) | Operation::Charge(_) => {
                Box::pin(self.carried(self.store.run(operation)))
            }
            other => self.store.run(other),
        }
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
