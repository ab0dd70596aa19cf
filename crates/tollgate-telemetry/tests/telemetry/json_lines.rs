//! Lines of JSON: EMF and the log.

use std::sync::Arc;

use serde_json::json;
use tollgate::clock::ManualClock;
use tollgate::incident::Recorder;
use tollgate::{Ask, Clock, Costs, GateExt as _, Span, Timestamp};
use tollgate_telemetry::sinks::emf::Emf;
use tollgate_telemetry::sinks::log::Log;
use tollgate_telemetry::{Severity, Telemetry};

use crate::{Kept, a_busy_minute, admitted, gate, gemini};

/// 2026-11-15T05:45:00Z.
const START: Timestamp = Timestamp::from_secs(1_794_721_500);

/// R003.9: what was counted is written before a process is frozen, once, and the time of a job is of the period in which it
/// ended.
#[tokio::test]
async fn r003_9_a_flush_writes_what_is_counted_and_queued_by_now() {
    let (clock, kept, log) = (ManualClock::at(START), Kept::default(), Kept::default());
    let builder = Telemetry::builder(Arc::new(clock.clone()))
        .meters(Emf::new("RateLimiter", kept.clone()), Span::from_hours(1))
        .records(Log::new(Severity::Info, log.clone()));
    let (telemetry, tasks) = builder.start();
    let gate = gate(&clock, Arc::clone(&telemetry) as _);
    assert!(gate.acquire(&Ask::new(&gemini(), "p")).await.unwrap().is_admitted());
    let translation = telemetry.meters().translation();
    translation.ended(Span::from_secs(61), false);
    translation.translated(10_000);
    assert!(tasks.flush(Span::from_secs(1)).await);
    let lines = kept.lines();
    let of = |name: &str| lines.iter().filter_map(|line| line.get(name)).collect::<Vec<_>>();
    assert_eq!(
        (of("TranslationSpeed"), of("TranslationWords")),
        (vec![&json!(61.0)], vec![&json!(10_000.0)])
    );
    let units = lines
        .iter()
        .flat_map(|line| line["_aws"]["CloudWatchMetrics"][0]["Metrics"].as_array().unwrap());
    assert!(
        units.clone().any(|unit| *unit == json!({ "Name": "TranslationSpeed", "Unit": "Seconds" }))
    );
    assert_eq!(log.lines().len(), 1, "{:?}", log.lines());
    translation.translated(5);
    assert!(tasks.flush(Span::from_secs(1)).await);
    let later = kept.lines().split_off(lines.len());
    let words: Vec<_> = later.iter().filter_map(|line| line.get("TranslationWords")).collect();
    assert_eq!(words, [&json!(5.0)]);
    assert!(later.iter().all(|line| line.get("TranslationSpeed").is_none()), "{later:?}");
    assert!(tasks.shutdown(clock.now() + Span::from_secs(1)).await);
}

