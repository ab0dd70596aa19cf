//! A quota whose database is down: R004.6.

use std::io;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tollgate::{ErrorKind, Span};
use tollgate_postgres::rows::{FailOpen, Quota, Rows};

use super::TestDatabase;
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

fn count(database: &TestDatabase, user: &str) -> String {
    database.psql(&format!("SELECT count(*) FROM video_requests WHERE user_id = '{user}'"))
}

/// R004.6, conflict 30: with the database down a request is let through with `remaining: 0`, up to a cap; the log has an
/// error and a warning "degraded"; and every admitted ask is counted once when the database is back, also
/// beyond the limit.
#[tokio::test]
async fn r004_6_database_down_fails_open_and_counts_later() {
    let mut database = TestDatabase::alone();
    database.psql(TABLE);
    videos().install(&database.options()).await.unwrap();
    let options = database.options().reply_timeout(Span::from_secs(5));
    let quota = Quota::open(options, "video_requests_quota").await.unwrap();
    let quota = FailOpen::new(quota, 3).unwrap();
    for left in [4, 3, 2, 1] {
        assert_eq!(quota.consume("alice", None).await.unwrap()["remaining"], left);
    }
    // Not killed: a session that is left over might answer once more.
    database.own().process().stop().unwrap();
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
    let warning = "Rate limiting degraded - database unavailable";
    assert!(log.lines().any(|line| line.contains("WARN") && line.contains(warning)), "{log}");
    for key in [Some("a"), Some("b"), None] {
        assert_eq!(quota.consume("alice", key).await.unwrap(), open, "{key:?}");
    }
    assert_eq!(quota.consume("alice", None).await.unwrap()["allowed"], false, "the cap");
    assert_eq!(quota.consume("bob", None).await.unwrap(), open);
    assert_eq!(quota.spooled(), 4);
    database.own().restart().unwrap();
    assert_eq!(quota.replay().await.unwrap(), 4);
    assert_eq!(
        (count(&database, "alice"), count(&database, "bob")),
        ("7".to_owned(), "1".to_owned())
    );
    let answer = quota.consume("alice", None).await.unwrap();
    assert_eq!((&answer["allowed"], answer.get("degraded")), (&json!(false), None));
    assert_eq!(quota.consume("bob", None).await.unwrap()["remaining"], 3);
}

/// R004.6: a request that a trigger refuses to record is logged and dropped; those behind it are recorded, and the quota
/// decides again.
#[tokio::test]
async fn r004_6_a_refused_replay_does_not_hold_up_the_others() {
    let mut database = TestDatabase::alone();
    database.psql(TABLE);
    videos().with_trigger().install(&database.options()).await.unwrap();
    database.psql("INSERT INTO video_requests (user_id) SELECT 'alice' FROM generate_series(1, 5)");
    let options = database.options().reply_timeout(Span::from_secs(5));
    let quota = Quota::open(options, "video_requests_quota").await.unwrap();
    let quota = FailOpen::new(quota, 3).unwrap();
    database.own().process().stop().unwrap();
    for user in ["alice", "bob"] {
        assert_eq!(quota.consume(user, None).await.unwrap()["degraded"], true);
    }
    database.own().restart().unwrap();
    assert_eq!((quota.replay().await.unwrap(), quota.spooled()), (1, 0));
    assert_eq!(
        (count(&database, "alice"), count(&database, "bob")),
        ("5".to_owned(), "1".to_owned())
    );
    assert_eq!(quota.consume("bob", None).await.unwrap()["remaining"], 3);
}

/// A table with columns that have to be given, of types and names that need care.
const ORDERS: &str = "CREATE SCHEMA app; CREATE TABLE app.\"Orders\" (\"User\" text NOT NULL, \
     created_at timestamptz NOT NULL, \"Title\" text NOT NULL, \"a \"\"b\"\"\" jsonb NOT NULL, cents numeric(12, 2) NOT NULL, \
     tags text[] NOT NULL, due timestamptz, note text DEFAULT 'none')";

/// R004.6: a request that is let through in an outage is written with its columns when the database is back, also where a
/// column that must not be null has no default, and its row is the one that `consume` writes.
#[tokio::test]
async fn r004_6_an_outage_loses_no_column() {
    let mut database = TestDatabase::alone();
    database.psql(ORDERS);
    let rows = Rows::new("app.\"Orders\"", 5, Span::from_hours(24)).user_column("User");
    rows.install(&database.options()).await.unwrap();
    let options = database.options().reply_timeout(Span::from_secs(5));
    let quota = FailOpen::new(Quota::open(options, "Orders_quota").await.unwrap(), 3).unwrap();
    let columns = json!({
        "Title": "it's \"$1\"; \\ 漢", "a \"b\"": {"k": [1, null]}, "cents": "12345678.90", "tags": ["x,y", "{}"],
        "due": "2026-11-16T00:00:00+02:00",
    });
    let online = quota.consume_with("alice", None, &columns).await.unwrap();
    assert_eq!((&online["row"]["note"], &online["remaining"]), (&json!("none"), &json!(4)));
    for (wrong, why) in [
        (json!({}), "null value in column"),
        (json!({"Title": "x", "nope": 1}), "column \"nope\""),
        (json!({"Title": "x", "cents": "much"}), "invalid input syntax"),
        (json!({"Title": "x", "created_at": "2020-01-01"}), "specified more than once"),
    ] {
        let refused = quota.consume_with("alice", None, &wrong).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        assert!(refused.to_string().contains(why), "{refused}");
    }
    let list = quota.consume_with("alice", None, &json!(["Title"])).await.unwrap_err();
    assert_eq!(list.kind(), ErrorKind::Invalid);
    assert!(list.to_string().contains("must be a JSON object"), "{list}");
    database.own().process().stop().unwrap();
    for key in [Some("k"), Some("k"), None] {
        let answer = quota.consume_with("alice", key, &columns).await.unwrap();
        assert_eq!((&answer["allowed"], &answer["degraded"]), (&json!(true), &json!(true)));
    }
    let list = quota.consume_with("alice", None, &json!(["Title"])).await.unwrap_err();
    assert_eq!((list.kind(), quota.spooled()), (ErrorKind::Invalid, 2));
    database.own().restart().unwrap();
    assert_eq!((quota.replay().await.unwrap(), quota.spooled()), (2, 0));
    let kinds = "SELECT count(*), count(DISTINCT to_jsonb(o) - 'created_at'), count(DISTINCT created_at) FROM app.\"Orders\" o";
    assert_eq!(database.psql(kinds), "3|1|3");
    let again = quota.consume_with("alice", Some("k"), &columns).await.unwrap();
    assert_eq!((&again["duplicate"], &again["row"]["cents"]), (&json!(true), &json!(12_345_678.9)));
    assert_eq!(again["remaining"], 2);
}

