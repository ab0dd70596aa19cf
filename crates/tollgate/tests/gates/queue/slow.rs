//! A queue in front of a gate that takes a moment to answer: what happens between the decision and its answer.

use std::sync::Arc;

use tokio::task::yield_now;
use tollgate::{
    Ask, BoxFuture, Clock, Concurrency, Costs, Decision, Error, Gate, Permit, Policy, Queue, Span,
    Standing, Timestamp, TokenBucket,
};

use crate::{memory, policy, settle_down};

/// A gate that decides at once and answers a moment later, as one that waits for a disk or a network does.
#[derive(Debug)]
struct Slow<G>(G);

impl<G: Gate> Gate for Slow<G> {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        later(self.0.acquire(ask))
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        later(self.0.settle(permit, actual))
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        later(self.0.release(permit))
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        later(self.0.renew(permit))
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        later(self.0.charge(ask))
    }

    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        later(self.0.close_until(ask, limit, until))
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        later(self.0.standing(policy, subject))
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        later(self.0.reset(policy, subject))
    }
}

fn later<'a, T: Send + 'a>(answer: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
    Box::pin(async move {
        let answer = answer.await;
        yield_now().await;
        answer
    })
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
    let held = queue.acquire(&Ask::new(&policy, "alice")).await.unwrap().permit().unwrap();
    let waiter = tokio::spawn({
        let (queue, policy) = (Arc::clone(&queue), policy.clone());
        async move { queue.acquire_within(&Ask::new(&policy, "alice"), Timestamp::MAX).await }
    });
    settle_down().await;
    {
        let mut release = queue.release(&held);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(release.as_mut().poll(&mut context).is_pending(), "freed, and not yet answered");
    }
    assert!(waiter.await.unwrap().unwrap().is_admitted());
}
