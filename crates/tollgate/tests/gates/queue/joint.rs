//! Asks with several charges that wait: each in the queue of the charge that refuses it, tenants by turns.

use std::sync::Arc;

use tokio::task::JoinHandle;
use tollgate::clock::ManualClock;
use tollgate::gate::Alternatives;
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

/// Fairness reserves nothing: who is alone has the whole limit.
#[tokio::test]
async fn a_lone_tenant_is_not_capped() {
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

fn hourly(name: &str, tokens: u64) -> Policy {
    let rule = TokenBucket::per(tokens, FAR).burst(tokens);
    Policy::new(name, [Limit::new("tph", "tokens", rule)]).unwrap()
}

/// Five times forty tokens against a hundred, over three parties: two go through, and nobody is charged for the others.
#[tokio::test]
async fn five_times_forty_tokens_against_a_hundred_over_three_parties_admit_two() {
    let (queue, clock) = queue();
    let (user, team, account) = (hourly("user", 80), hourly("team", 1_000), hourly("account", 100));
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

/// The last charge refuses; the user and the team before it keep all they had, in whatever order they are named.
#[tokio::test]
async fn a_parents_refusal_takes_nothing() {
    let (queue, clock) = queue();
    let [user, team, account] = ["user", "team", "account"].map(|name| hourly(name, 100));
    let others = Ask::new(&account, "acme").cost("tokens", 70).into_owned();
    assert!(queue.acquire(&others).await.unwrap().is_admitted());
    let charges = [(&user, "u1"), (&team, "t7"), (&account, "acme")];
    for rotation in 0..charges.len() {
        let mut charges = charges;
        charges.rotate_left(rotation);
        let ask = ask(&charges).cost("tokens", 40);
        for deadline in [clock.now(), clock.now() + Span::from_secs(1)] {
            let decision = queue.acquire_within(&ask, deadline).await.unwrap();
            let denial = decision.into_denial().expect("the account has 30 tokens left");
            assert_eq!(&*denial.policy, "account");
        }
        let sums = [(&user, "u1"), (&team, "t7"), (&account, "acme")];
        for ((policy, subject), expected) in sums.into_iter().zip([0, 0, 70]) {
            assert_eq!(used(&queue, policy, subject).await, expected, "{subject}");
        }
    }
}

/// Each tenant has at most its own limit, and all of them together have at most that of their parent.
#[tokio::test]
async fn per_tenant_limits_bound_the_sum() {
    for (parent, expected) in [(1_000, [60, 60, 60, 60]), (150, [60, 60, 30, 0])] {
        let (queue, clock) = queue();
        let (tenant, account) = (hourly("tenant", 60), hourly("account", parent));
        let mut charged = [0; 4];
        for (number, charged) in charged.iter_mut().enumerate() {
            let subject = format!("t{number}");
            let ask = Ask::new(&tenant, &*subject).and(&account, "acme").cost("tokens", 10);
            for _ in 0..10 {
                drop(queue.acquire_within(&ask, clock.now()).await.unwrap());
            }
            *charged = used(&queue, &tenant, &subject).await;
        }
        assert_eq!(charged, expected);
        assert_eq!(used(&queue, &account, "acme").await, charged.iter().sum::<u64>());
    }
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

/// Two keys of a provider, of which one has no room left.
#[tokio::test]
async fn the_first_alternative_with_room_is_charged_else_the_shortest_wait_is_taken() {
    let (queue, clock) = queue();
    let user = named("user", TokenBucket::per_minute(4).burst(4), 1);
    let slow = named("slow", TokenBucket::per_minute(1), 1);
    let fast = named("fast", TokenBucket::per_second(1), 1);
    let ask = Ask::new(&user, "u1");
    let either = Alternatives::new(&ask, [(&slow, "a"), (&fast, "b")]).unwrap();
    let last = |decision: Decision| {
        let permit = decision.into_permit().expect("it is admitted");
        permit.parts().last().expect("it has a part").subject().to_owned()
    };
    let deadline = clock.now() + FAR;
    assert_eq!(last(queue.acquire_any(&either).await.unwrap()), "a");
    assert_eq!(last(queue.acquire_any(&either).await.unwrap()), "b");
    let Decision::Denied(denial) = queue.acquire_any(&either).await.unwrap() else {
        panic!("both are used up")
    };
    assert_eq!((&*denial.policy, denial.retry_after()), ("fast", Some(Span::from_secs(1))));
    assert_eq!(used(&queue, &user, "u1").await, 2, "a refusal takes nothing");
    let waiter = tokio::spawn({
        let queue = Arc::clone(&queue);
        let (user, slow, fast) = (user.clone(), slow.clone(), fast.clone());
        async move {
            let either =
                Alternatives::new(&Ask::new(&user, "u1"), [(&slow, "a"), (&fast, "b")]).unwrap();
            queue.acquire_any_within(&either, deadline).await
        }
    });
    settle_down().await;
    assert_eq!(clock.next_alarm(), Some(clock.now() + Span::from_secs(1)));
    clock.advance(Span::from_secs(1));
    assert_eq!(last(waiter.await.unwrap().unwrap()), "b");
}

/// The user has nothing left, so no key would help: the second is not asked for.
#[tokio::test]
async fn a_refusal_outside_the_group_ends_the_search() {
    let (queue, _clock) = queue();
    let user = named("user", TokenBucket::per_minute(1), 1);
    let key = named("key", TokenBucket::per_minute(1), 1);
    let ask = Ask::new(&user, "u1");
    let either = Alternatives::new(&ask, [(&key, "a"), (&key, "b")]).unwrap();
    assert!(queue.acquire_any(&either).await.unwrap().is_admitted());
    let Decision::Denied(denial) = queue.acquire_any(&either).await.unwrap() else {
        panic!("the user has one request per minute")
    };
    let refused = &denial.joint.as_ref().expect("it has several charges").refused;
    assert_eq!(&*refused[0].policy, "user");
    assert_eq!(&*refused.last().unwrap().subject, "a", "the second was asked for");
}

/// The id finds the alternative that was charged, even if another one has room by then.
#[tokio::test]
async fn a_repeat_gets_the_alternative_of_the_first_time() {
    let (queue, clock) = queue();
    let user = named("user", TokenBucket::per_second(100), 1);
    let key = named("key", TokenBucket::per_second(1), 1);
    let ask = Ask::new(&user, "u1").id("call-1");
    let group = [(&key, "a"), (&key, "b")];
    let either = Alternatives::new(&ask, group).unwrap();
    assert!(queue.acquire(&Ask::new(&key, "a")).await.unwrap().is_admitted());
    let first = queue.acquire_any(&either).await.unwrap().into_permit().unwrap();
    clock.advance(Span::from_secs(5));
    let again = queue.acquire_any(&either).await.unwrap().into_permit().unwrap();
    let stamps = |permit: &tollgate::Permit| {
        permit.parts().map(|part| (part.subject().to_owned(), *part.grant())).collect::<Vec<_>>()
    };
    assert_eq!(stamps(&first), stamps(&again));
    assert_eq!((used(&queue, &key, "a").await, stamps(&again)[1].0.as_str()), (0, "b"));
    let other = Alternatives::new(&ask, [(&key, "b"), (&key, "a")]).unwrap();
    let error = queue.acquire_any(&other).await.unwrap_err();
    assert_eq!(error.kind(), tollgate::ErrorKind::Conflict, "{error}");
}

#[test]
fn wrong_alternatives_are_refused() {
    let key = named("key", TokenBucket::per_second(1), 1);
    let user = named("user", TokenBucket::per_second(1), 1);
    let ask = Ask::new(&user, "u1");
    for (group, expected) in [
        (vec![], "1 to 16"),
        (vec![(&key, "a"); 17], "1 to 16"),
        (vec![(&key, "a"), (&key, "a")], "twice"),
        (vec![(&user, "u1")], "twice"),
        (vec![(&key, "")], "subject"),
    ] {
        let error = Alternatives::new(&ask, group).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Ten asks of each named tenant, all for one subject; the turns follow the tenants, also of asks with one charge.
#[tokio::test]
async fn a_named_tenant_takes_the_turns_of_its_asks() {
    for (weight, expected) in [(1, [6, 6]), (3, [9, 3])] {
        let (queue, clock) = queue();
        let user = named("user", TokenBucket::per_second(1_000), 1);
        let account = named("account", TokenBucket::per_second(1), 1);
        let deadline = clock.now() + FAR;
        assert!(queue.acquire(&ask(&[(&account, "acme")])).await.unwrap().is_admitted());
        let mut groups = [Vec::new(), Vec::new()];
        for (group, tenant, weight) in [(0, "gold", weight), (1, "plain", 1)] {
            for number in 0..20 {
                let ask = match number % 2 {
                    0 => ask(&[(&user, "shared"), (&account, "acme")]),
                    _ => ask(&[(&account, "acme")]),
                };
                let ask = ask.for_tenant(tenant, weight).into_owned();
                let queue = Arc::clone(&queue);
                groups[group]
                    .push(tokio::spawn(async move { queue.acquire_within(&ask, deadline).await }));
                settle_down().await;
            }
        }
        pass(&clock, 12).await;
        let got = done(&groups);
        assert!(got[0].abs_diff(expected[0]) <= 1 && got[0] + got[1] == 12, "{weight}: {got:?}");
    }
}

/// The weight of a tenant is that of its override, and what is given back counts for the tenant that the permit names.
#[tokio::test]
async fn an_override_weighs_a_tenant_and_a_release_counts_for_a_named_one() {
    let (queue, clock) = queue();
    let limit = Limit::new("rate", "requests", TokenBucket::per_second(1_000));
    let own = tollgate::policy::Override {
        limits: vec![limit.clone()],
        weight: Some(3),
        unlimited: false,
    };
    let user = Policy::builder("user").limit(limit).override_for("gold", own).build().unwrap();
    let account = named("account", TokenBucket::per_second(1), 1);
    let deadline = clock.now() + FAR;
    assert!(queue.acquire(&ask(&[(&account, "acme")])).await.unwrap().is_admitted());
    let mut groups = [Vec::new(), Vec::new()];
    for (group, subject) in [(0, "gold"), (1, "plain")] {
        for _ in 0..20 {
            groups[group].push(wait(&queue, &[(&user, subject), (&account, "acme")], deadline));
            settle_down().await;
        }
    }
    pass(&clock, 12).await;
    let got = done(&groups);
    assert!(got[0].abs_diff(9) <= 1 && got[0] + got[1] == 12, "{got:?}");
    let named = ask(&[(&user, "u1"), (&account, "other")]).for_tenant("t9", 5);
    let permit = queue.acquire(&named).await.unwrap().into_permit().unwrap();
    assert_eq!((permit.tenant(), permit.subject()), (("t9", 5), "u1"));
    assert!(queue.acquire(&ask(&[(&user, "u1")]).for_tenant("", 1)).await.is_err());
}
