//! A queue in front of a gate that takes a moment to answer: what happens between the decision and its answer.

use std::sync::Arc;

use tokio::task::{JoinSet, yield_now};
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{
    Ask, Clock, Concurrency, Error, Gate, GateExt, Queue, RollingWindow, Span, Timestamp,
    TokenBucket,
};

use crate::{memory, policy, settle_down};

/// A gate that decides at once and answers a moment later, as one that waits for a disk or a network does.
#[derive(Debug)]
struct Slow<G>(G);

impl<G: Gate> Gate for Slow<G> {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            let outcome = self.0.run(operation).await;
            yield_now().await;
            outcome
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}

#[tokio::test]
async fn who_is_only_being_answered_holds_up_nobody() {
    let (gate, clock) = memory();
    let queue = Arc::new(Queue::new(Slow(gate), Arc::new(clock.clone())));
    let policy = policy(TokenBucket::per_second(1_000));
    let deadline = clock.now() + Span::from_secs(1);
    let waiter = tokio::spawn({
        let (queue, policy) = (Arc::clone(&queue), policy.clone());
        async move { queue.acquire_within(&Ask::new(&policy, "alice"), deadline).await }
    });
    yield_now().await;
    assert_eq!(queue.waiting(), 1, "the waiter has been decided and not yet answered");
    assert!(queue.acquire(&Ask::new(&policy, "alice")).await.unwrap().is_admitted());
    assert!(waiter.await.unwrap().unwrap().is_admitted());
}

/// An ask that was charged and not yet answered must not count as one in front, too.
#[tokio::test]
async fn simultaneous_asks_get_every_place() {
    let (gate, clock) = memory();
    let queue = Arc::new(Queue::new(Slow(gate), Arc::new(clock.clone())));
    let policy = policy(RollingWindow::new(5, Span::from_mins(1)));
    let deadline = clock.now() + Span::from_secs(30);
    let asks = (0..6).map(|_| {
        let (queue, policy) = (Arc::clone(&queue), policy.clone());
        async move { queue.acquire_within(&Ask::new(&policy, "alice"), deadline).await }
    });
    let decided = asks.collect::<JoinSet<_>>().join_all().await;
    let admitted = decided.iter().filter(|decision| decision.as_ref().unwrap().is_admitted());
    assert_eq!(admitted.count(), 5);
}

/// The same for an ask that waited, and was charged at its time.
#[tokio::test]
async fn a_newcomer_is_not_denied_for_a_waiter_that_is_being_answered() {
    let (gate, clock) = memory();
    let queue = Arc::new(Queue::new(Slow(gate), Arc::new(clock.clone())));
    let policy = policy(RollingWindow::new(2, Span::from_mins(1)));
    let ask = Ask::new(&policy, "alice");
    assert!(queue.acquire(&ask.clone().cost("requests", 2)).await.unwrap().is_admitted());
    let mut waiter = std::pin::pin!(queue.acquire_within(&ask, Timestamp::MAX));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for step in ["asked", "denied"] {
        assert!(waiter.as_mut().poll(&mut context).is_pending(), "{step}");
    }
    clock.advance(Span::from_mins(1));
    assert!(waiter.as_mut().poll(&mut context).is_pending(), "charged, and not yet answered");
    let soon = clock.now() + Span::from_secs(1);
    let (waiter, newcomer) = tokio::join!(waiter, queue.acquire_within(&ask, soon));
    assert!(waiter.unwrap().is_admitted());
    assert!(newcomer.unwrap().is_admitted(), "there is a second place");
}

#[tokio::test]
async fn a_release_that_is_dropped_midway_still_calls_the_next() {
    let (gate, clock) = memory();
    let queue = Arc::new(Queue::new(Slow(gate), Arc::new(clock.clone())));
    let policy = policy(Concurrency::new(1, Span::from_mins(10)));
    let held = queue.acquire(&Ask::new(&policy, "alice")).await.unwrap().into_permit().unwrap();
    let waiter = tokio::spawn({
        let (queue, policy) = (Arc::clone(&queue), policy.clone());
        async move { queue.acquire_within(&Ask::new(&policy, "alice"), Timestamp::MAX).await }
    });
    settle_down().await;
    {
        let mut release = std::pin::pin!(queue.release(&held));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(release.as_mut().poll(&mut context).is_pending(), "freed, and not yet answered");
    }
    assert!(waiter.await.unwrap().unwrap().is_admitted());
}
