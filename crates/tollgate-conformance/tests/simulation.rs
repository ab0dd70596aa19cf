//! The seeds that run every time. `cargo xtask sim --seeds N` runs more.

use std::process::Command;

use tollgate_conformance::sim::{Charges, Sabotage, Setup, Strategy, Summary, run, sweep};

/// Each strategy runs two parts of so many seeds, as two tests, so that two cores are busy.
const SEEDS: u64 = 1_000;

fn passes(strategy: Strategy, part: u64) -> Summary {
    let seeds = part * SEEDS..(part + 1) * SEEDS;
    let summary = sweep(seeds, Setup::new(strategy)).expect("every seed passes");
    assert!(SEEDS * 10 < summary.counts.admitted, "{summary:?}");
    assert!(SEEDS * 10 < summary.counts.denied, "{summary:?}");
    summary
}

/// R002.3 and promise 1: never over in any window, whatever fails.
#[test]
fn r002_3_atomic_is_never_over_under_any_fault_part_one() {
    passes(Strategy::Atomic, 0);
}

#[test]
fn r002_3_atomic_is_never_over_under_any_fault_part_two() {
    passes(Strategy::Atomic, 1);
}

/// Promise 1 for leased: never over at the time of spending, whatever fails.
#[test]
fn leased_is_never_over_under_any_fault_part_one() {
    passes(Strategy::Leased, 0);
}

#[test]
fn leased_is_never_over_under_any_fault_part_two() {
    passes(Strategy::Leased, 1);
}

/// R002.1: over by no more than its bound, and by nearly as much in some run, so that the bound says something.
#[test]
fn r002_1_optimistic_stays_within_its_bound_and_comes_near_it_part_one() {
    let (over, bound) = passes(Strategy::Optimistic, 0).nearest;
    assert!(bound * 2 <= over * 3, "the nearest seed was {over} over, of {bound}");
}

#[test]
fn r002_1_optimistic_stays_within_its_bound_and_comes_near_it_part_two() {
    passes(Strategy::Optimistic, 1);
}

/// R000.10: an instance that is cut off issues its share, and no ask fails or waits beyond its deadline. A call whose reply is lost
/// while the store serves others is of its subject.
#[test]
fn r000_10_fallback_stays_within_its_worst_case_part_one() {
    let counts = passes(Strategy::Fallback, 0).counts;
    assert!(SEEDS < counts.degraded, "{counts:?}");
    assert_eq!(counts.failed, 0, "{counts:?}");
    assert!(counts.contended * 100 < counts.asks, "{counts:?}");
}

#[test]
fn r000_10_fallback_stays_within_its_worst_case_part_two() {
    passes(Strategy::Fallback, 1);
}

/// Seeds of asks with several charges. Each run judges up to six policies and subjects.
const SEVERAL: u64 = 300;

fn passes_jointly(strategy: Strategy) -> Summary {
    let setup = Setup::new(strategy).charging(Charges::Several);
    let summary = sweep(0..SEVERAL, setup).expect("every seed passes");
    assert!(SEVERAL * 10 < summary.counts.admitted, "{summary:?}");
    assert!(SEVERAL * 10 < summary.counts.denied, "{summary:?}");
    summary
}

/// Promises 1 to 3 for asks with several charges: nobody is over, all are charged or none, and a refusal takes nothing.
#[test]
fn atomic_charges_all_or_none_under_any_fault() {
    passes_jointly(Strategy::Atomic);
}

/// Some charges are spent from blocks and some by the store.
#[test]
fn leased_charges_all_or_none_under_any_fault() {
    passes_jointly(Strategy::Leased);
}

#[test]
fn optimistic_stays_within_its_bound_with_several_charges() {
    passes_jointly(Strategy::Optimistic);
}

#[test]
fn fallback_stays_within_its_worst_case_with_several_charges() {
    let counts = passes_jointly(Strategy::Fallback).counts;
    assert!(SEVERAL < counts.degraded, "{counts:?}");
    assert_eq!(counts.failed, 0, "{counts:?}");
}

