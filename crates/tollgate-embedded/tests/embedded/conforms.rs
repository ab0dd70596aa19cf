//! The suite that every store passes, on this one: strict and relaxed, with so little memory that most entries are
//! read back from the database.

use std::sync::Arc;

use tollgate::Atomic;
use tollgate_embedded::{Durability, Embedded};
use tollgate_testing::conformance::{self, Capabilities, Fixture};

use crate::Desk;

fn conforms(durability: Durability, stories: u32, entries_max: usize) {
    let desk = Desk::new();
    // Stories set the clock to any time.
    let options = desk.options().durability(durability).check_clock(false);
    let store = Embedded::open_with(&desk.path(), options, entries_max).unwrap();
    let gate = Arc::new(Atomic::new(store));
    let fixture = Fixture::new(gate, desk.clock.clone())
        .with_capabilities(Capabilities { stories, ..Capabilities::default() });
    conformance::run_all(&fixture).unwrap();
}

#[test]
fn strict_conforms() {
    conforms(Durability::Strict, 10, 1);
}

#[test]
fn relaxed_conforms() {
    conforms(Durability::Relaxed, 10, 10_000);
}
