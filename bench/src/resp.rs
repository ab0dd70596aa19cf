//! The Redis protocol: `CL.THROTTLE` beside plain `INCR` and a minimal script on a real Redis, and beside throttlecrab-server,
//! all of them asked by redis-benchmark, in turns. A server that decides nothing shows how much redis-benchmark can do.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use tollgate_testkit::servers;

use crate::constant;
use crate::measure::median;
use crate::peers::{Server, Side, run_on};
use crate::redis::SCRIPT;

const CONNECTIONS: usize = 50;
const KEYS: usize = 100_000;
const ROUNDS: usize = 7;
/// Commands of one turn: about half a second each.
const COMMANDS: [(usize, usize); 2] = [(1, 30_000), (16, 250_000)];

/// One contender: its address and its command.
struct Line {
    name: &'static str,
    at: SocketAddr,
    command: Vec<String>,
}

impl Line {
    fn new(name: &'static str, at: SocketAddr, command: &str) -> Self {
        Self { name, at, command: command.split(' ').map(str::to_owned).collect() }
    }
}

/// A ratio that must be reached: of which line to which, without pipelining and with it.
struct Goal(&'static str, &'static str, [f64; 2]);

const OURS: &str = "CL.THROTTLE, tollgate";
const INCR: &str = "INCR, Redis";
const LUA: &str = "minimal script, Redis";
const CRAB: &str = "THROTTLE, throttlecrab";
const BOUND: &str = "a constant answer";

const GOALS: [Goal; 3] =
    [Goal(OURS, INCR, [1.0, 0.6]), Goal(OURS, LUA, [0.0, 2.0]), Goal(OURS, CRAB, [1.3, 1.3])];

/// What bounds a goal: of which line to which.
const BOUNDS: [(&str, &str); 2] = [(BOUND, CRAB), (OURS, BOUND)];

pub(crate) fn run() {
    println!("\n# The Redis protocol: {CONNECTIONS} connections, {KEYS} keys, redis-benchmark\n");
    run_on(Side::Servers);
    let redis = servers::Redis::start().expect("a server");
    let ours = Server::tollgate();
    let crab = Server::throttlecrab();
    let constant = constant::start();
    run_on(Side::Clients);
    let sha = redis.command(&["script", "load", SCRIPT]).expect("the server answers");
    let key = "key:__rand_int__";
    let mut lines = vec![
        Line::new(INCR, redis.address(), &format!("INCR {key}")),
        Line::new(LUA, redis.address(), &format!("EVALSHA {} 1 {key} 1 1000000", sha.trim())),
        Line::new(OURS, ours.resp, &format!("CL.THROTTLE {key} 1000000 1000000 1")),
        Line::new(
            "TG.ACQUIRE, 3 limits, tollgate",
            ours.resp,
            &format!("TG.ACQUIRE llm {key} COST tokens 100"),
        ),
        Line::new(BOUND, constant, &format!("CL.THROTTLE {key} 1000000 1000000 1")),
    ];
    if let Some(crab) = &crab {
        lines.push(Line::new(CRAB, crab.resp, &format!("THROTTLE {key} 1000000 1000000 1")));
    }
    for (place, (pipeline, commands)) in COMMANDS.into_iter().enumerate() {
        compare(&lines, pipeline, commands, place);
    }
    run_on(Side::Both);
}

/// Lets all lines take turns, and prints rates, ratios and what redis-benchmark says about latency.
fn compare(lines: &[Line], pipeline: usize, commands: usize, goal: usize) {
    println!("{pipeline} at once");
    let mut rates = vec![Vec::new(); lines.len()];
    let mut p99s = vec![Vec::new(); lines.len()];
    for round in 0..=ROUNDS {
        for (place, line) in lines.iter().enumerate() {
            let (rate, p99) = benchmark(line, pipeline, commands, KEYS);
            // The first round warms everything up.
            if 0 < round {
                rates[place].push(rate);
                p99s[place].push(p99);
            }
        }
    }
    let ratio = |line: usize, peer: usize| {
        median(rates[line].iter().zip(&rates[peer]).map(|(rate, peer)| rate / peer).collect())
    };
    for (place, line) in lines.iter().enumerate() {
        let (rate, p99) = (median(rates[place].clone()), median(p99s[place].clone()));
        print!(
            "  {:<32} {rate:>9.0} /s   p99 {p99:>6.2} ms   {:>5.2} of {INCR}",
            line.name,
            ratio(place, 0)
        );
        let ratio_to = |of: &str, peer: &str| {
            let peer = lines.iter().position(|line| line.name == peer);
            peer.filter(|_| of == line.name).map(|peer| ratio(place, peer))
        };
        for Goal(of, peer, least) in GOALS.iter().filter(|Goal(_, _, least)| 0.0 < least[goal]) {
            if let Some(found) = ratio_to(of, peer) {
                let verdict = if least[goal] <= found { "ok" } else { "MISSED" };
                print!("   {found:.2} of {peer} >= {:.1}: {verdict}", least[goal]);
            }
        }
        for (of, peer) in BOUNDS {
            if let Some(found) = ratio_to(of, peer) {
                print!("   {found:.2} of {peer}");
            }
        }
        println!();
    }
}

/// Commands per second, and the 99th of 100 latencies in milliseconds at that rate.
fn benchmark(line: &Line, pipeline: usize, commands: usize, keys: usize) -> (f64, f64) {
    let output = Command::new("redis-benchmark")
        .args(["-h", &line.at.ip().to_string(), "-p", &line.at.port().to_string(), "--csv"])
        .args(["-c", &CONNECTIONS.to_string(), "-n", &commands.to_string()])
        .args(["-r", &keys.to_string(), "-P", &pipeline.to_string()])
        .args(&line.command)
        .stderr(Stdio::null())
        .output()
        .expect("redis-benchmark runs");
    let text = String::from_utf8_lossy(&output.stdout);
    // "test","rps","avg","min","p50","p95","p99","max"
    let last = text.lines().last().unwrap_or_default();
    let figures: Vec<f64> = last
        .split("\",\"")
        .skip(1)
        .map(|figure| figure.trim_matches('"').parse().unwrap_or(f64::NAN))
        .collect();
    assert!(6 <= figures.len() && figures[0].is_finite(), "{}: {text}", line.name);
    (figures[0], figures[5])
}
