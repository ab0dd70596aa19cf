//! The conformance suite, strict and relaxed.

use std::sync::Arc;

use tollgate_conformance::{Capabilities, Fixture};
use tollgate_embedded::{Durability, Embedded};

use crate::TestFolder;

fn fixture(durability: Durability, entries_max: usize) -> Fixture {
    let folder = TestFolder::new();
    // Scripts set the clock to any time.
    let options = folder.options().durability(durability).check_clock(false);
    let store = Embedded::open_with(&folder.path(), options, entries_max).unwrap();
    Fixture::new(Arc::new(store), folder.clock.clone())
        .with_capabilities(Capabilities { stories: 10, joint: true, ..Capabilities::default() })
        .holding(folder)
}

tollgate_conformance::suite! {
    /// With so little memory that most entries are read back from the database.
    fn strict() -> Fixture {
        fixture(Durability::Strict, 1)
    }

    fn relaxed() -> Fixture {
        fixture(Durability::Relaxed, 10_000)
    }
}
