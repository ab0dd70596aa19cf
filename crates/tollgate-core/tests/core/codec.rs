//! Goal: promise 10, old bytes decode; and no bytes make the core panic.
//! Method: round trips of random entries, bytes that an earlier build wrote, and random and damaged bytes.

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};
use proptest::sample::Index;
use tollgate_conformance::generate;
use tollgate_conformance::script::{Action, Reply, SingleEntry};
use tollgate_core::codec::{VERSION, decode, decode_any, encode};
use tollgate_core::{
    Ask, CalendarWindow, Concurrency, Decision, Entry, ErrorKind, Headroom, Known, Limit,
    Operation, Outcome, Part, Period, Policy, RollingWindow, Span, Timestamp, TokenBucket, apply,
    standings,
};

use crate::desk::{Desk, at, one};

/// An entry with something of everything, as version 1 wrote it. It is never written again.
const VERSION_1: &str = include_str!("codec/version-1.hex");

/// The same as version 2 wrote it.
const VERSION_2: &str = include_str!("codec/version-2.hex");

/// An entry of version 1 with the exact log of a large window, after the rate of its bucket changed.
const VERSION_1_LARGE: &str = include_str!("codec/version-1-large.hex");

fn everything() -> Policy {
    let minute = Span::from_mins(1);
    let jobs = Limit::new("jobs", "jobs", Concurrency::new(3, minute));
    let day = CalendarWindow::new(25, Period::Day).in_zone("America/Los_Angeles");
    Policy::builder("everything")
        .limit(Limit::new("burst", "requests", TokenBucket::per_minute(7)))
        .limit(Limit::new("steps", "requests", TokenBucket::per_minute(9).at_boundaries()))
        .limit(
            Limit::new("rpm", "requests", RollingWindow::new(10, minute))
                .margin(Span::from_secs(2)),
        )
        .limit(Limit::new("tpm", "tokens", RollingWindow::new(900, minute).resolution(6)))
        .limit(Limit::new("rpd", "requests", day).headroom(Headroom::Percent(10)))
        .limit(jobs.headroom(Headroom::Units(1)))
        .block_ttl(Span::from_millis(250))
        .build()
        .expect("the numbers are right")
}

/// The story that the fixture was written after.
fn after_the_story() -> Entry {
    let mut desk = Desk::new(&everything());
    let first = desk.admitted(at(0), 1);
    let costs = tollgate_core::Costs::new().with("tokens", 300).with("jobs", 1);
    let action = Action::Acquire { costs, id: Some("order-7".to_owned()) };
    assert!(matches!(desk.play(at(1), &action), Reply::Admitted(_)));
    desk.admitted(at(2), 2);
    assert_eq!(desk.release(at(3), first), Reply::Settled(true));
    let close = Action::Close { limit: "tpm".to_owned(), until: at(90) };
    assert_eq!(desk.play(at(4), &close), Reply::Done(true));
    desk.entry().expect("something was written")
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    let byte = |pair: &[char]| {
        u8::from_str_radix(&pair.iter().collect::<String>(), 16).expect("the fixture is hex")
    };
    digits.chunks(2).map(byte).collect()
}

fn encoded(entry: &Entry) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(entry, &mut bytes);
    bytes
}

#[test]
fn bytes_that_version_1_wrote_decode_to_what_they_meant() {
    let bytes = from_hex(VERSION_1);
    let entry = decode(&bytes, &everything()).expect("version 1 decodes");
    let mut now = after_the_story().parts();
    // It gave back by another rule, and recorded no lows.
    now.states[0] = Part::Bucket { used: 173_000_000, lows: Vec::new() };
    assert_eq!(entry.parts(), now);
    let alone = decode_any(&bytes, "everything").expect("version 1 decodes on its own");
    assert_eq!(alone, entry);
}

/// A window that has a grid now is read with the log it had, and carried over with the next ask.
#[test]
fn a_large_window_of_version_1_keeps_its_log_until_it_is_asked() {
    let minute = Span::from_mins(1);
    let limits = [
        Limit::new("burst", "requests", TokenBucket::per_second(20).burst(100)),
        Limit::new("rpm", "requests", RollingWindow::new(20_000, minute)),
    ];
    let policy = Policy::new("large", limits).expect("the numbers are right");
    let mut entry = decode(&from_hex(VERSION_1_LARGE), &policy).expect("version 1 decodes");
    assert!(entry.policy().has_shape_of(policy.with_exact_logs()));
    let parts = entry.parts();
    // The second before the change refilled the 5, the one after it 20 of the 30.
    assert_eq!(parts.states[0], Part::Bucket { used: 17 * 50_000, lows: Vec::new() });
    assert_eq!(parts.states[1], Part::Window(vec![(at(0), 5), (at(1), 30), (at(2), 7)]));
    assert_eq!(parts.changed, Some((parts.next_stamp - 1, at(1))));
    let ask = Ask::new(&policy, "p7");
    let asked = apply(&Operation::Acquire(&ask), &mut entry, Known::New, at(2));
    assert!(matches!(asked.expect("it decides").outcome, Outcome::Decided(Decision::Admitted(_))));
    assert!(entry.policy().has_shape_of(&policy));
    let used: Vec<u64> = standings(&entry, at(2)).iter().map(|limit| limit.used).collect();
    assert_eq!(used, [18, 43]);
    // On the grid an amount counts to the end of its slot, a 64th of the window.
    let later = [60, 61, 62, 63].map(|second| standings(&entry, at(second))[1].used);
    assert_eq!(later, [43, 38, 8, 0]);
}

