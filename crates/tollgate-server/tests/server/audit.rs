//! Who was limited, when and why: what is written down, how it is found, and that it is bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tollgate::audit::{AuditLog, MemoryLog, Page, Query, Record, Retention};
use tollgate::gate::BoxFuture;
use tollgate::{Error, ErrorKind, Span, Timestamp};
use tollgate_server::{AuditOptions, Recording};

use crate::client::Server;

/// Takes the five requests of a minute and asks `refused` times more.
async fn limited(server: &Server, subject: &str, refused: usize) {
    let ask = json!({ "policy": "gemini", "subject": subject, "costs": { "tokens": 10 } });
    for turn in 0..5 + refused {
        let status = server.post("/v1/acquire", &ask.to_string()).await.status;
        assert_eq!(status, if turn < 5 { 200 } else { 429 });
    }
}

async fn records(server: &Server, query: &str) -> Vec<Value> {
    let answer = server.get(&format!("/v1/audit{query}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["records"].as_array().unwrap().clone()
}

#[tokio::test]
async fn r004_9_a_denial_says_who_when_and_why() {
    let server = Server::start().await;
    limited(&server, "p7", 1).await;
    let wanted = json!([{
        "number": 1, "at": "2026-11-15T05:45:00Z", "policy": "gemini", "subject": "p7", "outcome": "denied",
        "limit": "rpm", "unit": "requests", "asked": 1, "retry_after_ms": 60_000, "degraded": false,
    }]);
    assert_eq!(Value::from(records(&server, "").await), wanted);
}

/// What can never fit has no wait, and shadow mode writes down what it let through.
#[tokio::test]
async fn never_and_shadow_are_distinguished() {
    let server = Server::start().await;
    let never = json!({ "policy": "gemini", "subject": "p7", "costs": { "tokens": 250_001 } });
    assert_eq!(server.post("/v1/acquire", &never.to_string()).await.status, 429);
    for _ in 0..3 {
        let ask = json!({ "policy": "trial", "subject": "p8" });
        assert_eq!(server.post("/v1/acquire", &ask.to_string()).await.status, 200);
    }
    let found = records(&server, "").await;
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(
        (&found[0]["outcome"], &found[0]["limit"]),
        (&json!("shadow_denied"), &json!("burst"))
    );
    assert_eq!((&found[1]["never"], &found[1]["asked"]), (&json!(true), &json!(250_001)));
    assert!(found[1].get("retry_after_ms").is_none());
}

#[tokio::test]
async fn r004_10_questions_choose_by_policy_subject_time_and_outcome() {
    let server = Server::start().await;
    limited(&server, "a", 2).await;
    server.clock.advance(Span::from_secs(30));
    limited(&server, "b", 1).await;
    let count = async |query: &str| records(&server, query).await.len();
    assert_eq!(count("").await, 3);
    assert_eq!(count("?subject=a").await, 2);
    assert_eq!(count("?policy=trial").await, 0);
    assert_eq!(count("?since=10s").await, 1);
    assert_eq!(count("?since=2026-11-15T05:45:30Z").await, 1);
    assert_eq!(count("?outcome=denied").await, 3);
    assert_eq!(count("?outcome=degraded").await, 0);
}

#[tokio::test]
async fn pages_follow_each_other_and_miss_nothing() {
    let server = Server::start().await;
    limited(&server, "p7", 5).await;
    let (mut seen, mut query) = (Vec::new(), "?limit=2".to_owned());
    loop {
        let page = server.get(&format!("/v1/audit{query}")).await.json();
        for record in page["records"].as_array().unwrap() {
            seen.push(record["number"].as_u64().unwrap());
        }
        let Some(next) = page["next"].as_u64() else { break };
        query = format!("?limit=2&before={next}");
    }
    assert_eq!(seen, [5, 4, 3, 2, 1]);
}

#[tokio::test]
async fn the_error_of_a_wrong_query_suggests_a_correction() {
    let server = Server::start().await;
    let rows = [
        (
            "?outcome=refused",
            "use one of admitted, denied, shadow_denied, violated, reset, overridden, restored, assigned, unassigned, \
             defined, removed, closed, charged, reloaded, unauthenticated, and not degraded",
        ),
        ("?since=yesterday", "neither a time, as in 2026-11-15T05:45:00Z, nor a length of time"),
        ("?limit=0", "limit 0 must be between 1 and 1000"),
        ("?limit=1001", "limit 1001 must be between 1 and 1000"),
        ("?who=p7", "write ?policy=api&subject=alice&since=24h&outcome=denied&limit=100"),
        ("?subject=%ff", "not UTF-8"),
        ("/top?limit=0", "limit 0 must be between"),
    ];
    for (query, expected) in rows {
        let answer = server.get(&format!("/v1/audit{query}")).await;
        assert_eq!(answer.status, 400, "{query}");
        assert!(answer.text.contains(expected), "{query}: {}", answer.text);
    }
}

#[tokio::test]
async fn the_most_limited_subjects_come_first() {
    let server = Server::start().await;
    limited(&server, "a", 1).await;
    limited(&server, "b", 3).await;
    let top = server.get("/v1/audit/top?limit=1").await.json();
    let wanted = json!({
        "since": "2026-11-15T05:45:00Z",
        "subjects": [{ "policy": "gemini", "subject": "b", "count": 3, "error": 0 }],
    });
    assert_eq!(top, wanted);
}

/// The oldest records are forgotten beyond the bound, and what is too old as well.
#[tokio::test]
async fn the_audit_is_bounded_in_entries_and_in_age() {
    let keep = Retention { entries_max: 4, age_max: Span::from_hours(1) };
    let settings = AuditOptions { recording: Recording::Limited, keep };
    let server = Server::serving(|app| app.audit(settings, None)).await;
    limited(&server, "p7", 10).await;
    let found = records(&server, "").await;
    assert_eq!((found.len(), &found[0]["number"]), (4, &json!(10)));
    server.clock.advance(Span::from_hours(2));
    limited(&server, "p8", 1).await;
    let found = records(&server, "").await;
    assert_eq!((found.len(), &found[0]["subject"]), (1, &json!("p8")), "{found:?}");
}

#[tokio::test]
async fn nothing_or_everything_may_be_written_down() {
    for (recording, wanted) in [(Recording::Nothing, 0), (Recording::Everything, 6)] {
        let settings = AuditOptions { recording, ..AuditOptions::default() };
        let server = Server::serving(|app| app.audit(settings, None)).await;
        limited(&server, "p7", 1).await;
        assert_eq!(records(&server, "").await.len(), wanted);
    }
}

/// A log that can be out of order, or never come to an end.
#[derive(Debug)]
struct Sick {
    log: MemoryLog,
    fails: AtomicBool,
    hangs: AtomicBool,
}

impl Sick {
    fn new() -> Arc<Self> {
        let (fails, hangs) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { log: MemoryLog::new(100), fails, hangs })
    }

    fn check(&self) -> Result<(), Error> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "the disk is full"));
        }
        Ok(())
    }
}

