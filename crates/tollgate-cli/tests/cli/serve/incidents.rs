//! Incidents at a broker: reported, written down, and audited.

use super::API;
use crate::folder::Folder;
use crate::running::Broker;

/// A broker that could not write an incident down says so before there is one, and once.
#[test]
fn an_unwritable_incident_file_is_logged_at_the_start() {
    for place in ["none/incidents.jsonl", "."] {
        let config = format!("[telemetry]\nincident_file = \"{place}\"\n\n{API}");
        let folder = Folder::with(&config);
        let (status, _, said) = Broker::start(&folder, "").end("-TERM");
        assert_eq!(status, Some(0));
        assert_eq!(said.matches("incidents will be lost").count(), 1, "{said}");
        let ran = folder.run("audit incidents");
        assert_eq!((ran.code, &*ran.out), (2, ""), "{place}");
    }
    let (_, _, said) = Broker::start(&Folder::with(API), "").end("-TERM");
    assert_eq!(said, "");
}

/// R000.14, from the report to the audit: the broker closes the limit, logs, and keeps what it knew.
#[test]
fn r000_14_an_incident_is_reported_to_a_broker_and_audited() {
    let folder = Folder::with(&format!("[telemetry]\nlog = \"warn\"\n\n{API}"));
    let file = "tollgate-incidents.jsonl";
    let expected = format!("no incidents; {file} is made with the first one\n");
    assert_eq!(folder.run("audit incidents").out, expected);
    for (wrong, what) in [("none", "file none cannot be read"), (".", "file . cannot be read")] {
        let ran = folder.run(&format!("audit incidents --file {wrong}"));
        assert_eq!((ran.code, &*ran.out), (2, ""), "{wrong}");
        assert!(ran.err.contains(what), "{}", ran.err);
    }
    let broker = Broker::start(&folder, "");
    let at = format!("--server {}", broker.url);
    assert_eq!(folder.run(&format!("acquire api alice {at}")).code, 0);
    let (code, incident) =
        folder.json(&format!("violation api alice --limit burst --retry-after 10m {at}"));
    assert_eq!((code, &incident["closed"], &incident["in_flight"]), (0, &true.into(), &1.into()));
    assert_eq!(folder.run(&format!("acquire api alice {at}")).code, 1);
    let (status, _, logged) = broker.end("-TERM");
    assert_eq!(status, Some(0));
    let events: Vec<serde_json::Value> =
        logged.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let words: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(words, ["closed", "violated", "denied"]);

    // Without a broker the command does it itself.
    assert_eq!(folder.run("violation api bob --retry-after 1m").code, 0);
    assert_eq!(folder.run("acquire api bob").code, 1);
    let (_, all) = folder.json("audit incidents --since 1h --policy api");
    assert_eq!(all.as_array().map(Vec::len), Some(2));
    assert_eq!(all[0], incident);
    assert_eq!(folder.json("audit incidents --policy other").1, serde_json::json!([]));
    let table = folder.run("audit incidents").out;
    assert!(table.lines().nth(1).is_some_and(|row| row.contains("alice")), "{table}");
    let wrong = folder.run("audit incidents --since yesterday");
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("nor a length of time, as in 24h"), "{}", wrong.err);
}