/// As long as this is the newest version; then the fixture stays and this test goes.
#[test]
fn version_2_is_written_as_it_always_was() {
    assert_eq!(VERSION, 2);
    let decoded = decode(&from_hex(VERSION_2), &everything()).expect("version 2 decodes");
    assert_eq!(decoded, after_the_story());
    let hex: String =
        encoded(&after_the_story()).iter().map(|byte| format!("{byte:02x}")).collect();
    let fixture: String = VERSION_2.chars().filter(|c| !c.is_whitespace()).collect();
    assert_eq!(hex, fixture);
}

#[test]
fn an_entry_keeps_the_numbers_it_was_written_with() {
    let mut desk = Desk::new(&one(TokenBucket::per_second(10)));
    desk.admitted(at(0), 7);
    let entry = desk.entry().expect("something was written");
    let newer = one(TokenBucket::per_second(10).burst(50));
    let decoded = decode(&encoded(&entry), &newer).expect("it decodes");
    assert_eq!(decoded, entry);
    assert_eq!(standings(&decoded, at(0))[0].limit, 10);
    assert_eq!(standings(&decoded.carried_to(&newer), at(0))[0].remaining, 43);
}

#[test]
fn a_version_of_the_future_is_an_error_that_says_so() {
    let mut bytes = encoded(&after_the_story());
    bytes[0] = VERSION + 1;
    let error = decode(&bytes, &everything()).expect_err("it is from the future");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("a newer program may have written it"), "{error}");
    for length in 0..4 {
        let error =
            decode(&bytes[..length.min(bytes.len())], &everything()).expect_err("too short");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}

/// What decodes must also be usable: asking, looking and changing its numbers at any time.
fn use_it(entry: &Entry, policy: &Policy, now: Timestamp) {
    for now in [now, entry.at(), Timestamp::EPOCH, Timestamp::MAX] {
        let _ = standings(entry, now);
        let _ = entry.is_absent(now);
        let carried = entry.carried_to(policy);
        for mut entry in [entry.clone(), carried] {
            let ask = Ask::new(policy, "subject").id("order-7");
            let _ = apply(&Operation::Acquire(&ask), &mut entry, Known::New, now);
            let _ = apply(&Operation::Charge(&ask), &mut entry, Known::New, now);
        }
    }
}

proptest! {
    #[test]
    fn every_entry_comes_back_from_its_bytes(
        policy in generate::policy(),
        start in generate::start(),
        moves in generate::moves(30),
    ) {
        let mut store = SingleEntry::default();
        generate::record(&policy, start, &moves, &mut store.runner())
            .map_err(proptest::test_runner::TestCaseError::fail)?;
        if let Some(entry) = store.entry {
            let bytes = encoded(&entry);
            prop_assert_eq!(&decode(&bytes, &policy).expect("it decodes"), &entry);
            // What is not part of the numbers, such as shadow mode, is not stored.
            let alone = decode_any(&bytes, policy.name()).expect("it decodes");
            prop_assert_eq!(encoded(&alone), bytes);
        }
    }

    #[test]
    fn random_bytes_are_an_error_and_never_a_panic(mut bytes in vec(any::<u8>(), 0..200), versioned in any::<bool>()) {
        if versioned && !bytes.is_empty() {
            bytes[0] = VERSION;
        }
        let policy = everything();
        if let Ok(entry) = decode(&bytes, &policy) {
            use_it(&entry, &policy, at(0));
        }
        let _ = decode_any(&bytes, "any");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn damaged_bytes_decode_to_something_usable_or_to_an_error(
        damage in vec((any::<Index>(), any::<u8>()), 1..4),
        cut in proptest::option::of(any::<Index>()),
    ) {
        let policy = everything();
        let mut bytes = encoded(&after_the_story());
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        match decode(&bytes, &policy) {
            Ok(entry) => use_it(&entry, &policy, at(5)),
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Corrupt),
        }
    }
}

/// An entry that was taken apart is put together again as it was, by hand and at random; its policy too.
#[test]
fn parts_make_the_entry_again() {
    let entry = after_the_story();
    let policy = Policy::from_shape_bytes("everything", entry.policy().shape_bytes());
    let policy = policy.expect("the shape of a policy is one");
    assert_eq!(policy.shape_bytes(), entry.policy().shape_bytes());
    let again = entry.parts().into_entry(&policy).expect("the parts belong together");
    assert_eq!(again.parts(), entry.parts());
    assert_eq!(standings(&again, at(5)), standings(&entry, at(5)));
    let one_less = tollgate_core::Parts { states: Vec::new(), ..entry.parts() };
    let error = one_less.into_entry(&policy).expect_err("a limit has no state");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let error = Policy::from_shape_bytes("everything", &[255; 9]).expect_err("not a shape");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}
