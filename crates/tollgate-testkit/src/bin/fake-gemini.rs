//! `cargo run -p tollgate-testkit --bin fake-gemini`: a fake of Gemini to try `tollgate translate` with.
//!
//! It prints its address, serves until it is interrupted, and then prints its counters.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line prints")]

use std::process::ExitCode;
use std::sync::Arc;

use tollgate::clock::SystemClock;
use tollgate::{Clock, Span};
use tollgate_testkit::fakes::gemini::{
    FakeGemini, Fault, Quota, ScaledClock, Settings, Trouble, When,
};

const USAGE: &str = "\
usage: fake-gemini [--port N] [--rpm N] [--tpm N] [--rpd N] [--latency SECONDS] [--factor N] [--overloaded-every N]

  --port N              the port on 127.0.0.1; 0, the default, takes a free one
  --rpm, --tpm, --rpd   requests and input tokens per minute, requests per day; without them there is no limit
  --latency SECONDS     how long an answer takes, as in 10 or 0.5
  --factor N            its time passes N times as fast: minutes of quota and seconds of latency alike
  --overloaded-every N  every N-th call is answered 503

Any key is accepted; keys with the same text before the first dot share a quota.";

fn main() -> ExitCode {
    let wanted = match read(std::env::args().skip(1)) {
        Ok(Some(wanted)) => wanted,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("fake-gemini: {why}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match serve(wanted) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("fake-gemini: {why}");
            ExitCode::FAILURE
        }
    }
}

struct Wanted {
    port: u16,
    factor: u64,
    settings: Settings,
}

/// Returns `None` for `--help`.
fn read(mut arguments: impl Iterator<Item = String>) -> Result<Option<Wanted>, String> {
    let mut wanted = Wanted { port: 0, factor: 1, settings: Settings::default() };
    while let Some(name) = arguments.next() {
        if name == "--help" || name == "-h" {
            return Ok(None);
        }
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let wrong = || format!("invalid value {value:?} for {name}");
        let number = || value.parse::<u64>().map_err(|_| wrong());
        let Settings { quota, latency, troubles, .. } = &mut wanted.settings;
        let Quota { rpm, tpm, rpd, .. } = quota;
        match name.as_str() {
            "--port" => wanted.port = value.parse().map_err(|_| wrong())?,
            "--rpm" => *rpm = number()?,
            "--tpm" => *tpm = number()?,
            "--rpd" => *rpd = number()?,
            "--factor" => wanted.factor = number()?.max(1),
            "--latency" => {
                let seconds: std::time::Duration = value
                    .parse()
                    .ok()
                    .and_then(|seconds| std::time::Duration::try_from_secs_f64(seconds).ok())
                    .ok_or_else(wrong)?;
                *latency = Span::from(seconds);
            }
            "--overloaded-every" => {
                let every = When::Every(number()?.max(1));
                troubles.push(Trouble::new(Fault::Overloaded, every));
            }
            _ => return Err(format!("unknown option {name}")),
        }
    }
    Ok(Some(wanted))
}

fn serve(wanted: Wanted) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let clock: Arc<dyn Clock> =
            Arc::new(ScaledClock::new(Arc::new(SystemClock), wanted.factor));
        let fake = FakeGemini::new(clock, wanted.settings);
        let served = fake.serve(wanted.port).await?;
        println!("{}", served.url());
        tokio::signal::ctrl_c().await?;
        println!("{:#?}", fake.tally());
        Ok(())
    })
}
