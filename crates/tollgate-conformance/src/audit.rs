//! The conformance check of an [`AuditLog`].

use tollgate::audit::{AuditLog, Binding, Outcome, Query, Record, RecordedCharge, Retention};
use tollgate::{Costs, Span, Timestamp};

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
        charges: Vec::new(),
    }
}

/// Returns a denial at `secs` after the epoch of an ask with the charges `user:{subject}`, `team:t7` and `account:all`, of which
/// the second refused.
pub fn joint_record(secs: u64, subject: &str) -> Record {
    let charge = |policy: &str, subject: &str| RecordedCharge {
        policy: policy.into(),
        subject: subject.into(),
        costs: Costs::new().with("requests", 1).with("tokens", 400),
        refused: Vec::new(),
    };
    let refused = vec!["tpm".into(), "tpd".into()];
    Record {
        policy: "team".into(),
        charges: vec![
            charge("user", subject),
            RecordedCharge { refused, ..charge("team", "t7") },
            charge("account", "all"),
        ],
        ..record(secs, "t7")
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
    check_charges(log, odd).await;
    let joint = log.trim(Retention { entries_max: 100, age_max: Span::from_secs(0) }, SOON).await;
    assert_eq!(joint.expect("trims"), 6);
    log.append(&records).await.expect("writes");

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

/// After every time of a record here.
const SOON: Timestamp = Timestamp::from_secs(100);

/// Checks that records of several charges come back unchanged, are found by each of their charges, and by a policy and a
/// subject only if one charge has both. The records of [`check`] are there already.
async fn check_charges(log: &impl AuditLog, odd: &str) {
    let joint = [joint_record(5, "u1"), joint_record(6, odd)];
    log.append(&joint).await.expect("writes");
    let found = async |policy: Option<&str>, subject: Option<&str>| -> Vec<u64> {
        let [policy, subject] = [policy, subject].map(|text| text.map(str::to_owned));
        let found = find(log, Query { policy, subject, ..Query::default() }).await;
        for record in found.iter().filter(|record| !record.charges.is_empty()) {
            let written = joint.iter().find(|joint| joint.at == record.at).expect("was written");
            assert_eq!(Record { number: 0, ..record.clone() }, *written);
        }
        found.iter().map(|record| record.at.as_micros() / 1_000_000).collect()
    };
    assert_eq!(found(None, Some("u1")).await, [5]);
    assert_eq!(found(None, Some(odd)).await, [6, 2]);
    assert_eq!(found(Some("user"), Some(odd)).await, [6]);
    assert_eq!(found(Some("user"), None).await, [6, 5]);
    assert_eq!(found(None, Some("t7")).await, [6, 5]);
    assert_eq!(found(Some("account"), Some("all")).await, [6, 5]);
    assert_eq!(found(Some("team"), Some("t7")).await, [6, 5]);
    assert!(found(Some("user"), Some("t7")).await.is_empty());
    assert!(found(Some("none"), None).await.is_empty());
}

async fn find(log: &impl AuditLog, query: Query) -> Vec<Record> {
    log.find(&query).await.expect("reads").records
}
