//! Fallback: when it opens, what it answers meanwhile, and what bounds it.

use std::sync::Arc;

use tollgate::core::Wait;
use tollgate::policy::{OnStoreFailure, Period};
use tollgate::strategy::{Fallback, FallbackOptions};
use tollgate::{
    Ask, CalendarWindow, Clock, Concurrency, Costs, ErrorKind, GateExt, Span, Timestamp,
    TokenBucket,
};
use tollgate_conformance::faulty::Trouble;

use super::{admitted, away};
use crate::faulty::{
    drive, fallback, fallback_with, hourly, idle, leap, pass, resend, store, used, with,
};

const HOUR: Span = Span::from_hours(1);

/// R000.10, promise 7: after three failed attempts decisions are made here; they say so, and so does an event. The store
/// is left alone.
#[tokio::test]
async fn r000_10_three_failed_attempts_open_it_and_decisions_say_degraded() {
    let (store, clock) = store();
    let (gate, heard) = fallback(&store, &clock);
    let policy = hourly(20, OnStoreFailure::Fallback);
    let ask = Ask::new(&policy, "p");
    assert!(!gate.acquire(&ask).await.unwrap().into_permit().unwrap().degraded);
    store.next_calls([Trouble::Down, Trouble::Down]);
    let permit = drive(&clock, gate.acquire(&ask)).await.unwrap().into_permit().unwrap();
    assert!(!permit.degraded && !gate.is_degraded(), "two failures are not three");
    store.always(Trouble::Down);
    let before = store.calls();
    let denial = drive(&clock, gate.acquire(&ask)).await.unwrap().into_denial().unwrap();
    assert_eq!(store.calls() - before, 3);
    assert!(denial.degraded && gate.is_degraded());
    let share_back = denial.reset_at().unwrap();
    assert_eq!(*heard.told.lock().unwrap(), ["began: the store is down"]);
    for _ in 0..100 {
        assert!(gate.acquire(&ask).await.unwrap().into_denial().unwrap().degraded);
    }
    assert_eq!(store.calls() - before, 3, "nobody else waits for a store that is away");
    // The share counts as used when the store failed, and comes back an hour later: 2 of 20 for one of ten.
    leap(&clock, share_back.since(clock.now())).await;
    for _ in 0..2 {
        let permit = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
        assert!(permit.degraded && permit.limits[0].limit == 2);
    }
    assert!(gate.acquire(&ask).await.unwrap().into_denial().unwrap().degraded);
    assert_eq!(heard.told.lock().unwrap().len(), 1);
}

/// A wall clock that is set in an outage, forward or back, neither gives the share again nor keeps it.
#[tokio::test]
async fn a_share_does_not_follow_a_clock_that_is_set() {
    for (behind, ahead) in [(Span::ZERO, Span::from_hours(2)), (Span::from_hours(2), Span::ZERO)] {
        let (_store, clock, gate) = away(&hourly(20, OnStoreFailure::Fallback)).await;
        let policy = hourly(20, OnStoreFailure::Fallback);
        let ask = Ask::new(&policy, "p");
        leap(&clock, HOUR).await;
        for _ in 0..2 {
            admitted(&gate, &ask).await;
        }
        clock.step(clock.now() - behind + ahead);
        let denial = gate.acquire(&ask).await.unwrap().into_denial().unwrap();
        let wait = denial.reset_at().unwrap().since(denial.decided_at);
        assert!(Span::ZERO < wait && wait <= HOUR, "{wait}");
        leap(&clock, wait).await;
        admitted(&gate, &ask).await;
    }
}

/// R000.11: throttling opens it after the first attempt and five more.
#[tokio::test]
async fn r000_11_throttling_opens_it_after_five_retries() {
    let (store, clock) = store();
    let (gate, heard) = fallback(&store, &clock);
    let policy = hourly(20, OnStoreFailure::Open);
    store.next_calls([Trouble::Throttles; 5]);
    let permit = drive(&clock, gate.acquire(&Ask::new(&policy, "p"))).await.unwrap();
    assert!(!permit.into_permit().unwrap().degraded);
    // The store serves others, so it is this subject alone, and nothing is let through for it.
    store.next_calls([Trouble::Throttles; 6]);
    let error = drive(&clock, gate.acquire(&Ask::new(&policy, "p"))).await.unwrap_err();
    assert_eq!((error.kind(), store.calls()), (ErrorKind::Contended, 6 + 6 + 1));
    assert!(!gate.is_degraded() && heard.told.lock().unwrap().is_empty());
    // Nobody is served.
    store.always(Trouble::Throttles);
    let permit = drive(&clock, gate.acquire(&Ask::new(&policy, "p"))).await.unwrap();
    assert!(permit.into_permit().unwrap().degraded);
    assert_eq!(heard.told.lock().unwrap().len(), 1);
}

