//! What a broker holds in memory: with idle connections, with many keys, and after a while under load on all protocols.

use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::client::{self, Grpc, Http, Pace, Resp};
use crate::files::raise_files;
use crate::peers::{Server, Side, run_on};

const IDLE_CONNECTIONS: usize = 10_000;
const MANY_KEYS: usize = 1_000_000;
/// With so many asks on random keys, 98 of 100 keys were asked for.
const MANY_ASKS: usize = 4_000_000;

const INTERVALS: usize = 9;
const INTERVAL: Duration = Duration::from_secs(9);
/// What may come and go between two looks.
const NOISE_KIB: u64 = 2_048;

pub(crate) fn run() {
    println!("\n# What a broker holds in memory\n");
    raise_files();
    run_on(Side::Servers);
    let server = Server::tollgate();
    run_on(Side::Clients);
    println!("  started: {} KiB resident", server.resident());
    idle(&server);
    soak(&server);
    keys(&server);
    run_on(Side::Both);
}

fn idle(server: &Server) {
    for (name, at) in
        [("Redis protocol", server.resp), ("HTTP", server.http), ("gRPC", server.grpc)]
    {
        let before = server.resident();
        let idle: Vec<TcpStream> =
            (0..IDLE_CONNECTIONS).map_while(|_| TcpStream::connect(at).ok()).collect();
        // One that is served came after all of them.
        ping(server);
        let with_idle = server.resident();
        let per = with_idle.saturating_sub(before) as f64 / idle.len().max(1) as f64;
        println!(
            "  {} idle connections, {name}: {with_idle} KiB resident, {per:.2} KiB each",
            idle.len()
        );
        drop(idle);
        ping(server);
    }
}

fn ping(server: &Server) {
    let talk = || -> Box<dyn client::Talk> { Box::new(Resp::new("CL.THROTTLE")) };
    client::run(server.resp, &talk, 1, Pace::Closed(1), Duration::from_millis(200));
}

/// Load on every protocol, with connections that come and go. After the first interval every key and every buffer is there.
fn soak(server: &Server) {
    let mut sizes = Vec::new();
    for _ in 0..INTERVALS {
        let ask = [r#"{"policy": "llm", "subject": ""#, r#"", "costs": {"tokens": 100}}"#];
        let resp = || -> Box<dyn client::Talk> { Box::new(Resp::new("CL.THROTTLE")) };
        let http = move || -> Box<dyn client::Talk> {
            Box::new(Http::new("/v1/acquire", ask, "\"admitted\":true"))
        };
        let grpc = || -> Box<dyn client::Talk> {
            Box::new(Grpc::new("/tollgate.v1.Gate/Acquire", b"\x0a\x03one", 2, &[]))
        };
        let pace = Pace::Closed(4);
        client::run(server.resp, &resp, 50, pace, INTERVAL / 3);
        client::run(server.http, &http, 50, Pace::Closed(1), INTERVAL / 3);
        client::run(server.grpc, &grpc, 50, pace, INTERVAL / 3);
        sizes.push(server.resident());
    }
    let text = sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    // Allocators return memory late, so the maximum of each third counts.
    let most = |third: usize| {
        let sizes = &sizes[third * INTERVALS / 3..(third + 1) * INTERVALS / 3];
        sizes.iter().max().copied().unwrap_or_default()
    };
    let growth = most(2).saturating_sub(most(1));
    let verdict = if growth <= NOISE_KIB { "ok" } else { "MISSED" };
    println!("  soak, KiB resident every {} s: {text}", INTERVAL.as_secs());
    println!("  growth from its second to its last third: {growth} KiB <= {NOISE_KIB}: {verdict}");
}

fn keys(server: &Server) {
    let before = server.resident();
    let at = server.resp;
    let done = Command::new("redis-benchmark")
        .args(["-h", &at.ip().to_string(), "-p", &at.port().to_string(), "-c", "50", "-P", "64"])
        .args(["-n", &MANY_ASKS.to_string(), "-r", &MANY_KEYS.to_string()])
        .args(["CL.THROTTLE", "many:__rand_int__", "1000", "1", "3600"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(done.is_ok_and(|status| status.success()), "redis-benchmark runs");
    let with_keys = server.resident();
    println!(
        "  {MANY_KEYS} keys more: {with_keys} KiB resident, {} KiB more",
        with_keys.saturating_sub(before)
    );
}
