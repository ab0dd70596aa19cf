//! What each verb does with asks that are not posted yet, and what never is decided locally.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate::clock::ManualClock;
use tollgate::core::Verdict;
use tollgate::strategy::{Optimistic, OptimisticOptions};
use tollgate::{
    Ask, Clock, Concurrency, Costs, ErrorKind, Gate, GateExt, Limit, Policy, RollingWindow, Span,
    TokenBucket,
};

use super::link::{Dice, Link, Weather};
use crate::{memory, policy};

type Store = Arc<tollgate::Memory>;

fn linked(unposted_max: u64) -> (Optimistic<Arc<Link>>, Arc<Link>, Store, ManualClock) {
    let (store, clock) = memory();
    let link = Arc::new(Link::new(&store, &clock, &Arc::new(Dice::new(1)), Weather::CALM));
    let options = OptimisticOptions::new(unposted_max);
    let gate = Optimistic::new(Arc::clone(&link), options, Arc::new(clock.clone()));
    (gate, link, store, clock)
}

async fn used(gate: &dyn Gate, policy: &Policy) -> u64 {
    gate.standing(policy, "alice").await.expect("it is in memory")[0].used
}

#[tokio::test]
async fn r002_1_after_the_first_ask_decisions_are_local_and_posted_together() {
    let (gate, link, store, clock) = linked(10);
    let policy = policy(TokenBucket::per_minute(100));
    let ask = Ask::new(&policy, "alice");
    assert_eq!(gate.try_acquire(&ask).unwrap(), None, "nobody here knows the subject yet");
    assert!(gate.acquire(&ask).await.unwrap().is_admitted());
    for _ in 0..5 {
        assert!(matches!(gate.try_acquire(&ask), Ok(Some(Verdict::Admitted(_)))));
    }
    assert_eq!(used(&*store, &policy).await, 1);
    assert_eq!(gate.unposted(&policy, "alice").get("requests"), Some(5));
    super::fleet::settle_down().await;
    clock.advance(Span::from_millis(250));
    super::fleet::settle_down().await;
    assert_eq!(used(&*store, &policy).await, 6);
    assert_eq!(link.posts.load(Ordering::Relaxed), 1, "one charge for all of them");
    assert_eq!(gate.unposted(&policy, "alice").get("requests"), Some(0));
}

#[tokio::test]
async fn what_others_took_and_what_they_gave_back_is_learned_from_the_answers() {
    let (gate, _, store, clock) = linked(10);
    let policy = policy(RollingWindow::new(10, Span::from_hours(1)));
    let ask = Ask::new(&policy, "alice");
    assert!(gate.acquire(&ask).await.unwrap().is_admitted());
    let others =
        store.acquire(&ask.clone().cost("requests", 8)).await.unwrap().into_permit().unwrap();
    assert!(gate.acquire(&ask).await.unwrap().is_admitted(), "it cannot know of them yet");
    gate.flush(&policy, "alice").await.unwrap();
    let denial = gate.acquire(&ask).await.unwrap().into_denial().expect("the answer told of them");
    assert_eq!(denial.limits[0].used, 10);
    assert!(store.release(&others).await.unwrap());
    assert!(gate.acquire(&ask).await.unwrap().into_denial().is_some(), "repeated without asking");
    clock.advance(Span::from_millis(100));
    assert!(gate.acquire(&ask).await.unwrap().is_admitted(), "asked again after recheck_after");
    assert!(matches!(gate.try_acquire(&ask), Ok(Some(Verdict::Admitted(_)))), "and learned");
}

