//! The memory store: bounds, eviction, the synchronous path, threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::clock::ManualClock;
use tollgate::core::Verdict;
use tollgate::policy::Period;
use tollgate::{
    Ask, CalendarWindow, Clock, Costs, ErrorKind, GateExt, Limit, Memory, Policy, RollingWindow,
    Span, TokenBucket,
};

use crate::policy;

fn with_keys(keys_max: usize) -> (Memory, ManualClock) {
    let clock = ManualClock::new();
    (Memory::with(Arc::new(clock.clone()), keys_max), clock)
}

#[test]
fn forgets_what_equals_an_absent_entry_and_never_what_holds_back() {
    let (memory, clock) = with_keys(3);
    let policy = policy(TokenBucket::per_second(1));
    for subject in ["a", "b", "c"] {
        assert!(matches!(
            memory.try_acquire(&Ask::new(&policy, subject)),
            Ok(Verdict::Admitted(_))
        ));
    }
    let full = memory.try_acquire(&Ask::new(&policy, "d")).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Full);
    assert!(full.is_unavailable() && full.to_string().contains("keys_max"));
    for subject in ["a", "b", "c"] {
        let again = memory.try_acquire(&Ask::new(&policy, subject)).unwrap();
        assert!(matches!(again, Verdict::Denied(_)), "{subject} was forgotten while it held back");
    }
    clock.advance(Span::from_secs(1));
    assert!(matches!(memory.try_acquire(&Ask::new(&policy, "d")), Ok(Verdict::Admitted(_))));
    assert_eq!(memory.keys(), 1, "the three that had refilled made room");
}

/// Callers of one policy cannot take the room of another, whatever subjects they make up.
#[test]
fn a_policy_takes_its_share_and_no_more() {
    let clock = ManualClock::new();
    let memory = Memory::with(Arc::new(clock.clone()), 10_000).share_per_policy();
    let slow = |name: &str, most| {
        let limit = Limit::new("burst", "requests", TokenBucket::per(1, Span::from_hours(1)));
        Policy::builder(name).limit(limit).subjects_max(most).build().unwrap()
    };
    let flood = |policy: &Policy| {
        let ask =
            |number: u32| memory.try_acquire(&Ask::new(policy, format!("s{number}").as_str()));
        (0..9_000).take_while(|number| ask(*number).is_ok()).count()
    };
    let (flooded, bounded) = (slow("flooded", None), slow("bounded", Some(70)));
    assert_eq!(flood(&flooded), 5_000);
    assert_eq!(flood(&bounded), 70);
    let full = memory.try_acquire(&Ask::new(&bounded, "new")).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Full);
    assert!(full.to_string().contains("subjects_max"), "{full}");
    assert_eq!(flood(&slow("another", Some(3_000))), 3_000);
    // Entries that hold nothing back make room, in whichever shard they are.
    clock.advance(Span::from_hours(2));
    assert_eq!(flood(&bounded), 70);
    assert!(memory.keys() <= 70);
}

#[test]
fn denials_and_readings_take_no_room() {
    let (memory, _clock) = with_keys(1);
    let policy = policy(TokenBucket::per_second(5));
    for subject in ["a", "b"] {
        let never = Ask::new(&policy, subject).cost("requests", 6);
        assert!(matches!(memory.try_acquire(&never), Ok(Verdict::Denied(_))));
        assert_eq!(memory.try_standing(&policy, subject).unwrap()[0].remaining, 5);
    }
    assert_eq!(memory.keys(), 0);
}

#[test]
fn sweeping_forgets_exactly_what_is_absent() {
    let (memory, clock) = with_keys(10_000);
    let policy = policy(TokenBucket::per_second(1).burst(10));
    for number in 0..100_u64 {
        let subject = format!("s{number}");
        memory
            .try_acquire(&Ask::new(&policy, subject.as_str()).cost("requests", number % 10 + 1))
            .unwrap();
    }
    clock.advance(Span::from_secs(5));
    assert_eq!((memory.sweep(), memory.keys()), (50, 50));
}

/// R000.8, R001.6, promise 1: two threads on one key and on many, admitting exactly the capacity.
#[test]
fn threads_admit_exactly_the_capacity() {
    let (memory, _clock) = with_keys(10_000);
    let policy = policy(TokenBucket::per_minute(1_000));
    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for number in 0..4_000 {
                    let subject = ["hot", "warm"][number % 2];
                    if let Ok(Verdict::Admitted(_)) =
                        memory.try_acquire(&Ask::new(&policy, subject))
                    {
                        admitted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), 2_000);
}

