//! Damaged and foreign files are reported, and never made anew.

use std::fs;
use std::path::Path;

use tollgate::{ErrorKind, GateExt, Timestamp};
use tollgate_embedded::{Embedded, Holder, Options};

use crate::child::{Child, Job, block_on};
use crate::{TestFolder, admitted, bucket, used};

const DATABASE: &str = "entries.sqlite";

/// A folder with a few hundred entries, closed as a broker closes it: all in the database file, nothing in the log.
fn filled() -> TestFolder {
    let folder = TestFolder::new();
    let gate = folder.try_open(as_server(&folder)).unwrap();
    block_on(async {
        for subject in 0..400 {
            assert!(admitted(&gate, &bucket(), &format!("subject-{subject:04}")).await);
        }
        gate.shutdown(Timestamp::MAX).await.unwrap();
    });
    folder
}

fn as_server(folder: &TestFolder) -> Options {
    folder.options().holder(Holder::Server { url: "http://127.0.0.1:8080".to_owned() })
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn refused(folder: &TestFolder, options: Options) -> tollgate::Error {
    let before = fs::read(folder.file(DATABASE)).ok();
    let error = folder.try_open(options).unwrap_err();
    assert_eq!(fs::read(folder.file(DATABASE)).ok(), before, "it was touched: {error}");
    assert!(error.to_string().contains(DATABASE), "{error}");
    error
}

fn assert_damaged(folder: &TestFolder, what: &str) {
    for options in [folder.options(), as_server(folder)] {
        let error = refused(folder, options);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        assert!(error.to_string().contains("restore the data folder from a backup"), "{error}");
    }
}

#[test]
fn a_bad_header_is_reported() {
    let folder = filled();
    change(&folder.file(DATABASE), |bytes| bytes[..64].fill(0xa5));
    assert_damaged(&folder, "bad header");
}

#[test]
fn a_file_that_was_cut_is_reported() {
    for keep in [0, 100, 4_096, 12_288] {
        let folder = filled();
        change(&folder.file(DATABASE), |bytes| bytes.truncate(keep));
        assert_damaged(&folder, &format!("cut to {keep} bytes"));
    }
}

#[test]
fn a_missing_database_is_reported_and_not_made_anew() {
    let folder = filled();
    fs::remove_file(folder.file(DATABASE)).unwrap();
    assert_damaged(&folder, "missing");
    assert!(!folder.file(DATABASE).exists());
}

#[test]
fn a_flipped_bit_in_a_value_is_reported_for_its_key() {
    let folder = filled();
    change(&folder.file(DATABASE), |bytes| {
        let key = b"bucket\0subject-0123";
        let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
        bytes[at + key.len() + 8] ^= 1;
    });
    let gate = folder.open();
    let error = block_on(gate.standing(&bucket(), "subject-0123")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let text = error.to_string();
    assert!(text.contains(DATABASE) && text.contains("subject-0123"), "{text}");
    assert!(text.contains("restore the data folder from a backup"), "{text}");
    assert_eq!(block_on(used(&gate, &bucket(), "subject-0124")), 1, "the others are whole");
}

/// The structure of the tables is damaged where a command does not look; a broker looks at all of it.
#[test]
fn a_broker_looks_at_the_whole_structure() {
    let folder = filled();
    let gate = folder.try_open(as_server(&folder)).unwrap();
    block_on(gate.shutdown(Timestamp::MAX)).unwrap();
    change(&folder.file(DATABASE), |bytes| {
        let pages = bytes.len() / 4_096;
        let last = (pages - 1) * 4_096;
        bytes[last..last + 16].fill(0xff);
    });
    let error = refused(&folder, as_server(&folder));
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

const LOG: &str = "entries.sqlite-wal";

/// A folder that only commands have used, with 20 admitted: the newest commits are in the log alone.
fn used_by_commands() -> TestFolder {
    let folder = TestFolder::new();
    for _ in 0..20 {
        assert!(block_on(admitted(&folder.open(), &bucket(), "p")));
    }
    folder
}

/// SQLite goes back to the last good commit and says nothing, so we do.
#[test]
fn a_log_that_lost_its_newest_commits_is_reported() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 6] = [
        ("without its last byte", |bytes| bytes.truncate(bytes.len() - 1)),
        ("without its second half", |bytes| bytes.truncate(bytes.len() / 2)),
        ("empty", Vec::clear),
        ("with another header", |bytes| bytes[..32].fill(0xa5)),
        ("overwritten at its end", |bytes| bytes.iter_mut().rev().take(16).for_each(|b| *b = 0xa5)),
        ("overwritten in the middle", |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle..middle + 16].fill(0xa5);
        }),
    ];
    for (what, damage) in damages {
        let folder = used_by_commands();
        let whole = fs::read(folder.file(LOG)).unwrap();
        change(&folder.file(LOG), damage);
        assert_damaged(&folder, what);
        let text = refused(&folder, folder.options()).to_string();
        assert!(text.contains("newest decisions are missing"), "{what}: {text}");
        // The log is found again, as in a backup: nothing was lost by looking.
        fs::write(folder.file(LOG), whole).unwrap();
        assert_eq!(block_on(used(&folder.open(), &bucket(), "p")), 20, "{what}");
    }
    let folder = used_by_commands();
    fs::remove_file(folder.file(LOG)).unwrap();
    assert_damaged(&folder, "deleted");
}

