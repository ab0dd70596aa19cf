//! The conformance check of an [`AuditLog`].

use tollgate::audit::{AuditLog, Binding, Outcome, Query, Record, Retention};
use tollgate::{Span, Timestamp};

/// Returns a denial of `subject` at `secs` after the epoch.
pub fn record(secs: u64, subject: &str) -> Record {
    Record {
        number: 0,
        at: Timestamp::from_secs(secs),
        policy: "api".into(),
        subject: subject.into(),
        outcome: Outcome::Denied,
        binding: Some(Binding {
            limit: "burst".into(),
            unit: "requests".into(),
            asked: 3,
            retry_after: Some(Span::from_micros(1_500_001)),
        }),
        degraded: false,
        by: None,
    }
}

/// Checks an empty `log`: records come back unchanged, newest first; each condition filters; pages follow each other; records
/// beyond the bounds are removed, oldest first.
pub async fn check(log: &impl AuditLog) {
    let odd = "o'd\\d \"subject\" \u{1f6a7}";
    let never = Binding { retry_after: None, ..record(0, "").binding.expect("it has one") };
    let records = [
        record(1, "a"),
        Record { binding: Some(never), outcome: Outcome::ShadowDenied, ..record(2, odd) },
        Record { binding: None, outcome: Outcome::Admitted, degraded: true, ..record(3, "a") },
        Record::action(Outcome::Violated, "llm", "b", "workers", Timestamp::from_secs(4)),
    ];
    log.append(&records).await.expect("writes");
    log.append(&[]).await.expect("writes nothing");
    let found = find(log, Query::default()).await;
    let unnumbered = found.iter().map(|record| Record { number: 0, ..record.clone() });
    assert!(unnumbered.eq(records.iter().rev().cloned()), "{found:?}");
    assert!(found.windows(2).all(|pair| pair[1].number < pair[0].number), "{found:?}");

    let secs = async |query: Query| -> Vec<u64> {
        find(log, query).await.iter().map(|record| record.at.as_micros() / 1_000_000).collect()
    };
    let all = Query::default;
    assert_eq!(secs(Query { policy: Some("llm".into()), ..all() }).await, [4]);
    assert_eq!(secs(Query { subject: Some("a".into()), ..all() }).await, [3, 1]);
    assert_eq!(secs(Query { subject: Some(odd.into()), ..all() }).await, [2]);
    assert_eq!(secs(Query { since: Some(Timestamp::from_secs(3)), ..all() }).await, [4, 3]);
    assert_eq!(secs(Query { outcome: Some(Outcome::Denied), ..all() }).await, [1]);
    assert_eq!(secs(Query { degraded: true, ..all() }).await, [3]);

    let first = log.find(&Query { limit: 3, ..all() }).await.expect("reads");
    assert_eq!((first.records.len(), first.next), (3, Some(first.records[2].number)));
    let last = log.find(&Query { limit: 3, before: first.next, ..all() }).await.expect("reads");
    assert_eq!((last.records.len(), last.next), (1, None));

    let keep = Retention { entries_max: 100, age_max: Span::from_secs(2) };
    assert_eq!(log.trim(keep, Timestamp::from_secs(4)).await.expect("trims"), 1);
    assert_eq!(secs(all()).await, [4, 3, 2]);
    let keep = Retention { entries_max: 2, ..keep };
    assert_eq!(log.trim(keep, Timestamp::from_secs(4)).await.expect("trims"), 1);
    assert_eq!(log.trim(keep, Timestamp::from_secs(4)).await.expect("trims"), 0);
    assert_eq!(secs(all()).await, [4, 3]);
}

async fn find(log: &impl AuditLog, query: Query) -> Vec<Record> {
    log.find(&query).await.expect("reads").records
}
