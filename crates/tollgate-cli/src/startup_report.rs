//! The report that `tollgate serve` prints when it is ready: addresses, and an example call for each protocol.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tollgate::Ask;

use tollgate_config::{StoreConfig, StrategyConfig};

use crate::config::{ServeConfig, ServerConfig};
#[cfg(feature = "gateway")]
use crate::{config::GatewayConfig, gateway::GatewayReport};

/// The addresses, the store and the strategy of a broker.
#[derive(Debug, Serialize)]
pub(crate) struct StartupReport {
    pub(crate) http: String,
    /// The Redis protocol, if it is on.
    pub(crate) resp: Option<SocketAddr>,
    /// gRPC, if it is on.
    pub(crate) grpc: Option<String>,
    /// The gateway for LLM APIs, if there is one.
    #[cfg(feature = "gateway")]
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<GatewayReport>,
    dashboard: String,
    config: Option<PathBuf>,
    pub(crate) store: &'static str,
    /// The format that entries are written in, if it is not the newest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) format: Option<u8>,
    data: Option<PathBuf>,
    pub(crate) strategy: &'static str,
    /// The policies that the strategy does not apply to, and why.
    passed_through: BTreeMap<String, &'static str>,
    /// Whether calls need a key.
    #[serde(skip)]
    keys: bool,
    /// Whether it uses TLS.
    #[serde(skip)]
    tls: bool,
    /// Whether it requires client certificates.
    #[serde(skip)]
    client_certificates: bool,
    /// Whether other machines can call it without a key or a certificate.
    #[serde(skip)]
    open: bool,
}

impl StartupReport {
    /// Returns the report of a broker with HTTP at `http`.
    pub(crate) fn new(
        config: &ServeConfig,
        store: &StoreConfig,
        http: SocketAddr,
        open: bool,
    ) -> Self {
        let tls = config.server.tls.is_some();
        let url = url(http, tls);
        let (kind, data) = match store {
            StoreConfig::Memory { .. } => ("memory", None),
            StoreConfig::Embedded { path, .. } => ("embedded", Some(path.clone())),
            StoreConfig::Broker(_) => ("broker", None),
            StoreConfig::DynamoDb(_) => ("dynamodb", None),
            StoreConfig::Postgres(_) => ("postgres", None),
            StoreConfig::Redis(_) => ("redis", None),
        };
        Self {
            dashboard: format!("{url}/"),
            http: url,
            resp: None,
            grpc: None,
            #[cfg(feature = "gateway")]
            gateway: None,
            config: config.gates.document.file().map(Path::to_owned),
            store: kind,
            format: store.older_format(),
            strategy: config.gates.strategy.name(),
            passed_through: config
                .gates
                .policies
                .iter()
                .filter_map(|policy| {
                    let why = config.gates.strategy.passes_through(policy)?;
                    Some((policy.name().to_owned(), why))
                })
                .collect(),
            keys: !config.keys.is_empty(),
            tls,
            client_certificates: config.server.has_client_authority(),
            open,
            data,
        }
    }

    /// Adds gRPC at `address`.
    pub(crate) fn set_grpc(&mut self, address: SocketAddr) {
        self.grpc = Some(url(address, self.tls));
    }

    /// Adds the gateway of `config` at `address`.
    #[cfg(feature = "gateway")]
    pub(crate) fn set_gateway(&mut self, address: SocketAddr, config: &GatewayConfig) {
        self.gateway = Some(GatewayReport::new(url(address, self.tls), config));
    }

    /// Returns the URL of the gateway, if there is one.
    pub(crate) fn gateway_url(&self) -> Option<&str> {
        #[cfg(feature = "gateway")]
        return self.gateway.as_ref().map(|gateway| gateway.url.as_str());
        #[cfg(not(feature = "gateway"))]
        None
    }

    #[cfg(feature = "gateway")]
    fn gateway_line(&self) -> String {
        let line = |gateway: &GatewayReport| {
            format!("  gateway    {} ({})\n", gateway.url, gateway.dialects.join(", "))
        };
        self.gateway.as_ref().map(line).unwrap_or_default()
    }