/// A call that is not answered in time is of its subject as long as the store answers others, whatever the policy does when
/// the store fails; a store that answers nobody fails.
#[tokio::test]
async fn a_subject_that_hangs_alone_leaves_the_store_in_use() {
    for action in [OnStoreFailure::Open, OnStoreFailure::Fallback, OnStoreFailure::Closed] {
        let (store, clock) = store();
        let (gate, heard) = fallback(&store, &clock);
        let policy = hourly(20, action);
        store.next_calls([Trouble::Hangs; 3]);
        let error = drive(&clock, gate.acquire(&Ask::new(&policy, "hot"))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Contended, "{error}");
        let answer = drive(&clock, gate.acquire(&Ask::new(&policy, "cold"))).await.unwrap();
        assert!(!answer.into_permit().unwrap().degraded && !gate.is_degraded());
        // An answer to another subject while the call waits is as good as a probe.
        store.next_calls([Trouble::Hangs; 3]);
        let before = store.calls();
        let asked = Ask::new(&policy, "hot");
        let hot = gate.acquire(&asked);
        let others = async {
            for number in 0..30 {
                clock.sleep_until(clock.now() + Span::from_millis(50)).await;
                let subject = format!("other-{number}");
                if 3 <= store.calls() - before {
                    gate.acquire(&Ask::new(&policy, subject)).await.unwrap();
                }
            }
        };
        let (error, ()) = drive(&clock, async { tokio::join!(hot, others) }).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Contended);
        assert!(heard.told.lock().unwrap().is_empty());
        store.always(Trouble::Hangs);
        let answer = drive(&clock, gate.acquire(&Ask::new(&policy, "hot"))).await;
        assert!(gate.is_degraded());
        let kind = answer.err().map(|error| error.kind());
        assert_eq!(kind, (action == OnStoreFailure::Closed).then_some(ErrorKind::Unavailable));
    }
}

/// The first probes come soon, since most outages are short, and then less and less often.
#[tokio::test]
async fn a_short_outage_is_noticed_within_a_second_of_its_end() {
    let (store, clock) = store();
    let settings = FallbackOptions::new(1);
    let (gate, _) = fallback_with(&store, &clock, settings);
    let policy = hourly(1_000, OnStoreFailure::Open);
    let ask = Ask::new(&policy, "p");
    store.always(Trouble::Down);
    assert!(drive(&clock, gate.acquire(&ask)).await.unwrap().into_permit().unwrap().degraded);
    pass(&clock, Span::from_millis(2_500)).await;
    store.always(Trouble::None);
    pass(&clock, Span::from_secs(4)).await;
    assert!(!gate.acquire(&ask).await.unwrap().into_permit().unwrap().degraded);
    // One that lasts is probed no more often than is set.
    store.always(Trouble::Down);
    assert!(drive(&clock, gate.acquire(&ask)).await.unwrap().into_permit().unwrap().degraded);
    pass(&clock, Span::from_mins(1)).await;
    let before = store.calls();
    pass(&clock, Span::from_mins(1)).await;
    let probes = (store.calls() - before) / 3;
    assert!((2..=12).contains(&probes), "{probes} probes in a minute");
}

/// A slow store is a failed one, and nobody waits longer than the deadline for it.
#[tokio::test]
async fn a_store_that_hangs_is_a_store_that_failed() {
    let (store, clock) = store();
    let (gate, _) = fallback(&store, &clock);
    let policy = hourly(20, OnStoreFailure::Open);
    store.always(Trouble::Hangs);
    let since = clock.now();
    let asks = (0..50).map(|number| {
        let (gate, policy) = (Arc::clone(&gate), policy.clone());
        tokio::spawn(async move {
            let subject = format!("p{number}");
            gate.acquire(&Ask::new(&policy, subject)).await
        })
    });
    let asks: Vec<_> = asks.collect();
    drive(&clock, async {
        for ask in asks {
            assert!(ask.await.unwrap().unwrap().into_permit().unwrap().degraded);
        }
    })
    .await;
    let took = clock.now().since(since);
    assert!(took <= tollgate::strategy::ResendOptions::default().deadline.into(), "{took}");
}

