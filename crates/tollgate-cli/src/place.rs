//! What `tollgate serve` prints when it is ready: where everything is, and a line to try for each protocol.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use serde::Serialize;
use tollgate::Ask;

use crate::config::{Config, ServerConfig, StoreConfig, StrategyConfig};

/// Where everything is.
#[derive(Debug, Serialize)]
pub(crate) struct Place {
    pub(crate) http: String,
    /// The Redis protocol, if it is on.
    pub(crate) resp: Option<SocketAddr>,
    /// gRPC, if it is on.
    pub(crate) grpc: Option<String>,
    dashboard: String,
    config: Option<PathBuf>,
    pub(crate) store: &'static str,
    /// The format that entries are written in, if it is not the newest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) format: Option<u8>,
    data: Option<PathBuf>,
    pub(crate) strategy: &'static str,
    /// The policies whose asks go to the store each time although the strategy would not, and why.
    passed_through: BTreeMap<String, &'static str>,
    /// Whether calls need a key.
    #[serde(skip)]
    keys: bool,
    /// Whether it speaks TLS.
    #[serde(skip)]
    tls: bool,
    /// Whether it asks clients for a certificate.
    #[serde(skip)]
    client_certificates: bool,
    /// Whether others than this machine can reach it, and nothing keeps them out.
    #[serde(skip)]
    open: bool,
}

impl Place {
    /// A broker with HTTP at `http` and no other protocol yet; `open` if others can reach it and nothing keeps them out.
    pub(crate) fn of(config: &Config, store: &StoreConfig, http: SocketAddr, open: bool) -> Self {
        let tls = config.server.tls.is_some();
        let url = url_at(http, tls);
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
            config: config.file.clone(),
            store: kind,
            format: store.older_format(),
            strategy: config.strategy.name(),
            passed_through: config
                .policies
                .iter()
                .filter_map(|policy| {
                    let why = config.strategy.passes_through(policy)?;
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

    /// Says that gRPC is at `address` too.
    pub(crate) fn serves_grpc(&mut self, address: SocketAddr) {
        self.grpc = Some(url_at(address, self.tls));
    }

    /// The same, as lines.
    pub(crate) fn for_people(&self, config: &Config) -> String {
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
        let strategy = self.strategy_for_people(config);
        let try_it = TryIt::new(config);
        let TryIt { policy, .. } = try_it;
        let (body, flag) = (try_it.body(), try_it.flag());
        let mut note = match (self.keys, self.open) {
            (true, _) => "TOLLGATE_KEY is a key, as tollgate keys new printed it.\n".to_owned(),
            (false, false) => String::new(),
            (false, true) => {
                "Nobody is asked for a key: whoever reaches this address can use and reset quotas.\n".to_owned()
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
        let curl = self.tls_flags(["--cacert", "--cert", "--key"]);
        let own = self.tls_flags(["--authority", "--client-cert", "--client-key"]);
        let (resp, try_resp) = self.resp.map_or_else(Default::default, |address| {
            (
                format!("  resp       {address}\n"),
                format!("  {}\n", self.redis_cli(address, try_it)),
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

    /// The strategy, what it may cost, and which policies do without it.
    fn strategy_for_people(&self, config: &Config) -> String {
        let mut text = match &config.strategy {
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

    /// What a program needs for TLS, which calls the authority and a certificate with its key by `names`.
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

    fn redis_cli(&self, address: SocketAddr, TryIt { policy, unit }: TryIt<'_>) -> String {
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

/// The ask of the lines to try.
#[derive(Clone, Copy)]
struct TryIt<'a> {
    policy: &'a str,
    /// The unit that has to be named, because an ask without a cost costs nothing of it.
    unit: Option<&'a str>,
}

impl<'a> TryIt<'a> {
    fn new(config: &'a Config) -> Self {
        let Some(policy) = config.policies.iter().next() else {
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

/// The address of the broker that `server` configures, as somebody on this machine would call it.
pub(crate) fn url_of(server: &ServerConfig) -> String {
    url_at(server.http, server.tls.is_some())
}

fn url_at(address: SocketAddr, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{}", callable(address))
}

/// Where somebody on this machine can call: an address that means "every address" is none to call.
pub(crate) fn callable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
