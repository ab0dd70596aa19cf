//! The servers that are compared: tollgate on the memory store and throttlecrab-server, each a process of its own, and which
//! processor who runs on.
//!
//! With two processors or more, servers share the first and clients the second, whoever they are; what a process starts
//! runs where it runs itself.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tollgate_testkit::servers::Port;

/// The broker is a separate program, because this one counts its allocations.
const BROKER: &str = "tollgate-bench-broker";

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

/// Pins this process and its future children to `side`.
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

/// A process that answers, on three ports.
pub(crate) struct Server {
    child: Child,
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) resp: SocketAddr,
    _ports: Vec<Port>,
}

impl Server {
    /// A broker as `tollgate serve` runs it.
    pub(crate) fn tollgate() -> Self {
        let built = Command::new("cargo")
            .args(["build", "--quiet", "--release", "-p", "tollgate-bench", "--bin", BROKER])
            .status();
        assert!(built.is_ok_and(|status| status.success()), "the broker builds");
        let program = std::env::current_exe().expect("this program has a path");
        let mut child = Command::new(program.with_file_name(BROKER))
            .arg(KEYS_MAX.to_string())
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
            // It listens on every interface by default.
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
        resident(&self.child)
    }

    /// The processor time that it has taken, in ticks.
    pub(crate) fn ticks(&self) -> u64 {
        ticks(&self.child)
    }
}

/// The resident memory of a process in KiB.
pub(crate) fn resident(process: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id()));
    let status = status.expect("the server runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).expect("a number")
}

/// The processor time that a process has taken, in ticks of 10 ms.
pub(crate) fn ticks(process: &Child) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id()));
    let stat = stat.expect("the server runs");
    // Behind the name, which may have spaces: the 12th and 13th field are user and system time.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
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
