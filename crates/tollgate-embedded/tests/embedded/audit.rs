//! The audit of a folder: what every log does, and that it outlives the process.

use tollgate::ErrorKind;
use tollgate::audit::{AuditLog, Query};
use tollgate_conformance::audit::{check, record};
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