/// An operator accepts the loss by removing the file that records it.
#[test]
fn a_loss_can_be_accepted() {
    let folder = used_by_commands();
    change(&folder.file(LOG), |bytes| bytes.truncate(bytes.len() / 2));
    let text = refused(&folder, folder.options()).to_string();
    let advice = format!("remove {} to go on without them", folder.file("commits").display());
    assert!(text.ends_with(&advice), "{text}");
    fs::remove_file(folder.file("commits")).unwrap();
    let left = block_on(used(&folder.open(), &bucket(), "p"));
    assert!(0 < left && left < 20, "{left}");
    assert!(block_on(admitted(&folder.open(), &bucket(), "p")));
    assert_eq!(block_on(used(&folder.open(), &bucket(), "p")), left + 1);
}

/// The count beside the database may lag, be torn by a crash or be missing, and none of that is damage.
#[test]
fn a_count_that_lags_is_no_damage() {
    let folder = used_by_commands();
    let count = fs::read(folder.file("commits")).unwrap();
    assert!(block_on(admitted(&folder.open(), &bucket(), "p")));
    assert_ne!(fs::read(folder.file("commits")).unwrap(), count, "it never changes");
    let torn = [count.clone(), Vec::new(), vec![0; count.len()], b"9".repeat(count.len())];
    for (number, text) in torn.iter().enumerate() {
        fs::write(folder.file("commits"), text).unwrap();
        let used = block_on(used(&folder.open(), &bucket(), "p"));
        assert_eq!(used, 21 + u64::try_from(number).unwrap());
        assert!(block_on(admitted(&folder.open(), &bucket(), "p")));
    }
}

/// What a process admitted before it was killed is in the log too.
#[test]
fn a_log_of_a_killed_process_is_checked_too() {
    let folder = TestFolder::new();
    let mut child = Child::start(Job::Strict, &folder.path());
    for _ in 0..20 {
        child.line().unwrap();
    }
    child.kill();
    fs::remove_file(folder.file(LOG)).unwrap();
    assert_damaged(&folder, "deleted after a crash");
}

#[test]
fn a_creation_that_was_cut_short_goes_on() {
    let folder = TestFolder::new();
    fs::create_dir(folder.path()).unwrap();
    fs::write(folder.file(DATABASE), "").unwrap();
    let gate = folder.open();
    assert!(block_on(admitted(&gate, &bucket(), "p")));
}

#[test]
fn a_newer_format_is_refused() {
    let folder = filled();
    folder.database().pragma_update(None, "user_version", 99).unwrap();
    let error = refused(&folder, folder.options());
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("has format 99 and this program reads up to 2"), "{error}");
}

#[test]
fn a_database_of_another_program_is_refused() {
    let folder = TestFolder::new();
    fs::create_dir(folder.path()).unwrap();
    folder.database().execute_batch("CREATE TABLE songs (title)").unwrap();
    let error = refused(&folder, folder.options());
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("is a database of another program"), "{error}");
    let folder = TestFolder::new();
    fs::create_dir(folder.path()).unwrap();
    fs::write(folder.file(DATABASE), "dear diary, ".repeat(100)).unwrap();
    assert_eq!(refused(&folder, folder.options()).kind(), ErrorKind::Corrupt);
}

#[test]
fn a_damaged_permit_key_is_reported() {
    let folder = filled();
    let key = folder.open().permit_key();
    // The page of the key may be in the log of writes, too.
    let log = folder.file(&format!("{DATABASE}-wal"));
    let files = [folder.file(DATABASE), log];
    let mut damaged = 0;
    for file in files.iter().filter(|file| file.exists()) {
        change(file, |bytes| {
            let all = bytes.windows(32).enumerate().filter(|(_, window)| *window == key);
            let all: Vec<usize> = all.map(|(at, _)| at).collect();
            damaged += all.len();
            all.into_iter().for_each(|at| bytes[at] ^= 1);
        });
    }
    assert_ne!(damaged, 0);
    let error = Embedded::open(&folder.path(), folder.options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}