/// R004.6: a row that the table does not take is logged and dropped when the database is back, and does not keep those
/// behind it from being written.
#[tokio::test]
async fn r004_6_a_row_that_the_table_refuses_does_not_hold_up_the_others() {
    let mut database = TestDatabase::alone();
    database.psql(ORDERS);
    let rows = Rows::new("app.\"Orders\"", 5, Span::from_hours(24)).user_column("User");
    rows.install(&database.options()).await.unwrap();
    let options = database.options().reply_timeout(Span::from_secs(5));
    let quota = FailOpen::new(Quota::open(options, "Orders_quota").await.unwrap(), 3).unwrap();
    let columns = json!({"Title": "t", "a \"b\"": 1, "cents": 2, "tags": []});
    database.own().process().stop().unwrap();
    quota.consume("alice", None).await.unwrap();
    quota.consume_with("bob", None, &columns).await.unwrap();
    database.own().restart().unwrap();
    assert_eq!((quota.replay().await.unwrap(), quota.spooled()), (1, 0));
    assert_eq!(database.psql("SELECT \"User\" FROM app.\"Orders\""), "bob");
    let answer = quota.consume_with("bob", None, &columns).await.unwrap();
    assert_eq!((&answer["remaining"], answer.get("degraded")), (&json!(3), None));
}

/// R004.6: while the database is down a check answers as a request would be answered, cap included, and consumes nothing.
#[tokio::test]
async fn r004_6_check_fails_open_and_consumes_nothing() {
    let mut database = TestDatabase::alone();
    database.psql(TABLE);
    videos().install(&database.options()).await.unwrap();
    let options = database.options().reply_timeout(Span::from_secs(5));
    let quota = Quota::open(options, "video_requests_quota").await.unwrap();
    let quota = FailOpen::new(quota, 1).unwrap();
    assert_eq!(quota.check("alice").await.unwrap()["remaining"], 5);
    database.own().process().stop().unwrap();
    let open = |allowed: bool| {
        json!({
            "allowed": allowed, "remaining": 0, "resetTime": null, "waitSeconds": 0, "degraded": true,
        })
    };
    for _ in 0..3 {
        assert_eq!(quota.check("alice").await.unwrap(), open(true));
    }
    assert_eq!(quota.spooled(), 0);
    assert_eq!(quota.consume("alice", None).await.unwrap(), open(true));
    assert_eq!(quota.check("alice").await.unwrap(), open(false));
    assert_eq!(quota.check("bob").await.unwrap(), open(true));
    database.own().restart().unwrap();
    let check = quota.check("alice").await.unwrap();
    assert_eq!((&check["remaining"], check.get("degraded")), (&json!(4), None));
    assert_eq!(
        (count(&database, "alice"), count(&database, "bob")),
        ("1".to_owned(), "0".to_owned())
    );
}

/// The version before installed a `replay` without columns. It is refused with what to do; another install replaces it, and
/// its grants and the calls of programs of that version stay.
#[tokio::test]
async fn r004_6_a_replay_without_columns_is_replaced() {
    let database = TestDatabase::new();
    database.psql(TABLE);
    videos().install(&database.options()).await.unwrap();
    let role = format!("replays_{}", database.name);
    database.psql(&format!(
        "CREATE ROLE {role}; DROP FUNCTION video_requests_quota.replay; \
         CREATE FUNCTION video_requests_quota.replay(p_user text, p_key text, p_at timestamptz) RETURNS jsonb LANGUAGE sql \
         RETURN '{{}}'::jsonb; GRANT EXECUTE ON FUNCTION video_requests_quota.replay TO {role}"
    ));
    let quota = async || Quota::open(database.options(), "video_requests_quota").await.unwrap();
    let refused = FailOpen::new(quota().await, 1).unwrap_err();
    assert!(refused.to_string().contains("run `tollgate postgres install` again"), "{refused}");
    videos().install(&database.options()).await.unwrap();
    FailOpen::new(quota().await, 1).unwrap();
    let granted = format!(
        "SELECT count(*), bool_and(has_function_privilege('{role}', oid, 'EXECUTE')) FROM pg_proc \
         WHERE proname = 'replay' AND pronamespace = 'video_requests_quota'::regnamespace"
    );
    assert_eq!(database.psql(&granted), "1|t");
    database.psql("SELECT video_requests_quota.replay('alice', 'k', now())");
    assert_eq!(count(&database, "alice"), "1");
}
