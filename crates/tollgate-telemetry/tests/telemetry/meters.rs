//! The counters: the effect of each event from any thread, and their bounds.

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::observe::{Event, Observer as _};
use tollgate::{Ask, GateExt as _, Limit, Policy, Span, Timestamp, TokenBucket};
use tollgate_telemetry::{
    CallOutcome, GatewayCall, GatewayLevels, GatewayOutcome, JOB_BOUNDS_SECS, Meters, OTHER,
    POLICIES_MAX, Value,
};

use crate::{a_busy_minute, admitted, gate, gemini};

fn number(meters: &Meters, name: &str, labels: &[&str]) -> Option<u64> {
    match meters.snapshot(Timestamp::EPOCH).get(name, labels)? {
        Value::Number(number) => Some(*number),
        Value::Buckets { .. } => None,
    }
}

/// R000.13: acquired, available, latency and failures by limit; R000.10: fallback; R000.15: the store.
#[tokio::test]
async fn r000_13_a_busy_minute_is_counted_by_limit() {
    let meters = Arc::new(Meters::new());
    let gate = gate(&ManualClock::new(), Arc::clone(&meters) as _);
    a_busy_minute(&gate, &*meters).await;
    let rows = [
        ("tollgate_tokens_acquired", &["gemini", "rpm"][..], 5),
        ("tollgate_tokens_acquired", &["gemini", "tpm"], 5_000),
        ("tollgate_tokens_available", &["gemini", "rpm"], 0),
        ("tollgate_tokens_available", &["gemini", "tpm"], 245_000),
        ("tollgate_refusals", &["gemini", "rpm"], 1),
        ("tollgate_refusals", &["gemini", "tpm"], 0),
        ("tollgate_fallback_activated", &[], 1),
        ("tollgate_fallback_active", &[], 0),
        ("tollgate_unposted", &["gemini"], 7),
        ("tollgate_unposted_max", &["gemini"], 20),
    ];
    for (name, labels, expected) in rows {
        assert_eq!(number(&meters, name, labels), Some(expected), "{name} {labels:?}");
    }
}

/// An ask with several charges counts under the policy of each, and its denial under those that refuse.
#[tokio::test]
async fn several_charges_are_counted_by_policy() {
    let meters = Arc::new(Meters::new());
    let gate = gate(&ManualClock::new(), Arc::clone(&meters) as _);
    let policy = |name, tokens| {
        Policy::new(name, [Limit::new("tpm", "tokens", TokenBucket::per_minute(tokens))]).unwrap()
    };
    let (user, team, account) =
        (policy("user", 1_000), policy("team", 500), policy("account", 500));
    let ask = Ask::new(&user, "u1").and(&team, "t7").and(&account, "all").cost("tokens", 400);
    assert!(gate.acquire(&ask).await.unwrap().is_admitted());
    assert!(!gate.acquire(&ask).await.unwrap().is_admitted());
    for (name, refusals) in [("user", 0), ("team", 1), ("account", 1)] {
        let labels = [name, "tpm"];
        assert_eq!(number(&meters, "tollgate_tokens_acquired", &labels), Some(400), "{name}");
        assert_eq!(number(&meters, "tollgate_refusals", &labels), Some(refusals), "{name}");
    }
}

/// R002.5: what strategies found beyond a limit is added up by limit, and is 0 before.
#[tokio::test]
async fn r002_5_over_issue_is_counted_by_limit() {
    let meters = Arc::new(Meters::new());
    let gate = gate(&ManualClock::new(), Arc::clone(&meters) as _);
    a_busy_minute(&gate, &*meters).await;
    let over = |limit| number(&meters, "tollgate_over_issue", &["gemini", limit]);
    assert_eq!((over("rpm"), over("tpm")), (Some(0), Some(0)));
    let policy = gemini();
    for (limit, amount) in [("rpm", 2), ("tpm", 700), ("rpm", 1)] {
        meters.observe(&Event::OverIssued { policy: &policy, limit, amount });
    }
    assert_eq!((over("rpm"), over("tpm")), (Some(3), Some(700)));
}

