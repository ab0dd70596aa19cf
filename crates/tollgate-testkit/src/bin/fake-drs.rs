//! The fake of Elastic Disaster Recovery: `cargo run -p tollgate-testkit --bin fake-drs -- --port 0`.
//!
//! It prints its address, serves on loopback until SIGTERM or SIGINT, and then prints the calls; `GET /arrivals` returns
//! them while it runs.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line prints")]

use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tollgate::Span;
use tollgate::clock::SystemClock;
use tollgate_testkit::fakes::drs::{FakeDrs, Server, Settings};

const USAGE: &str = "usage: fake-drs [OPTION VALUE]...
  --port N              the port on loopback; 0 (the default) takes a free one
  --servers N           source servers (10)
  --rate N, --burst N   calls per second and burst; without --rate nothing is throttled (burst: twice the rate)
  --retry-after SPAN    the `Retry-After` of a 429 (1s)
  --pending SPAN, --running SPAN   how long jobs take (5s, 30s)
  --page N              the most items of a page (50)
  --foreign-jobs N      jobs of another client that never end (0)
  --failing N           the first N servers fail to launch (0)
  --throttle-percent N, --fail-percent N, --lose-percent N
                        calls that randomly get 429 or 500, or are carried out without a reply
  --seed N              seed of the random numbers (0)";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("fake-drs: {text}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<(), String> {
    let mut settings = Settings::default();
    let (mut port, mut rate, mut burst, mut foreign, mut failing) = (0, None, None, 0, 0);
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{option} needs a value"))?;
        match option.as_str() {
            "--port" => port = parse(&option, &value)?,
            "--servers" => settings.servers = parse(&option, &value)?,
            "--rate" => rate = Some(parse::<u64>(&option, &value)?),
            "--burst" => burst = Some(parse(&option, &value)?),
            "--retry-after" => settings.retry_after = span(&option, &value)?,
            "--pending" => settings.pending_for = span(&option, &value)?,
            "--running" => settings.running_for = span(&option, &value)?,
            "--page" => settings.page_max = parse(&option, &value)?,
            "--foreign-jobs" => foreign = parse(&option, &value)?,
            "--failing" => failing = parse(&option, &value)?,
            "--throttle-percent" => settings.chances.throttled = parse(&option, &value)?,
            "--fail-percent" => settings.chances.broken = parse(&option, &value)?,
            "--lose-percent" => settings.chances.cut_after = parse(&option, &value)?,
            "--seed" => settings.chances.seed = parse(&option, &value)?,
            other => return Err(format!("unknown option {other}")),
        }
    }
    settings.rate = rate.map(|rate| (rate, burst.unwrap_or(2 * rate)));
    settings.failing = (0..failing).map(FakeDrs::server_id).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(serve(settings, port, foreign)).map_err(|error| error.to_string())
}

async fn serve(settings: Settings, port: u16, foreign: usize) -> std::io::Result<()> {
    let (mut end, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let fake = Arc::new(FakeDrs::new(Arc::new(SystemClock), settings));
    fake.start_foreign_jobs(foreign);
    let server = Server::start(Arc::clone(&fake), port).await?;
    println!("{}", server.endpoint());
    tokio::select! {
        _ = end.recv() => {}
        _ = interrupt.recv() => {}
    }
    let arrivals = fake.arrivals();
    for ((second, operation), calls) in arrivals.by_second() {
        println!("{} {operation} {calls}", tollgate::Timestamp::from_secs(second));
    }
    println!("{} calls, {} jobs started", arrivals.all().len(), fake.jobs_started());
    Ok(())
}

fn parse<T: FromStr>(option: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{option} {value} is not a number in range"))
}

fn span(option: &str, value: &str) -> Result<Span, String> {
    value.parse().map_err(|error| format!("{option} {value}: {error}"))
}
