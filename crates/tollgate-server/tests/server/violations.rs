//! Refusals by a provider, and the page of metrics.

use std::sync::{Arc, Mutex};

use serde_json::json;
use tollgate::incident::{Incident, Recorder};
use tollgate::observe::{Event, Observed, Observer};
use tollgate_server::MetricsPage;

use crate::client::{START, Server};

#[derive(Debug, Default)]
struct Incidents(Mutex<Vec<Incident>>);

impl Observer for Incidents {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Violated { incident, .. } = event {
            self.0.lock().unwrap().push((*incident).clone());
        }
    }
}

#[tokio::test]
async fn r000_14_a_violation_closes_the_limit_and_tells_the_observer() {
    let (recorder, incidents) = (Arc::new(Recorder::new()), Arc::new(Incidents::default()));
    let (watching, telling) = (Arc::clone(&recorder), Arc::clone(&incidents));
    let server = Server::with(
        |gate, clock| Arc::new(Observed::new(gate, Arc::clone(&recorder) as _, clock)),
        |app| app.incidents(watching, telling),
    )
    .await;
    let ask = json!({ "policy": "gemini", "subject": "p7", "costs": { "tokens": 3750 } });
    assert_eq!(server.post("/v1/acquire", &ask.to_string()).await.status, 200);
    let report =
        json!({ "policy": "gemini", "subject": "p7", "limit": "rpm", "retry_after_ms": 90_000 });
    let answer = server.post("/v1/violations", &report.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let incident: Incident = serde_json::from_value(answer.json()).unwrap();
    assert_eq!((incident.closed, incident.in_flight, incident.acquisitions.len()), (true, 1, 1));
    assert_eq!(incident.until.since(START).as_secs_ceil(), 90);
    assert_eq!(*incidents.0.lock().unwrap(), [incident]);
    let denied = server.post("/v1/acquire", &ask.to_string()).await;
    assert_eq!((denied.status, denied.field("retry-after")), (429, Some("90")));
    let audit = server.get("/v1/audit?subject=p7&outcome=violated").await.json();
    assert_eq!(audit["records"][0]["limit"], "rpm", "{audit}");
}

#[tokio::test]
async fn a_wrong_violation_is_refused_and_closes_nothing() {
    let server = Server::start().await;
    let rows = [
        (
            json!({ "policy": "gemini", "subject": "p7", "limit": "rps", "retry_after_ms": 1 }),
            400,
            "it has rpm, tpm, rpd",
        ),
        (json!({ "policy": "gemini", "subject": "p7" }), 400, "retry_after_ms"),
        (
            json!({ "policy": "gemini", "subject": "p7", "retry_after_ms": u64::MAX }),
            400,
            "retry_after_ms 18446744073709551615 must be 1 to 2678400000",
        ),
        (
            json!({ "policy": "gemini", "subject": "p7", "retry_after_ms": 0 }),
            400,
            "retry_after_ms 0 must be 1 to 2678400000",
        ),
        (json!({ "policy": "nope", "subject": "p7", "retry_after_ms": 1 }), 404, "nope"),
    ];
    for (report, status, expected) in rows {
        let answer = server.post("/v1/violations", &report.to_string()).await;
        assert_eq!(answer.status, status, "{}", answer.text);
        assert!(answer.text.contains(expected), "{}", answer.text);
    }
    let ask = json!({ "policy": "gemini", "subject": "p7" });
    assert_eq!(server.post("/v1/acquire", &ask.to_string()).await.status, 200);
}

/// Without a name it is the limit that has the smallest part left, whatever the protocol.
#[tokio::test]
async fn a_violation_without_a_limit_closes_the_likeliest() {
    let server = Server::start().await;
    let ask = json!({ "policy": "gemini", "subject": "p7", "costs": { "tokens": 250_000 } });
    assert_eq!(server.post("/v1/acquire", &ask.to_string()).await.status, 200);
    let report = json!({ "policy": "gemini", "subject": "p7", "retry_after_ms": 1 });
    let answer = server.post("/v1/violations", &report.to_string()).await;
    assert_eq!(answer.json()["limit"], "tpm", "{}", answer.text);
}

#[tokio::test]
async fn the_metrics_page_exists_if_one_is_configured() {
    let page = || MetricsPage { media_type: "text/plain", text: "up 1\n".to_owned() };
    let server = Server::with(|gate, _| gate, move |app| app.metrics(page)).await;
    let answer = server.get("/metrics").await;
    assert_eq!((answer.status, answer.text.as_str()), (200, "up 1\n"));
    assert_eq!(answer.field("content-type"), Some("text/plain"));
    assert_eq!(Server::start().await.get("/metrics").await.status, 404);
}
