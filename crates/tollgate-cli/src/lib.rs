#![doc = include_str!("../README.md")]

mod args;
mod audit;
mod backend;
mod backoff;
mod call;
mod command;
mod config;
mod convert;
mod dynamodb;
mod envoy_ratelimit;
mod file_limit;
#[cfg(feature = "gateway")]
mod gateway;
mod incidents;
mod jwks;
mod keys;
mod lambda;
mod local;
mod log;
mod notify;
mod plan;
mod postgres;
mod reload;
mod remote;
mod repair;
mod serve;
mod show;
mod startup_report;
mod top;
mod transfer;
#[cfg(feature = "translate")]
mod translate;
mod xds;

use std::process::ExitCode;

use clap::Parser as _;
use tollgate_protocol::json::Problem;
use tollgate_terminal::output::{self, OutputFormat};
use tollgate_terminal::{EXIT_FAILED, Failure};

use args::Cli;

/// The variable with the API key of a broker. A flag would show the key in the list of processes.
const KEY_VARIABLE: &str = "TOLLGATE_KEY";

/// Runs the command that the arguments of this process name.
pub fn main() -> ExitCode {
    // A worker of `plan --measure` gets its work from its parent.
    if std::env::args_os().nth(1).is_some_and(|word| word == plan::WORKER) {
        return exit_code(plan::work().map(|()| ExitCode::SUCCESS), OutputFormat::Text);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && args::asks_for_json(std::env::args_os()) => {
            drop(output::print_json(&Problem::invalid(args::for_programs(&error))));
            return ExitCode::from(EXIT_FAILED);
        }
        Err(error) => error.exit(),
    };
    let format = cli.global.format();
    exit_code(command::run(cli), format)
}

/// Prints a failure and returns the exit status.
fn exit_code(result: Result<ExitCode, Failure>, format: OutputFormat) -> ExitCode {
    result.unwrap_or_else(|failure| {
        match format {
            OutputFormat::Text => output::print_error(&failure.to_string()),
            // Programs read one document on standard output. If that is closed, the exit status remains.
            OutputFormat::Json => drop(output::print_json(&failure.problem())),
        }
        ExitCode::from(EXIT_FAILED)
    })
}

/// Returns the error in `text` as a configuration, for the fuzzer in `fuzz/`.
#[cfg(fuzzing)]
pub fn check_text(text: &str) -> Option<String> {
    config::ServeConfig::parse(None, text).err().map(|error| error.to_string())
}