impl AuditLog for Sick {
    fn append<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async {
            if self.hangs.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            self.check()?;
            self.log.append(records).await
        })
    }

    fn find<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page, Error>> {
        Box::pin(async {
            self.check()?;
            self.log.find(query).await
        })
    }

    fn trim(&self, keep: Retention, now: Timestamp) -> BoxFuture<'_, Result<u64, Error>> {
        self.log.trim(keep, now)
    }
}

/// A log that is out of order fails no decision: what it loses is counted, and the newest records are found all the same.
#[tokio::test]
async fn a_broken_log_fails_no_decision() {
    let log = Sick::new();
    let shared = Arc::clone(&log);
    let server = Server::serving(|app| app.audit(AuditOptions::default(), Some(shared as _))).await;
    limited(&server, "a", 2).await;
    assert_eq!(records(&server, "").await.len(), 2);
    log.fails.store(true, Ordering::SeqCst);
    limited(&server, "b", 3).await;
    let answer = server.get("/v1/audit").await.json();
    assert_eq!(
        (answer["records"].as_array().unwrap().len(), &answer["partial"]),
        (5, &json!(true))
    );
    let stats = server.get("/v1/stats").await.json();
    assert_eq!(stats["audit"], json!({ "recorded": 2, "dropped": 3 }));
    assert_eq!(server.get("/v1/audit?before=2").await.status, 503);
}

/// A log that hangs slows no decision: the queue fills up to its bound, and what is beyond is dropped and counted.
#[tokio::test]
async fn a_hanging_log_slows_no_decision() {
    use tollgate_server::bounds::{AUDIT_BATCH_MAX, AUDIT_QUEUE_MAX};

    let log = Sick::new();
    log.hangs.store(true, Ordering::SeqCst);
    let server = Server::serving(|app| app.audit(AuditOptions::default(), Some(log as _))).await;
    let ask = json!({ "policy": "gemini", "subject": "p7", "costs": { "tokens": 250_001 } });
    let batch = json!({ "asks": vec![ask; 100] }).to_string();
    let most = AUDIT_QUEUE_MAX + AUDIT_BATCH_MAX;
    for _ in 0..most.div_ceil(100) + 2 {
        assert_eq!(server.post("/v1/acquire/batch", &batch).await.status, 200);
    }
    let dropped = server.get("/v1/stats").await.json()["audit"]["dropped"].as_u64().unwrap();
    let asked = (most.div_ceil(100) + 2) * 100;
    let queued = asked - usize::try_from(dropped).unwrap();
    assert!(0 < dropped && queued <= most, "{dropped} dropped, {queued} kept");
}