    #[cfg(not(feature = "gateway"))]
    const fn gateway_line(&self) -> &'static str {
        ""
    }

    /// Formats the report of a drop-in for envoyproxy/ratelimit with further pages at `pages`.
    pub(crate) fn drop_in_text(&self, config: &ServeConfig, pages: &[SocketAddr]) -> String {
        let grpc = self.grpc.as_deref().unwrap_or("off");
        let folder = config.envoy.folder.as_deref().map(|folder| folder.display().to_string());
        let server = || {
            let server = &config.envoy.pushed.as_ref()?.server;
            Some(format!("{} (xDS, node {})", server.server.authority()?, server.node))
        };
        let limits = folder.or_else(server);
        let pages: Vec<String> = pages.iter().map(|at| format!("http://{at}")).collect();
        format!(
            "rate limit service\n  gRPC    {grpc}\n  HTTP    {} (/healthcheck, /json)\n  pages   {} (/rlconfig, /stats, metrics)\n  \
             limits  {}\n  store   {}",
            self.http,
            pages.join(", "),
            limits.unwrap_or_default(),
            self.store
        )
    }

    /// Formats the report.
    pub(crate) fn text(&self, config: &ServeConfig) -> String {
        let file = match &self.config {
            Some(file) => file.display().to_string(),
            None => "built-in sample policies; write a tollgate.toml for your own".to_owned(),
        };
        let data = match &self.data {
            Some(path) => path.display().to_string(),
            None if self.store == "memory" => "in memory, gone when the broker ends".to_owned(),
            None if self.store == "broker" => "at the configured broker".to_owned(),
            None => {
                let format = self.format.map(|format| format!(", in format {format}"));
                format!("on the configured {} server{}", self.store, format.unwrap_or_default())
            }
        };
        let strategy = self.strategy_text(config);
        let example = ExampleAsk::new(config);
        let ExampleAsk { policy, .. } = example;
        let (body, flag) = (example.body(), example.flag());
        let mut note = match (self.keys, self.open) {
            (true, _) => "TOLLGATE_KEY is a key, as tollgate keys new printed it.\n".to_owned(),
            (false, false) => String::new(),
            (false, true) => {
                "Calls need no key: anyone who reaches this address can use and reset quotas.\n"
                    .to_owned()
            }
        };
        if self.tls {
            note += "ca.crt is the authority of its certificate; leave it out if this machine trusts it anyway.\n";
        }
        if self.client_certificates {
            note +=
                "client.crt and client.key are a certificate by client_authority, and its key.\n";
        }
        let bearer = if self.keys { " -H \"authorization: Bearer $TOLLGATE_KEY\"" } else { "" };
        let Self { http, dashboard, .. } = self;
        let gateway = self.gateway_line();
        let curl = self.tls_flags(["--cacert", "--cert", "--key"]);
        let own = self.tls_flags(["--authority", "--client-cert", "--client-key"]);
        let (resp, try_resp) = self.resp.map_or_else(Default::default, |address| {
            (
                format!("  resp       {address}\n"),
                format!("  {}\n", self.redis_cli(address, example)),
            )
        });
        let (grpc, try_grpc) = self.grpc.as_deref().map_or_else(Default::default, |url| {
            (format!("  grpc       {url}\n"), format!("  {}\n", self.grpcurl(url, &body)))
        });
        format!(
            "tollgate {} serves\n\
             \x20 http       {http}\n\
             {resp}\
             {grpc}\
             {gateway}\
             \x20 dashboard  {dashboard}\n\
             \x20 config     {file}\n\
             \x20 data       {data}\n\
             \x20 strategy   {strategy}\n\
             Try it:\n\
             \x20 curl {http}/v1/acquire{curl}{bearer} -H 'content-type: application/json' -d '{body}'\n\
             \x20 tollgate acquire {policy} alice{flag} --server {http}{own}\n\
             {try_resp}\
             {try_grpc}\
             {note}Ctrl-C stops it.",
            env!("CARGO_PKG_VERSION")
        )
    }

    /// Formats the strategy, its bound, and the policies that it does not apply to.
    fn strategy_text(&self, config: &ServeConfig) -> String {
        let mut text = match &config.gates.strategy {
            StrategyConfig::Atomic => "atomic: the store decides every ask".to_owned(),
            StrategyConfig::Optimistic(options) => {
                let units = options.unposted_max_of.iter();
                let others: String =
                    units.map(|(unit, most)| format!(", {most} of {unit}")).collect();
                let most = options.unposted_max;
                format!("optimistic: over a limit by at most {most} for each broker{others}")
            }
            StrategyConfig::Leased(_) => "leased: blocks of tokens, never over".to_owned(),
        };
        for (policy, why) in &self.passed_through {
            text += &format!("\n\x20            {policy} is asked at the store each time: {why}");
        }
        text
    }

    /// Returns the TLS flags of a program, which has the given names for the authority, the certificate and the key.
    fn tls_flags(&self, [authority, certificate, key]: [&str; 3]) -> String {
        let mut flags = String::new();
        if self.tls {
            flags += &format!(" {authority} ca.crt");
        }
        if self.client_certificates {
            flags += &format!(" {certificate} client.crt {key} client.key");
        }
        flags
    }

    fn redis_cli(
        &self,
        address: SocketAddr,
        ExampleAsk { policy, unit }: ExampleAsk<'_>,
    ) -> String {
        let tls = if self.tls { " --tls" } else { "" };
        let files = self.tls_flags(["--cacert", "--cert", "--key"]);
        let key = if self.keys { " -a \"$TOLLGATE_KEY\"" } else { "" };
        let host = match address.ip() {
            IpAddr::V4(Ipv4Addr::LOCALHOST) => String::new(),
            ip => format!(" -h {ip}"),
        };
        let port = address.port();
        // Another broker is asked by the names of policies, and CL.THROTTLE has none.
        let call = match self.store {
            "broker" => {
                let cost = unit.map(|unit| format!(" COST {unit} 1")).unwrap_or_default();
                format!("TG.ACQUIRE {policy} alice{cost}")
            }
            _ => "CL.THROTTLE alice 15 30 60".to_owned(),
        };
        format!("redis-cli{tls}{files}{host} -p {port}{key} {call}")
    }

    fn grpcurl(&self, url: &str, body: &str) -> String {
        let plaintext = if self.tls { "" } else { " -plaintext" };
        let files = self.tls_flags(["-cacert", "-cert", "-key"]);
        let key = if self.keys { " -H \"authorization: Bearer $TOLLGATE_KEY\"" } else { "" };
        let address = url.split_once("://").map_or(url, |(_, address)| address);
        format!("grpcurl{plaintext}{files}{key} -d '{body}' {address} tollgate.v1.Gate/Acquire")
    }
}

