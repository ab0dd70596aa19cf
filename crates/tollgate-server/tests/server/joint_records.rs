//! What an ask with several charges leaves: one record of the audit, and what a provider's refusal of it closes.

use serde_json::{Value, json};
use tollgate_protocol::protobuf::tollgate::v1::{AcquireRequest, Charge, ReportViolationRequest};

use crate::client::Server;
use crate::resp::Line;

fn both() -> Value {
    json!([{ "policy": "gemini", "subject": "u1" }, { "policy": "jobs", "subject": "t7" }])
}

async fn records(server: &Server, query: &str) -> Vec<Value> {
    let answer = server.get(&format!("/v1/audit{query}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["records"].as_array().unwrap().clone()
}

/// The same ask is refused over HTTP, gRPC and the Redis protocol. Each leaves one record, which every charge finds.
#[tokio::test]
async fn a_denial_is_one_record_with_every_charge() {
    let server = Server::start().await;
    let ask = json!({ "charges": both(), "costs": { "tokens": 400 } }).to_string();
    server.permit(&ask).await;
    assert_eq!(server.post("/v1/acquire", &ask).await.status, 429);
    let charge = |policy: &str, subject: &str| Charge {
        policy: policy.into(),
        subject: subject.into(),
        costs: None,
    };
    let message = AcquireRequest {
        charges: vec![charge("gemini", "u1"), charge("jobs", "t7")],
        costs: [("tokens".to_owned(), 400)].into(),
        ..AcquireRequest::default()
    };
    server.gate().acquire(message).await.unwrap();
    let words = "TG.ACQUIRE gemini u1 COST tokens 400 AND jobs t7";
    Line::to(&server).await.ask(&words.split(' ').collect::<Vec<_>>()).await;
    let found = records(&server, "").await;
    assert_eq!(found.len(), 3, "{found:?}");
    let charges = json!([
        { "policy": "gemini", "subject": "u1", "costs": { "requests": 1, "tokens": 400 } },
        { "policy": "jobs", "subject": "t7", "costs": { "requests": 1 }, "refused": ["slots"] },
    ]);
    for record in &found {
        assert_eq!((&record["policy"], &record["subject"]), (&json!("jobs"), &json!("t7")));
        assert_eq!(record["charges"], charges);
    }
    for query in ["?subject=u1", "?policy=gemini&subject=u1", "?policy=jobs", "?subject=t7"] {
        assert_eq!(records(&server, query).await.len(), 3, "{query}");
    }
    assert!(records(&server, "?policy=gemini&subject=t7").await.is_empty());
    let top = server.get("/v1/audit/top").await.json()["subjects"].clone();
    assert_eq!(top.as_array().unwrap().len(), 1, "only the charge that refused: {top}");
    assert_eq!((&top[0]["subject"], &top[0]["count"]), (&json!("t7"), &json!(3)));
}

/// An ask that a policy in shadow mode would have denied is a record of that charge, wherever it is in the ask.
#[tokio::test]
async fn a_denial_in_shadow_mode_is_that_of_its_charge() {
    let server = Server::start().await;
    let charges = json!([both()[0], { "policy": "trial", "subject": "u1" }]);
    for _ in 0..3 {
        server.permit(&json!({ "charges": charges }).to_string()).await;
    }
    let found = records(&server, "").await;
    let [record] = &*found else { panic!("{found:?}") };
    assert_eq!((&record["outcome"], &record["policy"]), (&json!("shadow_denied"), &json!("trial")));
    assert_eq!(record["charges"][1]["refused"], json!(["burst"]));
}

/// A charge without a decision is one record, too.
#[tokio::test]
async fn a_charge_is_one_record() {
    let server = Server::start().await;
    let charge = json!({ "charges": both() }).to_string();
    assert_eq!(server.post("/v1/charge", &charge).await.status, 200);
    let found = records(&server, "?outcome=charged&subject=t7").await;
    assert_eq!((found.len(), &found[0]["policy"]), (1, &json!("gemini")));
    assert_eq!(found[0]["charges"].as_array().unwrap().len(), 2);
}

async fn admits(server: &Server, policy: &str, subject: &str) -> bool {
    let ask = json!({ "policy": policy, "subject": subject });
    server.post("/v1/acquire", &ask.to_string()).await.status == 200
}

/// The provider refuses a limit that the second charge has: that charge is closed, and the first is not.
#[tokio::test]
async fn a_violation_closes_the_charge_that_has_the_limit() {
    let server = Server::start().await;
    let permit = server.permit(&json!({ "charges": both() }).to_string()).await;
    let report = |more: Value| {
        let mut report = json!({ "permit": permit, "retry_after_ms": 90_000 });
        report.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        report.to_string()
    };
    let wrong = server.post("/v1/violations", &report(json!({ "limit": "rps" }))).await;
    assert_eq!(wrong.status, 400);
    let expected = "no charge has a limit \\\"rps\\\"; gemini has rpm, tpm, rpd; jobs has slots";
    assert!(wrong.text.contains(expected), "{}", wrong.text);
    let named = report(json!({ "policy": "trial", "limit": "slots" }));
    let wrong = server.post("/v1/violations", &named).await;
    assert!(wrong.status == 400 && wrong.text.contains("the permit is for"), "{}", wrong.text);
    let missing = json!({ "limit": "slots", "retry_after_ms": 1 }).to_string();
    let wrong = server.post("/v1/violations", &missing).await;
    assert!(wrong.status == 400 && wrong.text.contains("or send the permit"), "{}", wrong.text);
    assert!(records(&server, "?outcome=violated").await.is_empty());

    let answer = server.post("/v1/violations", &report(json!({ "limit": "slots" }))).await;
    let incident = answer.json();
    assert_eq!((answer.status, &incident["policy"]), (200, &json!("jobs")), "{}", answer.text);
    assert_eq!((&incident["subject"], &incident["closed"]), (&json!("t7"), &json!(true)));
    assert!(incident.get("others").is_none(), "{incident}");
    assert!(admits(&server, "gemini", "u1").await);
    let release = json!({ "permit": permit }).to_string();
    assert_eq!(server.post("/v1/release", &release).await.status, 200);
    assert!(!admits(&server, "jobs", "t7").await, "the slot is free, and the limit is closed");
    let found = records(&server, "?outcome=violated&subject=t7").await;
    assert_eq!((found.len(), &found[0]["limit"]), (1, &json!("slots")));
    assert_eq!(found[0]["charges"][1]["refused"], json!(["slots"]), "{found:?}");
}

/// Two charges have the limit that the provider named: both are closed, over gRPC, as one record. Without a name it is the
/// limit with the least left of all charges.
#[tokio::test]
async fn a_violation_closes_every_charge_that_has_the_limit() {
    let server = Server::start().await;
    let charges = json!([both()[0], both()[1], { "policy": "gemini", "subject": "account" }]);
    let ask = json!({ "charges": charges, "costs": { "tokens": 10 } }).to_string();
    let permit = server.permit(&ask).await;
    let report = |limit: Option<&str>| ReportViolationRequest {
        limit: limit.map(Into::into),
        retry_after_ms: 90_000,
        permit: Some(permit.clone()),
        ..ReportViolationRequest::default()
    };
    let likeliest = server.gate().report_violation(report(None)).await.unwrap().into_inner();
    assert_eq!((&*likeliest.limit, likeliest.closed.len()), ("slots", 1));
    assert!(admits(&server, "gemini", "account").await);
    let both = server.gate().report_violation(report(Some("rpm"))).await.unwrap().into_inner();
    let closed: Vec<_> = both.closed.iter().map(|it| (&*it.policy, &*it.subject)).collect();
    assert_eq!((closed, &*both.limit), (vec![("gemini", "u1"), ("gemini", "account")], "rpm"));
    assert!(both.closed.iter().all(|it| it.closed_until.is_some()));
    assert!(!admits(&server, "gemini", "u1").await && !admits(&server, "gemini", "account").await);
    let found = records(&server, "?outcome=violated&subject=account").await;
    let [newest, ..] = &*found else { panic!("no record") };
    let refused: Vec<&Value> =
        newest["charges"].as_array().unwrap().iter().map(|it| &it["refused"]).collect();
    assert_eq!(refused, [&json!(["rpm"]), &Value::Null, &json!(["rpm"])]);
}
