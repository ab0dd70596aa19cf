//! Writes the golden vectors from the core: `cargo run -p tollgate-conformance --example write_vectors`.
//!
//! The stories are told here; what must be answered is taken from the core. The tests of this crate hold the model to
//! every number, and the numbers of the requirements are in those tests by hand.

mod asks;
mod buckets;
mod calendars;
mod changes;
mod joint;
mod slots;
mod story;
mod windows;

use std::fs;

use tollgate_conformance::joint::{self as joint_vectors, Entries, JointVector};
use tollgate_conformance::script::SingleEntry;
use tollgate_conformance::vectors::{Vector, fill};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Vector::folder();
    fs::create_dir_all(&folder)?;
    let stories = [
        asks::all()?,
        buckets::all()?,
        calendars::all()?,
        changes::all()?,
        slots::all()?,
        windows::all()?,
    ];
    for story in stories.into_iter().flatten() {
        let mut store = SingleEntry::default();
        let vector = fill(story.into_vector(), &mut store.runner())?;
        let text = serde_json::to_string_pretty(&vector)?;
        fs::write(folder.join(format!("{}.json", vector.name)), text + "\n")?;
    }
    let folder = JointVector::folder();
    fs::create_dir_all(&folder)?;
    for story in joint::all()? {
        let mut store = Entries::default();
        let vector = joint_vectors::fill(story, &mut store.runner())?;
        let text = serde_json::to_string_pretty(&vector)?;
        fs::write(folder.join(format!("{}.json", vector.name)), text + "\n")?;
    }
    Ok(())
}
