//! The Prometheus exposition.

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate_telemetry::sinks::prometheus::page;
use tollgate_telemetry::{METRICS, Meters};

use crate::{a_busy_minute, gate};

#[tokio::test]
async fn r000_13_the_page_has_every_metric_in_base_units_and_no_subject() {
    let meters = Arc::new(Meters::new());
    a_busy_minute(&gate(&ManualClock::new(), Arc::clone(&meters) as _), &*meters).await;
    meters.translation().violated();
    let page = page(&meters);
    let lines = [
        r#"tollgate_tokens_acquired_total{policy="gemini",limit="rpm"} 5"#,
        r#"tollgate_tokens_available{policy="gemini",limit="tpm"} 245000"#,
        r#"tollgate_acquisition_duration_seconds_count{policy="gemini",outcome="admitted"} 5"#,
        r#"tollgate_acquisition_duration_seconds_bucket{le="+Inf",policy="gemini",outcome="denied"} 1"#,
        r#"tollgate_refusals_total{policy="gemini",limit="rpm"} 1"#,
        r#"tollgate_store_duration_seconds_bucket{le="0.001",policy="gemini"} 2"#,
        r#"tollgate_store_duration_seconds_sum{policy="gemini"} 0.0046"#,
        r#"tollgate_store_attempts_bucket{le="2.0",policy="gemini"} 2"#,
        r#"tollgate_store_tries_total{policy="gemini",result="raced"} 1"#,
        "tollgate_fallback_activated_total 1",
        "tollgate_fallback_active 0",
        "tollgate_translation_violations_total 1",
        r#"tollgate_unposted_max{policy="gemini"} 20"#,
    ];
    for line in lines {
        assert!(page.lines().any(|other| other == line), "{line} is not in\n{page}");
    }
    for metric in METRICS {
        let help = format!("# HELP {} {}", metric.name, metric.help);
        assert!(page.lines().any(|line| line == help), "{help} is not in\n{page}");
    }
    assert!(page.ends_with("# EOF\n"));
    assert!(!page.contains("project-7"), "a subject is no label");
}
