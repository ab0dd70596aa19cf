//! Waiting for slots: estimates from observed holding times, and slots that other processes release.

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::core::bounds::SLOT_WAIT_DEFAULT;
use tollgate::internal::{
    HOLDING_POLICIES_MAX, HOLDING_SUBJECTS_MAX, HOLDING_TIMES_MAX, SLOT_POLL_MAX, SLOT_POLL_MIN,
};
use tollgate::layer::{GateLayer, GatedError};
use tollgate::{
    Ask, Clock, Concurrency, Costs, Denial, Gate, GateExt, Limit, Memory, Permit, Policy, Queue,
    Span, Timestamp,
};
use tower::{Layer, ServiceExt, service_fn};

use super::{Waiting, queue, wait};
use crate::{policy, settle_down};

const TTL: Span = Span::from_mins(5);

async fn admitted(gate: &impl Gate, policy: &Policy) -> Permit {
    gate.acquire(&Ask::new(policy, "alice")).await.unwrap().into_permit().expect("a slot is free")
}

async fn denied(gate: &impl Gate, policy: &Policy) -> Denial {
    gate.acquire(&Ask::new(policy, "alice")).await.unwrap().into_denial().expect("no slot is free")
}

/// Holds a slot of `policy` for each of `times`, one after the other.
async fn hold(queue: &Waiting, clock: &ManualClock, policy: &Policy, times: &[u64]) {
    for seconds in times {
        let permit = admitted(queue, policy).await;
        clock.advance(Span::from_secs(*seconds));
        assert!(queue.settle(&permit, &Costs::new()).await.unwrap());
    }
}

/// Slots that are held for 1 to 4 s are promised after 2.5 s, not after the 5 minutes of their expiry.
#[tokio::test]
async fn the_wait_for_a_slot_is_estimated_from_observed_holding_times() {
    let (queue, clock) = queue();
    let policy = policy(Concurrency::new(1, TTL));
    let held = admitted(&queue, &policy).await;
    let denial = denied(&queue, &policy).await;
    assert_eq!(denial.retry_after(), Some(SLOT_WAIT_DEFAULT), "nothing was observed yet");
    queue.release(&held).await.unwrap();
    assert!(!queue.release(&held).await.unwrap(), "the second time is no observation");
    hold(&queue, &clock, &policy, &[1; HOLDING_TIMES_MAX]).await;
    hold(&queue, &clock, &policy, &[1, 2, 3, 4].repeat(HOLDING_TIMES_MAX / 4)).await;
    let _held = admitted(&queue, &policy).await;
    clock.advance(Span::from_secs(1));
    let denial = denied(&queue, &policy).await;
    assert_eq!(denial.retry_after(), Some(Span::from_millis(2_500)), "the latest times count");
    assert!(denial.is_estimated());
    assert_eq!(denial.expires_at, Some(clock.now() + TTL - Span::from_secs(1)));
}

/// The estimate is per policy and limit, and at most what is left until the slot expires.
#[tokio::test]
async fn other_limits_have_other_holding_times() {
    let (queue, clock) = queue();
    let limits = [
        Limit::new("calls", "requests", Concurrency::new(1, TTL)),
        Limit::new("jobs", "jobs", Concurrency::new(1, Span::from_mins(10))),
    ];
    let both = Policy::new("both", limits).unwrap();
    let call = Ask::new(&both, "alice");
    let job = Ask::new(&both, "alice").cost("requests", 0).cost("jobs", 1);
    for (ask, seconds) in [(&call, 2), (&job, 60)] {
        let permit = queue.acquire(ask).await.unwrap().into_permit().unwrap();
        clock.advance(Span::from_secs(seconds));
        queue.release(&permit).await.unwrap();
    }
    assert!(queue.acquire(&call).await.unwrap().is_admitted());
    let denial = queue.acquire(&call).await.unwrap().into_denial().unwrap();
    assert_eq!(denial.retry_after(), Some(Span::from_secs(2)));
    assert!(queue.acquire(&job).await.unwrap().is_admitted());
    let denial = queue.acquire(&call.clone().cost("jobs", 1)).await.unwrap().into_denial().unwrap();
    assert_eq!((&*denial.limit, denial.retry_after()), ("jobs", Some(Span::from_mins(1))));
    let other = Policy::new("other", [Limit::new("calls", "requests", Concurrency::new(1, TTL))]);
    let other = other.unwrap();
    admitted(&queue, &other).await;
    assert_eq!(denied(&queue, &other).await.retry_after(), Some(SLOT_WAIT_DEFAULT));
}

