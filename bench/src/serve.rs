//! HTTP, gRPC and the Redis protocol beside throttlecrab-server's: the rate at saturation, and latencies at half of it.
//!
//! One limit, and the same client for both. At saturation the two take turns, and the ratio is the median of the ratios of
//! the rounds. Half of the rate is each server's own.

use std::net::SocketAddr;
use std::time::Duration;

use crate::client::{self, Figures, Grpc, Http, Pace, Resp, Talk};
use crate::measure::median;
use crate::peers::{Server, Side, run_on};

const ROUNDS: usize = 7;
const TURN: Duration = Duration::from_millis(1_000);
const OPEN_ROUNDS: usize = 3;
const OPEN_TURN: Duration = Duration::from_secs(3);

/// What a server is asked over one protocol.
struct Face<'a> {
    name: &'static str,
    at: SocketAddr,
    server: &'a Server,
    talk: Box<dyn Fn() -> Box<dyn Talk>>,
}

/// Two servers over one protocol, and how.
struct Pair<'a> {
    faces: [Face<'a>; 2],
    connections: usize,
    /// Requests on the way on each of them.
    depth: usize,
    least: f64,
}

pub(crate) fn run() {
    println!(
        "\n# HTTP, gRPC and the Redis protocol beside throttlecrab-server, one limit, {} keys",
        client::KEYS
    );
    run_on(Side::Servers);
    let ours = Server::tollgate();
    let crab = Server::throttlecrab();
    run_on(Side::Clients);
    if let Some(crab) = &crab {
        for pair in [http(&ours, crab), grpc(&ours, crab), resp(&ours, crab)] {
            compare(&pair);
        }
    }
    run_on(Side::Both);
}

fn face<'a, T: Talk + 'static>(
    name: &'static str,
    server: &'a Server,
    at: SocketAddr,
    talk: impl Fn() -> T + 'static,
) -> Face<'a> {
    Face { name, at, server, talk: Box::new(move || Box::new(talk())) }
}

fn http<'a>(ours: &'a Server, crab: &'a Server) -> Pair<'a> {
    let ask = [r#"{"policy": "one", "subject": ""#, r#""}"#];
    let throttle = [
        r#"{"key": ""#,
        r#"", "max_burst": 1000000, "count_per_period": 1000000, "period": 1, "quantity": 1}"#,
    ];
    Pair {
        faces: [
            face("HTTP, tollgate", ours, ours.http, move || {
                Http::new("/v1/acquire", ask, "\"admitted\":true")
            }),
            face("HTTP, throttlecrab", crab, crab.http, move || {
                Http::new("/throttle", throttle, "\"allowed\":true")
            }),
        ],
        connections: 50,
        depth: 1,
        least: 1.1,
    }
}

fn grpc<'a>(ours: &'a Server, crab: &'a Server) -> Pair<'a> {
    // The policy in field 1, the subject in field 2.
    const POLICY: &[u8] = b"\x0a\x03one";
    // A million, a million, 1 and 1 in the fields 2 to 5.
    const NUMBERS: &[u8] = b"\x10\xc0\x84\x3d\x18\xc0\x84\x3d\x20\x01\x28\x01";
    Pair {
        faces: [
            face("gRPC, tollgate", ours, ours.grpc, || {
                Grpc::new("/tollgate.v1.Gate/Acquire", POLICY, 2, &[])
            }),
            face("gRPC, throttlecrab", crab, crab.grpc, || {
                Grpc::new("/throttlecrab.RateLimiter/Throttle", &[], 1, NUMBERS)
            }),
        ],
        connections: 10,
        depth: 5,
        least: 1.1,
    }
}

fn resp<'a>(ours: &'a Server, crab: &'a Server) -> Pair<'a> {
    Pair {
        faces: [
            face("Redis protocol, tollgate", ours, ours.resp, || Resp::new("CL.THROTTLE")),
            face("Redis protocol, throttlecrab", crab, crab.resp, || Resp::new("THROTTLE")),
        ],
        connections: 50,
        depth: 1,
        least: 1.3,
    }
}

fn compare(Pair { faces, connections, depth, least }: &Pair<'_>) {
    println!("\n{connections} connections, {depth} on the way on each");
    let ask =
        |face: &Face<'_>, pace, time| client::run(face.at, &*face.talk, *connections, pace, time);
    let mut rates = [Vec::new(), Vec::new()];
    let mut costs = [Vec::new(), Vec::new()];
    for round in 0..=ROUNDS {
        for (place, face) in faces.iter().enumerate() {
            let before = face.server.ticks();
            let Figures { rate, .. } = ask(face, Pace::Closed(*depth), TURN);
            // A tick is 10 ms.
            let micros = (face.server.ticks() - before) as f64 * 10_000.0;
            // The first round warms everything up.
            if 0 < round {
                rates[place].push(rate);
                costs[place].push(micros / (rate * TURN.as_secs_f64()));
            }
        }
    }
    let ratios = rates[0].iter().zip(&rates[1]).map(|(ours, peer)| ours / peer).collect();
    let ratio = median(ratios);
    let verdict = if *least <= ratio { "ok" } else { "MISSED" };
    for (place, face) in faces.iter().enumerate() {
        let rate = median(rates[place].clone());
        let mut latencies = [Vec::new(), Vec::new()];
        for _ in 0..OPEN_ROUNDS {
            let Figures { p50, p99, .. } = ask(face, Pace::Open(rate / 2.0), OPEN_TURN);
            latencies[0].push(p50);
            latencies[1].push(p99);
        }
        let [p50, p99] = latencies.map(median);
        print!(
            "  {:<29} {rate:>8.0} /s   {:>5.1} us of processor   at {:>6.0} /s: p50 {p50:>5.0} us, p99 {p99:>6.0} us",
            face.name,
            median(costs[place].clone()),
            rate / 2.0,
        );
        println!(
            "{}",
            if place == 0 {
                format!("   {ratio:.2} >= {least:.1}: {verdict}")
            } else {
                String::new()
            }
        );
    }
}