/// R000.15: store latency, conditional failures, and the distribution of retries.
#[tokio::test]
async fn r000_15_tries_of_the_store_are_recorded() {
    let meters = Arc::new(Meters::new());
    let gate = gate(&ManualClock::new(), Arc::clone(&meters) as _);
    a_busy_minute(&gate, &*meters).await;
    assert_eq!(number(&meters, "tollgate_store_conditional_failures", &["gemini"]), Some(1));
    assert_eq!(number(&meters, "tollgate_store_throttled", &["gemini"]), Some(1));
    assert_eq!(number(&meters, "tollgate_store_tries", &["gemini", "answered"]), Some(1));
    let snapshot = meters.snapshot(Timestamp::EPOCH);
    let attempts = Value::Buckets { counts: vec![1, 1, 1, 0, 0, 0, 0, 0], sum: 6 };
    assert_eq!(snapshot.get("tollgate_store_attempts", &["gemini"]), Some(&attempts));
    let Some(Value::Buckets { counts, sum }) =
        snapshot.get("tollgate_store_duration_seconds", &["gemini"])
    else {
        panic!("there is no store latency");
    };
    // 700 and 900 µs are at most 1 ms, 3 ms is at most 5 ms.
    assert_eq!((counts[4], counts[6], *sum), (2, 1, 4_600));
}

/// Each thread has a lane of its own, and threads that come when all lanes are owned share one: no addition is lost. That
/// this can be seen to fail is tested beside the lanes themselves.
#[test]
fn nothing_is_lost_between_threads() {
    let meters = Arc::new(Meters::new());
    let policy =
        Policy::new("api", [Limit::new("rate", "requests", TokenBucket::per_second(1_000_000))])
            .unwrap();
    let (threads, each) = (40, 500);
    // All threads live at the same time, so there are more of them than lanes.
    let barrier = std::sync::Barrier::new(threads);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                barrier.wait();
                let gate = gate(&ManualClock::new(), Arc::clone(&meters) as _);
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                for _ in 0..each {
                    runtime.block_on(admitted(&gate, &Ask::new(&policy, "alice")));
                }
                barrier.wait();
            });
        }
    });
    let acquired = number(&meters, "tollgate_tokens_acquired", &["api", "rate"]);
    assert_eq!(acquired, Some((threads * each) as u64));
}

/// The number of series is bounded by the configuration, and beyond the bound policies are counted together.
#[tokio::test]
async fn policies_beyond_the_bound_are_counted_together() {
    let meters = Arc::new(Meters::new());
    let gate = gate(&ManualClock::new(), Arc::clone(&meters) as _);
    for name in 0..POLICIES_MAX + 3 {
        let limit = Limit::new("rate", "requests", TokenBucket::per_second(10));
        let policy = Policy::new(format!("p{name}"), [limit]).unwrap();
        admitted(&gate, &Ask::new(&policy, "alice")).await;
    }
    assert_eq!(number(&meters, "tollgate_tokens_acquired", &[OTHER, "rate"]), Some(3));
    assert_eq!(number(&meters, "tollgate_tokens_acquired", &["p0", "rate"]), Some(1));
}

/// A policy that is loaded again with other limits is counted under its name, each limit under its own.
#[tokio::test]
async fn a_policy_with_other_limits_under_its_name_is_counted_right() {
    let meters = Arc::new(Meters::new());
    let gate = gate(&ManualClock::new(), Arc::clone(&meters) as _);
    let rule = || TokenBucket::per_second(1_000_000);
    let before = Policy::new(
        "llm",
        [Limit::new("rpm", "requests", rule()), Limit::new("tpm", "tokens", rule())],
    );
    let after = Policy::new(
        "llm",
        [Limit::new("tpm", "tokens", rule()), Limit::new("ipm", "images", rule())],
    );
    for (policy, unit) in [(before.unwrap(), "tokens"), (after.unwrap(), "images")] {
        admitted(&gate, &Ask::new(&policy, "alice").cost("tokens", 10).cost(unit, 10)).await;
    }
    let acquired = |limit| number(&meters, "tollgate_tokens_acquired", &["llm", limit]);
    assert_eq!([acquired("rpm"), acquired("tpm"), acquired("ipm")], [Some(1), Some(20), Some(10)]);
}

