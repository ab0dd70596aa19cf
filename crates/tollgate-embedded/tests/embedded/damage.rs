//! Damaged and foreign files are reported, and never made anew.

use std::fs;
use std::path::Path;

use tollgate::{Atomic, ErrorKind, Gate};
use tollgate_embedded::{Embedded, Holder, Options};

use crate::child::block_on;
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

/// A damaged log ends at the damage: what was committed before is there, and the store opens.
#[test]
fn a_damaged_log_goes_back_to_the_last_good_commit() {
    let desk = Desk::new();
    for _ in 0..20 {
        let gate = desk.open();
        assert!(block_on(admitted(&gate, &bucket(), "p")));
    }
    let log = desk.file("entries.sqlite-wal");
    change(&log, |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle..middle + 16].fill(0xa5);
    });
    let used = block_on(used(&desk.open(), &bucket(), "p"));
    assert!(0 < used && used < 20, "{used}");
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
    assert!(error.to_string().contains("has format 99 and this program reads up to 1"), "{error}");
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
    change(&desk.file(DATABASE), |bytes| {
        let at = bytes.windows(32).position(|window| window == key).unwrap();
        bytes[at] ^= 1;
    });
    let error = Embedded::open(&desk.path(), desk.options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}
