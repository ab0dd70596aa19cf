//! `cargo run -p tollgate-testkit --bin fake-llm`: a fake of `OpenAI`, Anthropic and Gemini to try the gateway with.
//!
//! It prints its address and a line per call, serves until it is interrupted, and then prints its counters.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line prints")]

use std::process::ExitCode;
use std::sync::Arc;

use tollgate::clock::SystemClock;
use tollgate::{Clock, Span};
use tollgate_testkit::fakes::llm::{
    Arrival, FakeLlm, Fault, Quota, ScaledClock, Settings, Trouble, When,
};

const USAGE: &str = "\
usage: fake-llm [OPTIONS]

  --port N               the port on 127.0.0.1; 0, the default, takes a free one
  --rpm N                requests per minute of a key and model; without an option there is no limit
  --tpm N                input tokens per minute
  --output-tpm N         output tokens per minute: the declared maximum, then what was sent
  --total-tpm N          input and output tokens per minute
  --rpd N                requests per day
  --at-once N            concurrent requests
  --minute SPAN          how long a minute takes, as in 1s
  --latency SPAN         until the first byte, as in 300ms
  --pause SPAN           between two chunks of a stream
  --length N             tokens of an answer; 16 without it
  --key KEY              the only key that is accepted; without it, any key is
  --gzip                 compresses for clients that accept it
  --factor N             its time passes N times as fast
  --status N             answers every call with this status ...
  --every N              ... or every N-th call

Keys with the same text before the first dot share a quota. `GET /tally` returns the counters.

example: fake-llm --port 4243 --rpm 5
  OPENAI_BASE_URL=http://127.0.0.1:4243/openai/v1
  ANTHROPIC_BASE_URL=http://127.0.0.1:4243/anthropic
  GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:4243/gemini";

fn main() -> ExitCode {
    let wanted = match read(std::env::args().skip(1)) {
        Ok(Some(wanted)) => wanted,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("fake-llm: {why}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match serve(wanted) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("fake-llm: {why}");
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
    let (mut status, mut every) = (None, 1);
    while let Some(name) = arguments.next() {
        if name == "--help" || name == "-h" {
            return Ok(None);
        }
        let settings = &mut wanted.settings;
        if name == "--gzip" {
            settings.gzip = true;
            continue;
        }
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let wrong = |right: &str| format!("invalid value {value:?} for {name}; use {right}");
        let number = || value.parse::<u64>().map_err(|_| wrong("a non-negative integer"));
        let span = || value.parse::<Span>().map_err(|_| wrong("a span such as 300ms, 1s or 2m"));
        let quota = &mut settings.quota;
        match name.as_str() {
            "--port" => wanted.port = value.parse().map_err(|_| wrong("a port"))?,
            "--rpm" => quota.rpm = number()?,
            "--tpm" => quota.tpm = number()?,
            "--output-tpm" => quota.output_tpm = number()?,
            "--total-tpm" => quota.total_tpm = number()?,
            "--rpd" => quota.rpd = number()?,
            "--at-once" => quota.at_once = number()?,
            "--minute" => quota.minute = span()?,
            "--latency" => settings.latency = span()?,
            "--pause" => settings.pause = span()?,
            "--length" => settings.length = number()?,
            "--key" => settings.keys.push(value),
            "--factor" => wanted.factor = number()?.max(1),
            "--status" => {
                let range = 400..600;
                let wanted = value.parse().ok().filter(|status| range.contains(status));
                status = Some(wanted.ok_or_else(|| wrong("a status from 400 to 599"))?);
            }
            "--every" => every = number()?.max(1),
            _ => return Err(format!("unknown option {name}")),
        }
    }
    if let Some(status) = status {
        let trouble = Trouble::new(Fault::status(status), When::Every(every));
        wanted.settings.troubles.push(trouble);
    }
    if wanted.settings.quota == Quota::NONE {
        eprintln!("fake-llm: without a limit, such as --rpm 5, nothing is refused");
    }
    Ok(Some(wanted))
}

fn line(arrival: &Arrival) -> String {
    let Arrival { number, at, dialect, model, status, input, output, .. } = arrival;
    let end = if arrival.is_complete { "" } else { ", not complete" };
    format!("{at} #{number} {dialect} {model} {status}: {input} + {output} tokens{end}")
}

fn serve(wanted: Wanted) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let clock: Arc<dyn Clock> =
            Arc::new(ScaledClock::new(Arc::new(SystemClock), wanted.factor));
        let fake = FakeLlm::new(clock, wanted.settings);
        fake.watch(|arrival| println!("{}", line(arrival)));
        let served = fake.serve(wanted.port).await?;
        println!("{}", served.url());
        tokio::signal::ctrl_c().await?;
        println!("{:#?}", fake.tally());
        Ok(())
    })
}
