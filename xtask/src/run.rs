//! Runs steps in order, continues after a failure, and prints a table of durations.

use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::step::{Step, Tool, command};

/// Runs every step with `words` appended. Prints how to repeat the steps that failed.
pub(crate) fn all<'a>(steps: impl Iterator<Item = &'a Step>, words: &[String]) -> ExitCode {
    let mut failures = Vec::new();
    let mut table = String::new();
    let mut total = Duration::ZERO;
    for step in steps {
        eprintln!("\n==> {}: {step}", step.name);
        let start = Instant::now();
        let outcome = one(step, words);
        let took = start.elapsed();
        total += took;
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        table += &format!("{:<10} {word:<6} {:>8.1} s\n", step.name, took.as_secs_f64());
        if let Err(problem) = outcome {
            eprintln!("==> {}: {problem}", step.name);
            failures.push(format!("{}: {problem}\n  repeat it with: {step}\n", step.name));
        }
    }
    eprint!("\n{table}{:<17} {:>8.1} s\n", "total", total.as_secs_f64());
    if failures.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprint!("\n{}", failures.concat());
    ExitCode::FAILURE
}

fn one(step: &Step, words: &[String]) -> Result<(), String> {
    if let Some(tool) = &step.needs {
        provide(tool)?;
    }
    let mut command = step.command();
    command.args(words);
    finish(command)
}

/// Installs `tool` if it is missing.
pub(crate) fn provide(tool: &Tool) -> Result<(), String> {
    let mut probe = command(tool.probe);
    probe.stdout(Stdio::null()).stderr(Stdio::null());
    if finish(probe).is_ok() {
        return Ok(());
    }
    eprintln!("==> not installed yet: {}", tool.install);
    finish(command(tool.install)).map_err(|problem| format!("{}: {problem}", tool.install))
}

/// Runs `command` to completion.
pub(crate) fn finish(mut command: Command) -> Result<(), String> {
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(status.to_string()),
        Err(error) => Err(format!("could not start: {error}")),
    }
}
