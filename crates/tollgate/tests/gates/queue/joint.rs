//! Asks with several charges that wait: each in the queue of the charge that refuses it, tenants by turns.

use std::sync::Arc;

use tokio::task::JoinHandle;
use tollgate::clock::ManualClock;
use tollgate::{
    Ask, Clock, Concurrency, Decision, Error, GateExt, Limit, Policy, Span, Timestamp, TokenBucket,
};

use super::{Waiting, queue};
use crate::settle_down;

const FAR: Span = Span::from_hours(1);

fn named(name: &str, rule: impl Into<tollgate::core::Rule>, weight: u64) -> Policy {
    let limit = Limit::new("rate", "requests", rule);
    Policy::builder(name).limit(limit).weight(weight).build().unwrap()
}

fn wait(
    queue: &Waiting,
    charges: &[(&Policy, &str)],
    deadline: Timestamp,
) -> JoinHandle<Result<Decision, Error>> {
    let queue = Arc::clone(queue);
    let ask = ask(charges).into_owned();
    tokio::spawn(async move { queue.acquire_within(&ask, deadline).await })
}

fn ask<'a>(charges: &[(&'a Policy, &'a str)]) -> Ask<'a> {
    let first = Ask::new(charges[0].0, charges[0].1);
    charges[1..].iter().fold(first, |ask, (policy, subject)| ask.and(policy, *subject))
}

async fn used(queue: &Waiting, policy: &Policy, subject: &str) -> u64 {
    queue.standing(policy, subject).await.unwrap()[0].used
}

/// How many of each group of waiters are done.
fn done<const N: usize>(groups: &[Vec<JoinHandle<Result<Decision, Error>>>; N]) -> [usize; N] {
    groups.each_ref().map(|group| group.iter().filter(|waiter| waiter.is_finished()).count())
}

/// Lets `seconds` pass, one by one.
async fn pass(clock: &ManualClock, seconds: u64) {
    for _ in 0..seconds {
        clock.advance(Span::from_secs(1));
        settle_down().await;
    }
}

/// The user of one waits for its own limit; the account that both share is free meanwhile.
#[tokio::test]
async fn a_waiter_whose_own_limit_binds_holds_nobody_up() {
    let (queue, clock) = queue();
    let user = named("user", TokenBucket::per_minute(1).burst(1), 1);
    let account = named("account", TokenBucket::per_second(10), 1);
    let deadline = clock.now() + FAR;
    assert!(queue.acquire(&ask(&[(&user, "u1")])).await.unwrap().is_admitted());
    let slow = wait(&queue, &[(&user, "u1"), (&account, "acme")], deadline);
    settle_down().await;
    let fast = wait(&queue, &[(&user, "u2"), (&account, "acme")], deadline);
    assert!(fast.await.unwrap().unwrap().is_admitted());
    assert!(!slow.is_finished());
    assert_eq!(used(&queue, &account, "acme").await, 1, "a refusal takes nothing");
    clock.advance(Span::from_mins(1));
    assert!(slow.await.unwrap().unwrap().is_admitted());
}

/// Two asks that need the same two parties in opposite orders.
#[tokio::test]
async fn crossed_waits_do_not_block_each_other() {
    let (queue, clock) = queue();
    let (left, right) = (
        named("left", TokenBucket::per_second(1), 1),
        named("right", TokenBucket::per_second(1), 1),
    );
    let deadline = clock.now() + FAR;
    assert!(queue.acquire(&ask(&[(&left, "x"), (&right, "y")])).await.unwrap().is_admitted());
    let waiters: Vec<_> = (0..6)
        .map(|number| match number % 2 {
            0 => wait(&queue, &[(&left, "x"), (&right, "y")], deadline),
            _ => wait(&queue, &[(&right, "y"), (&left, "x")], deadline),
        })
        .collect();
    settle_down().await;
    pass(&clock, 6).await;
    assert!(waiters.iter().all(JoinHandle::is_finished), "one per second");
    assert_eq!((queue.waiting(), clock.next_alarm()), (0, None));
}

/// One tenant has forty asks in the queue of the account before the other comes.
#[tokio::test]
async fn tenants_take_turns_at_a_shared_limit_by_weight() {
    for (weight, expected) in [(1, [6, 6]), (3, [9, 3])] {
        let (queue, clock) = queue();
        let gold = named("gold", TokenBucket::per_second(1_000), weight);
        let plain = named("plain", TokenBucket::per_second(1_000), 1);
        let account = named("account", TokenBucket::per_second(1), 1);
        let deadline = clock.now() + FAR;
        assert!(queue.acquire(&ask(&[(&account, "acme")])).await.unwrap().is_admitted());
        let mut groups = [Vec::new(), Vec::new()];
        for (group, policy, subject) in [(0, &gold, "g"), (1, &plain, "p")] {
            for _ in 0..40 {
                groups[group].push(wait(
                    &queue,
                    &[(policy, subject), (&account, "acme")],
                    deadline,
                ));
                settle_down().await;
            }
        }
        pass(&clock, 12).await;
        let got = done(&groups);
        assert!(got[0].abs_diff(expected[0]) <= 1 && got[0] + got[1] == 12, "{weight}: {got:?}");
    }
}