/// What was let through in shadow mode was not charged, so it counts as neither acquired nor refused.
#[tokio::test]
async fn shadow_mode_is_counted_apart() {
    let meters = Arc::new(Meters::new());
    let gate = gate(&ManualClock::new(), Arc::clone(&meters) as _);
    let limit = Limit::new("rate", "requests", TokenBucket::per_minute(1));
    let policy = Policy::builder("trial").shadow(true).limit(limit).build().unwrap();
    for _ in 0..3 {
        admitted(&gate, &Ask::new(&policy, "alice")).await;
    }
    assert_eq!(number(&meters, "tollgate_shadow_denied", &["trial"]), Some(2));
    assert_eq!(number(&meters, "tollgate_tokens_acquired", &["trial", "rate"]), Some(1));
}

/// An ask that the gate could not decide is an error, and one that was charged without deciding is acquired.
#[tokio::test]
async fn errors_and_debts_are_counted() {
    let meters = Arc::new(Meters::new());
    let gate = gate(&ManualClock::new(), Arc::clone(&meters) as _);
    let policy = gemini();
    gate.acquire(&Ask::new(&policy, "")).await.unwrap_err();
    gate.charge(&Ask::new(&policy, "alice").cost("tokens", 300)).await.unwrap();
    assert_eq!(number(&meters, "tollgate_errors", &["gemini"]), Some(1));
    let ahead = Span::from_hours(1);
    meters.observe(&Event::Repaired { policy: &gemini(), subject: "p", ahead });
    assert_eq!(number(&meters, "tollgate_entries_mended", &["gemini"]), Some(1));
    assert_eq!(number(&meters, "tollgate_tokens_acquired", &["gemini", "tpm"]), Some(300));
}

/// R003.9: how long a document took, how it ended, refusals by the provider, denials, and chunks under way.
#[test]
fn r003_9_translations_are_counted_and_shown_from_the_first_one_on() {
    let meters = Meters::new();
    assert_eq!(number(&meters, "tollgate_translation_parallel", &[]), None, "no translation runs");
    let translation = meters.translation();
    translation.ended(Span::from_millis(61_001), false);
    translation.ended(Span::from_secs(7), true);
    translation.translated(2_500);
    translation.paused(false);
    translation.paused(false);
    translation.paused(true);
    translation.called(CallOutcome::Answered);
    translation.called(CallOutcome::Refused);
    translation.called(CallOutcome::Failed);
    let running = translation.running();
    translation.violated();
    translation.denied();
    translation.denied();
    let under_way = translation.at_provider();
    drop(translation.at_provider());
    let rows = [
        ("tollgate_translation_words", &[][..], 2_500),
        ("tollgate_translation_jobs", &["completed"], 1),
        ("tollgate_translation_pauses", &["time"], 2),
        ("tollgate_translation_pauses", &["operator"], 1),
        ("tollgate_translation_jobs_running", &[], 1),
        ("tollgate_translation_calls", &["answered"], 1),
        ("tollgate_translation_calls", &["refused"], 1),
        ("tollgate_translation_calls", &["failed"], 1),
        ("tollgate_translation_jobs", &["completed_with_errors"], 1),
        ("tollgate_translation_violations", &[], 1),
        ("tollgate_translation_denials", &[], 2),
        ("tollgate_translation_parallel", &[], 1),
    ];
    for (name, labels, expected) in rows {
        assert_eq!(number(&meters, name, labels), Some(expected), "{name} {labels:?}");
    }
    drop((under_way, running));
    assert_eq!(number(&meters, "tollgate_translation_parallel", &[]), Some(0));
    assert_eq!(number(&meters, "tollgate_translation_jobs_running", &[]), Some(0));
    let snapshot = meters.snapshot(Timestamp::EPOCH);
    let Some(Value::Buckets { counts, sum }) =
        snapshot.get("tollgate_translation_duration_seconds", &[])
    else {
        panic!("{snapshot:?}");
    };
    let full: Vec<u64> = JOB_BOUNDS_SECS
        .into_iter()
        .zip(counts)
        .filter(|(_, n)| **n == 1)
        .map(|(bound, _)| bound)
        .collect();
    assert_eq!((full, *sum), (vec![10, 90], 68_001_000));
}

