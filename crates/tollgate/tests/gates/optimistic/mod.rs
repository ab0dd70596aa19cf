//! One optimistic instance: the shared suite, and what each verb does with what is not posted yet.

mod books;
mod bound;
mod fleet;
mod headroom;
mod link;
mod verbs;

use std::sync::Arc;
use std::time::Duration;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tollgate::clock::ManualClock;
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::strategy::{Optimistic, OptimisticOptions};
use tollgate::{Ask, Decision, Error, ErrorKind, Gate, GateExt, Memory, core};
use tollgate_conformance::generate::{self, Pace};
use tollgate_conformance::script::SingleEntry;
use tollgate_conformance::{Capabilities, Fixture};

use crate::memory;

pub(crate) type OverMemory = Optimistic<Arc<Memory>>;

fn instance(unposted_max: u64) -> (Arc<OverMemory>, Arc<Memory>, ManualClock) {
    let (store, clock) = memory();
    // A denial that is repeated shows where the subject stood when the store gave it.
    let options =
        OptimisticOptions { recheck_after: Duration::ZERO, ..OptimisticOptions::new(unposted_max) };
    let gate = Optimistic::new(Arc::clone(&store), options, Arc::new(clock.clone()));
    (Arc::new(gate), store, clock)
}

/// Posts before time moves on: the store charges a post when it comes, so only then does it say the same as an exact
/// gate to the microsecond. What a local permit shows is what the instance believes, which may be stricter, so the
/// store's word is shown instead.
#[derive(Debug)]
struct Prompt(Arc<OverMemory>);

impl Gate for Prompt {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            let mut outcome = self.0.run(operation).await;
            let (policy, subject) = (operation.policy(), operation.subject());
            if let Ok(Outcome::Decided(Decision::Admitted(permit))) = &mut outcome {
                permit.limits = self.0.standing(policy, subject).await?;
            }
            if matches!(
                operation,
                Operation::Acquire(_) | Operation::Settle(..) | Operation::Release(_)
            ) {
                self.0.flush(policy, subject).await.expect("the store is in memory");
            }
            outcome
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}

/// An instance that posts promptly. Random scripts are told below: in them the clock steps back, and an instance that was
/// told the later time stays there.
fn prompt(unposted_max: u64) -> Fixture {
    let (gate, _, clock) = instance(unposted_max);
    let fixture = Fixture::new(Arc::new(Prompt(gate)), clock);
    fixture.with_capabilities(Capabilities { stories: 0, joint: true, ..Capabilities::default() })
}

tollgate_conformance::suite! {
    /// R002.1, promise 8: it says what an exact gate says.
    fn r002_1_one_instance_that_posts_promptly_passes_the_suite() -> Fixture {
        prompt(0)
    }

    fn posting_after_one() -> Fixture {
        prompt(1)
    }

    fn posting_after_three() -> Fixture {
        prompt(3)
    }

    fn posting_seldom() -> Fixture {
        prompt(1_000_000)
    }
}

/// R002.1, promise 8: as above, on random stories in which time goes forward.
#[test]
fn r002_1_one_instance_that_posts_promptly_agrees_with_the_core() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut runner = TestRunner::deterministic();
    let stories = (generate::policy(), generate::start(), generate::moves(24));
    for story in 0..300 {
        let (policy, start, mut moves) = stories.new_tree(&mut runner).unwrap().current();
        for step in &mut moves {
            if matches!(step.pace, Pace::Back(_)) {
                step.pace = Pace::Stay;
            }
        }
        let expected =
            generate::record(&policy, start, &moves, &mut SingleEntry::default().runner()).unwrap();
        let (gate, _, clock) = instance(story % 5);
        let gate = Prompt(gate);
        let got = generate::record(&policy, start, &moves, &mut |now, operation| {
            clock.set(now);
            runtime.block_on(through(&gate, operation))
        });
        assert_eq!(expected, got.unwrap(), "story {story}, under {policy:?}");
    }
}

/// One operation through the verbs of a gate.
async fn through(gate: &dyn Gate, operation: &Operation<'_>) -> Result<Outcome, core::Error> {
    let answer = match operation {
        Operation::Acquire(ask) => gate.acquire(ask).await.map(Outcome::Decided),
        Operation::Charge(ask) => gate.charge(ask).await.map(Outcome::Permitted),
        Operation::Settle(permit, actual) => {
            gate.settle(permit, actual).await.map(Outcome::Changed)
        }
        Operation::Release(permit) => gate.release(permit).await.map(Outcome::Changed),
        Operation::Renew(permit) => gate.renew(permit).await.map(Outcome::Permitted),
        Operation::Close { policy, subject, limit, until } => {
            let ask = Ask::new(policy, *subject);
            gate.close_until(&ask, limit, *until).await.map(Outcome::Changed)
        }
        Operation::Standing { policy, subject } => {
            gate.standing(policy, subject).await.map(Outcome::Standings)
        }
        Operation::Reset { policy, subject } => {
            gate.reset(policy, subject).await.map(Outcome::Changed)
        }
    };
    answer.map_err(|error| {
        let kind = match error.kind() {
            ErrorKind::Conflict => core::ErrorKind::Conflict,
            ErrorKind::Contended => core::ErrorKind::Contended,
            ErrorKind::Expired => core::ErrorKind::Expired,
            _ => core::ErrorKind::Invalid,
        };
        core::Error::new(kind, error.to_string())
    })
}
