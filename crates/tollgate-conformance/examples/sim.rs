//! `cargo xtask sim`: runs one seed with its trace, or many seeds.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line prints")]

use std::process::ExitCode;

use tollgate_conformance::sim::{Charges, Setup, Strategy, run, sweep};

const USAGE: &str = "\
usage: cargo xtask sim SEED [--strategy NAME] [--charges one|several]       runs one seed and prints its trace
       cargo xtask sim --seeds N [--strategy NAME] [--charges one|several]  runs the seeds below N until one fails";

enum What {
    One(u64),
    Many(u64),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (what, setups) = match parse(&arguments) {
        Ok(parsed) => parsed,
        Err(problem) => {
            eprintln!("sim: {problem}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut code = ExitCode::SUCCESS;
    for setup in setups {
        let outcome = match what {
            What::One(seed) => one(seed, setup),
            What::Many(seeds) => many(seeds, setup),
        };
        if let Err(problem) = outcome {
            println!("{problem}");
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn one(seed: u64, setup: Setup) -> Result<(), String> {
    let report = run(seed, setup.traced());
    for line in &report.lines {
        println!("{line}");
    }
    println!("{}: {:?}, trace {:016x}", name(setup), report.counts, report.hash);
    report.verdict
}

fn many(seeds: u64, setup: Setup) -> Result<(), String> {
    let summary = sweep(0..seeds, setup)?;
    let (over, bound) = summary.nearest;
    println!("{}: {} seeds pass, {:?}", name(setup), summary.runs, summary.counts);
    if bound != 0 {
        println!("  nearest to the bound: {over} over of {bound}");
    }
    Ok(())
}

fn name(setup: Setup) -> String {
    let charges = match setup.charges {
        Charges::One => "one charge",
        Charges::Several => "several charges",
    };
    format!("{}, {charges}", setup.strategy.name())
}

fn parse(arguments: &[String]) -> Result<(What, Vec<Setup>), String> {
    let (mut what, mut strategies) = (None, Strategy::ALL.to_vec());
    let mut charges = Charges::ALL.to_vec();
    let mut words = arguments.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word {
            "--seeds" => {
                let seeds = number(words.next().unwrap_or_default(), "--seeds takes a number")?;
                what = Some(What::Many(seeds));
            }
            "--strategy" => {
                let name = words.next().unwrap_or_default();
                let known = Strategy::ALL.map(Strategy::name).join(", ");
                let unknown = || format!("no strategy is called {name:?}; use one of {known}");
                strategies = vec![Strategy::named(name).ok_or_else(unknown)?];
            }
            "--charges" => {
                let name = words.next().unwrap_or_default();
                let known = Charges::ALL.map(Charges::name).join(" or ");
                let unknown = || format!("--charges takes {known}, not {name:?}");
                charges = vec![Charges::named(name).ok_or_else(unknown)?];
            }
            seed => what = Some(What::One(number(seed, "a seed is a number")?)),
        }
    }
    let setup = |strategy| charges.iter().map(move |it| Setup::new(strategy).charging(*it));
    let setups = strategies.into_iter().flat_map(setup).collect();
    what.map(|what| (what, setups)).ok_or_else(|| "name a seed, or --seeds N".to_owned())
}

fn number(text: &str, expected: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{expected}, not {text:?}"))
}
