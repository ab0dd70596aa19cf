//! The golden vectors hold on the core and on the model, and say what the requirements say.

use tollgate_conformance::joint::{self, Entries};
use tollgate_conformance::script::SingleEntry;
use tollgate_conformance::vectors::{self, Expected, ExpectedStanding, Vector};

const SECOND: u64 = 1_000_000;
/// From here the stories count: 2023-11-15T00:00:00Z.
const BASE: u64 = 1_700_006_400 * SECOND;

fn all() -> Vec<Vector> {
    vectors::load_all().expect("every file in the folder is a vector")
}

fn vector(name: &str) -> Vector {
    all().into_iter().find(|vector| vector.name == name).expect("there is such a vector")
}

#[test]
fn the_core_answers_every_vector() {
    let vectors = all();
    assert!(50 <= vectors.len(), "{} vectors", vectors.len());
    for vector in vectors {
        let mut store = SingleEntry::default();
        vectors::run(&vector, &mut store.runner()).unwrap();
    }
}

/// The expected values were written by the core; the model arrives at each of them on its own, but for the vector in which
/// the core merges lows and so is stricter than exact.
#[test]
fn the_model_answers_every_vector() {
    for vector in all().into_iter().filter(|vector| vector.name != "bucket-many-lows") {
        vectors::run_model(&vector).unwrap();
    }
}

/// A runner that accepts anything would prove nothing.
#[test]
fn a_store_that_answers_something_else_is_found() {
    for mut vector in all() {
        let last = vector.steps.len() - 1;
        vector.steps[last].standings[0].used += 1;
        let mut store = SingleEntry::default();
        let error = vectors::run(&vector, &mut store.runner()).unwrap_err();
        assert!(error.contains(&vector.name) && error.contains("expected"), "{error}");
    }
}

/// Vector, step, limit, used, remaining: the numbers of the requirements and of the design, by hand.
const BY_HAND: [(&str, usize, &str, u64, u64); 28] = [
    // R000.1: 5,000 - 3,750.
    ("bucket-acquire", 0, "tpm", 3_750, 1_250),
    // R000.8: 10,000 - 3,750.
    ("bucket-exact", 1, "tpm", 3_750, 6_250),
    // R000.4: empty, and a minute later full.
    ("bucket-interval", 5, "rpm", 5, 0),
    ("bucket-interval", 6, "rpm", 0, 5),
    ("bucket-interval", 6, "tpm", 0, 250_000),
    // R000.5: 2.5 requests (of which 2 are whole) and 125,000 tokens.
    ("bucket-partial-refill", 1, "rpm", 3, 2),
    ("bucket-partial-refill", 1, "tpm", 125_000, 125_000),
    // Design, section 4: the release of the first ten gives nothing back.
    ("bucket-no-room-twice", 2, "burst", 10, 0),
    // Had 1 of the 10 been charged, it would have come back by now.
    ("bucket-settle", 1, "burst", 0, 10),
    // 100 used, 20 back by time, and the 20 that were released.
    ("bucket-slow-calls", 3, "burst", 60, 40),
    // 50 became 20 and 30 became 45: 20 + 45 - 30 by time.
    ("bucket-slow-calls", 5, "burst", 35, 65),
    // Nothing for what came before it was empty; 50 - 10 without the 40.
    ("bucket-after-empty", 3, "burst", 70, 30),
    ("bucket-after-empty", 4, "burst", 40, 60),
    // Full for a slot longer than the window.
    ("window-grid", 2, "tpm", 6_400, 0),
    ("window-grid", 4, "tpm", 5_400, 1_000),
    // 20 - 3 - 8.
    ("bucket-derived", 0, "burst", 0, 9),
    // R000.6: 24, 25; with headroom none is left after 24.
    ("calendar-daily", 0, "quota", 24, 1),
    ("calendar-daily", 1, "quota", 25, 0),
    ("calendar-daily-headroom", 0, "rpd", 24, 0),
    // What was admitted in the last two seconds counts again.
    ("calendar-margin", 4, "rpm", 3, 2),
    // R004.1 and R004.3.
    ("window-five-a-day", 3, "videos", 4, 1),
    ("window-rolls", 4, "videos", 4, 1),
    ("window-nth-newest", 6, "videos", 7, 0),
    // 60 -> 25, and 40 stay.
    ("window-settle", 2, "tpm", 65, 35),
    ("window-no-room-twice", 2, "tpm", 100, 0),
    // None of the three is charged.
    ("ask-all-or-nothing", 1, "rpm", 0, 5),
    ("ask-all-or-nothing", 1, "tpm", 0, 250_000),
    ("ask-shadow", 1, "burst", 8, 2),
];

#[test]
fn the_vectors_hold_the_numbers_of_the_requirements() {
    for (name, step, limit, used, remaining) in BY_HAND {
        let vector = vector(name);
        let standings: &[ExpectedStanding] = &vector.steps[step].standings;
        let stand = standings.iter().find(|stand| stand.name == limit).unwrap();
        assert_eq!((stand.used, stand.remaining), (used, remaining), "{name}, step {step}");
    }
}

/// Vector, step, binding limit, and seconds from the base until the promised time; nothing means never.
const WAITS_BY_HAND: [(&str, usize, &str, Option<u64>); 12] = [
    // 2,750 tokens are missing at 5,000 a minute.
    ("bucket-retry", 1, "tpm", Some(33)),
    ("bucket-no-room-twice", 3, "burst", Some(20)),
    // Half a request is there, so 6 s and not 12 s.
    ("bucket-partial-refill", 3, "rpm", Some(36)),
    ("bucket-interval", 4, "rpm", Some(120)),
    // 25 used of 10: 16 have to come back before one fits.
    ("bucket-debt", 1, "burst", Some(16)),
    ("window-five-a-day", 5, "videos", Some(86_400)),
    // The fifth newest of seven was at 20 s.
    ("window-nth-newest", 7, "videos", Some(86_420)),
    ("window-derived", 2, "rpm", Some(65)),
    ("ask-never", 2, "tpm", None),
    // Two limits wait equally long: the first in order binds.
    ("ask-binding", 1, "one", Some(60)),
    ("ask-binding", 4, "three", Some(1)),
    ("ask-clock-back", 1, "burst", Some(101)),
];

#[test]
fn the_vectors_promise_the_waits_that_follow_from_the_rules() {
    for (name, step, limit, seconds) in WAITS_BY_HAND {
        let until_us = seconds.map(|seconds| BASE + seconds * SECOND);
        let expect = Expected::Denied { limit: limit.to_owned(), until_us };
        assert_eq!(vector(name).steps[step].expect, expect, "{name}, step {step}");
    }
}

#[test]
fn core_and_model_answer_every_joint_vector() {
    let vectors = joint::load_all().expect("every file in the folder is a vector");
    assert!(20 <= vectors.len(), "{} vectors", vectors.len());
    for vector in vectors {
        joint::run(&vector, &mut Entries::default().runner()).unwrap();
        joint::run_model(&vector).unwrap();
        let mut wrong = vector.clone();
        wrong.steps.last_mut().unwrap().standings[0][0].used += 1;
        assert!(joint::run_model(&wrong).unwrap_err().contains(&vector.name));
    }
}