/// The ask of the example calls.
#[derive(Clone, Copy)]
struct ExampleAsk<'a> {
    policy: &'a str,
    /// The unit to charge, if an ask without a cost would charge nothing.
    unit: Option<&'a str>,
}

impl<'a> ExampleAsk<'a> {
    fn new(config: &'a ServeConfig) -> Self {
        let Some(policy) = config.gates.policies.iter().next() else {
            return Self { policy: "api", unit: None };
        };
        let costs = Ask::new(policy, "alice").costs();
        let is_free = costs.iter().all(|(_, amount)| amount == 0);
        let unit = policy.units().next().filter(|_| is_free);
        Self { policy: policy.name(), unit }
    }

    /// As JSON.
    fn body(self) -> String {
        let Self { policy, unit } = self;
        let costs = unit.map(|unit| format!(", \"costs\": {{\"{unit}\": 1}}")).unwrap_or_default();
        format!("{{\"policy\": \"{policy}\", \"subject\": \"alice\"{costs}}}")
    }

    /// The flag of the command line with the cost.
    fn flag(self) -> String {
        self.unit.map(|unit| format!(" --cost {unit}=1")).unwrap_or_default()
    }
}

/// Returns the URL of the configured broker, for callers on this machine.
pub(crate) fn configured_url(server: &ServerConfig) -> String {
    url(server.http, server.tls.is_some())
}

fn url(address: SocketAddr, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{}", reachable(address))
}

/// Returns the address for callers on this machine: loopback in place of an unspecified address.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