/// Permits are stamped by the clock of the store. A process whose own clock is an hour off observes the same times, and
/// so does one whose clock is set.
#[tokio::test]
async fn holding_times_are_those_of_the_store() {
    let store = ManualClock::new();
    let gate = Memory::with(Arc::new(store.clone()), 100);
    let clock = ManualClock::at(store.now() - Span::from_hours(1));
    let queue = Queue::new(gate, Arc::new(clock.clone()));
    let policy = policy(Concurrency::new(1, TTL));
    let pass = |span| {
        store.advance(span);
        clock.advance(span);
    };
    for _ in 0..3 {
        let permit = admitted(&queue, &policy).await;
        pass(Span::from_secs(3));
        clock.step(clock.now() + Span::from_hours(2));
        queue.release(&permit).await.unwrap();
    }
    admitted(&queue, &policy).await;
    assert_eq!(denied(&queue, &policy).await.retry_after(), Some(Span::from_secs(3)));
}

/// A permit that outlived its slot held it until it expired.
#[tokio::test]
async fn a_slot_is_held_no_longer_than_until_it_expires() {
    let (queue, clock) = queue();
    let limits = [
        Limit::new("slots", "requests", Concurrency::new(1, Span::from_secs(8))),
        Limit::new("tokens", "tokens", tollgate::TokenBucket::per_minute(100)),
    ];
    let policy = Policy::new("calls", limits).unwrap();
    let ask = Ask::new(&policy, "alice").cost("tokens", 50);
    let permit = queue.acquire(&ask).await.unwrap().into_permit().unwrap();
    clock.advance(Span::from_secs(20));
    assert!(queue.settle(&permit, &Costs::new()).await.unwrap());
    admitted(&queue, &policy).await;
    assert_eq!(denied(&queue, &policy).await.retry_after(), Some(Span::from_secs(8)));
}

/// The memory for holding times is bounded: beyond it the default counts.
#[tokio::test]
async fn the_number_of_policies_with_holding_times_is_bounded() {
    let (queue, clock) = queue();
    let of = |number: usize| {
        let limit = Limit::new("slots", "requests", Concurrency::new(1, TTL));
        Policy::new(format!("p{number}"), [limit]).unwrap()
    };
    for number in 0..=HOLDING_POLICIES_MAX {
        hold(&queue, &clock, &of(number), &[4]).await;
    }
    for (number, wait) in [(0, Span::from_secs(4)), (HOLDING_POLICIES_MAX, SLOT_WAIT_DEFAULT)] {
        admitted(&queue, &of(number)).await;
        assert_eq!(denied(&queue, &of(number)).await.retry_after(), Some(wait), "{number}");
    }
}

