//! The Redis protocol: `CL.THROTTLE` beside plain `INCR` and a minimal script on a real Redis, and beside throttlecrab-server,
//! all of them asked by redis-benchmark. Servers are processes of their own, and take turns.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tollgate::{
    Atomic, CalendarWindow, Limit, Memory, Period, Policies, Policy, RollingWindow, Span,
    SystemClock, TokenBucket,
};
use tollgate_server::{App, Listeners};
use tollgate_testing::servers::{self, Port};

use crate::measure::median;
use crate::redis::SCRIPT;

/// What this program is called with to be a server.
pub(crate) const SERVER: &str = "resp-server";

const CONNECTIONS: usize = 50;
const KEYS: usize = 100_000;
const ROUNDS: usize = 7;
/// Commands of one turn: about half a second each.
const COMMANDS: [(usize, usize); 2] = [(1, 30_000), (16, 250_000)];

const IDLE_CONNECTIONS: usize = 10_000;
const MANY_KEYS: usize = 1_000_000;
/// With so many asks on random keys, 98 of 100 keys were asked for.
const MANY_ASKS: usize = 4_000_000;

const THROTTLECRAB: &str = "target/servers/bin/throttlecrab-server";

/// One contender: where it is, and what it is asked.
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

const GOALS: [Goal; 3] =
    [Goal(OURS, INCR, [1.0, 0.6]), Goal(OURS, LUA, [0.0, 2.0]), Goal(OURS, CRAB, [1.3, 1.3])];

pub(crate) fn run() {
    println!("\n# The Redis protocol: {CONNECTIONS} connections, {KEYS} keys, redis-benchmark\n");
    let redis = servers::Redis::start().expect("a server");
    let ours = Server::start();
    let sha = redis.command(&["script", "load", SCRIPT]).expect("the server answers");
    let key = "key:__rand_int__";
    let mut lines = vec![
        Line::new(INCR, redis.address(), &format!("INCR {key}")),
        Line::new(LUA, redis.address(), &format!("EVALSHA {} 1 {key} 1 1000000", sha.trim())),
        Line::new(OURS, ours.at, &format!("CL.THROTTLE {key} 1000000 1000000 1")),
        Line::new(
            "TG.ACQUIRE, 3 limits, tollgate",
            ours.at,
            &format!("TG.ACQUIRE llm {key} COST tokens 100"),
        ),
    ];
    let crab = Throttlecrab::start();
    match &crab {
        Some(crab) => {
            lines.push(Line::new(CRAB, crab.at, &format!("THROTTLE {key} 1000000 1000000 1")));
        }
        None => println!("throttlecrab-server is not in target/servers and could not be installed"),
    }
    for (place, (pipeline, commands)) in COMMANDS.into_iter().enumerate() {
        compare(&lines, pipeline, commands, place);
    }
    drop(crab);
    memory(&ours);
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
        for Goal(of, peer, least) in &GOALS {
            let Some(peer_place) = lines.iter().position(|line| line.name == *peer) else {
                continue;
            };
            if *of != line.name || least[goal] == 0.0 {
                continue;
            }
            let found = ratio(place, peer_place);
            let verdict = if least[goal] <= found { "ok" } else { "MISSED" };
            print!("   {found:.2} of {peer} >= {:.1}: {verdict}", least[goal]);
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

/// What idle connections and many keys cost.
fn memory(server: &Server) {
    let before = server.resident();
    raise_files();
    let idle: Vec<TcpStream> =
        (0..IDLE_CONNECTIONS).map_while(|_| TcpStream::connect(server.at).ok()).collect();
    // One that is served came after all of them.
    let line = Line::new("ping", server.at, "PING");
    benchmark(&line, 1, 100, 1);
    let with_idle = server.resident();
    let per = (with_idle - before) as f64 / idle.len().max(1) as f64;
    println!("  {} idle connections: {with_idle} KiB resident, {per:.2} KiB each", idle.len());
    drop(idle);
    let before = server.resident();
    let many = Line::new("many", server.at, "CL.THROTTLE many:__rand_int__ 1000000 1 1000000");
    benchmark(&many, 64, MANY_ASKS, MANY_KEYS);
    let with_keys = server.resident();
    println!(
        "  {MANY_KEYS} keys: {with_keys} KiB resident, {} KiB more",
        with_keys.saturating_sub(before)
    );
}

/// As many open files as this user may have.
fn raise_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        println!("  could not raise the number of open files: {error}");
    }
}

/// tollgate on the memory store, as a process of its own.
struct Server {
    child: Child,
    at: SocketAddr,
}

impl Server {
    fn start() -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut child = Command::new(program)
            .arg(SERVER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut line).expect("it says where it is");
        let at = line.trim().parse().expect("an address");
        Self { child, at }
    }

    /// The resident memory in KiB.
    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).expect("a number")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves until its input ends.
pub(crate) fn serve() {
    raise_files();
    let minute = Span::from_mins(1);
    let limits = [
        Limit::new("rps", "requests", TokenBucket::per_second(1_000_000).burst(1_000_000)),
        Limit::new("tpm", "tokens", RollingWindow::new(1 << 50, minute).resolution(12)),
        Limit::new("rpd", "requests", CalendarWindow::new(1 << 50, Period::Day)),
    ];
    let policies = Policies::new([Policy::new("llm", limits).expect("a valid policy")]);
    // As `tollgate serve` has it.
    let runtime = Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let gate = Arc::new(Atomic::new(Memory::with(Arc::new(SystemClock), 2 * MANY_KEYS)));
        let app = App::new(gate, policies.expect("one policy"), [7; 32], Arc::new(SystemClock));
        let http = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let resp = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("{}", resp.local_addr().expect("an address"));
        let ended = tokio::task::spawn_blocking(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
        });
        tollgate_server::run(Listeners::http(http).resp(resp), app, async {
            let _ = ended.await;
        })
        .await;
    });
}

/// The peer, installed on first use.
struct Throttlecrab {
    child: Child,
    at: SocketAddr,
    _port: Port,
}

impl Throttlecrab {
    fn start() -> Option<Self> {
        if !Path::new(THROTTLECRAB).exists() {
            let mut cargo = Command::new("cargo");
            let root = ["--locked", "--root", "target/servers"];
            let done = cargo.args(["install", "throttlecrab-server"]).args(root).status();
            if !done.is_ok_and(|status| status.success()) {
                return None;
            }
        }
        let port = Port::free().expect("a port");
        let number = port.number();
        let mut child = Command::new(THROTTLECRAB)
            .args(["--redis", "--redis-host", "127.0.0.1", "--redis-port", &number.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let at = SocketAddr::from(([127, 0, 0, 1], number));
        for _ in 0..200 {
            if TcpStream::connect(at).is_ok() {
                return Some(Self { child, at, _port: port });
            }
            std::thread::sleep(std::time::Duration::from_millis(25));
        }
        let _ = child.kill();
        let _ = child.wait();
        None
    }
}

impl Drop for Throttlecrab {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
