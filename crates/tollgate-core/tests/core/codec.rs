//! Goal: promise 10, old bytes decode; and no bytes make the core panic.
//! Method: round trips of random entries, bytes that an earlier build wrote, and random and damaged bytes.

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};
use proptest::sample::Index;
use tollgate_core::codec::{VERSION, decode, decode_any, encode};
use tollgate_core::{
    Ask, CalendarWindow, Concurrency, Entry, ErrorKind, Headroom, Known, Limit, Operation, Part,
    Period, Policy, RollingWindow, Span, Timestamp, TokenBucket, apply, standings,
};
use tollgate_testing::generate;
use tollgate_testing::script::{Answer, Did, Single};

use crate::desk::{Desk, at, one};

/// An entry with something of everything, as version 1 wrote it. It is never written again.
const VERSION_1: &str = "\
    01a00090a10f06056275727374087265717565737473000707808ece1c0000000573746570730872657175657374\
    73010909808ece1c0000000372706d087265717565737473020a808ece1c00000080897a0374706d06746f6b656e\
    73028407808ece1c01060000000372706408726571756573747303190213416d65726963612f4c6f735f416e6765\
    6c6573010a00046a6f6273046a6f62730403808ece1c00010080cafff9cbc4820383b88bf8cbc482030600c08abf\
    5200030102c0bcc8f8cbc482030180c185f9cbc48203020101e0b8dffccbc48203ac020280c0ced1c4c582030300\
    030181b88bf8cbc48203c0ca9695ccc482030101076f726465722d370301ac0201c0bcc8f8cbc4820381b88bf8cb\
    c48203c0d8e4b1ccc482030180b88bf8cbc4820380b88bf8cbc4820380b88bf8cbc4820300010380cd80a3ccc482\
    0300";

/// The same as version 2 wrote it.
const VERSION_2: &str = "\
    02a00090a10f06056275727374087265717565737473000707808ece1c0000000573746570730872657175657374\
    73010909808ece1c0000000372706d087265717565737473020a808ece1c00000080897a0374706d06746f6b656e\
    73028407808ece1c01060000000372706408726571756573747303190213416d65726963612f4c6f735f416e6765\
    6c6573010a00046a6f6273046a6f62730403808ece1c00010080cafff9cbc4820383b88bf8cbc482030604c0cbe8\
    4b02020001c0eea21900030102c0bcc8f8cbc482030180c185f9cbc48203020101e0b8dffccbc48203ac020280c0\
    ced1c4c582030300030181b88bf8cbc48203c0ca9695ccc48203010180b88bf8cbc48203008092f40100010380cd\
    80a3ccc4820300";

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
    let did = Did::Acquire { costs, id: Some("order-7".to_owned()) };
    assert!(matches!(desk.play(at(1), &did), Answer::Admitted(_)));
    desk.admitted(at(2), 2);
    assert_eq!(desk.release(at(3), first), Answer::Settled(true));
    let close = Did::Close { limit: "tpm".to_owned(), until: at(90) };
    assert_eq!(desk.play(at(4), &close), Answer::Done(true));
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
        let mut store = Single::default();
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
