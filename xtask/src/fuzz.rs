//! `cargo xtask fuzz [TARGET] [--seconds N]`: each target of `fuzz/`, or one, for a bounded time.
//!
//! No sanitizer: there is no unsafe code, and overflow panics anyway. The corpus is `fuzz/seeds` and `target/fuzz-corpus`,
//! which keeps new inputs for the next run.

use std::process::ExitCode;

use crate::run;
use crate::step::{Tool, command};

const TARGETS: [&str; 7] = ["resp", "http", "grpc", "token", "config", "llm_request", "llm_stream"];

const SECONDS_DEFAULT: u64 = 20;

/// A fixed seed makes runs repeatable up to the time limit.
const SEED: u32 = 1;

/// Longer inputs are refused by their length alone, and slow everything down.
const INPUT_BYTES_MAX: usize = 4_096;

const TOOL: Tool = Tool {
    probe: "cargo fuzz --version",
    install: "cargo install cargo-fuzz --locked --debug --version 0.13.2",
};

/// Runs the targets that `words` name.
pub(crate) fn run(words: &[String]) -> ExitCode {
    match parse(words).and_then(|(targets, seconds)| all(&targets, seconds)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("xtask: fuzz: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn parse(words: &[String]) -> Result<(Vec<&'static str>, u64), String> {
    let (mut targets, mut seconds) = (Vec::new(), SECONDS_DEFAULT);
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        if word == "--seconds" {
            let number = words.next().and_then(|number| number.parse().ok());
            seconds = number.ok_or("--seconds needs a non-negative integer, as in --seconds 60")?;
        } else if let Some(target) = TARGETS.into_iter().find(|target| *target == word) {
            targets.push(target);
        } else {
            return Err(format!("unknown target {word:?}; use {}", TARGETS.join(", ")));
        }
    }
    if targets.is_empty() {
        targets.extend(TARGETS);
    }
    Ok((targets, seconds))
}

fn all(targets: &[&str], seconds: u64) -> Result<(), String> {
    run::provide(&TOOL)?;
    for target in targets {
        let corpus = format!("target/fuzz-corpus/{target}");
        run::finish(command(&format!("mkdir -p {corpus}")))?;
        let line = format!(
            "cargo fuzz run --fuzz-dir fuzz --sanitizer none {target} {corpus} fuzz/seeds/{target} -- \
             -seed={SEED} -max_total_time={seconds} -max_len={INPUT_BYTES_MAX} -timeout=10 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1"
        );
        eprintln!("==> {line}");
        run::finish(command(&line)).map_err(|problem| format!("{target}: {problem}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target that nobody runs finds nothing.
    #[test]
    fn every_target_is_run_and_has_seeds() {
        let fuzz = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz"));
        let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
        assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
        for target in TARGETS {
            assert!(manifest.contains(&format!("path = \"fuzz_targets/{target}.rs\"")), "{target}");
            let mut seeds = std::fs::read_dir(fuzz.join("seeds").join(target)).unwrap();
            assert!(seeds.next().is_some(), "{target} has no seeds");
        }
    }

    #[test]
    fn words_name_targets_and_a_time() {
        let parse = |text: &str| {
            super::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        assert_eq!(parse(""), Ok((TARGETS.to_vec(), SECONDS_DEFAULT)));
        assert_eq!(parse("resp --seconds 60"), Ok((vec!["resp"], 60)));
        assert!(parse("nope").unwrap_err().contains("use resp, http"));
        assert!(parse("resp --seconds").unwrap_err().contains("non-negative integer"));
    }
}
