//! Waiting: first come first served, at exactly the promised time, leaving without a trace.

use std::sync::Arc;

use tokio::task::{JoinHandle, yield_now};
use tollgate::{
    Ask, Atomic, BoxFuture, Clock, Concurrency, Costs, Decision, Error, ErrorKind, Gate, Limit,
    LocalBucket, ManualClock, Memory, Permit, Policy, Queue, RollingWindow, Span, Standing,
    Timestamp, TokenBucket, WAITERS_MAX, Wait,
};

use crate::{memory, policy};

type Waiting = Arc<Queue<Arc<Atomic<Memory>>>>;

fn queue() -> (Waiting, ManualClock) {
    let (gate, clock) = memory();
    (Arc::new(Queue::new(gate, Arc::new(clock.clone()))), clock)
}

/// Lets every task run until nobody has anything to do.
async fn settle_down() {
    for _ in 0..20 {
        yield_now().await;
    }
}

fn wait(
    queue: &Waiting,
    policy: &Policy,
    cost: u64,
    deadline: Timestamp,
) -> JoinHandle<Result<Decision, Error>> {
    let (queue, policy) = (Arc::clone(queue), policy.clone());
    tokio::spawn(async move {
        queue.acquire_within(&Ask::new(&policy, "alice").cost("requests", cost), deadline).await
    })
}

#[tokio::test]
async fn wakes_exactly_at_the_promised_time_and_not_before() {
    let (queue, clock) = queue();
    let policy = policy(TokenBucket::per_second(1));
    let deadline = clock.now() + Span::from_secs(60);
    assert!(queue.acquire(&Ask::new(&policy, "alice")).await.unwrap().is_admitted());
    let promised = clock.now() + Span::from_secs(1);
    let waiter = wait(&queue, &policy, 1, deadline);
    settle_down().await;
    assert_eq!(clock.next_alarm(), Some(promised), "the waiter must sleep, not poll");
    clock.set(promised - Span::from_micros(1));
    settle_down().await;
    assert!(!waiter.is_finished());
    clock.set(promised);
    assert!(waiter.await.unwrap().unwrap().is_admitted());
    assert_eq!((queue.waiting(), clock.next_alarm()), (0, None));
}

#[tokio::test]
async fn serves_in_the_order_of_arrival_even_when_a_later_ask_would_fit() {
    let (queue, clock) = queue();
    let policy = policy(TokenBucket::per_second(1).burst(5));
    let deadline = clock.now() + Span::from_secs(60);
    assert!(
        queue.acquire(&Ask::new(&policy, "alice").cost("requests", 5)).await.unwrap().is_admitted()
    );
    let large = wait(&queue, &policy, 4, deadline);
    settle_down().await;
    let small = wait(&queue, &policy, 1, deadline);
    settle_down().await;
    clock.advance(Span::from_secs(3));
    settle_down().await;
    assert!(!large.is_finished() && !small.is_finished(), "the small one must not overtake");
    clock.advance(Span::from_secs(1));
    settle_down().await;
    assert!(large.is_finished() && !small.is_finished());
    clock.advance(Span::from_secs(1));
    assert!(small.await.unwrap().unwrap().is_admitted());
}

#[tokio::test]
async fn an_ask_that_does_not_wait_never_overtakes_and_its_wait_includes_the_line() {
    let (queue, clock) = queue();
    let policy = policy(TokenBucket::per_second(1).burst(5));
    let start = clock.now();
    let ask = Ask::new(&policy, "alice");
    assert!(queue.acquire(&ask.clone().cost("requests", 5)).await.unwrap().is_admitted());
    let large = wait(&queue, &policy, 4, start + Span::from_secs(60));
    settle_down().await;
    clock.advance(Span::from_secs(2));
    let denial =
        queue.acquire(&ask).await.unwrap().denial().expect("two tokens, but four are waited for");
    assert_eq!(
        denial.wait,
        Wait::Until(start + Span::from_secs(5)),
        "4 s for those in front, then 1"
    );
    assert!(queue.acquire(&Ask::new(&policy, "bob")).await.unwrap().is_admitted(), "another line");
    clock.set(start + Span::from_secs(5));
    assert!(large.await.unwrap().unwrap().is_admitted());
    assert!(queue.acquire(&ask).await.unwrap().is_admitted(), "the promise was honest");
}

