//! The log in memory.

use tollgate::audit::{AuditLog, MemoryLog, Query};
use tollgate_conformance::audit::{check, record};

#[tokio::test]
async fn memory_is_a_log() {
    check(&MemoryLog::new(100)).await;
}

/// It never holds more than it may, trimmed or not, and the numbers go on.
#[tokio::test]
async fn memory_is_a_ring() {
    let log = MemoryLog::new(2);
    for secs in 1..=5 {
        log.append(&[record(secs, "a")]).await.unwrap();
    }
    let numbers: Vec<u64> =
        log.find(&Query::default()).await.unwrap().records.iter().map(|one| one.number).collect();
    assert_eq!(numbers, [5, 4]);
}
