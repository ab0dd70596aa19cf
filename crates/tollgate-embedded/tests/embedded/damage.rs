//! Damaged and foreign files are reported, and never made anew.

use std::fs;
use std::path::Path;

use tollgate::{Atomic, ErrorKind, Gate};
use tollgate_embedded::{Embedded, Holder, Options};

use crate::child::{Child, Job, block_on};
use crate::{Desk, admitted, bucket, used};

const DATABASE: &str = "entries.sqlite";

/// A folder with a few hundred entries, closed as a broker closes it: all in the database file, nothing in the log.
fn filled() -> Desk {
    let desk = Desk::new();
    let gate = desk.try_open(as_server(&desk)).unwrap();
    block_on(async {
        for subject in 0..400 {
            assert!(admitted(&gate, &bucket(), &format!("subject-{subject:04}")).await);
        }
        gate.store().close().await.unwrap();
    });
    desk
}

fn as_server(desk: &Desk) -> Options {
    desk.options().holder(Holder::Server { url: "http://127.0.0.1:8080".to_owned() })
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn refused(desk: &Desk, options: Options) -> tollgate::Error {
    let before = fs::read(desk.file(DATABASE)).ok();
    let error = desk.try_open(options).unwrap_err();
    assert_eq!(fs::read(desk.file(DATABASE)).ok(), before, "it was touched: {error}");
    assert!(error.to_string().contains(DATABASE), "{error}");
    error
}

fn assert_damaged(desk: &Desk, what: &str) {
    for options in [desk.options(), as_server(desk)] {
        let error = refused(desk, options);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        assert!(error.to_string().contains("restore the data folder from a backup"), "{error}");
    }
}

#[test]
fn a_bad_header_is_reported() {
    let desk = filled();
    change(&desk.file(DATABASE), |bytes| bytes[..64].fill(0xa5));
    assert_damaged(&desk, "bad header");
}

#[test]
fn a_file_that_was_cut_is_reported() {
    for keep in [0, 100, 4_096, 12_288] {
        let desk = filled();
        change(&desk.file(DATABASE), |bytes| bytes.truncate(keep));
        assert_damaged(&desk, &format!("cut to {keep} bytes"));
    }
}

#[test]
fn a_missing_database_is_reported_and_not_made_anew() {
    let desk = filled();
    fs::remove_file(desk.file(DATABASE)).unwrap();
    assert_damaged(&desk, "missing");
    assert!(!desk.file(DATABASE).exists());
}

#[test]
fn a_flipped_bit_in_a_value_is_reported_for_its_key() {
    let desk = filled();
    change(&desk.file(DATABASE), |bytes| {
        let key = b"bucket\0subject-0123";
        let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
        bytes[at + key.len() + 8] ^= 1;
    });
    let gate = desk.open();
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
    let desk = filled();
    let gate = desk.try_open(as_server(&desk)).unwrap();
    block_on(gate.store().close()).unwrap();
    change(&desk.file(DATABASE), |bytes| {
        let pages = bytes.len() / 4_096;
        let last = (pages - 1) * 4_096;
        bytes[last..last + 16].fill(0xff);
    });
    let error = refused(&desk, as_server(&desk));
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

const LOG: &str = "entries.sqlite-wal";

/// A folder that only commands have used, with 20 admitted: the newest commits are in the log alone.
fn used_by_commands() -> Desk {
    let desk = Desk::new();
    for _ in 0..20 {
        assert!(block_on(admitted(&desk.open(), &bucket(), "p")));
    }
    desk
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
        let desk = used_by_commands();
        let whole = fs::read(desk.file(LOG)).unwrap();
        change(&desk.file(LOG), damage);
        assert_damaged(&desk, what);
        let text = refused(&desk, desk.options()).to_string();
        assert!(text.contains("newest decisions are missing"), "{what}: {text}");
        // The log is found again, as in a backup: nothing was lost by looking.
        fs::write(desk.file(LOG), whole).unwrap();
        assert_eq!(block_on(used(&desk.open(), &bucket(), "p")), 20, "{what}");
    }
    let desk = used_by_commands();
    fs::remove_file(desk.file(LOG)).unwrap();
    assert_damaged(&desk, "deleted");
}

/// Whoever accepts the loss says so by removing the file that knows of it.
#[test]
fn a_loss_can_be_accepted() {
    let desk = used_by_commands();
    change(&desk.file(LOG), |bytes| bytes.truncate(bytes.len() / 2));
    let text = refused(&desk, desk.options()).to_string();
    let advice = format!("remove {} to go on without them", desk.file("commits").display());
    assert!(text.ends_with(&advice), "{text}");
    fs::remove_file(desk.file("commits")).unwrap();
    let left = block_on(used(&desk.open(), &bucket(), "p"));
    assert!(0 < left && left < 20, "{left}");
    assert!(block_on(admitted(&desk.open(), &bucket(), "p")));
    assert_eq!(block_on(used(&desk.open(), &bucket(), "p")), left + 1);
}

/// The count beside the database may lag, be torn by a crash or be missing, and none of that is damage.
#[test]
fn a_count_that_lags_is_no_damage() {
    let desk = used_by_commands();
    let count = fs::read(desk.file("commits")).unwrap();
    assert!(block_on(admitted(&desk.open(), &bucket(), "p")));
    assert_ne!(fs::read(desk.file("commits")).unwrap(), count, "it never changes");
    let torn = [count.clone(), Vec::new(), vec![0; count.len()], b"9".repeat(count.len())];
    for (number, text) in torn.iter().enumerate() {
        fs::write(desk.file("commits"), text).unwrap();
        let used = block_on(used(&desk.open(), &bucket(), "p"));
        assert_eq!(used, 21 + u64::try_from(number).unwrap());
        assert!(block_on(admitted(&desk.open(), &bucket(), "p")));
    }
}

/// What a process admitted before it was killed is in the log too.
#[test]
fn a_log_of_a_killed_process_is_checked_too() {
    let desk = Desk::new();
    let mut child = Child::start(Job::Strict, &desk.path());
    for _ in 0..20 {
        child.line().unwrap();
    }
    child.kill();
    fs::remove_file(desk.file(LOG)).unwrap();
    assert_damaged(&desk, "deleted after a crash");
}

#[test]
fn a_creation_that_was_cut_short_goes_on() {
    let desk = Desk::new();
    fs::create_dir(desk.path()).unwrap();
    fs::write(desk.file(DATABASE), "").unwrap();
    let gate = desk.open();
    assert!(block_on(admitted(&gate, &bucket(), "p")));
}

#[test]
fn a_newer_format_is_refused() {
    let desk = filled();
    desk.database().pragma_update(None, "user_version", 99).unwrap();
    let error = refused(&desk, desk.options());
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("has format 99 and this program reads up to 2"), "{error}");
}

#[test]
fn a_database_of_another_program_is_refused() {
    let desk = Desk::new();
    fs::create_dir(desk.path()).unwrap();
    desk.database().execute_batch("CREATE TABLE songs (title)").unwrap();
    let error = refused(&desk, desk.options());
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("is a database of another program"), "{error}");
    let desk = Desk::new();
    fs::create_dir(desk.path()).unwrap();
    fs::write(desk.file(DATABASE), "dear diary, ".repeat(100)).unwrap();
    assert_eq!(refused(&desk, desk.options()).kind(), ErrorKind::Corrupt);
}

#[test]
fn a_damaged_permit_key_is_reported() {
    let desk = filled();
    let key = Atomic::store(&desk.open()).permit_key();
    // The page of the key may be in the log of writes, too.
    let log = desk.file(&format!("{DATABASE}-wal"));
    let files = [desk.file(DATABASE), log];
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
    let error = Embedded::open(&desk.path(), desk.options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}
