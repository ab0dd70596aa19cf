//! Side-by-side benchmarks. Every figure is printed as a ratio against a peer or a bound that was measured in the same
//! run, in turns of a few milliseconds, so that a busy machine slows both sides alike.
//!
//! ```text
//! cargo xtask bench                                   all
//! cargo run --release -p tollgate-bench -- memory     the in-process store beside governor
//! cargo run --release -p tollgate-bench -- keys       memory per key, and allocations
//! cargo run --release -p tollgate-bench -- embedded   the embedded store beside the disk and memory
//! cargo run --release -p tollgate-bench -- optimistic the optimistic strategy beside memory
//! ```
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "figures for people need no last digit"
)]

mod embedded;
mod keys;
mod measure;
mod memory;
mod optimistic;

use std::process::ExitCode;

fn main() -> ExitCode {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let sections: [(&str, fn()); 4] = [
        ("memory", memory::run),
        ("keys", keys::run),
        ("embedded", embedded::run),
        ("optimistic", optimistic::run),
    ];
    if let Some(unknown) = wanted.iter().find(|word| sections.iter().all(|(name, _)| name != word))
    {
        println!(
            "no benchmark is called {unknown:?}; there are memory, keys, embedded and optimistic"
        );
        return ExitCode::from(2);
    }
    for (name, run) in sections {
        if wanted.is_empty() || wanted.iter().any(|word| word == name) {
            run();
        }
    }
    ExitCode::SUCCESS
}
