//! One process at a time has the folder open; the others wait, or are sent to the broker.

use std::fs;
use std::path::Path;
use std::thread;

use tollgate::{ErrorKind, Span};
use tollgate_embedded::{Holder, Options};

use crate::child::{Child, Job, block_on};
use crate::{TestFolder, admitted, daily, used};

/// How many of [`PROCESSES`] are admitted.
pub(crate) const PROCESSES_ADMITTED: u64 = 25;

const PROCESSES: usize = 200;

#[test]
fn many_processes_at_once_wait_their_turn_and_stay_exact() {
    let folder = TestFolder::new();
    let children: Vec<_> =
        (0..PROCESSES).map(|_| Child::start(Job::Once, &folder.path())).collect();
    let lines: Vec<_> = children.into_iter().flat_map(Child::finish).collect();
    assert_eq!(lines.len(), PROCESSES, "every one of them got an answer");
    let admitted = lines.iter().filter(|line| line.starts_with("admitted ")).count();
    assert_eq!(u64::try_from(admitted).unwrap(), PROCESSES_ADMITTED);
    let gate = folder.try_open(Options::new()).unwrap();
    let used = block_on(used(&gate, &daily(PROCESSES_ADMITTED), "p"));
    assert_eq!(used, PROCESSES_ADMITTED);
}

#[test]
fn a_folder_of_a_running_broker_is_refused_at_once() {
    let folder = TestFolder::new();
    let mut broker = Child::start(Job::Serve, &folder.path());
    assert_eq!(broker.line().as_deref(), Some("serving"));
    // A wait of a year: if it waited, the test would not end.
    let patient = folder.options().lock_wait(Span::from_hours(365 * 24));
    let url = "http://127.0.0.1:1".to_owned();
    for options in [patient.clone(), patient.holder(Holder::Server { url })] {
        let error = folder.try_open(options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Contended);
        let path = folder.path();
        let expected = format!(
            "the data folder {} is held by a running broker; talk to it with --server http://127.0.0.1:8080, or stop it first for export, import and repair",
            path.display()
        );
        assert_eq!(error.to_string(), expected);
    }
    // A broker that was killed leaves its address behind, but not its lock.
    broker.kill();
    assert!(fs::read_to_string(folder.file("server")).unwrap().contains("8080"));
    let held = folder.open();
    let error = folder.try_open(folder.options().lock_wait(Span::from_millis(20))).unwrap_err();
    assert!(error.to_string().contains("held by other commands for more than 20ms"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Contended);
    assert!(block_on(admitted(&held, &daily(1), "p")));
}

#[test]
fn a_command_waits_until_the_other_is_done() {
    let folder = TestFolder::new();
    let policy = daily(10);
    let first = folder.open();
    assert!(block_on(admitted(&first, &policy, "p")));
    thread::scope(|scope| {
        let second = scope.spawn(|| block_on(used(&folder.open(), &policy, "p")));
        assert!(block_on(admitted(&first, &policy, "p")));
        drop(first);
        assert_eq!(second.join().unwrap(), 2);
    });
}

#[test]
fn a_folder_that_cannot_be_used_is_reported() {
    let folder = TestFolder::new();
    fs::write(folder.path(), "a file").unwrap();
    let error = folder.try_open(folder.options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("tollgate-data"), "{error}");
}

#[cfg(unix)]
#[test]
fn the_folder_and_its_files_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;

    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let folder = TestFolder::new();
    drop(folder.open());
    assert_eq!(mode(&folder.path()), 0o700);
    // A folder that was there keeps its mode, so the files must not rely on it.
    let folder = TestFolder::new();
    fs::create_dir(folder.path()).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let url = "http://127.0.0.1:8080".to_owned();
    let gate = folder.try_open(folder.options().holder(Holder::Server { url })).unwrap();
    assert!(block_on(admitted(&gate, &daily(1), "p")));
    assert_eq!(mode(&folder.path()), 0o755);
    let files: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(6 < files.len(), "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}
