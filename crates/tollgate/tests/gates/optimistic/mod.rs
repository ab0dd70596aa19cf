//! One optimistic instance: the shared suite, and what each verb does with what is not posted yet.

mod books;
mod bound;
mod fleet;
mod headroom;
mod link;
mod verbs;

use std::sync::Arc;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tollgate::{
    Ask, Atomic, BoxFuture, Costs, Decision, Error, ErrorKind, Gate, ManualClock, Memory,
    Operation, Optimistic, OptimisticOptions, Outcome, Permit, Policy, Span, core,
};
use tollgate_testing::conformance::{ALL, Fixture};
use tollgate_testing::generate::{self, Pace};
use tollgate_testing::script::Single;

use crate::memory;

pub(crate) type OverMemory = Optimistic<Arc<Atomic<Memory>>>;

fn instance(unposted_max: u64) -> (Arc<OverMemory>, Arc<Atomic<Memory>>, ManualClock) {
    let (store, clock) = memory();
    // A denial that is repeated shows where the subject stood when the store gave it.
    let options = OptimisticOptions {
        recheck_after: Span::default(),
        ..OptimisticOptions::new(unposted_max)
    };
    let gate = Optimistic::new(Arc::clone(&store), options, Arc::new(clock.clone()));
    (Arc::new(gate), store, clock)
}

/// Posts before time moves on: the store charges a post when it comes, so only then does it say the same as an exact
/// gate to the microsecond. What a local permit shows is what the instance believes, which may be stricter, so the
/// store's word is shown instead.
#[derive(Debug)]
struct Prompt(Arc<OverMemory>);

impl Prompt {
    async fn then<T>(&self, policy: &Policy, subject: &str, answer: T) -> T {
        self.0.flush(policy, subject).await.expect("the store is in memory");
        answer
    }
}

impl Gate for Prompt {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        Box::pin(async move {
            let mut answer = self.0.acquire(ask).await;
            if let Ok(Decision::Admitted(permit)) = &mut answer {
                permit.limits = self.0.standing(ask.policy(), ask.subject()).await?;
            }
            self.then(ask.policy(), ask.subject(), answer).await
        })
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let answer = self.0.settle(permit, actual).await;
            self.then(permit.policy(), permit.subject(), answer).await
        })
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let answer = self.0.release(permit).await;
            self.then(permit.policy(), permit.subject(), answer).await
        })
    }

    tollgate::pass_on!(0: renew, charge, close_until, standing, reset);
}

/// R002.1, promise 8: an instance that posts promptly says what an exact gate says. The random stories of the suite are
/// told below: in them the clock steps back, and an instance that was told the later time stays there.
#[test]
fn r002_1_one_instance_that_posts_promptly_passes_the_suite() {
    for unposted_max in [0, 1, 3, 1_000_000] {
        let (gate, _, clock) = instance(unposted_max);
        let fixture = Fixture::new(Arc::new(Prompt(gate)), clock);
        for (name, test) in ALL.iter().filter(|(name, _)| *name != "agrees_with_core") {
            test(&fixture)
                .unwrap_or_else(|why| panic!("unposted_max {unposted_max}: {name}: {why}"));
        }
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
            generate::record(&policy, start, &moves, &mut Single::default().runner()).unwrap();
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
            gate.settle(permit, actual).await.map(Outcome::Settled)
        }
        Operation::Release(permit) => gate.release(permit).await.map(Outcome::Settled),
        Operation::Renew(permit) => gate.renew(permit).await.map(Outcome::Permitted),
        Operation::Close { policy, subject, limit, until } => {
            let ask = Ask::new(policy, *subject);
            gate.close_until(&ask, limit, *until).await.map(Outcome::Done)
        }
        Operation::Standing { policy, subject } => {
            gate.standing(policy, subject).await.map(Outcome::Stands)
        }
        Operation::Reset { policy, subject } => {
            gate.reset(policy, subject).await.map(Outcome::Done)
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
