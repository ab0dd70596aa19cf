//! Waiting by exponential back-off, chosen by flags and in the configuration. What was asked when is in the audit of a broker.

use tollgate::{Span, Timestamp};

use crate::folder::Folder;
use crate::running::Broker;

const POLICIES: &str = r#"
[[policy]]
name = "jobs"
limits = [{ name = "running", unit = "jobs", rule = "concurrency", limit = 1, ttl = "5m" }]

[[policy]]
name = "window"
limits = [{ name = "one", unit = "requests", rule = "rolling-window", limit = 1, window = "700ms" }]
"#;

/// Asks for a slot that is never free for three seconds, with pauses of 200 ms, 400 ms and then 800 ms.
const WAITS: &str = "acquire jobs ci --cost jobs=1 --wait 3s";

fn broker() -> (Folder, Broker) {
    let folder = Folder::with(&format!("[store]\nkind = \"memory\"\n{POLICIES}"));
    let broker = Broker::start(&folder, "");
    (folder, broker)
}

/// A folder whose store is `broker`, with `tables` in its configuration.
fn on(broker: &Broker, tables: &str) -> Folder {
    Folder::with(&format!(
        "[store]\nkind = \"broker\"\nurl = \"{}\"\n{tables}\n{POLICIES}",
        broker.url
    ))
}

/// When asks were refused, first to last.
fn refused_at(folder: &Folder, broker: &Broker) -> Vec<Timestamp> {
    let (_, found) = folder.json(&format!("audit denials --limit 100 --server {}", broker.url));
    let records = found["records"].as_array().expect("a list").iter().rev();
    let times = records.map(|record| record["at"].as_str().expect("a time").parse());
    times.collect::<Result<_, _>>().expect("times")
}

/// Whether each pause is at least as long as it must be; so there are at most five asks in three seconds.
fn doubles(at: &[Timestamp]) {
    let pauses: Vec<Span> = at.windows(2).map(|pair| pair[1].since(pair[0])).collect();
    assert!((2..=4).contains(&pauses.len()), "{pauses:?}");
    for (pause, least) in pauses.iter().zip([200, 400, 800, 800].map(Span::from_millis)) {
        assert!(least <= *pause, "{pauses:?}");
    }
}

#[test]
fn r000_2_flags_choose_pauses_that_double_and_the_broker_queues_no_ask() {
    let (folder, broker) = broker();
    let server = format!("--server {}", broker.url);
    assert_eq!(folder.run(&format!("acquire jobs ci --cost jobs=1 {server}")).code, 0);
    let ran = folder.run(&format!("{WAITS} --backoff=200ms..800ms --jitter 10 {server}"));
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    doubles(&refused_at(&folder, &broker));
}

#[test]
fn r000_2_the_configuration_chooses_back_off_and_a_flag_overrules_it() {
    let (folder, broker) = broker();
    let there = on(&broker, "[backoff]\nbase = \"200ms\"\nmax = \"800ms\"\njitter = 10");
    assert_eq!(there.run("acquire jobs ci --cost jobs=1").code, 0);
    let ran = there.run(WAITS);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    let at = refused_at(&folder, &broker);
    doubles(&at);
    // A pause that ends after the deadline is not made.
    assert_eq!(there.run(&format!("{WAITS} --backoff=4s..4s")).code, 1);
    assert_eq!(refused_at(&folder, &broker).len(), at.len() + 1);
}

/// R000.2: no pause is shorter than the promised wait, and the retry after it succeeds.
#[test]
fn r000_2_back_off_waits_for_the_promised_time_and_then_succeeds() {
    let (folder, broker) = broker();
    let there = on(&broker, "[backoff]\nbase = \"1ms\"\nmax = \"1ms\"\njitter = 0");
    assert_eq!(there.run("acquire window u1").code, 0);
    let ran = there.run("acquire window u1 --wait 10s");
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let asks = refused_at(&folder, &broker).len();
    assert!(asks <= 2, "{asks} asks were refused within 700 ms");
}