/// Each subject has an estimate of its own. One that was not observed yet has that of the policy, and so have all once the
/// table of subjects was full.
#[tokio::test]
async fn each_subject_has_its_own_holding_times() {
    let (queue, clock) = queue();
    let policy = policy(Concurrency::new(1, TTL));
    let hold = async |subject: &str, span: Span| {
        let permit =
            queue.acquire(&Ask::new(&policy, subject)).await.unwrap().into_permit().unwrap();
        clock.advance(span);
        assert!(queue.settle(&permit, &Costs::new()).await.unwrap());
    };
    let wait = async |subject: &str| {
        let ask = Ask::new(&policy, subject);
        let _ = queue.acquire(&ask).await.unwrap();
        queue.acquire(&ask).await.unwrap().into_denial().unwrap().retry_after()
    };
    hold("slow", Span::from_secs(30)).await;
    hold("fast", Span::from_secs(2)).await;
    assert_eq!(wait("fast").await, Some(Span::from_secs(2)));
    assert_eq!(wait("slow").await, Some(Span::from_secs(30)));
    assert_eq!(wait("new").await, Some(Span::from_secs(16)));
    for number in 2..=HOLDING_SUBJECTS_MAX {
        hold(&format!("s{number}"), Span::from_secs(1)).await;
    }
    assert_eq!(wait("fast").await, Some(Span::from_secs(1)));
}

/// Where a policy has other limits too, a permit that is released was not used, and says nothing of holding times.
#[tokio::test]
async fn a_permit_that_was_not_used_is_no_observation() {
    let (queue, clock) = queue();
    let limits = [
        Limit::new("slots", "requests", Concurrency::new(1, TTL)),
        Limit::new("rate", "requests", tollgate::TokenBucket::per_second(100)),
    ];
    let policy = Policy::new("calls", limits).unwrap();
    hold(&queue, &clock, &policy, &[4]).await;
    for _ in 0..3 {
        let unused = admitted(&queue, &policy).await;
        assert!(queue.release(&unused).await.unwrap());
    }
    admitted(&queue, &policy).await;
    assert_eq!(denied(&queue, &policy).await.retry_after(), Some(Span::from_secs(4)));
}

/// A policy in shadow mode says what it would have said.
#[tokio::test]
async fn a_shadow_denial_is_estimated_too() {
    let (queue, clock) = queue();
    let limit = Limit::new("slots", "requests", Concurrency::new(1, TTL));
    let policy = Policy::builder("trial").shadow(true).limit(limit).build().unwrap();
    hold(&queue, &clock, &policy, &[4]).await;
    admitted(&queue, &policy).await;
    let permit = admitted(&queue, &policy).await;
    let denial = permit.shadow_denied.as_deref().expect("it would have been denied");
    assert_eq!(denial.retry_after(), Some(Span::from_secs(4)));
}

/// Another process on the same store releases a slot and cannot notify this one.
#[tokio::test]
async fn a_slot_that_another_process_releases_is_found_soon() {
    let (queue, clock) = queue();
    let policy = policy(Concurrency::new(1, TTL));
    let deadline = clock.now() + Span::from_mins(2);
    for (times, pause) in [(60, SLOT_POLL_MAX), (0, SLOT_POLL_MIN)] {
        hold(&queue, &clock, &policy, &[times; HOLDING_TIMES_MAX]).await;
        let held = admitted(&queue, &policy).await;
        let waiter = wait(&queue, &policy, 1, clock.now() + Span::from_mins(2));
        settle_down().await;
        for _ in 0..3 {
            assert_eq!(clock.next_alarm(), Some(clock.now() + pause));
            clock.advance(pause);
            settle_down().await;
            assert!(!waiter.is_finished());
        }
        queue.inner().release(&held).await.unwrap();
        clock.advance(pause);
        let permit = waiter.await.unwrap().unwrap().into_permit().expect("it was released");
        queue.release(&permit).await.unwrap();
    }
    assert!(deadline < clock.now());
}

