//! A queue in front of a gate that takes a moment to answer: what happens between the decision and its answer.

use std::sync::Arc;

use tokio::task::yield_now;
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{
    Ask, Clock, Concurrency, Error, Gate, GateExt, Queue, Span, Timestamp, TokenBucket,
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
