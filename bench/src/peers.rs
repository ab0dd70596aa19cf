//! The servers that are compared: tollgate on the memory store and throttlecrab-server, each a process of its own, and which
//! processor who runs on.
//!
//! With two processors or more, servers share the first and clients the second, whoever they are; what a process starts
//! runs where it runs itself.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tollgate::incident::Recorder;
use tollgate::{
    Atomic, CalendarWindow, Clock, Gate, Limit, Memory, Observed, Period, Policies, Policy,
    RollingWindow, Span, SystemClock, TokenBucket,
};
use tollgate_server::{App, Listeners};
use tollgate_telemetry::Telemetry;
use tollgate_testing::servers::Port;

/// What this program is called with to be a server.
pub(crate) const SERVER: &str = "broker";

/// The most keys that the store of a server has room for.
pub(crate) const KEYS_MAX: usize = 2_000_000;

const THROTTLECRAB: &str = "target/servers/bin/throttlecrab-server";

/// Where the sides of a comparison run.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Servers,
    Clients,
    /// Wherever the machine likes.
    Both,
}

/// Runs this process, and what it starts from now on, on `side`.
pub(crate) fn run_on(side: Side) {
    thread_local!(static ALL: CpuSet = sched_getaffinity(None).expect("a process runs somewhere"));
    let all = ALL.with(|all| *all);
    let mut places = (0..CpuSet::MAX_CPU).filter(|place| all.is_set(*place));
    let places = (places.next(), places.next());
    let mut set = CpuSet::new();
    match (side, places) {
        (Side::Servers, (Some(place), Some(_))) | (Side::Clients, (_, Some(place))) => {
            set.set(place);
        }
        _ => set = all,
    }
    sched_setaffinity(None, &set).expect("one of those that there are");
}

/// As many open files as this user may have.
pub(crate) fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        println!("  could not raise the number of open files: {error}");
    }
}

/// A process that answers, on three ports.
pub(crate) struct Server {
    child: Child,
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) resp: SocketAddr,
    _ports: Vec<Port>,
}

impl Server {
    /// This program as a broker.
    pub(crate) fn tollgate() -> Self {
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
        let at: Vec<SocketAddr> =
            line.split_whitespace().map(|at| at.parse().expect("an address")).collect();
        Self { child, http: at[0], grpc: at[1], resp: at[2], _ports: Vec::new() }
    }

    /// The peer, installed on first use.
    pub(crate) fn throttlecrab() -> Option<Self> {
        if !Path::new(THROTTLECRAB).exists() && !install_throttlecrab() {
            println!("throttlecrab-server could not be installed into target/servers");
            return None;
        }
        let ports = [0; 3].map(|_| Port::free().expect("a port"));
        let mut command = Command::new(THROTTLECRAB);
        for (name, port) in ["http", "grpc", "redis"].iter().zip(&ports) {
            command.arg(format!("--{name}"));
            // It listens on every interface unless it is told otherwise.
            command.args([format!("--{name}-host"), "127.0.0.1".to_owned()]);
            command.args([format!("--{name}-port"), port.number().to_string()]);
        }
        command.args(["--store-capacity", &KEYS_MAX.to_string(), "--log-level", "error"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        let [http, grpc, resp] =
            [0, 1, 2].map(|place: usize| SocketAddr::from(([127, 0, 0, 1], ports[place].number())));
        let server = Self { child, http, grpc, resp, _ports: ports.into() };
        for _ in 0..200 {
            if [http, grpc, resp].iter().all(|at| TcpStream::connect(at).is_ok()) {
                return Some(server);
            }
            std::thread::sleep(std::time::Duration::from_millis(25));
        }
        println!("throttlecrab-server does not listen");
        None
    }

    /// The resident memory in KiB.
    pub(crate) fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).expect("a number")
    }

    /// The processor time that it has taken, in ticks.
    pub(crate) fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        let stat = stat.expect("the server runs");
        // Behind the name, which may have spaces: the 12th and 13th field are user and system time.
        let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Its build needs protoc, which is a package of Debian's.
fn install_throttlecrab() -> bool {
    let run = |program: &str, words: &[&str]| {
        Command::new(program)
            .args(words)
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    if !run("protoc", &["--version"])
        && !run("apt-get", &["install", "-y", "-qq", "protobuf-compiler"])
    {
        println!("protoc is missing; install it, so that it is on the path");
        return false;
    }
    run("cargo", &["install", "throttlecrab-server@0.4.40", "--locked", "--root", "target/servers"])
}

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
pub(crate) fn serve() {
    raise_files();
    // The runtime, the metrics and what is remembered for incidents are those of `tollgate serve`.
    let runtime = Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let recorder = Arc::new(Recorder::new());
        let telemetry = Telemetry::builder(Arc::clone(&clock)).recorder(Arc::clone(&recorder));
        let (telemetry, _tasks) = telemetry.start();
        let gate: Arc<dyn Gate> = Arc::new(Atomic::new(Memory::with(Arc::clone(&clock), KEYS_MAX)));
        let gate = Observed::new(gate, Arc::clone(&telemetry) as _, Arc::clone(&clock));
        let app = App::new(Arc::new(gate), policies(), [7; 32], clock);
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
