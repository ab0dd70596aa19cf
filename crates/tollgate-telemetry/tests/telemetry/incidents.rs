//! Incidents, from the provider's refusal to the file that people read afterwards.

use std::fs;
use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::incident::{
    ACQUISITIONS_MAX, Incident, RETRY_AFTER_MAX, Recorded, Recorder, StoreIncident, Violation,
    report_violation,
};
use tollgate::observe::Event;
use tollgate::{Ask, Clock, Costs, Decision, Error, ErrorKind, GateExt, Span, Timestamp};
use tollgate_telemetry::sinks::file::{self, FILE_BYTES_MAX, IncidentFile};
use tollgate_telemetry::sinks::log::Log;
use tollgate_telemetry::{Severity, Telemetry, Value};

use crate::{Kept, admitted, gate, gemini};

const START: Timestamp = Timestamp::from_secs(1_794_721_500);

#[tokio::test]
async fn r000_14_a_refusal_by_the_provider_is_written_down_and_closes_the_gate() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("incidents.jsonl");
    let (clock, kept) = (ManualClock::at(START), Kept::default());
    let recorder = Arc::new(Recorder::new());
    let (telemetry, tasks) = Telemetry::builder(Arc::new(clock.clone()))
        .recorder(Arc::clone(&recorder))
        .records(Log::new(Severity::Error, kept.clone()))
        .records(IncidentFile::new(&path, FILE_BYTES_MAX))
        .start();
    let (gate, policy) = (gate(&clock, Arc::clone(&telemetry) as _), gemini());
    let ask = Ask::new(&policy, "project-7").cost("tokens", 3_750);
    let settled = admitted(&gate, &ask).await;
    gate.settle(&settled, &Costs::new()).await.unwrap();
    clock.advance(Span::from_secs(1));
    admitted(&gate, &ask).await;
    admitted(&gate, &ask).await;

    let violation = Violation { ask: &ask, limit: Some("tpm"), retry_after: Span::from_secs(30) };
    let incident =
        report_violation(&gate, &recorder, &*telemetry, &clock, &violation).await.unwrap();
    let until = START + Span::from_secs(31);
    assert_eq!((incident.at, incident.until), (START + Span::from_secs(1), until));
    assert_eq!((incident.policy.as_str(), incident.limit.as_str()), ("gemini", "tpm"));
    assert!(incident.closed && incident.trouble.is_none());
    let used: Vec<u64> = incident.limits.iter().map(|limit| limit.used).collect();
    assert_eq!((used, incident.in_flight), (vec![3, 11_250], 2));
    let costs: Vec<&str> = incident.acquisitions.iter().map(|one| one.costs.as_str()).collect();
    assert_eq!(costs, ["requests=1 tokens=3750"; 3]);

    // One microsecond before the provider's time no ask is admitted; at it, one is.
    let Decision::Denied(denial) = gate.acquire(&ask).await.unwrap() else { panic!("admitted") };
    assert_eq!(denial.reset_at(), Some(until));
    clock.set(Timestamp::from_micros(until.as_micros() - 1));
    assert!(!gate.acquire(&ask).await.unwrap().is_admitted());
    clock.set(until);
    assert!(gate.acquire(&ask).await.unwrap().is_admitted());

    assert!(tasks.shutdown(clock.now() + Span::from_secs(1)).await);
    let lines = kept.lines();
    assert_eq!((lines.len(), &lines[0]["event"]), (1, &serde_json::json!("violated")));
    assert_eq!(lines[0]["correlation_id"], incident.id);
    assert_eq!(serde_json::from_value::<Incident>(lines[0]["incident"].clone()).unwrap(), incident);
    assert_eq!(file::read(&path).unwrap(), (vec![Recorded::Violated(Box::new(incident))], 0));
    let violations = telemetry.meters().snapshot(START);
    let violations = violations.get("tollgate_violations", &["gemini", "tpm"]);
    assert_eq!(violations, Some(&Value::Number(1)));
}