#[tokio::test]
async fn a_closed_policy_is_an_error_that_says_why() {
    let (store, clock) = store();
    let (gate, _) = fallback(&store, &clock);
    let policy = hourly(20, OnStoreFailure::Closed);
    let ask = Ask::new(&policy, "p");
    store.always(Trouble::Down);
    let first = drive(&clock, gate.acquire(&ask)).await.unwrap_err();
    assert_eq!((first.kind(), store.calls()), (ErrorKind::Unavailable, 3));
    let error = gate.acquire(&ask).await.unwrap_err();
    assert_eq!((error.kind(), store.calls()), (ErrorKind::Unavailable, 3));
    let text = error.to_string();
    assert!(
        text.contains("on_store_failure = \"closed\"") && text.contains("the store is down"),
        "{text}"
    );
    assert!(gate.standing(&policy, "p").await.is_err() && gate.reset(&policy, "p").await.is_err());
    store.always(Trouble::None);
    pass(&clock, Span::from_secs(30)).await;
    assert!(gate.acquire(&ask).await.unwrap().is_admitted());
}

/// Each rule by its share, as the design decides: used to begin with, and a share below one takes longer.
#[tokio::test]
async fn every_rule_has_its_share() {
    let midnight = {
        let (_, clock) = store();
        let day = 86_400_000_000;
        Span::from_micros(day - clock.now().as_micros() % day)
    };
    for (rule, wait, share) in [
        (tollgate::RollingWindow::new(5, Span::from_mins(1)).into(), Span::from_mins(2), 1),
        (TokenBucket::per_minute(600).into(), Span::from_mins(1), 60),
        (CalendarWindow::new(25, Period::Day).into(), midnight, 2),
        (Concurrency::new(30, Span::from_mins(5)).into(), Span::from_mins(5), 3),
    ] {
        let rule: tollgate::policy::Rule = rule;
        let (store, clock) = store();
        let (gate, _) = fallback(&store, &clock);
        let policy = with(rule, OnStoreFailure::Fallback);
        store.always(Trouble::Down);
        drive(&clock, gate.acquire(&Ask::new(&policy, "opens"))).await.unwrap();
        let opened = clock.now();
        let ask = Ask::new(&policy, "p");
        assert!(!gate.acquire(&ask).await.unwrap().is_admitted());
        leap(&clock, wait).await;
        for _ in 0..share {
            assert!(gate.acquire(&ask).await.unwrap().is_admitted(), "{policy:?}");
        }
        assert!(!gate.acquire(&ask).await.unwrap().is_admitted(), "{policy:?} since {opened}");
    }
}

#[tokio::test]
async fn a_policy_without_a_whole_slot_for_each_is_closed_and_says_so() {
    let (store, clock) = store();
    let (gate, _) = fallback(&store, &clock);
    let policy = with(Concurrency::new(3, HOUR), OnStoreFailure::Fallback);
    store.always(Trouble::Down);
    let error = drive(&clock, gate.acquire(&Ask::new(&policy, "p"))).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unavailable && error.to_string().contains("slots"),
        "{error}"
    );
}

/// The stated worst case at its edge: three of ten instances are cut off for two hours, the others ask the store, and in
/// the worst hour exactly n·(1 + 3/10) are issued.
#[tokio::test]
async fn the_worst_case_is_reached_and_never_passed() {
    let (store, clock) = store();
    let policy = hourly(100, OnStoreFailure::Fallback);
    let others = resend(&store, &clock);
    let cut: Vec<_> = (0..3)
        .map(|_| {
            let away = Arc::new(tollgate_conformance::faulty::Faulty::new(store.inner().clone()));
            away.always(Trouble::Down);
            fallback(&away, &clock).0
        })
        .collect();
    let ask = Ask::new(&policy, "p");
    let mut issued = Vec::new();
    for _ in 0..4 {
        for gate in &cut {
            while drive(&clock, gate.acquire(&ask)).await.unwrap().is_admitted() {
                issued.push(clock.now());
            }
        }
        while others.acquire(&ask).await.unwrap().is_admitted() {
            issued.push(clock.now());
        }
        leap(&clock, Span::from_mins(59)).await;
        leap(&clock, Span::from_mins(1)).await;
    }
    let window = |from: &tollgate::Timestamp| {
        issued.iter().filter(|at| *from <= **at && **at < *from + HOUR).count()
    };
    let most = issued.iter().map(window).max().unwrap();
    let bound = policy.worst_case(10, 3).next().unwrap();
    assert_eq!((u64::try_from(most).unwrap(), bound), (130, 130));
}