#[tokio::test]
async fn a_lone_tenant_gets_everything() {
    let (queue, clock) = queue();
    let user = named("user", TokenBucket::per_second(1_000), 1);
    let account = named("account", TokenBucket::per_second(1), 1);
    let deadline = clock.now() + FAR;
    assert!(queue.acquire(&ask(&[(&account, "acme")])).await.unwrap().is_admitted());
    let waiters = (0..10).map(|_| wait(&queue, &[(&user, "u1"), (&account, "acme")], deadline));
    let groups = [waiters.collect()];
    settle_down().await;
    pass(&clock, 10).await;
    assert_eq!(done(&groups), [10]);
}

/// Five times forty tokens against a hundred, over three parties: two go through, and nobody is charged for the others.
#[tokio::test]
async fn the_sum_is_bounded_by_the_parent() {
    let (queue, clock) = queue();
    let limit = |name: &str, tokens: u64| {
        let rule = TokenBucket::per(tokens, FAR).burst(tokens);
        Policy::new(name, [Limit::new("tph", "tokens", rule)]).unwrap()
    };
    let (user, team, account) = (limit("user", 80), limit("team", 1_000), limit("account", 100));
    let mut admitted = 0;
    for number in 0..5 {
        let subject = format!("u{number}");
        let ask = Ask::new(&user, &*subject).and(&team, "t").and(&account, "acme");
        let decision = queue.acquire_within(&ask.cost("tokens", 40), clock.now()).await.unwrap();
        admitted += u64::from(decision.is_admitted());
        let expected = if number < 2 { 40 } else { 0 };
        assert_eq!(used(&queue, &user, &subject).await, expected, "{subject}");
    }
    assert_eq!(admitted, 2);
    assert_eq!((used(&queue, &team, "t").await, used(&queue, &account, "acme").await), (80, 80));
}

/// An ask that does not wait is denied while others of its tenant wait, and takes turns with other tenants.
#[tokio::test]
async fn an_ask_that_does_not_wait_overtakes_none_of_its_tenant() {
    let (queue, clock) = queue();
    let user = named("user", TokenBucket::per_second(1_000), 1);
    let account = named("account", TokenBucket::per_second(1).burst(2), 1);
    let deadline = clock.now() + FAR;
    let both = ask(&[(&account, "acme")]).cost("requests", 2);
    assert!(queue.acquire(&both).await.unwrap().is_admitted());
    let two = ask(&[(&user, "u1"), (&account, "acme")]).cost("requests", 2).into_owned();
    let waiter = tokio::spawn({
        let queue = Arc::clone(&queue);
        async move { queue.acquire_within(&two, deadline).await }
    });
    settle_down().await;
    clock.advance(Span::from_secs(1));
    settle_down().await;
    let Decision::Denied(denial) =
        queue.acquire(&ask(&[(&user, "u1"), (&account, "acme")])).await.unwrap()
    else {
        panic!("it overtook an ask of its own tenant")
    };
    assert_eq!((&*denial.policy, denial.waiting_ahead, denial.asked), ("account", 1, 1));
    clock.advance(Span::from_secs(1));
    assert!(waiter.await.unwrap().unwrap().is_admitted());
}

/// A slot of the account that one user gives back goes to the next in the account's queue.
#[tokio::test]
async fn a_released_slot_wakes_the_queue_of_every_charge() {
    let (queue, clock) = queue();
    let user = named("user", Concurrency::new(5, FAR), 1);
    let account = named("account", Concurrency::new(1, FAR), 1);
    let deadline = clock.now() + Span::from_mins(10);
    let first = queue.acquire(&ask(&[(&user, "u1"), (&account, "acme")])).await.unwrap();
    let waiter = wait(&queue, &[(&user, "u2"), (&account, "acme")], deadline);
    settle_down().await;
    assert!(!waiter.is_finished());
    queue.release(&first.into_permit().unwrap()).await.unwrap();
    assert!(waiter.await.unwrap().unwrap().is_admitted(), "no time passed");
}

/// Leaving a queue leaves no trace, in whichever queue it was.
#[tokio::test]
async fn dropping_a_waiter_lets_the_next_one_in() {
    let (queue, clock) = queue();
    let user = named("user", TokenBucket::per_second(1_000), 1);
    let account = named("account", TokenBucket::per_second(1), 1);
    let deadline = clock.now() + FAR;
    assert!(queue.acquire(&ask(&[(&account, "acme")])).await.unwrap().is_admitted());
    let gone = wait(&queue, &[(&user, "u1"), (&account, "acme")], deadline);
    settle_down().await;
    let next = wait(&queue, &[(&user, "u2"), (&account, "acme")], deadline);
    settle_down().await;
    gone.abort();
    settle_down().await;
    pass(&clock, 1).await;
    assert!(next.is_finished());
    assert_eq!(queue.waiting(), 0);
}