/// A wrong report changes nothing and is not written down.
#[tokio::test]
async fn a_wrong_report_is_refused_with_what_would_be_right() {
    let clock = ManualClock::at(START);
    let (telemetry, _tasks) = Telemetry::builder(Arc::new(clock.clone())).start();
    let (gate, policy) = (gate(&clock, Arc::clone(&telemetry) as _), gemini());
    let recorder = Recorder::new();
    let rows = [
        ("alice", Some("rpd"), Span::from_secs(1), "has no limit \"rpd\"; it has rpm, tpm"),
        ("alice", None, RETRY_AFTER_MAX.plus(Span::from_micros(1)), "must be at most"),
        ("", None, Span::from_secs(1), "a subject must be 1 to 256 bytes long"),
    ];
    for (subject, limit, retry_after, expected) in rows {
        let ask = Ask::new(&policy, subject);
        let violation = Violation { ask: &ask, limit, retry_after };
        let error = report_violation(&gate, &recorder, &*telemetry, &clock, &violation).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert!(gate.acquire(&Ask::new(&policy, "alice")).await.unwrap().is_admitted());
    let snapshot = telemetry.meters().snapshot(START);
    assert_ne!(snapshot.get("tollgate_violations", &["gemini", "rpm"]), Some(&Value::Number(1)));
}

/// The recorder remembers the last acquisitions only, and evicts the least recent subject.
#[tokio::test]
async fn the_recorder_is_bounded() {
    let (clock, recorder, policy) = (ManualClock::at(START), Arc::new(Recorder::new()), gemini());
    let gate = gate(&clock, Arc::clone(&recorder) as _);
    for _ in 0..ACQUISITIONS_MAX + 8 {
        gate.acquire(&Ask::new(&policy, "first")).await.unwrap();
    }
    let (in_flight, last) = recorder.about(&policy, "first", START);
    assert_eq!((in_flight, last.len()), (5, ACQUISITIONS_MAX));
    assert!(last.iter().all(|one| !one.admitted), "the last ones were denied");
    // An hour later no permit can be settled any more, so none is in flight.
    assert_eq!(recorder.about(&policy, "first", START + Span::from_hours(1)).0, 0);
    // Twice as many, because they are spread by chance.
    for number in 0..2 * tollgate::incident::SUBJECTS_MAX {
        gate.acquire(&Ask::new(&policy, number.to_string())).await.unwrap();
    }
    assert!(recorder.about(&policy, "first", START).1.is_empty());
}

fn incident(id: usize) -> Incident {
    Incident {
        id: id.to_string(),
        at: START,
        policy: "gemini".to_owned(),
        subject: "p7".to_owned(),
        limit: "rpm".to_owned(),
        until: START,
        closed: true,
        trouble: None,
        limits: Vec::new(),
        in_flight: 0,
        acquisitions: Vec::new(),
        others: Vec::new(),
    }
}

fn id_of(recorded: &Recorded) -> &str {
    match recorded {
        Recorded::Violated(incident) => &incident.id,
        other => panic!("{other:?}"),
    }
}

async fn write(path: &std::path::Path, bytes_max: u64, ids: std::ops::Range<usize>) {
    use tollgate::observe::Observer as _;
    let builder = Telemetry::builder(Arc::new(ManualClock::at(START)));
    let (telemetry, tasks) = builder.records(IncidentFile::new(path, bytes_max)).start();
    for id in ids {
        let (policy, incident) = (&gemini(), &incident(id));
        telemetry.observe(&Event::Violated { policy, incident });
    }
    assert!(tasks.shutdown(START + Span::from_secs(1)).await);
}

/// The file and the one before it stay within their bound, and the newest incidents are always there.
#[tokio::test]
async fn the_file_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("incidents.jsonl");
    write(&path, 2_000, 0..100).await;
    let (found, damaged) = file::read(&path).unwrap();
    assert_eq!((id_of(found.last().unwrap()), damaged), ("99", 0));
    assert!(found.len() < 40, "{} incidents are in two files of 2,000 bytes", found.len());
    for entry in fs::read_dir(folder.path()).unwrap() {
        assert!(entry.unwrap().metadata().unwrap().len() <= 2_000);
    }
}

/// A line that a crash cut short is left out, and does not spoil the next one.
#[tokio::test]
async fn a_damaged_line_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("incidents.jsonl");
    assert_eq!(file::read(&path).unwrap(), (Vec::new(), 0));
    write(&path, FILE_BYTES_MAX, 0..2).await;
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 10]).unwrap();
    write(&path, FILE_BYTES_MAX, 2..3).await;
    let (found, damaged) = file::read(&path).unwrap();
    let ids: Vec<&str> = found.iter().map(id_of).collect();
    assert_eq!((ids, damaged), (vec!["0", "2"], 1));
}

/// A store that does not serve the broker is kept among the refusals of providers, under the id that the log has.
#[tokio::test]
async fn a_misconfigured_store_is_kept() {
    use tollgate::observe::Observer as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("incidents.jsonl");
    let kept = Kept::default();
    let (telemetry, tasks) = Telemetry::builder(Arc::new(ManualClock::at(START)))
        .records(Log::new(Severity::Error, kept.clone()))
        .records(IncidentFile::new(&path, FILE_BYTES_MAX))
        .start();
    let error = Error::new(ErrorKind::Misconfigured, "the password is wrong");
    telemetry.observe(&Event::Misconfigured { error: &error });
    telemetry.observe(&Event::Violated { policy: &gemini(), incident: &incident(7) });
    telemetry.observe(&Event::DegradedBegan { error: &error });
    assert!(tasks.shutdown(START + Span::from_secs(1)).await);
    let id = kept.lines()[0]["correlation_id"].as_str().unwrap().to_owned();
    let error = error.to_string();
    let store = Recorded::Store(StoreIncident::Misconfigured { id, at: START, error });
    let violated = Recorded::Violated(Box::new(incident(7)));
    assert_eq!(file::read(&path).unwrap(), (vec![store, violated], 0));
}
