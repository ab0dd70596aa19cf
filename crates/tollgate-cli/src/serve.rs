//! `tollgate serve`: the broker, from binding its address to closing its store.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tollgate::{Clock, ErrorKind, Gate, Observed, Observer, Policy, SystemClock};
use tollgate_server::{App, MetricsPage};
use tollgate_telemetry::sinks::prometheus;

use crate::config::{Config, StoreConfig, StrategyConfig};
use crate::failure::Failure;
use crate::open;
use crate::output::{self, Reader};
use crate::telemetry::{self, Running};

/// Serves `config` until SIGINT or SIGTERM.
pub(crate) async fn run(
    config: Config,
    http: Option<SocketAddr>,
    data: Option<PathBuf>,
    reader: Reader,
) -> Result<(), Failure> {
    // What goes wrong between requests has no answer to stand in, so it is logged.
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .init();
    let store = store_of(&config, data)?;
    // From here on a signal ends the broker in order, however early it comes.
    let stop = stop_signal()?;
    let listener = bind(http.unwrap_or(config.http)).await?;
    let address =
        listener.local_addr().map_err(|error| unable("could not read the address", &error))?;
    let url = url_of(address);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let running = telemetry::start(&config.telemetry, &clock).await?;
    let told = Arc::clone(&running.telemetry) as Arc<dyn Observer>;
    let opened = open::for_server(&store, &config, &url, Arc::clone(&clock), told).await?;
    let place = Place::of(&config, &store, address);
    output::answer(reader, &place, || place.for_people(&config))?;

    let gate = watched(opened.gate(), &running, &clock);
    let mut app = App::new(gate, config.policies, *opened.key(), clock)
        .incidents(Arc::clone(&running.recorder), Arc::clone(&running.telemetry) as _);
    if config.telemetry.prometheus {
        let meters = Arc::clone(running.telemetry.meters());
        let media_type = prometheus::OPENMETRICS;
        app = app.metrics(move || MetricsPage { media_type, text: prometheus::page(&meters) });
    }
    tollgate_server::run(listener, app, stop).await;
    if !running.drain().await {
        tracing::warn!("a telemetry sink did not finish in time");
    }
    opened.close().await?;
    if reader == Reader::Person {
        output::line("stopped")?;
    }
    Ok(())
}

/// `gate`, with everything that happens at it told to the sinks.
fn watched(gate: Arc<dyn Gate>, running: &Running, clock: &Arc<dyn Clock>) -> Arc<dyn Gate> {
    let observer = Arc::clone(&running.telemetry) as Arc<dyn Observer>;
    Arc::new(Observed::new(gate, observer, Arc::clone(clock)))
}

/// Where everything is.
#[derive(Debug, Serialize)]
struct Place {
    http: String,
    dashboard: String,
    config: Option<PathBuf>,
    store: &'static str,
    data: Option<PathBuf>,
    strategy: &'static str,
    /// The policies whose asks go to the store each time although the strategy would not, and why.
    passed_through: BTreeMap<String, &'static str>,
    /// Whether only this machine can reach it.
    #[serde(skip)]
    loopback: bool,
}

impl Place {
    fn of(config: &Config, store: &StoreConfig, address: SocketAddr) -> Self {
        let url = url_of(address);
        let (kind, data) = match store {
            StoreConfig::Memory => ("memory", None),
            StoreConfig::Embedded { path, .. } => ("embedded", Some(path.clone())),
            StoreConfig::DynamoDb(_) => ("dynamodb", None),
            StoreConfig::Postgres(_) => ("postgres", None),
            StoreConfig::Redis(_) => ("redis", None),
        };
        Self {
            dashboard: format!("{url}/"),
            http: url,
            config: config.file.clone(),
            store: kind,
            strategy: config.strategy.name(),
            passed_through: config
                .policies
                .iter()
                .filter_map(|policy| {
                    let why = config.strategy.passes_through(policy)?;
                    Some((policy.name().to_owned(), why))
                })
                .collect(),
            loopback: address.ip().is_loopback(),
            data,
        }
    }

    fn for_people(&self, config: &Config) -> String {
        let file = match &self.config {
            Some(file) => file.display().to_string(),
            None => "built-in sample policies; write a tollgate.toml for your own".to_owned(),
        };
        let data = match &self.data {
            Some(path) => path.display().to_string(),
            None if self.store == "memory" => "in memory, gone when the broker ends".to_owned(),
            None => format!("on the configured {} server", self.store),
        };
        let strategy = self.strategy_for_people(config);
        let policy = config.policies.iter().next().map_or("api", Policy::name);
        let open = if self.loopback {
            ""
        } else {
            "There is no authentication yet: whoever reaches this address can use and reset quotas.\n"
        };
        let Self { http, dashboard, .. } = self;
        format!(
            "tollgate {} serves\n\
             \x20 http       {http}\n\
             \x20 dashboard  {dashboard}\n\
             \x20 config     {file}\n\
             \x20 data       {data}\n\
             \x20 strategy   {strategy}\n\
             Try it:\n\
             \x20 curl {http}/v1/acquire -H 'content-type: application/json' -d '{{\"policy\": \"{policy}\", \"subject\": \"alice\"}}'\n\
             \x20 tollgate acquire {policy} alice --server {http}\n\
             {open}Ctrl-C stops it.",
            env!("CARGO_PKG_VERSION")
        )
    }
}

impl Place {
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
}

fn store_of(config: &Config, data: Option<PathBuf>) -> Result<StoreConfig, Failure> {
    match (&config.store, data) {
        (store, None) => Ok(store.clone()),
        (StoreConfig::Memory, Some(_)) => Err(Failure::new(
            ErrorKind::Invalid,
            "--data names a folder, but the configured store is memory; leave --data out, or use kind = \"embedded\"",
        )),
        (StoreConfig::DynamoDb(_) | StoreConfig::Postgres(_) | StoreConfig::Redis(_), Some(_)) => {
            Err(Failure::new(
                ErrorKind::Invalid,
                "--data names a folder, but the configured store is a server; leave --data out, or use kind = \"embedded\"",
            ))
        }
        (StoreConfig::Embedded { durability, .. }, Some(path)) => {
            Ok(StoreConfig::Embedded { path, durability: *durability })
        }
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let next = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "; stop what runs there, or choose another address with --http"
            }
            io::ErrorKind::AddrNotAvailable => {
                "; it is not an address of this machine, choose another with --http"
            }
            io::ErrorKind::PermissionDenied => "; choose a port from 1024 on with --http",
            _ => "",
        };
        let what = match error.kind() {
            io::ErrorKind::AddrInUse => "the address is in use".to_owned(),
            _ => error.to_string(),
        };
        Failure::new(ErrorKind::Unavailable, format!("could not listen on {address}: {what}{next}"))
    })
}

/// Where somebody on this machine can call: an address that means "every address" is none to call.
fn url_of(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, address.port()))
}

/// Resolves when the process is told to end. The handlers are in place when this returns.
fn stop_signal() -> Result<impl Future<Output = ()> + Send, Failure> {
    let handler = |kind| signal(kind).map_err(|error| unable("could not handle signals", &error));
    let (mut interrupt, mut terminate) =
        (handler(SignalKind::interrupt())?, handler(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

fn unable(what: &str, error: &io::Error) -> Failure {
    Failure::new(ErrorKind::Unavailable, format!("{what}: {error}"))
}
