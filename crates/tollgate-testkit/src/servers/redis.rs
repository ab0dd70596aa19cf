//! Redis: a single server, and a cluster of three.

use std::net::SocketAddr;

use super::process::{eventually, nap};
use super::shared::shared;
use super::{Authority, Fault, Port, Process, Program, free_ports, run};

const NODES: usize = 3;
/// How often the cluster is asked whether it is ready.
const READY_LOOKS_MAX: u32 = 6_000;

/// Persistence of a Redis server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Append {
    /// None: a restart starts empty.
    Never,
    /// Every write is synced before the reply (`appendfsync always`).
    Always,
}

#[derive(Debug)]
pub struct Redis {
    process: Process,
    tls: Option<Tls>,
}

impl Redis {
    /// Starts a server that keeps nothing on disk.
    pub fn start() -> Result<Self, Fault> {
        Self::start_with(Append::Never, "")
    }

    /// Starts a server with further arguments, such as `--requirepass secret`.
    pub fn start_with(append: Append, arguments: &str) -> Result<Self, Fault> {
        let (port, folder) = (Port::free()?, folder()?);
        let mut program = server(&port, &folder, append);
        if !arguments.is_empty() {
            program = program.args(arguments);
        }
        Ok(Self { process: Process::start(program, port, folder)?, tls: None })
    }

    /// Starts a replica of this server, and waits until it has what this one has.
    pub fn start_replica(&self) -> Result<Self, Fault> {
        self.command(&["config", "set", "repl-diskless-sync-delay", "0"])?;
        let address = self.address();
        let arguments = format!("--replicaof {} {}", address.ip(), address.port());
        let replica = Self::start_with(Append::Never, &arguments)?;
        let follows = || {
            let role = replica.command(&["info", "replication"]).ok()?;
            let seen = self.command(&["info", "replication"]).ok()?;
            let port = format!("port={},state=online", replica.address().port());
            (role.contains("master_link_status:up") && seen.contains(&port)).then_some(())
        };
        eventually(follows).ok_or_else(|| Fault::new("the replica does not follow"))?;
        Ok(replica)
    }

    /// Makes this server a replica of `primary`, which becomes a primary.
    pub fn yield_to(&self, primary: &Self) -> Result<(), Fault> {
        let address = primary.address();
        primary.command(&["replicaof", "no", "one"])?;
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        self.command(&["replicaof", &host, &port]).map(drop)
    }

    /// Starts a server that speaks only TLS, with a certificate by `authority`. Its url begins with `rediss://`.
    pub fn start_tls(authority: &Authority) -> Result<Self, Fault> {
        Self::start_tls_with(authority, "")
    }

    /// The same, with further arguments. A replica follows its primary over TLS.
    pub fn start_tls_with(authority: &Authority, arguments: &str) -> Result<Self, Fault> {
        let (port, folder) = (Port::free()?, folder()?);
        let tls = Tls::issue(authority, &folder)?;
        let mut program = server(&port, &folder, Append::Never);
        for (name, value) in tls.settings(&port) {
            program = program.arg(format!("--{name}")).arg(value);
        }
        if !arguments.is_empty() {
            program = program.args(arguments);
        }
        Ok(Self { process: Process::start(program, port, folder)?, tls: Some(tls) })
    }

    /// Returns the URL, without credentials.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{}/", self.process.address())
    }

    /// Its address, for a proxy in front of it.
    pub fn address(&self) -> SocketAddr {
        self.process.address()
    }

    pub const fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Runs one command through `redis-cli` and returns its output.
    pub fn command(&self, words: &[&str]) -> Result<String, Fault> {
        let options = self.tls.iter().flat_map(Tls::options);
        command(self.process.port(), options.chain(words.iter().copied()))
    }
}

/// The files of a server that speaks only TLS.
#[derive(Debug)]
struct Tls {
    certificate: String,
    key: String,
    authority: String,
}

impl Tls {
    fn issue(authority: &Authority, folder: &tempfile::TempDir) -> Result<Self, Fault> {
        authority.issue(folder.path())?;
        let path = |name| folder.path().join(name).display().to_string();
        let (certificate, key) = (path("server.crt"), path("server.key"));
        let file = path("authority.crt");
        std::fs::write(&file, authority.pem())
            .map_err(|error| Fault::new(format!("could not write {file}: {error}")))?;
        Ok(Self { certificate, key, authority: file })
    }