#[tokio::test]
async fn r000_13_emf_has_each_metric_by_limit_and_a_roll_up() {
    let (clock, kept) = (ManualClock::at(START), Kept::default());
    let emf = Emf::new("RateLimiter", kept.clone());
    let builder = Telemetry::builder(Arc::new(clock.clone()));
    let (telemetry, tasks) = builder.meters(emf, Span::from_secs(10)).start();
    a_busy_minute(&gate(&clock, Arc::clone(&telemetry) as _), &*telemetry).await;
    assert!(tasks.shutdown(clock.now() + Span::from_secs(1)).await);
    let lines = kept.lines();
    let of = |dimensions: serde_json::Value| {
        let same = |line: &&serde_json::Value| {
            line["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == json!([dimensions])
        };
        lines.iter().filter(same).collect::<Vec<_>>()
    };
    let by_limit = of(json!(["Policy", "Limit"]));
    let rpm = by_limit.iter().find(|line| line["Limit"] == "rpm").expect("rpm has a line");
    assert_eq!(rpm["Policy"], "gemini");
    assert_eq!(rpm["RateLimiterTokensAcquired"], 5.0);
    assert_eq!(rpm["RateLimiterTokensAvailable"], 0.0);
    assert_eq!(rpm["RateLimiterAcquisitionFailures"], 1.0);
    assert_eq!(rpm["_aws"]["Timestamp"], 1_794_721_500_000_u64);
    assert_eq!(rpm["_aws"]["CloudWatchMetrics"][0]["Namespace"], "RateLimiter");
    let metrics = rpm["_aws"]["CloudWatchMetrics"][0]["Metrics"].as_array().unwrap();
    assert!(metrics.contains(&json!({ "Name": "RateLimiterTokensAcquired", "Unit": "Count" })));
    let roll_up = of(json!([]))[0];
    assert_eq!(roll_up["RateLimiterTokensAcquired"], 5_005.0);
    assert_eq!(roll_up["RateLimiterFallbackActivated"], 1.0);
    assert_eq!(
        roll_up["RateLimiterTokensAvailable"],
        json!({ "Values": [0.0, 245_000.0], "Counts": [1.0, 1.0] })
    );
    // Five admitted and one denied, all within 50 µs on a clock that does not move.
    assert_eq!(
        roll_up["RateLimiterAcquisitionLatency"],
        json!({ "Values": [0.05], "Counts": [6.0] })
    );
    assert_eq!(
        roll_up["RateLimiterStoreAttempts"],
        json!({ "Values": [1.0, 2.0, 3.0], "Counts": [1.0, 1.0, 1.0] })
    );
}

#[tokio::test]
async fn r004_9_a_rejection_is_a_warning_with_user_count_oldest_reset_and_recent() {
    let (clock, kept) = (ManualClock::at(START), Kept::default());
    let (telemetry, tasks) = Telemetry::builder(Arc::new(clock.clone()))
        .recorder(Arc::new(Recorder::new()))
        .records(Log::new(Severity::Warn, kept.clone()))
        .start();
    let (gate, policy) = (gate(&clock, telemetry), gemini());
    let ask = Ask::new(&policy, "alice").cost("tokens", 10).id("job-4");
    for second in 0..5 {
        clock.set(START + Span::from_secs(second));
        admitted(&gate, &Ask::new(&policy, "alice").cost("tokens", 10)).await;
    }
    gate.acquire(&ask).await.unwrap();
    assert!(tasks.shutdown(clock.now() + Span::from_secs(1)).await);
    let lines = kept.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line = &lines[0];
    for (name, expected) in [
        ("level", json!("warn")),
        ("event", json!("denied")),
        ("at", json!("2026-11-15T05:45:04Z")),
        ("subject", json!("alice")),
        ("ask_id", json!("job-4")),
        ("policy", json!("gemini")),
        ("limit", json!("rpm")),
        ("used", json!(5)),
        ("oldest", json!("2026-11-15T05:45:00Z")),
        ("reset_at", json!("2026-11-15T05:46:00Z")),
    ] {
        assert_eq!(line[name], expected, "{name} in {line}");
    }
    let recent: Vec<&str> =
        line["recent"].as_array().unwrap().iter().filter_map(|it| it.as_str()).collect();
    assert_eq!((recent.len(), recent[4]), (5, "2026-11-15T05:45:04Z"));
    assert!(!line["correlation_id"].as_str().unwrap().is_empty());
}

/// What happens to one permit can be found by one id.
#[tokio::test]
async fn one_permit_has_one_correlation_id() {
    let (clock, kept) = (ManualClock::at(START), Kept::default());
    let log = Log::new(Severity::Info, kept.clone());
    let (telemetry, tasks) = Telemetry::builder(Arc::new(clock.clone())).records(log).start();
    let (gate, policy) = (gate(&clock, telemetry), gemini());
    let first = admitted(&gate, &Ask::new(&policy, "alice")).await;
    let second = admitted(&gate, &Ask::new(&policy, "alice")).await;
    gate.settle(&first, &Costs::new()).await.unwrap();
    gate.release(&second).await.unwrap();
    assert!(tasks.shutdown(clock.now() + Span::from_secs(1)).await);
    let lines = kept.lines();
    let events: Vec<&str> = lines.iter().filter_map(|line| line["event"].as_str()).collect();
    assert_eq!(events, ["admitted", "admitted", "settled", "released"]);
    let id = |line: usize| lines[line]["correlation_id"].as_str().unwrap();
    assert_eq!((id(0), id(1)), (id(2), id(3)));
    assert_ne!(id(0), id(1));
}