/// All instances are cut off at once and come back one after the other: the first of them is admitted by the store while
/// the others still spend their shares. That is more than all shares together, and within the worst case.
#[tokio::test]
async fn instances_that_come_back_apart_stay_within_the_worst_case() {
    let (store, clock) = store();
    let policy = hourly(100, OnStoreFailure::Fallback);
    let links: Vec<_> = (0..10)
        .map(|_| {
            let link = Arc::new(tollgate_conformance::faulty::Faulty::new(store.inner().clone()));
            link.always(Trouble::Down);
            (fallback(&link, &clock).0, link)
        })
        .collect();
    let ask = Ask::new(&policy, "p");
    for (gate, _) in &links {
        assert!(!drive(&clock, gate.acquire(&ask)).await.unwrap().is_admitted());
    }
    leap(&clock, HOUR).await;
    let mut issued = 0;
    for (gate, _) in &links {
        while gate.acquire(&ask).await.unwrap().is_admitted() {
            issued += 1;
        }
    }
    assert_eq!(issued, 100, "all shares");
    for (gate, link) in &links {
        link.always(Trouble::None);
        pass(&clock, Span::from_secs(30)).await;
        assert!(!gate.is_degraded());
        while drive(&clock, gate.acquire(&ask)).await.unwrap().is_admitted() {
            issued += 1;
        }
    }
    assert!(issued <= policy.worst_case(10, 10).next().unwrap());
    assert_eq!(issued, 190, "the store knew of 10 when the first came back");
}

/// Time is up at the deadline even where a subject owes something to a store that hangs again.
#[tokio::test]
async fn what_is_owed_holds_nobody_up() {
    let (store, clock) = store();
    let (gate, _) = fallback(&store, &clock);
    let policy = hourly(20, OnStoreFailure::Open);
    let ask = Ask::new(&policy, "p");
    store.always(Trouble::Down);
    drive(&clock, gate.acquire(&ask)).await.unwrap();
    // The probe is answered; what it is to be told is not.
    store.next_calls([Trouble::None; 2]);
    store.always(Trouble::Hangs);
    assert!(gate.probe().await);
    let since = clock.now();
    let permit = drive(&clock, gate.acquire(&ask)).await.unwrap().into_permit().unwrap();
    assert!(permit.degraded && clock.now().since(since) <= Span::from_secs(1));
    assert_eq!(used(&store, &policy, "p").await, 0);
    store.always(Trouble::None);
    pass(&clock, Span::from_secs(40)).await;
    assert_eq!((used(&store, &policy, "p").await, gate.is_degraded()), (2, false));
}

/// Design, "Memory full": a store without room is handled by the policy too, and those who have a place in it go on.
#[tokio::test]
async fn a_full_store_is_handled_by_the_policy_and_others_go_on() {
    let (store, clock) = store();
    let (gate, heard) = fallback(&store, &clock);
    let open = hourly(20, OnStoreFailure::Open);
    store.next_calls([Trouble::Full]);
    assert!(gate.acquire(&Ask::new(&open, "new")).await.unwrap().into_permit().unwrap().degraded);
    assert!(!gate.acquire(&Ask::new(&open, "old")).await.unwrap().into_permit().unwrap().degraded);
    let closed = hourly(20, OnStoreFailure::Closed);
    store.next_calls([Trouble::Full]);
    assert_eq!(gate.acquire(&Ask::new(&closed, "x")).await.unwrap_err().kind(), ErrorKind::Full);
    pass(&clock, Span::from_secs(30)).await;
    assert_eq!((used(&store, &open, "new").await, gate.is_degraded()), (1, false));
    assert_eq!(heard.told.lock().unwrap().len(), 2);
}