    fn settings(&self, port: &Port) -> [(&'static str, String); 7] {
        [
            ("port", "0".to_owned()),
            ("tls-port", port.number().to_string()),
            ("tls-auth-clients", "no".to_owned()),
            ("tls-replication", "yes".to_owned()),
            ("tls-cert-file", self.certificate.clone()),
            ("tls-key-file", self.key.clone()),
            ("tls-ca-cert-file", self.authority.clone()),
        ]
    }

    /// Options of `redis-cli`.
    fn options(&self) -> [&str; 3] {
        ["--tls", "--cacert", &self.authority]
    }
}

/// A sentinel with a quorum of one, which watches one primary.
#[derive(Debug)]
pub struct RedisSentinel {
    process: Process,
    /// Options of `redis-cli`.
    options: Vec<String>,
}

impl RedisSentinel {
    pub const MASTER: &str = "mymaster";

    /// Starts a sentinel for `primary`, with further lines of its configuration.
    pub fn start(primary: &Redis, lines: &str) -> Result<Self, Fault> {
        Self::launch(primary, lines, "", None)
    }

    /// The same, with a password of its own (`requirepass`).
    pub fn start_with_password(
        primary: &Redis,
        lines: &str,
        password: &str,
    ) -> Result<Self, Fault> {
        Self::launch(primary, &format!("requirepass {password}\n{lines}"), password, None)
    }

    /// Starts a sentinel that speaks only TLS, also with `primary`.
    pub fn start_tls(primary: &Redis, authority: &Authority) -> Result<Self, Fault> {
        Self::launch(primary, "", "", Some(authority))
    }

    fn launch(
        primary: &Redis,
        lines: &str,
        password: &str,
        authority: Option<&Authority>,
    ) -> Result<Self, Fault> {
        let (port, folder) = (Port::free()?, folder()?);
        let tls = authority.map(|authority| Tls::issue(authority, &folder)).transpose()?;
        let settings = tls.as_ref().map_or_else(
            || format!("port {}", port.number()),
            |tls| {
                let lines = tls.settings(&port).map(|(name, value)| format!("{name} {value}"));
                lines.join("\n")
            },
        );
        let mut options: Vec<String> =
            tls.iter().flat_map(Tls::options).map(str::to_owned).collect();
        if !password.is_empty() {
            options.extend(["-a", password].map(str::to_owned));
        }
        let (name, address) = (Self::MASTER, primary.address());
        let text = format!(
            "{settings}\nbind 127.0.0.1\ndir {}\nsentinel monitor {name} {} {} 1\n\
             sentinel down-after-milliseconds {name} 1000\nsentinel failover-timeout {name} 4000\n{lines}\n",
            folder.path().display(),
            address.ip(),
            address.port(),
        );
        let path = folder.path().join("sentinel.conf");
        std::fs::write(&path, text)
            .map_err(|error| Fault::new(format!("could not write {}: {error}", path.display())))?;
        let program = Program::new("redis-server").arg(path.display().to_string());
        let process = Process::start(program.arg("--sentinel"), port, folder)?;
        let sentinel = Self { process, options };
        // It looks at the servers every ten seconds otherwise, and demotes an old primary after four periods of two seconds.
        sentinel.command(&["sentinel", "debug", "info-period", "200", "publish-period", "200"])?;
        Ok(sentinel)
    }

    pub fn address(&self) -> SocketAddr {
        self.process.address()
    }

    /// Runs one command through `redis-cli` and returns its output.
    pub fn command(&self, words: &[&str]) -> Result<String, Fault> {
        let options = self.options.iter().map(String::as_str);
        command(self.process.port(), options.chain(words.iter().copied()))
    }

    /// Waits until it knows `replica` as one that can be promoted.
    pub fn await_replica(&self, replica: &Redis) -> Result<(), Fault> {
        // Its own port, not that of its primary: during a failover the old primary is still in `master-port`.
        let port = format!("\nport\n{}\n", replica.address().port());
        let knows = || {
            let known = self.command(&["sentinel", "replicas", Self::MASTER]).ok()?;
            let is_linked = known.contains("master-link-status\nok");
            (known.contains(&port) && is_linked && !known.contains("s_down")).then_some(())
        };
        eventually(knows).ok_or_else(|| Fault::new("the sentinel does not know the replica"))
    }

