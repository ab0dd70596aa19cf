//! A quota whose database is down: R004.6.

use std::io;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tollgate::Span;
use tollgate_postgres::rows::{FailOpen, Quota};

use super::Desk;
use super::quota::{TABLE, videos};

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn count(desk: &Desk, user: &str) -> String {
    desk.psql(&format!("SELECT count(*) FROM video_requests WHERE user_id = '{user}'"))
}

/// R004.6, conflict 30: with the database down a request is let through with `remaining: 0`, up to a cap; the log has an
/// error and a warning "degraded"; and everybody who was let through is counted when the database is back, once, also
/// beyond the limit.
#[tokio::test]
async fn r004_6_database_down_fails_open_and_counts_later() {
    let mut desk = Desk::alone();
    desk.psql(TABLE);
    videos().install(&desk.options()).await.unwrap();
    let options = desk.options().reply_timeout(Span::from_secs(5));
    let quota = Quota::open(options, "video_requests_quota").await.unwrap();
    let quota = FailOpen::new(quota, 3).unwrap();
    for left in [4, 3, 2, 1] {
        assert_eq!(quota.consume("alice", None).await.unwrap()["remaining"], left);
    }
    // Not killed: a session that is left over might answer once more.
    Arc::get_mut(&mut desk.server).unwrap().process().stop().unwrap();
    let log = Log::default();
    let written = log.clone();
    let writer = tracing_subscriber::fmt().with_writer(move || written.clone()).with_ansi(false);
    let logging = tracing::subscriber::set_default(writer.finish());
    let open = json!({
        "allowed": true, "remaining": 0, "resetTime": null, "waitSeconds": 0, "degraded": true,
    });
    assert_eq!(quota.consume("alice", Some("a")).await.unwrap(), open);
    drop(logging);
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("ERROR") && log.contains("the database is down"), "{log}");
    assert!(log.contains("WARN") && log.contains("degraded"), "{log}");
    for key in [Some("a"), Some("b"), None] {
        assert_eq!(quota.consume("alice", key).await.unwrap(), open, "{key:?}");
    }
    assert_eq!(quota.consume("alice", None).await.unwrap()["allowed"], false, "the cap");
    assert_eq!(quota.consume("bob", None).await.unwrap(), open);
    assert_eq!(quota.spooled(), 4);
    Arc::get_mut(&mut desk.server).unwrap().restart().unwrap();
    assert_eq!(quota.replay().await.unwrap(), 4);
    assert_eq!((count(&desk, "alice"), count(&desk, "bob")), ("7".to_owned(), "1".to_owned()));
    let answer = quota.consume("alice", None).await.unwrap();
    assert_eq!((&answer["allowed"], answer.get("degraded")), (&json!(false), None));
    assert_eq!(quota.consume("bob", None).await.unwrap()["remaining"], 3);
}

/// R004.6: a request that a trigger refuses to record is logged and dropped; those behind it are recorded, and the quota
/// decides again.
#[tokio::test]
async fn r004_6_a_refused_replay_does_not_hold_up_the_others() {
    let mut desk = Desk::alone();
    desk.psql(TABLE);
    videos().with_trigger().install(&desk.options()).await.unwrap();
    desk.psql("INSERT INTO video_requests (user_id) SELECT 'alice' FROM generate_series(1, 5)");
    let options = desk.options().reply_timeout(Span::from_secs(5));
    let quota = Quota::open(options, "video_requests_quota").await.unwrap();
    let quota = FailOpen::new(quota, 3).unwrap();
    Arc::get_mut(&mut desk.server).unwrap().process().stop().unwrap();
    for user in ["alice", "bob"] {
        assert_eq!(quota.consume(user, None).await.unwrap()["degraded"], true);
    }
    Arc::get_mut(&mut desk.server).unwrap().restart().unwrap();
    assert_eq!((quota.replay().await.unwrap(), quota.spooled()), (1, 0));
    assert_eq!((count(&desk, "alice"), count(&desk, "bob")), ("5".to_owned(), "1".to_owned()));
    assert_eq!(quota.consume("bob", None).await.unwrap()["remaining"], 3);
}