/// R000.8: 10,000 − 3,750 = exactly 6,250.
#[test]
fn what_is_taken_is_exactly_what_is_missing() {
    let (memory, _clock) = with_keys(10);
    let policy =
        Policy::new("llm", [Limit::new("tpm", "tokens", TokenBucket::per_minute(10_000))]).unwrap();
    memory.try_acquire(&Ask::new(&policy, "p7").cost("tokens", 3_750)).unwrap();
    assert_eq!(memory.try_standing(&policy, "p7").unwrap()[0].remaining, 6_250);
}

#[test]
fn a_clock_that_steps_back_gives_nothing_away() {
    let (memory, clock) = with_keys(10);
    let policy = policy(TokenBucket::per_second(1).burst(3));
    memory.try_acquire(&Ask::new(&policy, "a").cost("requests", 3)).unwrap();
    let there = clock.now();
    clock.set(there - Span::from_hours(1));
    assert!(matches!(memory.try_acquire(&Ask::new(&policy, "a")), Ok(Verdict::Denied(_))));
    clock.set(there + Span::from_secs(1));
    assert!(matches!(memory.try_acquire(&Ask::new(&policy, "a")), Ok(Verdict::Admitted(_))));
}

#[test]
fn the_synchronous_path_allocates_nothing_once_a_key_is_known() {
    let (memory, clock) = with_keys(100_000);
    let one = policy(TokenBucket::per_second(100));
    let three = Policy::new(
        "llm",
        [
            Limit::new("rpm", "requests", TokenBucket::per_minute(500)),
            Limit::new("tpm", "tokens", TokenBucket::per_minute(1_000_000)),
            Limit::new("rpd", "requests", CalendarWindow::new(700, Period::Day)),
        ],
    )
    .unwrap();
    let subjects: Vec<String> = (0..100).map(|number| format!("subject-{number}")).collect();
    let ask_all = || {
        let mut answers = [0_u64; 2];
        for subject in &subjects {
            for ask in [
                Ask::new(&one, subject.as_str()),
                Ask::new(&three, subject.as_str()).cost("tokens", 3_000),
            ] {
                match memory.try_acquire(&ask) {
                    Ok(Verdict::Denied(_)) => answers[1] += 1,
                    _ => answers[0] += 1,
                }
            }
        }
        answers
    };
    ask_all();
    clock.advance(Span::from_millis(1));
    let mut answers = [0, 0];
    let allocations = allocation_counter::measure(|| {
        for _ in 0..1_000 {
            let [admitted, denied] = ask_all();
            answers = [answers[0] + admitted, answers[1] + denied];
        }
    });
    assert_eq!(allocations.count_total, 0, "allocations in 200,000 decisions");
    assert!(
        answers.iter().all(|count| 10_000 < *count),
        "both answers must be among them: {answers:?}"
    );
    let counted = allocation_counter::measure(|| drop(vec![1]));
    assert_eq!(counted.count_total, 1, "the counter counts");
}

/// In any order of settling each of 100,000 permits in flight gives back what it should, once.
#[tokio::test]
async fn a_hundred_thousand_permits_in_flight_settle_exactly() {
    let (memory, _clock) = with_keys(1);
    let policy = policy(RollingWindow::new(10_000_000, Span::from_hours(1)));
    let ask = Ask::new(&policy, "hot").cost("requests", 10);
    let mut permits = Vec::new();
    for _ in 0..100_000 {
        permits.push(memory.acquire(&ask).await.unwrap().into_permit().unwrap());
    }
    // A stride that shares no factor with the number visits each once, far apart.
    for step in 0..permits.len() {
        let number = step * 7_919 % permits.len();
        let actual = Costs::new().with("requests", if number % 2 == 0 { 0 } else { 15 });
        assert!(memory.settle(&permits[number], &actual).await.unwrap(), "{number}");
    }
    assert_eq!(memory.try_standing(&policy, "hot").unwrap()[0].used, 50_000 * 15);
    assert!(!memory.release(&permits[7]).await.unwrap(), "it is settled");
}

/// Four callers on a nearly full bucket that take and give back are never refused.
#[tokio::test]
async fn threads_that_take_and_give_back_below_the_limit_are_never_refused() {
    let memory = Arc::new(Memory::new());
    let policy = policy(TokenBucket::per_second(10).burst(100));
    memory.acquire(&Ask::new(&policy, "hot").cost("requests", 90)).await.unwrap();
    let callers = (0..4).map(|_| {
        let (memory, policy) = (Arc::clone(&memory), policy.clone());
        tokio::spawn(async move {
            for _ in 0..5_000 {
                let ask = Ask::new(&policy, "hot").cost("requests", 2);
                let permit =
                    memory.acquire(&ask).await.unwrap().into_permit().expect("there is room");
                tokio::task::yield_now().await;
                assert!(memory.release(&permit).await.unwrap());
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    assert!(Memory::try_standing(&memory, &policy, "hot").unwrap()[0].used <= 90);
}