    /// Waits until it says that `server` is the primary.
    pub fn await_primary(&self, server: &Redis) -> Result<(), Fault> {
        let port = server.address().port().to_string();
        let words = ["sentinel", "get-master-addr-by-name", Self::MASTER];
        let says = || self.command(&words).ok()?.contains(&port).then_some(());
        eventually(says).ok_or_else(|| Fault::new("the sentinel knows another primary"))
    }
}

/// Three masters, with or without replicas.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Process>,
    replicas: usize,
}

impl RedisCluster {
    /// Starts three masters and joins them.
    pub fn start() -> Result<Self, Fault> {
        Self::start_with_replicas(0)
    }

    /// Starts three masters with so many replicas each, and joins them.
    pub fn start_with_replicas(replicas: usize) -> Result<Self, Fault> {
        let ports = free_ports(NODES * (1 + replicas))?;
        let nodes: Result<Vec<Process>, Fault> = ports.into_iter().map(node).collect();
        let cluster = Self { nodes: nodes?, replicas };
        let mut create = Program::new("redis-cli").args("--cluster create");
        for node in &cluster.nodes {
            create = create.arg(node.address().to_string());
        }
        run(&create.args(&format!("--cluster-replicas {replicas} --cluster-yes")))?;
        cluster.wait_until_ready()?;
        Ok(cluster)
    }

    /// Starts a cluster that all tests of this run share, and returns where its nodes are.
    pub fn shared() -> Result<Vec<String>, Fault> {
        let start = || Self::start().map(|cluster| (cluster.urls().join(" "), cluster.nodes));
        Ok(shared("redis-cluster", start)?.split(' ').map(str::to_owned).collect())
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("redis://{}/", node.address())).collect()
    }

    pub fn processes(&mut self) -> &mut [Process] {
        &mut self.nodes
    }

    /// Runs one command on one node through `redis-cli` and returns its output.
    pub fn command(&self, node: usize, words: &[&str]) -> Result<String, Fault> {
        let process = self.nodes.get(node);
        let process = process.ok_or_else(|| Fault::new(format!("there is no node {node}")))?;
        command(process.port(), words.iter().copied())
    }

    /// Waits until every node knows all others and serves every slot, and every replica follows its master. A node that
    /// was not introduced by then would stay unknown if the node that knows it dies.
    fn wait_until_ready(&self) -> Result<(), Fault> {
        for node in &self.nodes {
            let mut looks = 0;
            while !self.is_ready(node.port())? {
                looks += 1;
                if looks == READY_LOOKS_MAX {
                    return Err(Fault::new("the Redis cluster did not become ready"));
                }
                nap();
            }
        }
        Ok(())
    }

    fn is_ready(&self, port: u16) -> Result<bool, Fault> {
        let known = command(port, ["cluster", "nodes"])?;
        let knows_all = known.lines().filter(|line| line.contains(" connected")).count()
            == self.nodes.len()
            && !known.contains("handshake");
        let serves = command(port, ["cluster", "info"])?.contains("cluster_state:ok");
        let role = command(port, ["info", "replication"])?;
        let follows = role.contains("master_link_status:up");
        let followed = role.matches("state=online").count() == self.replicas;
        Ok(knows_all && serves && (follows || (role.contains("role:master") && followed)))
    }
}

fn node(port: Port) -> Result<Process, Fault> {
    let folder = folder()?;
    let program = server(&port, &folder, Append::Never)
        // With a shorter timeout, nodes that meet on a busy machine give each other up.
        .args("--cluster-enabled yes --cluster-node-timeout 10000 --cluster-config-file nodes.conf")
        // A replica is in step at once instead of after five seconds.
        .args("--repl-diskless-sync-delay 0");
    Process::start(program, port, folder)
}

fn server(port: &Port, folder: &tempfile::TempDir, append: Append) -> Program {
    let program = Program::new("redis-server")
        .args(&format!("--port {} --bind 127.0.0.1 --save", port.number()))
        .arg("")
        .arg("--dir")
        .arg(folder.path().display().to_string());
    match append {
        Append::Never => program.args("--appendonly no"),
        Append::Always => program.args("--appendonly yes --appendfsync always"),
    }
}

fn command<'a>(port: u16, words: impl IntoIterator<Item = &'a str>) -> Result<String, Fault> {
    let mut program = Program::new("redis-cli").args(&format!("-p {port}"));
    for word in words {
        program = program.arg(word);
    }
    run(&program)
}

fn folder() -> Result<tempfile::TempDir, Fault> {
    tempfile::Builder::new()
        .prefix("tollgate-redis-")
        .tempdir()
        .map_err(|error| Fault::new(format!("could not make a temporary folder: {error}")))
}
