//! A broker on the memory store for the benchmarks, on three ports that it says on its first line.
#![allow(clippy::print_stdout, reason = "it says where it is")]
#![allow(clippy::disallowed_methods, reason = "its parent says how many keys there may be")]

#[path = "../files.rs"]
mod files;

use std::io::Read as _;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tollgate::clock::SystemClock;
use tollgate::incident::Recorder;
use tollgate::observe::Observed;
use tollgate::policy::{Period, Policies};
use tollgate::{
    CalendarWindow, Clock, Gate, Limit, Memory, Policy, RollingWindow, Span, TokenBucket,
};
use tollgate_server::{App, Listeners};
use tollgate_telemetry::Telemetry;

/// One limit as `CL.THROTTLE` has it, and three of them.
fn policies() -> Policies {
    let minute = Span::from_mins(1);
    let bucket =
        || Limit::new("rps", "requests", TokenBucket::per_second(1_000_000).burst(1_000_000));
    let llm = [
        bucket(),
        Limit::new("tpm", "tokens", RollingWindow::new(1 << 50, minute).resolution(12)),
        Limit::new("rpd", "requests", CalendarWindow::new(1 << 50, Period::Day)),
    ];
    let made = [Policy::new("one", [bucket()]), Policy::new("llm", llm)];
    Policies::new(made.map(|policy| policy.expect("a valid policy"))).expect("two names")
}

/// Serves until its input ends.
fn main() {
    let keys_max = std::env::args().nth(1).and_then(|word| word.parse().ok());
    let keys_max: usize = keys_max.expect("how many keys there may be");
    files::raise_files();
    // Runtime, metrics and incident history are those of `tollgate serve`.
    let runtime = Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let recorder = Arc::new(Recorder::new());
        let telemetry = Telemetry::builder(Arc::clone(&clock)).recorder(Arc::clone(&recorder));
        let (telemetry, _tasks) = telemetry.start();
        let gate: Arc<dyn Gate> = Arc::new(Memory::with(Arc::clone(&clock), keys_max));
        let gate = Observed::new(gate, Arc::clone(&telemetry) as _, Arc::clone(&clock));
        let app =
            App::new(Arc::new(gate), policies(), [7; 32], clock).expect("names that are free");
        let app = app.incidents(recorder, telemetry);
        let mut listeners = Vec::new();
        for _ in 0..3 {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.expect("a port"));
        }
        let at = |listener: &TcpListener| listener.local_addr().expect("an address").to_string();
        println!("{}", listeners.iter().map(at).collect::<Vec<_>>().join(" "));
        let [http, grpc, resp] = listeners.try_into().expect("three of them");
        let ended = tokio::task::spawn_blocking(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
        });
        tollgate_server::run(Listeners::http(http).grpc(grpc).resp(resp), app, async {
            let _ = ended.await;
        })
        .await;
    });
}
