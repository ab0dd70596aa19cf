//! What is beside the entries in a schema of version 3: the audit, overrides, the key of permits, repair; and what is refused.

use std::ops::ControlFlow;
use std::sync::Arc;

use tollgate::audit::{AuditLog, Query, Retention};
use tollgate::clock::{ManualClock, SystemClock};
use tollgate::entries::EntryStore;
use tollgate::overrides::OverrideStore;
use tollgate::repair::{AHEAD_MAX_DEFAULT, list_future, repair_entry};
use tollgate::{Clock, ErrorKind, Span, Timestamp};
use tollgate_conformance::audit::record;
use tollgate_postgres::{Options, Postgres, PostgresAudit};

use super::super::{acquire, hourly, used};
use super::{TestDatabase, story};

/// Records of version 3 have no name of a key. Names are written again once the table has a place for them.
#[tokio::test]
async fn an_audit_goes_on_across_an_upgrade() {
    let database = TestDatabase::of_version_3();
    let audit = PostgresAudit::open(database.options_3()).await.unwrap();
    let by = async |name: &'static str| {
        let mut record = record(3, name);
        record.by = Some(name.into());
        audit.append(&[record]).await.unwrap();
    };
    by("before").await;
    let found = audit.find(&Query::default()).await.unwrap().records;
    let seen: Vec<_> =
        found.iter().map(|record| (&*record.subject, record.by.as_deref())).collect();
    assert_eq!(seen, [("before", None), ("c", None), ("a\0b", None)]);
    let keep = Retention { entries_max: 2, ..Retention::default() };
    assert_eq!(audit.trim(keep, Timestamp::from_secs(4)).await.unwrap(), 1);
    database.gate().await;
    by("after").await;
    let found = audit.find(&Query::default()).await.unwrap().records;
    assert_eq!(found[0].by.as_deref(), Some("after"));
    assert_eq!(found.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_overrides_of_version_3_are_kept() {
    let database = TestDatabase::empty_of_version_3();
    let (one, other) = (database.gate_3().await, database.gate_3().await);
    tollgate_conformance::overrides::check(Arc::new(one), Arc::new(other)).await;
    let database = TestDatabase::of_version_3();
    let document = database.gate_3().await.read(0).await.unwrap().unwrap();
    assert_eq!((document.version, &*document.text), (1, "{}"));
}

/// The key of permits stays the same across an upgrade, so permits do, too.
#[tokio::test]
async fn the_key_of_version_3_is_kept() {
    let database = TestDatabase::of_version_3();
    let old = database.gate_3().await;
    let key = old.permit_key().await.unwrap();
    assert_eq!(database.gate().await.permit_key().await.unwrap(), key);
    assert_eq!(old.permit_key().await.unwrap(), key);
}

async fn visited(gate: &Postgres) -> Vec<String> {
    let mut names = Vec::new();
    let mut visitor = |visited: tollgate::entries::Visited| {
        assert_eq!(visited.subject, "s");
        names.push(visited.policy);
        Ok(ControlFlow::Continue(()))
    };
    gate.visit(None, &mut visitor).await.unwrap();
    names
}

/// Every row is listed, before and after an upgrade that the gate has not noticed yet.
#[tokio::test]
async fn rows_of_version_3_are_listed() {
    let database = TestDatabase::of_version_3();
    let gate = database.gate_3().await;
    let mut names: Vec<String> =
        story::policies().iter().map(|policy| policy.name().to_owned()).collect();
    names.sort();
    assert_eq!(visited(&gate).await, names);
    database.gate().await;
    assert_eq!(visited(&gate).await, names);
    assert_eq!(gate.format(), 4);
}

/// A row from the future is found and mended, and its ids go with what they were given.
#[tokio::test]
async fn rows_of_version_3_are_mended() {
    let (database, policy) = (TestDatabase::empty_of_version_3(), hourly(2));
    let gate = database.gate_3().await;
    let ahead = database.gate_3_by(&ManualClock::at(SystemClock.now() + Span::from_hours(1))).await;
    let ask = tollgate::Ask::new(&policy, "s").id("one");
    assert!(tollgate::GateExt::acquire(&ahead, &ask).await.unwrap().is_admitted());
    let listed = list_future(&gate, AHEAD_MAX_DEFAULT).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert!(repair_entry(&gate, &listed[0], AHEAD_MAX_DEFAULT).await.unwrap());
    assert_eq!(used(&gate, &policy, "s").await, 2);
    assert!(!acquire(&gate, &policy, "s").await.is_admitted());
    assert_eq!(database.psql("SELECT ids FROM tollgate.entries"), "{}");
    assert_eq!(database.version(), "3");
}

/// An unknown format, and an unshared database, fail with an explanation and change nothing.
#[tokio::test]
async fn what_cannot_be_shared_is_refused() {
    let database = TestDatabase::new();
    for format in [0, 2, 5] {
        let error = database.options().format(format).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.to_string(), format!("postgres: format {format} is not one of 3, 4"));
    }
    let refused = async |options: Options| {
        let error = Postgres::open(options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured);
        error.to_string()
    };
    let error = refused(database.options_3()).await;
    assert!(error.contains("has no tables yet") && error.contains("remove format"), "{error}");
    assert_eq!(database.psql("SELECT to_regnamespace('tollgate')"), "");
    let database = TestDatabase::of_version_3();
    database.psql("DELETE FROM tollgate.migrations WHERE version = 3");
    let error = refused(database.options_3()).await;
    assert!(error.contains("is of version 2"), "{error}");
    let newest = TestDatabase::new();
    assert_eq!(Postgres::open(newest.options().format(4).unwrap()).await.unwrap().format(), 4);
    assert_eq!(newest.gate_3().await.format(), 4);
}