/// A process without a gateway has no such series; calls are counted by upstream and model.
#[test]
fn calls_of_the_gateway_are_counted_by_upstream_and_model() {
    let meters = Meters::new();
    let calls = |upstream, outcome| {
        number(&meters, "tollgate_gateway_calls", &[upstream, "gpt-4o", outcome])
    };
    assert_eq!(number(&meters, "tollgate_gateway_waiting", &[]), None);
    let gateway = meters.gateway();
    gateway.read_levels_by(|| GatewayLevels { waiting: 3, held_bytes: 900, in_flight: 2 });
    let [main, second] =
        ["main", "second"].map(|upstream| GatewayCall { upstream, model: "gpt-4o" });
    gateway.waited(main, Span::from_millis(40));
    gateway.first_byte(main, Span::from_millis(700));
    gateway.settled(main, "input_tokens", 20);
    gateway.settled(main, "input_tokens", 22);
    gateway.ended(main, GatewayOutcome::Answered);
    gateway.provider_refused(second);
    gateway.ended(second, GatewayOutcome::Aborted);
    gateway.refused("gpt-4o", "limited");
    assert_eq!((calls("main", "answered"), calls("main", "aborted")), (Some(1), Some(0)));
    assert_eq!((calls("second", "answered"), calls("second", "aborted")), (Some(0), Some(1)));
    let rows = [
        ("tollgate_gateway_tokens", &["main", "gpt-4o", "input_tokens"][..], 42),
        ("tollgate_gateway_provider_refusals", &["second", "gpt-4o"], 1),
        ("tollgate_gateway_streams_aborted", &["second", "gpt-4o"], 1),
        ("tollgate_gateway_refusals", &["gpt-4o", "limited"], 1),
        ("tollgate_gateway_waiting", &[], 3),
        ("tollgate_gateway_held_bytes", &[], 900),
        ("tollgate_gateway_in_flight", &[], 2),
    ];
    for (name, labels, expected) in rows {
        assert_eq!(number(&meters, name, labels), Some(expected), "{name} {labels:?}");
    }
    let snapshot = meters.snapshot(Timestamp::EPOCH);
    let Some(Value::Buckets { counts, sum }) =
        snapshot.get("tollgate_gateway_wait_seconds", &["main", "gpt-4o"])
    else {
        panic!("there is no wait");
    };
    // 40 ms is above 10 ms and at most 50 ms.
    assert_eq!((counts[3], counts.iter().sum::<u64>(), *sum), (1, 1, 40_000));
}

/// Names come from the configuration, which has no bound on models; the series have one.
#[test]
fn the_series_of_the_gateway_are_bounded() {
    let meters = Meters::new();
    for n in 0..2_000 {
        let model = format!("m{n}");
        let call = GatewayCall { upstream: "main", model: &model };
        meters.gateway().ended(call, GatewayOutcome::Answered);
    }
    let other = number(&meters, "tollgate_gateway_calls", &[OTHER, OTHER, "answered"]);
    assert_eq!(other, Some(2_000 - 1_024));
}