#[tokio::test]
async fn what_cannot_go_through_in_time_is_denied_at_once() {
    let (queue, clock) = queue();
    let policy = policy(RollingWindow::new(1, Span::from_mins(1)));
    let ask = Ask::new(&policy, "alice");
    assert!(queue.acquire(&ask).await.unwrap().is_admitted());
    let soon = clock.now() + Span::from_secs(59);
    let denial = queue.acquire_within(&ask, soon).await.unwrap().denial().unwrap();
    assert_eq!(denial.retry_after(), Some(Span::from_mins(1)));
    let never = ask.clone().cost("requests", 2);
    let denial = queue.acquire_within(&never, soon).await.unwrap().denial().unwrap();
    assert_eq!(denial.wait, Wait::Never);
    assert_eq!(queue.waiting(), 0);
}

#[tokio::test]
async fn a_released_slot_goes_to_the_first_in_line_at_once() {
    let (queue, clock) = queue();
    let policy = policy(Concurrency::new(1, Span::from_mins(10)));
    let held = queue.acquire(&Ask::new(&policy, "alice")).await.unwrap().permit().unwrap();
    let deadline = clock.now() + Span::from_secs(5);
    let first = wait(&queue, &policy, 1, deadline);
    settle_down().await;
    let second = wait(&queue, &policy, 1, deadline);
    settle_down().await;
    queue.release(&held).await.unwrap();
    assert!(first.await.unwrap().unwrap().is_admitted());
    clock.set(deadline);
    let denial = second.await.unwrap().unwrap().denial().expect("the deadline passed");
    assert_eq!(&*denial.limit, "only");
}

#[tokio::test]
async fn dropping_a_waiter_hands_the_turn_on() {
    let (queue, clock) = queue();
    let policy = policy(TokenBucket::per_second(1));
    let deadline = clock.now() + Span::from_secs(60);
    assert!(queue.acquire(&Ask::new(&policy, "alice")).await.unwrap().is_admitted());
    let first = wait(&queue, &policy, 1, deadline);
    settle_down().await;
    let second = wait(&queue, &policy, 1, deadline);
    settle_down().await;
    first.abort();
    settle_down().await;
    assert_eq!(queue.waiting(), 1);
    clock.advance(Span::from_secs(1));
    assert!(second.await.unwrap().unwrap().is_admitted());
}

#[tokio::test]
async fn the_line_is_bounded() {
    let (queue, clock) = queue();
    let policy = policy(TokenBucket::per_second(1));
    assert!(queue.acquire(&Ask::new(&policy, "alice")).await.unwrap().is_admitted());
    let deadline = Timestamp::MAX;
    let waiters: Vec<_> = (0..WAITERS_MAX).map(|_| wait(&queue, &policy, 1, deadline)).collect();
    settle_down().await;
    let ask = Ask::new(&policy, "alice");
    let error = queue.acquire_within(&ask, deadline).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Contended);
    assert!(clock.next_alarm().is_some());
    drop(waiters);
}

#[tokio::test]
async fn jitter_only_ever_adds_to_the_wait() {
    let (gate, clock) = memory();
    let jitter = Span::from_millis(100);
    let queue = Arc::new(Queue::new(gate, Arc::new(clock.clone())).jitter(jitter));
    let policy = policy(TokenBucket::per_second(1));
    assert!(queue.acquire(&Ask::new(&policy, "alice")).await.unwrap().is_admitted());
    let promised = clock.now() + Span::from_secs(1);
    let waiter = wait(&queue, &policy, 1, Timestamp::MAX);
    settle_down().await;
    let alarm = clock.next_alarm().unwrap();
    assert!(promised <= alarm && alarm <= promised + jitter, "{alarm} for {promised}");
    clock.set(alarm);
    assert!(waiter.await.unwrap().unwrap().is_admitted());
}

