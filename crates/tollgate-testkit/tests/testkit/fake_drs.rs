//! The fake of Elastic Disaster Recovery refuses what the real one refuses.

use std::sync::Arc;

use serde_json::{Value, json};
use tollgate::Span;
use tollgate::clock::ManualClock;
use tollgate_testkit::fakes::drs::{FakeDrs, Fault, Reply, Response, Settings};

fn fake(settings: Settings) -> (ManualClock, FakeDrs) {
    let clock = ManualClock::new();
    (clock.clone(), FakeDrs::new(Arc::new(clock), settings))
}

fn call(fake: &FakeDrs, operation: &str, body: &Value) -> Response {
    match fake.handle(operation, body.to_string().as_bytes()) {
        Reply::Now(answer) => answer,
        other => unreachable!("{other:?}"),
    }
}

fn servers(numbers: std::ops::Range<usize>) -> Value {
    let servers: Vec<Value> =
        numbers.map(|number| json!({ "sourceServerID": FakeDrs::server_id(number) })).collect();
    json!({ "sourceServers": servers, "tags": { "wave": "1" } })
}

fn error_of(answer: &Response) -> (u16, &str, Option<&str>) {
    let name = answer.headers.iter().find(|(name, _)| *name == "x-amzn-ErrorType");
    (answer.status, name.map_or("", |(_, name)| name), answer.body["quotaCode"].as_str())
}

#[test]
fn jobs_move_on_with_the_clock_and_leave_instances() {
    let failing = [FakeDrs::server_id(1)].into();
    let (clock, fake) = fake(Settings { failing, ..Settings::default() });
    let started = call(&fake, "StartRecovery", &servers(0..2));
    assert_eq!((started.status, &started.body["job"]["status"]), (202, &json!("PENDING")));
    let job = || call(&fake, "DescribeJobs", &json!({})).body["items"][0].clone();
    assert_eq!(job()["tags"]["wave"], "1");
    clock.advance(Span::from_secs(5));
    assert_eq!(job()["status"], "STARTED");
    clock.advance(Span::from_secs(30));
    let done = job();
    assert_eq!(done["status"], "COMPLETED");
    assert_eq!(done["participatingServers"][0]["launchStatus"], "LAUNCHED");
    assert_eq!(done["participatingServers"][1]["launchStatus"], "FAILED");
    let log = call(&fake, "DescribeJobLogItems", &json!({ "jobID": done["jobID"] }));
    let events: Vec<_> = log.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["event"].as_str().unwrap())
        .collect();
    assert_eq!(events, ["JOB_START", "LAUNCH_START", "LAUNCH_START", "LAUNCH_FAILED", "JOB_END"]);
    let instances = call(&fake, "DescribeRecoveryInstances", &json!({})).body["items"].clone();
    assert_eq!(instances.as_array().unwrap().len(), 1);
    let ids = json!({ "recoveryInstanceIDs": [instances[0]["recoveryInstanceID"]] });
    assert_eq!(call(&fake, "TerminateRecoveryInstances", &ids).status, 200);
    assert_eq!(error_of(&call(&fake, "TerminateRecoveryInstances", &ids)).0, 409);
    clock.advance(Span::from_secs(35));
    assert_eq!(call(&fake, "DescribeRecoveryInstances", &json!({})).body["items"], json!([]));
    assert_eq!(error_of(&call(&fake, "TerminateRecoveryInstances", &ids)).0, 404);
}

#[test]
fn quotas_and_busy_servers_are_refused_by_name() {
    let (clock, fake) = fake(Settings { servers: 700, ..Settings::default() });
    let start = |numbers| call(&fake, "StartRecovery", &servers(numbers));
    assert_eq!(error_of(&start(0..0)).0, 400);
    assert_eq!(error_of(&start(0..201)).0, 400);
    assert_eq!(error_of(&start(0..101)).2, Some("L-B827C881"));
    assert_eq!(start(0..100).status, 202);
    assert_eq!(error_of(&start(99..120)), (409, "ConflictException", None));
    (1..5).for_each(|job| assert_eq!(start(job * 100..job * 100 + 100).status, 202));
    let full = start(500..501);
    assert_eq!(error_of(&full), (402, "ServiceQuotaExceededException", Some("L-05AFA8C6")));
    clock.advance(Span::from_secs(60));
    (0..20).for_each(|job| assert_eq!(start(job..job + 1).status, 202));
    assert_eq!(error_of(&start(20..21)).2, Some("L-D88FAC3A"));
    assert_eq!((fake.active_jobs(), fake.jobs_started()), (20, 25));
}

#[test]
fn calls_above_the_rate_get_429_and_all_are_written_down() {
    let (clock, fake) = fake(Settings { rate: Some((10, 20)), ..Settings::default() });
    let call = || error_of(&call(&fake, "DescribeJobs", &json!({}))).0;
    let burst: Vec<u16> = (0..25).map(|_| call()).collect();
    assert_eq!(burst.iter().filter(|status| **status == 429).count(), 5);
    clock.advance(Span::from_millis(100));
    assert_eq!((call(), call()), (200, 429));
    let arrivals = fake.arrivals();
    assert_eq!((arrivals.count("DescribeJobs"), arrivals.by_second().len()), (27, 1));
    // Twenty at once and one a tenth of a second later are within the bucket; 25 and 27 are not.
    assert_eq!(
        arrivals.over(10, 20, Span::ZERO).map(|over| (over.came, over.most)),
        Some((21, 20))
    );
    assert_eq!(arrivals.over(10, 27, Span::ZERO), None);
}

#[test]
fn listings_come_in_pages_and_faults_on_command() {
    let (_, fake) = fake(Settings { servers: 7, page_max: 3, ..Settings::default() });
    let mut token = Value::Null;
    let mut pages = Vec::new();
    loop {
        let page = call(&fake, "DescribeSourceServers", &json!({ "nextToken": token }));
        pages.push(page.body["items"].as_array().unwrap().len());
        match page.body.get("nextToken") {
            Some(next) => token = next.clone(),
            None => break,
        }
    }
    assert_eq!(pages, [3, 3, 1]);
    assert_eq!(call(&fake, "DescribeSourceServers", &json!({ "nextToken": "x" })).status, 400);
    fake.inject(Some("StartRecovery"), 1, Fault::SilentAfter);
    assert_eq!(call(&fake, "DescribeJobs", &json!({})).body["items"], json!([]));
    assert_eq!(fake.handle("StartRecovery", servers(0..1).to_string().as_bytes()), Reply::Never);
    assert_eq!(fake.jobs_started(), 1, "it was carried out");
    fake.inject(None, 2, Fault::Broken);
    assert_eq!(error_of(&call(&fake, "StartRecovery", &servers(1..2))).0, 500);
    assert_eq!((call(&fake, "DescribeJobs", &json!({})).status, fake.jobs_started()), (500, 1));
}