#[tokio::test]
async fn settling_before_the_post_changes_the_post_and_after_it_the_store() {
    let (gate, link, store, _clock) = linked(20);
    let policy = policy(RollingWindow::new(100, Span::from_hours(1)));
    let ask = |cost| Ask::new(&policy, "alice").cost("requests", cost);
    assert!(gate.acquire(&ask(1)).await.unwrap().is_admitted());
    let [released, settled, grown] = [4, 5, 6];
    let released = gate.acquire(&ask(released)).await.unwrap().into_permit().unwrap();
    let settled = gate.acquire(&ask(settled)).await.unwrap().into_permit().unwrap();
    let grown = gate.acquire(&ask(grown)).await.unwrap().into_permit().unwrap();
    let actual = |cost| Costs::new().with("requests", cost);
    assert!(gate.release(&released).await.unwrap());
    assert!(!gate.release(&released).await.unwrap(), "the second time changes nothing");
    assert!(gate.settle(&settled, &actual(3)).await.unwrap());
    assert_eq!(gate.unposted(&policy, "alice").get("requests"), Some(9));
    gate.flush(&policy, "alice").await.unwrap();
    assert_eq!((used(&*store, &policy).await, link.posts.load(Ordering::Relaxed)), (10, 1));
    assert!(gate.settle(&grown, &actual(9)).await.unwrap());
    gate.flush(&policy, "alice").await.unwrap();
    assert_eq!(used(&*store, &policy).await, 13);
    let alone = gate.acquire(&ask(7)).await.unwrap().into_permit().unwrap();
    gate.flush(&policy, "alice").await.unwrap();
    assert!(gate.settle(&alone, &actual(2)).await.unwrap());
    assert!(!gate.settle(&alone, &actual(1)).await.unwrap());
    gate.flush(&policy, "alice").await.unwrap();
    assert_eq!(used(&*store, &policy).await, 15);
    let wrong = gate.settle(&alone, &Costs::new().with("bananas", 1)).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_permit_of_another_instance_gives_nothing_back_and_one_of_an_hour_ago_is_expired() {
    let (gate, _, store, clock) = linked(20);
    let other =
        Optimistic::new(Arc::clone(&store), OptimisticOptions::new(20), Arc::new(clock.clone()));
    let policy = policy(TokenBucket::per_minute(100));
    let ask = Ask::new(&policy, "alice");
    for gate in [&gate as &dyn Gate, &other] {
        assert!(gate.acquire(&ask).await.unwrap().is_admitted());
    }
    let permit = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    gate.flush(&policy, "alice").await.unwrap();
    // Whoever did not give it changes nothing for it, and says so.
    for elsewhere in [&other as &dyn Gate, &*store] {
        assert!(!elsewhere.release(&permit).await.unwrap());
        assert!(!elsewhere.settle(&permit, &Costs::new().with("requests", 0)).await.unwrap());
    }
    assert_eq!(used(&*store, &policy).await, 3);
    // What the call cost beyond the estimate was spent all the same, and counts once.
    let more = Costs::new().with("requests", 4);
    for _ in 0..2 {
        assert!(other.settle(&permit, &more).await.unwrap());
    }
    assert_eq!(used(&*store, &policy).await, 6);
    assert_eq!(gate.renew(&permit).await.unwrap(), permit, "it has no slots");
    clock.advance(tollgate::core::bounds::PERMIT_TTL);
    assert_eq!(gate.release(&permit).await.unwrap_err().kind(), ErrorKind::Expired);
}

#[tokio::test]
async fn ids_slots_and_what_costs_more_than_unposted_max_ask_the_store() {
    let (gate, _, store, _clock) = linked(5);
    let rate = policy(TokenBucket::per_minute(100));
    let ask = Ask::new(&rate, "alice");
    assert!(gate.acquire(&ask).await.unwrap().is_admitted());
    let big = ask.clone().cost("requests", 6);
    assert_eq!(gate.try_acquire(&big).unwrap(), None);
    assert!(gate.acquire(&big).await.unwrap().is_admitted());
    assert_eq!(used(&*store, &rate).await, 7);
    // Promise 5: once, also where the repeat comes to another instance.
    let named = ask.clone().id("once");
    let first = gate.acquire(&named).await.unwrap().into_permit().unwrap();
    let again = store.acquire(&named).await.unwrap().into_permit().unwrap();
    assert_eq!((first.grant(), used(&*store, &rate).await), (again.grant(), 8));
    let slots = [
        Limit::new("jobs", "requests", Concurrency::new(2, Span::from_mins(5))),
        Limit::new("rate", "requests", TokenBucket::per_minute(100)),
    ];
    let slots = Policy::new("slots", slots).unwrap();
    for expected in [true, true, false] {
        let ask = Ask::new(&slots, "alice");
        assert_eq!(gate.try_acquire(&ask).unwrap(), None);
        assert_eq!(gate.acquire(&ask).await.unwrap().is_admitted(), expected);
    }
}

#[tokio::test]
async fn closing_holds_here_at_once_and_resetting_forgets_here_too() {
    let (gate, link, store, clock) = linked(20);
    let policy = policy(RollingWindow::new(10, Span::from_hours(1)));
    let ask = Ask::new(&policy, "alice");
    assert!(gate.acquire(&ask).await.unwrap().is_admitted());
    let until = clock.now() + Span::from_mins(5);
    link.down.store(true, Ordering::Relaxed);
    assert!(gate.close_until(&ask, "only", until).await.is_err(), "the store was not told");
    assert!(gate.try_acquire(&ask).unwrap().is_none(), "but nothing is admitted here");
    link.down.store(false, Ordering::Relaxed);
    assert!(gate.close_until(&ask, "only", until).await.unwrap());
    assert!(store.acquire(&ask).await.unwrap().into_denial().is_some());
    let wrong = gate.close_until(&ask, "other", until).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Invalid);
    assert!(gate.reset(&policy, "alice").await.unwrap());
    for _ in 0..10 {
        assert!(matches!(gate.try_acquire(&ask), Ok(Some(Verdict::Admitted(_)))));
    }
    assert!(gate.acquire(&ask).await.unwrap().into_denial().is_some());
    assert_eq!(used(&*store, &policy).await, 10);
}

