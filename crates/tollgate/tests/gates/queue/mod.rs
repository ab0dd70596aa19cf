//! Waiting in line: first come first served, at exactly the promised time, leaving without a trace.

mod fair;
mod joint;
mod slots;
mod slow;

use std::sync::Arc;

use tokio::task::JoinHandle;
use tollgate::clock::ManualClock;
use tollgate::core::Wait;
use tollgate::gate::BoxFuture;
use tollgate::queue::WAITERS_MAX;
use tollgate::{
    Ask, Clock, Concurrency, Decision, Error, ErrorKind, GateExt, Memory, Policy, Queue,
    RollingWindow, Span, Timestamp, TokenBucket,
};

use crate::{memory, policy, settle_down};

type Waiting = Arc<Queue<Arc<Memory>>>;

fn queue() -> (Waiting, ManualClock) {
    let (gate, clock) = memory();
    (Arc::new(Queue::new(gate, Arc::new(clock.clone()))), clock)
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
    let denial = queue
        .acquire(&ask)
        .await
        .unwrap()
        .into_denial()
        .expect("two tokens, but four are waited for");
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
    let denial = queue.acquire_within(&ask, soon).await.unwrap().into_denial().unwrap();
    assert_eq!(denial.retry_after(), Some(Span::from_mins(1)));
    let never = ask.clone().cost("requests", 2);
    let denial = queue.acquire_within(&never, soon).await.unwrap().into_denial().unwrap();
    assert_eq!(denial.wait, Wait::Never);
    assert_eq!(queue.waiting(), 0);
}

#[tokio::test]
async fn a_released_slot_goes_to_the_first_in_line_at_once() {
    let (queue, clock) = queue();
    let policy = policy(Concurrency::new(1, Span::from_mins(10)));
    let held = queue.acquire(&Ask::new(&policy, "alice")).await.unwrap().into_permit().unwrap();
    let deadline = clock.now() + Span::from_secs(5);
    let first = wait(&queue, &policy, 1, deadline);
    settle_down().await;
    let second = wait(&queue, &policy, 1, deadline);
    settle_down().await;
    queue.release(&held).await.unwrap();
    assert!(first.await.unwrap().unwrap().is_admitted());
    clock.set(deadline);
    let denial = second.await.unwrap().unwrap().into_denial().expect("the deadline passed");
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
    let _held = queue.acquire(&Ask::new(&policy, "alice")).await.unwrap().into_permit().unwrap();
    let deadline = wall.now() + Span::from_secs(5);
    let waiter = wait(&queue, &policy, 1, deadline);
    settle_down().await;
    wall.set(wall.now() - Span::from_hours(1));
    timer.advance(Span::from_secs(5));
    assert!(waiter.await.unwrap().unwrap().into_denial().is_some());
}
