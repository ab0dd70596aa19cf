//! The audit in a table: what every log does, and one table for many brokers.

use tollgate::audit::{AuditLog, Query};
use tollgate_conformance::audit::{check, record};
use tollgate_postgres::PostgresAudit;

use crate::TestDatabase;

#[tokio::test]
async fn the_audit_in_a_table_is_a_log() {
    let database = TestDatabase::new();
    check(&PostgresAudit::open(database.options()).await.unwrap()).await;
}

/// Brokers on one database write into one log, and a zero byte in a subject comes back.
#[tokio::test]
async fn brokers_share_a_log() {
    let database = TestDatabase::new();
    let first = PostgresAudit::open(database.options()).await.unwrap();
    let second = PostgresAudit::open(database.options()).await.unwrap();
    first.append(&[record(1, "a\0b")]).await.unwrap();
    second.append(&[record(2, "c")]).await.unwrap();
    let found = first.find(&Query::default()).await.unwrap().records;
    let subjects: Vec<&str> = found.iter().map(|record| &*record.subject).collect();
    assert_eq!(subjects, ["c", "a\0b"]);
}
