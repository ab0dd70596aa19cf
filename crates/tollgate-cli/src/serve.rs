//! `tollgate serve`: the broker, from binding its address to closing its store.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tollgate::{Clock, ErrorKind, Policy, SystemClock};
use tollgate_server::{App, Listeners};

use crate::config::{Config, StoreConfig};
use crate::failure::Failure;
use crate::open;
use crate::output::{self, Reader};

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
    let mut listeners = Listeners::http(listener);
    let grpc = match config.grpc {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    let grpc_at = grpc.as_ref().and_then(|listener| listener.local_addr().ok());
    if let Some(grpc) = grpc {
        listeners = listeners.grpc(grpc);
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let opened = open::for_server(&store, &config.fallback, &url, Arc::clone(&clock)).await?;
    let place = Place::of(&config, &store, address, grpc_at);
    output::answer(reader, &place, || place.for_people(&config))?;

    let app = App::new(opened.gate(), config.policies, *opened.key(), clock);
    app.replace_envoy(config.envoy);
    tollgate_server::run(listeners, app, stop).await;
    opened.close().await?;
    if reader == Reader::Person {
        output::line("stopped")?;
    }
    Ok(())
}

/// Where everything is.
#[derive(Debug, Serialize)]
struct Place {
    http: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    grpc: Option<String>,
    dashboard: String,
    config: Option<PathBuf>,
    store: &'static str,
    data: Option<PathBuf>,
    /// Whether only this machine can reach it.
    #[serde(skip)]
    loopback: bool,
}

impl Place {
    fn of(
        config: &Config,
        store: &StoreConfig,
        address: SocketAddr,
        grpc: Option<SocketAddr>,
    ) -> Self {
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
            grpc: grpc.map(url_of),
            config: config.file.clone(),
            store: kind,
            loopback: address.ip().is_loopback()
                && grpc.is_none_or(|address| address.ip().is_loopback()),
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
        let policy = config.policies.iter().next().map_or("api", Policy::name);
        let open = if self.loopback {
            ""
        } else {
            "There is no authentication yet: whoever reaches this address can use and reset quotas.\n"
        };
        let Self { http, dashboard, .. } = self;
        let grpc = match &self.grpc {
            Some(grpc) => format!("  grpc       {grpc}\n"),
            None => String::new(),
        };
        format!(
            "tollgate {} serves\n\
             \x20 http       {http}\n\
             {grpc}\
             \x20 dashboard  {dashboard}\n\
             \x20 config     {file}\n\
             \x20 data       {data}\n\
             Try it:\n\
             \x20 curl {http}/v1/acquire -H 'content-type: application/json' -d '{{\"policy\": \"{policy}\", \"subject\": \"alice\"}}'\n\
             \x20 tollgate acquire {policy} alice --server {http}\n\
             {open}Ctrl-C stops it.",
            env!("CARGO_PKG_VERSION")
        )
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