/// R001.5, R000.2: try without waiting, wait up to a timeout, and see what is there.
#[tokio::test]
async fn the_local_bucket_tries_waits_and_tells() {
    let clock = ManualClock::new();
    let rule = TokenBucket::per_second(10).burst(20);
    let bucket = Arc::new(LocalBucket::with_clock(rule, Arc::new(clock.clone())).unwrap());
    assert_eq!(bucket.available(), 20);
    assert_eq!((0..25).filter(|_| bucket.try_acquire()).count(), 20);
    assert_eq!(bucket.available(), 0);
    assert!(!bucket.acquire(Span::from_millis(99)).await.unwrap(), "the next token takes 100 ms");
    let waiter = tokio::spawn({
        let bucket = Arc::clone(&bucket);
        async move { bucket.acquire(Span::from_millis(100)).await }
    });
    settle_down().await;
    clock.advance(Span::from_millis(100));
    assert!(waiter.await.unwrap().unwrap());
    clock.advance(Span::from_hours(1));
    assert_eq!(bucket.available(), 20, "never more than the capacity");
    let bad = LocalBucket::new(TokenBucket::per_second(0)).unwrap_err();
    assert_eq!(bad.kind(), ErrorKind::Invalid);
}

/// R000.2: the pause is the longer of the backoff and the promised wait, and the retry succeeds after the refill.
#[tokio::test]
async fn backoff_waits_at_least_the_promised_time_and_then_succeeds() {
    let (gate, clock) = memory();
    let llm =
        Policy::new("llm", [Limit::new("tpm", "tokens", TokenBucket::per_minute(5_000))]).unwrap();
    let take = |tokens| Ask::new(&llm, "p7").cost("tokens", tokens);
    assert!(gate.acquire(&take(4_000)).await.unwrap().is_admitted());
    let start = clock.now();
    let task = tokio::spawn({
        let (gate, clock, llm) = (gate.clone(), clock.clone(), llm.clone());
        async move {
            let ask = Ask::new(&llm, "p7").cost("tokens", 3_750);
            let deadline = clock.now() + Span::from_mins(5);
            tollgate::acquire_with_backoff(
                &*gate,
                &ask,
                &tollgate::Backoff::QUOTA,
                deadline,
                &clock,
            )
            .await
        }
    });
    settle_down().await;
    // 2,750 tokens are missing at 5,000 per minute: 33 s, longer than the first backoff of 2 s.
    assert_eq!(clock.next_alarm(), Some(start + Span::from_secs(33)));
    clock.advance(Span::from_secs(33));
    assert!(task.await.unwrap().unwrap().is_admitted());
    let near = clock.now() + Span::from_secs(1);
    let denied = tollgate::acquire_with_backoff(
        &*gate,
        &take(3_750),
        &tollgate::Backoff::QUOTA,
        near,
        &clock,
    )
    .await;
    assert!(denied.unwrap().denial().is_some(), "no wait that would end after the deadline");
}

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

/// A wall clock that can be set back beside a timer that cannot.
#[derive(Debug)]
struct Wall {
    wall: ManualClock,
    timer: ManualClock,
}

impl Clock for Wall {
    fn now(&self) -> Timestamp {
        self.wall.now()
    }

    fn monotonic(&self) -> Span {
        self.timer.monotonic()
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()> {
        self.timer.sleep_until(self.timer.now() + at.since(self.wall.now()))
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_keeps_nobody_beyond_the_deadline() {
    let (gate, wall) = memory();
    let timer = ManualClock::new();
    let clock = Wall { wall: wall.clone(), timer: timer.clone() };
    let queue = Arc::new(Queue::new(gate, Arc::new(clock)));
    let policy = policy(Concurrency::new(1, Span::from_mins(10)));
    let _held = queue.acquire(&Ask::new(&policy, "alice")).await.unwrap().permit().unwrap();
    let deadline = wall.now() + Span::from_secs(5);
    let waiter = wait(&queue, &policy, 1, deadline);
    settle_down().await;
    wall.set(wall.now() - Span::from_hours(1));
    timer.advance(Span::from_secs(5));
    assert!(waiter.await.unwrap().unwrap().denial().is_some());
}
