//! Many requests of one user at once, the common variants that fail, and what the plan says.

use tollgate::Span;
use tollgate_postgres::rows::Rows;

use super::TestDatabase;
use super::quota::{installed, videos};

const CALLERS: usize = 50;

/// Runs `sql` once in each of fifty sessions that start together, and returns how many rows the user has then.
async fn all_at_once(database: &TestDatabase, sql: &'static str) -> u32 {
    let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(CALLERS));
    let tasks: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (url, barrier) = (database.url(), std::sync::Arc::clone(&barrier));
            tokio::spawn(async move {
                let (client, driver) =
                    tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
                let driver = tokio::spawn(driver);
                barrier.wait().await;
                client.batch_execute(sql).await.unwrap();
                drop(client);
                driver.await.unwrap().unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    database.psql("SELECT count(*) FROM video_requests WHERE user_id = 'u'").parse().unwrap()
}

/// Conflict 29: fifty requests of one user at once leave exactly five rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_requests_at_once_leave_five_rows() {
    let database = installed(&videos()).await;
    assert_eq!(all_at_once(&database, "SELECT video_requests_quota.consume('u')").await, 5);
    assert_eq!(database.psql("SELECT count(*) FROM video_requests_quota.rejections"), "45");
}

/// The trigger lets exactly five through as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trigger_leaves_five_rows() {
    let database = installed(&videos().with_trigger()).await;
    let insert = "DO $$ BEGIN INSERT INTO video_requests (user_id) VALUES ('u'); EXCEPTION WHEN SQLSTATE 'RL429' THEN END $$";
    assert_eq!(all_at_once(&database, insert).await, 5);
}

/// The same test finds what is wrong with counting first, and with a lock taken inside the statement that counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sabotaged_variants_let_too_many_through() {
    let count = "(SELECT count(*) FROM video_requests WHERE user_id = 'u' AND created_at > now() - interval '24 hours') < 5";
    let variants = [
        // Two statements: all requests count before the first inserts.
        format!(
            "DO $$ BEGIN IF {count} THEN PERFORM pg_sleep(0.05); INSERT INTO video_requests (user_id) VALUES ('u'); END IF; END $$"
        ),
        // One statement: it sees the rows as they were when it began.
        format!(
            "INSERT INTO video_requests (user_id) SELECT 'u' FROM pg_sleep(0.05) WHERE {count}"
        ),
        // A lock inside the statement comes too late for the same reason.
        format!(
            "WITH l AS MATERIALIZED (SELECT pg_advisory_xact_lock(1), pg_sleep(0.005)) \
             INSERT INTO video_requests (user_id) SELECT 'u' FROM l WHERE {count}"
        ),
    ];
    for variant in variants {
        let database = installed(&videos()).await;
        let rows = all_at_once(&database, String::leak(variant.clone())).await;
        assert!(5 < rows, "{variant} left {rows} rows, so this test would not notice it");
    }
}

/// Another isolation level would not see the rows of the previous lock holder, so it is refused.
#[tokio::test]
async fn other_isolation_levels_are_refused() {
    let database = installed(&videos()).await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let refused = database.psql_fails(&format!(
            "BEGIN ISOLATION LEVEL {level}; SELECT video_requests_quota.consume('u'); COMMIT"
        ));
        assert!(refused.contains("needs READ COMMITTED"), "{refused}");
    }
}

/// A request of the same user that stays open makes the next one wait for a bounded time, and no other user; the caller's
/// own lock_timeout is as it was.
#[tokio::test]
async fn an_open_request_holds_up_its_own_user_only() {
    let database = installed(&videos().lock_timeout(Span::from_millis(50))).await;
    let (holder, driver) =
        tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    let driver = tokio::spawn(driver);
    holder.batch_execute("BEGIN; SELECT video_requests_quota.consume('u')").await.unwrap();
    let refused = database.psql_fails("SELECT video_requests_quota.consume('u')");
    assert!(refused.contains("lock timeout"), "{refused}");
    let other = "BEGIN; SET LOCAL lock_timeout = '7s'; SELECT video_requests_quota.consume('v') -> 'allowed'; SHOW lock_timeout; COMMIT";
    assert_eq!(database.psql(other), "true\n7s");
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(database.psql("SELECT video_requests_quota.remaining('u')"), "5");
    drop(holder);
    driver.await.unwrap().unwrap();
}

/// R004.4: with many rows, and many of one user, a decision reads an index and at most five of its entries.
#[tokio::test]
async fn r004_4_a_decision_reads_at_most_the_limit_from_the_index() {
    let database = installed(&videos()).await;
    database.psql(
        "INSERT INTO video_requests (user_id, created_at) \
         SELECT 'user-' || n % 5000, now() - n * interval '1 minute' FROM generate_series(1, 195000) n UNION ALL \
         SELECT 'u', now() - n * interval '1 second' FROM generate_series(1, 5000) n",
    );
    database.psql("VACUUM ANALYZE video_requests");
    let plan = database.psql(
        "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF) SELECT r.created_at AS c FROM video_requests r \
         WHERE r.user_id = 'u' AND r.created_at > now() - interval '24 hours' ORDER BY r.created_at DESC LIMIT 5",
    );
    assert!(plan.contains("Index Only Scan using video_requests_user_time_tollgate"), "{plan}");
    assert!(plan.contains("(actual rows=5 loops=1)"), "{plan}");
    // What the functions read, as the server counts it. Sessions hand in what they counted when they end, which may be
    // after `psql` has.
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    while database.psql(others) != "0" {
        tokio::task::yield_now().await;
    }
    database.psql("SELECT pg_stat_reset()");
    database.psql("SELECT video_requests_quota.consume('u'); SELECT pg_stat_force_next_flush()");
    let read = database.psql("SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'video_requests_user_time_tollgate'");
    assert!(read.parse::<u32>().unwrap() <= 5, "{read} entries were read");
    assert_eq!(
        database.psql("SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'video_requests'"),
        "0"
    );
}

/// R004.9: of very many requests the newest are written down with a refusal, and counted all.
#[tokio::test]
async fn r004_9_a_refusal_of_many_writes_down_the_newest() {
    let database = installed(&Rows::new("video_requests", 150, Span::from_hours(24))).await;
    database.psql(
        "INSERT INTO video_requests (user_id, created_at) \
         SELECT 'u', now() - n * interval '1 second' FROM generate_series(1, 200) n",
    );
    database.psql("SELECT video_requests_quota.consume('u')");
    let written = database.psql(
        "SELECT request_count, cardinality(recent_requests), \
                recent_requests[1] = (SELECT max(created_at) FROM video_requests), \
                reset_time - interval '24 hours' = oldest_request_time FROM video_requests_quota.rejections",
    );
    assert_eq!(written, "150|100|t|t");
}