#[tokio::test]
async fn subjects_beyond_the_bound_ask_the_store_and_idle_ones_make_room() {
    let (store, clock) = memory();
    let options = OptimisticOptions { subjects_max: 1, ..OptimisticOptions::new(10) };
    let gate = Optimistic::new(store, options, Arc::new(clock.clone()));
    let policy = policy(TokenBucket::per_minute(100));
    // Far more than there are shards, so that every shard is full.
    let names = |what: &str| (0..2_000).map(|number| format!("{what}-{number}")).collect();
    let (old, new): (Vec<String>, Vec<String>) = (names("old"), names("new"));
    let local = |subjects: &[String]| {
        let asks = subjects.iter().map(|subject| Ask::new(&policy, subject.as_str()));
        asks.filter(|ask| gate.try_acquire(ask).unwrap().is_some()).count()
    };
    for subject in old.iter().chain(&new) {
        assert!(gate.acquire(&Ask::new(&policy, subject.as_str())).await.unwrap().is_admitted());
    }
    let known = local(&old);
    assert!((1..100).contains(&known) && local(&new) == 0, "{known} of the old subjects");
    // Once for the posts, and once for the posters to find nothing more to do.
    for _ in 0..2 {
        super::fleet::settle_down().await;
        clock.advance(Span::from_mins(2));
    }
    super::fleet::settle_down().await;
    for subject in &new {
        assert!(gate.acquire(&Ask::new(&policy, subject.as_str())).await.unwrap().is_admitted());
    }
    assert_eq!((local(&new), local(&old)), (known, 0), "the idle ones made room");
}

#[tokio::test]
async fn changed_numbers_keep_what_was_used_and_what_is_unposted() {
    let (gate, _, store, _clock) = linked(20);
    let of = |limit| policy(RollingWindow::new(limit, Span::from_hours(1)));
    let (small, large) = (of(5), of(10));
    for _ in 0..5 {
        assert!(gate.acquire(&Ask::new(&small, "alice")).await.unwrap().is_admitted());
    }
    assert!(gate.acquire(&Ask::new(&small, "alice")).await.unwrap().into_denial().is_some());
    for _ in 0..5 {
        assert!(gate.acquire(&Ask::new(&large, "alice")).await.unwrap().is_admitted());
    }
    assert!(gate.acquire(&Ask::new(&large, "alice")).await.unwrap().into_denial().is_some());
    assert_eq!(used(&*store, &large).await, 10);
}