/// A full store under a closed policy is an error of each ask, not an outage that begins and ends with it.
#[tokio::test]
async fn a_full_store_is_no_outage_under_a_closed_policy() {
    let (store, clock) = store();
    let (gate, heard) = fallback(&store, &clock);
    let closed = hourly(20, OnStoreFailure::Closed);
    store.always(Trouble::Full);
    for _ in 0..3 {
        let error = gate.acquire(&Ask::new(&closed, "x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert!(!gate.is_degraded());
        idle().await;
    }
    assert_eq!(*heard.told.lock().unwrap(), Vec::<String>::new());
}

/// A lock that times out is attributed to the subject if the store serves the probe, and to the store otherwise.
#[tokio::test]
async fn a_lock_on_every_subject_is_an_outage() {
    let (store, clock) = store();
    let (gate, heard) = fallback(&store, &clock);
    let open = hourly(20, OnStoreFailure::Open);
    let ask = Ask::new(&open, "x");
    store.next_calls([Trouble::Locked]);
    let error = drive(&clock, gate.acquire(&ask)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Contended, "{error}");
    assert!(!gate.is_degraded());
    clock.advance(Span::from_secs(1));
    store.always(Trouble::Locked);
    let permit = drive(&clock, gate.acquire(&ask)).await.unwrap().into_permit().unwrap();
    assert!(permit.degraded && gate.is_degraded());
    store.always(Trouble::None);
    pass(&clock, Span::from_secs(40)).await;
    assert_eq!((used(&store, &open, "x").await, gate.is_degraded()), (1, false));
    assert_eq!(heard.told.lock().unwrap().len(), 2);
}

/// Promise 9: as many subjects as configured, then closed; and as many kept calls.
#[tokio::test]
async fn the_books_are_bounded() {
    let (store, clock) = store();
    let settings = FallbackOptions { subjects_max: 3, kept_max: 2, ..FallbackOptions::new(1) };
    let time = Arc::new(clock.clone());
    let gate = Fallback::new(resend(&store, &clock), settings, time).unwrap();
    let policy = hourly(20, OnStoreFailure::Open);
    let mut permits = Vec::new();
    for subject in ["a", "b", "c"] {
        permits
            .push(gate.acquire(&Ask::new(&policy, subject)).await.unwrap().into_permit().unwrap());
    }
    store.always(Trouble::Down);
    for subject in ["a", "b", "c"] {
        assert!(
            drive(&clock, gate.acquire(&Ask::new(&policy, subject))).await.unwrap().is_admitted()
        );
    }
    let error = gate.acquire(&Ask::new(&policy, "d")).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Full && error.to_string().contains("subjects_max"),
        "{error}"
    );
    assert!(gate.release(&permits[0]).await.unwrap() && gate.release(&permits[1]).await.unwrap());
    let error = gate.settle(&permits[2], &Costs::new()).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unavailable && error.to_string().contains("the most"),
        "{error}"
    );
    store.always(Trouble::None);
    assert!(gate.probe().await);
    gate.shutdown(Timestamp::MAX).await.unwrap();
    // Nobody settles those permits after an hour, so their places are free.
    leap(&clock, HOUR).await;
    store.always(Trouble::Down);
    assert!(drive(&clock, gate.acquire(&Ask::new(&policy, "d"))).await.unwrap().is_admitted());
}

/// What the provider said is heard at once, with the store or without.
#[tokio::test]
async fn a_limit_closed_in_an_outage_is_closed_here_and_later_in_the_store() {
    for action in [OnStoreFailure::Open, OnStoreFailure::Fallback, OnStoreFailure::Closed] {
        let (store, clock) = store();
        let (gate, _) = fallback(&store, &clock);
        let policy = hourly(20, action);
        let ask = Ask::new(&policy, "p");
        store.always(Trouble::Down);
        let until = clock.now() + Span::from_hours(3);
        assert!(drive(&clock, gate.close_until(&ask, "only", until)).await.unwrap());
        leap(&clock, Span::from_hours(2)).await;
        if action != OnStoreFailure::Closed {
            let denial = gate.acquire(&ask).await.unwrap().into_denial().unwrap();
            assert!(denial.degraded && denial.wait == Wait::Until(until), "{action}");
        }
        store.always(Trouble::None);
        pass(&clock, Span::from_secs(30)).await;
        let denial = gate.acquire(&ask).await.unwrap().into_denial().unwrap();
        assert!(!denial.degraded && denial.wait == Wait::Until(until), "{action}: {denial:?}");
    }
}
