//! The audit of a folder: what every log does, and that it outlives the process.

use tollgate::ErrorKind;
use tollgate::audit::{AuditLog, Query};
use tollgate_conformance::audit::{check, joint_record, record};
use tollgate_embedded::EmbeddedAudit;

#[tokio::test]
async fn the_audit_of_a_folder_is_a_log() {
    let folder = tempfile::tempdir().unwrap();
    check(&EmbeddedAudit::open(folder.path()).unwrap()).await;
}

#[tokio::test]
async fn records_are_there_when_the_folder_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let log = EmbeddedAudit::open(folder.path()).unwrap();
    log.append(&[record(1, "a")]).await.unwrap();
    drop(log);
    let log = EmbeddedAudit::open(folder.path()).unwrap();
    log.append(&[record(2, "b")]).await.unwrap();
    let found = log.find(&Query::default()).await.unwrap().records;
    let subjects: Vec<&str> = found.iter().map(|record| &*record.subject).collect();
    assert_eq!(subjects, ["b", "a"]);
    assert!(found[1].number < found[0].number);
}

#[tokio::test]
async fn a_file_of_another_program_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.sqlite");
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE theirs (a)").unwrap();
    let error = EmbeddedAudit::open(folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("database of another program"), "{error}");
    std::fs::write(&path, "no database at all, but long enough to look like the header of one")
        .unwrap();
    assert_eq!(EmbeddedAudit::open(folder.path()).unwrap_err().kind(), ErrorKind::Corrupt);
}

/// A file of an earlier version is extended: its records have neither the name of a key nor charges, and new ones have both.
#[tokio::test]
async fn records_of_an_earlier_version_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.sqlite");
    let earlier = "
        PRAGMA application_id = 1953459297;
        CREATE TABLE records (
            number INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, policy TEXT NOT NULL, subject TEXT NOT NULL,
            outcome TEXT NOT NULL, degraded INTEGER NOT NULL, limit_name TEXT, unit TEXT, asked INTEGER,
            retry_after INTEGER
        );
        INSERT INTO records (at, policy, subject, outcome, degraded, limit_name, unit, asked, retry_after)
        VALUES (1000000, 'api', 'u1', 'denied', 0, 'burst', 'requests', 3, 1500001);";
    rusqlite::Connection::open(&path).unwrap().execute_batch(earlier).unwrap();
    let log = EmbeddedAudit::open(folder.path()).unwrap();
    log.append(&[joint_record(2, "u1")]).await.unwrap();
    let query = Query { subject: Some("u1".into()), ..Query::default() };
    let found = log.find(&query).await.unwrap().records;
    let [new, old] = &*found else { panic!("{found:?}") };
    assert_eq!((new.number, old.number), (2, 1));
    assert_eq!((&old.charges, &old.binding), (&Vec::new(), &record(1, "u1").binding));
    assert_eq!(new.charges, joint_record(2, "u1").charges);
}