/// Where another limit binds for longer there is no use in polling, and a slot that expires is had at once.
#[tokio::test]
async fn polling_keeps_to_what_is_certain() {
    let (queue, clock) = queue();
    let rate = Limit::new("rate", "requests", tollgate::RollingWindow::new(1, Span::from_secs(10)));
    let slots = Limit::new("slots", "requests", Concurrency::new(1, Span::from_millis(10_020)));
    let policy = Policy::new("both", [rate, slots]).unwrap();
    let start = clock.now();
    admitted(&queue, &policy).await;
    let waiter = wait(&queue, &policy, 1, start + Span::from_mins(1));
    settle_down().await;
    for millis in [10_000, 10_020] {
        assert_eq!(clock.next_alarm(), Some(start + Span::from_millis(millis)));
        clock.set(start + Span::from_millis(millis));
        settle_down().await;
    }
    assert!(waiter.await.unwrap().unwrap().is_admitted());
    // The other limit alone keeps it from being admitted in time.
    let soon = clock.now() + Span::from_secs(9);
    let ask = Ask::new(&policy, "alice");
    assert!(queue.acquire_within(&ask, soon).await.unwrap().into_denial().is_some());
}

/// The deadline is kept although the waiter asks many times, and though the wall clock is set back meanwhile.
#[tokio::test]
async fn a_waiter_that_polls_keeps_its_deadline() {
    let (queue, clock) = queue();
    let policy = policy(Concurrency::new(1, TTL));
    admitted(&queue, &policy).await;
    let waiter = wait(&queue, &policy, 1, clock.now() + Span::from_millis(2_500));
    settle_down().await;
    for millis in [1_000, 1_000, 500] {
        assert!(!waiter.is_finished());
        assert_eq!(clock.next_alarm(), Some(clock.now() + Span::from_millis(millis)));
        clock.advance(Span::from_millis(millis));
        settle_down().await;
    }
    assert!(waiter.await.unwrap().unwrap().into_denial().expect("it is late").is_estimated());
}

/// An ask that is refused although there is room says how many wait ahead, and for how long.
#[tokio::test]
async fn an_ask_behind_others_says_how_many_wait_ahead() {
    let (queue, clock) = queue();
    let policy = policy(tollgate::TokenBucket::per_second(1).burst(50));
    admitted(&queue, &policy).await;
    let large = wait(&queue, &policy, 50, Timestamp::MAX);
    settle_down().await;
    let soon = clock.now() + Span::from_millis(1_500);
    let late = queue.acquire_within(&Ask::new(&policy, "alice"), soon).await.unwrap();
    let denial = late.into_denial().expect("it would take 2 s");
    assert_eq!((denial.waiting_ahead, denial.retry_after()), (1, Some(Span::from_secs(2))));
    let small = wait(&queue, &policy, 1, Timestamp::MAX);
    settle_down().await;
    let denial = denied(&queue, &policy).await;
    assert_eq!((denial.limits[0].remaining, denial.waiting_ahead), (49, 2));
    assert_eq!(denial.retry_after(), Some(Span::from_secs(3)));
    clock.advance(Span::from_secs(1));
    settle_down().await;
    assert!(large.is_finished() && !small.is_finished());
    assert!(large.await.unwrap().unwrap().is_admitted());
}

/// What the layer for tower says of it.
#[tokio::test]
async fn the_layer_says_what_is_estimated_and_who_waits_ahead() {
    let (queue, clock) = queue();
    let policy = policy(Concurrency::new(1, TTL));
    hold(&queue, &clock, &policy, &[2]).await;
    admitted(&queue, &policy).await;
    let waiter = wait(&queue, &policy, 1, Timestamp::MAX);
    settle_down().await;
    let asked = policy.clone();
    let gate: Arc<dyn Gate> = Arc::<Queue<_>>::clone(&queue);
    let layer = GateLayer::new(gate, move |(): &()| Ask::new(&asked, "alice").into_owned());
    let service = layer.layer(service_fn(|()| async { Ok::<_, std::io::Error>(()) }));
    let error = service.oneshot(()).await.unwrap_err();
    assert!(matches!(&error, GatedError::Denied(denial) if denial.is_estimated()));
    let text = "denied by limit \"only\" of policy \"test\"; 1 ask waits ahead; \
                try again in about 4s (estimated; at the latest 10m)";
    assert_eq!(error.to_string(), text);
    waiter.abort();
    assert!(matches!(waiter.await, Err(error) if error.is_cancelled()));
}