/// R000.10: the bound is tight: an instance that takes more than its share breaks it.
#[test]
fn r000_10_whole_limits_taken_for_shares_are_found() {
    finds(Strategy::Fallback, Sabotage::WholeShares, "callers spent too much");
}

fn setups() -> impl Iterator<Item = Setup> {
    Strategy::ALL
        .into_iter()
        .flat_map(|strategy| Charges::ALL.map(|charges| Setup::new(strategy).charging(charges)))
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for setup in setups() {
        for seed in 0..50 {
            let (first, second) = (run(seed, setup), run(seed, setup));
            assert_eq!(first.hash, second.hash, "seed {seed}, {setup:?}");
        }
    }
}

/// Prints the hashes of some runs, for the test below.
#[test]
#[ignore = "run in a process of its own by the test below"]
#[allow(clippy::print_stdout, reason = "another process reads it")]
fn prints_hashes() {
    for setup in setups() {
        for seed in 0..20 {
            println!("hash {:016x}", run(seed, setup).hash);
        }
    }
}

/// Nothing of a run comes from its process: no address, no order of a hash table, no jitter that is not seeded.
#[test]
fn the_same_seed_gives_the_same_run_in_another_process() {
    let hashes = || {
        let binary = std::env::current_exe().expect("a test has a file");
        let mut command = Command::new(binary);
        command.args(["--ignored", "--exact", "--nocapture", "prints_hashes"]);
        let output = command.output().expect("the test starts");
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines().filter(|line| line.contains("hash ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let first = hashes();
    assert!(20 * Strategy::ALL.len() <= first.len(), "{first:?}");
    assert_eq!(first, hashes());
}

fn finds(strategy: Strategy, sabotage: Sabotage, expected: &str) {
    finds_in(Setup::new(strategy), sabotage, expected);
}

fn finds_in(setup: Setup, sabotage: Sabotage, expected: &str) {
    let found = sweep(0..SEEDS, setup.sabotaged(sabotage));
    let problem = found.expect_err("the seeds find what is wrong");
    assert!(problem.contains(expected), "{problem}");
    assert!(problem.contains("cargo xtask sim "), "{problem}");
}

#[test]
fn a_store_that_is_read_and_then_written_is_found() {
    finds(Strategy::Atomic, Sabotage::ReadThenWrite, "over");
}

/// R000.12: a resend that is not recognised charges twice.
#[test]
fn r000_12_a_resend_under_a_new_id_is_found() {
    finds(Strategy::Atomic, Sabotage::NewIds, "do not balance");
}

/// The check of spending in true time sees what the store cannot: blocks that were charged rightly and spent too late.
#[test]
fn a_block_that_lives_from_its_answer_is_found() {
    finds(Strategy::Leased, Sabotage::LifeFromAnswer, "callers spent too much");
}

#[test]
fn a_block_that_is_credited_in_full_is_found() {
    finds(Strategy::Leased, Sabotage::FullCredit, "callers spent too much");
}

/// A store that leaves a charge out is found by its own history: an entry did not change, or is over.
#[test]
fn a_store_that_charges_all_but_the_last_is_found() {
    let setup = Setup::new(Strategy::Atomic).charging(Charges::Several);
    finds_in(setup, Sabotage::AllButTheLast, "at the store: ");
}

/// The life of a block is counted from when it was asked for, also if its tokens wait for the store.
#[test]
fn a_block_that_lives_from_its_answer_is_found_with_several_charges() {
    let setup = Setup::new(Strategy::Leased).charging(Charges::Several);
    finds_in(setup, Sabotage::LifeFromAnswer, "callers spent too much");
}

/// Blocks that live for less than a round trip once held up a line of asks, one lease after the other.
#[test]
fn a_line_that_waits_for_short_lived_blocks_is_answered_in_time() {
    for seed in [84, 94, 397] {
        run(seed, Setup::new(Strategy::Leased)).verdict.expect("in time");
    }
}
