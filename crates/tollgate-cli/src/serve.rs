//! `tollgate serve`: the broker, from binding its address to closing its store.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tollgate::{Clock, Error, ErrorKind, Gate, Observed, Observer, SystemClock};
use tollgate_server::keys::Keys;
use tollgate_server::token::KEY_BYTES;
use tollgate_server::{App, Listeners, MetricsPage, Recording, Settings, Tls};
use tollgate_telemetry::sinks::prometheus;

use crate::config::{Config, KeyConfig, StoreConfig};
use crate::failure::Failure;
use crate::files;
use crate::incidents;
use crate::intent::Serving;
use crate::lines::Lines;
use crate::log;
use crate::notify;
use crate::open::{self, Opened};
use crate::output::{self, Reader};
use crate::place::{Place, callable};
use crate::reload::{Reload, Watch};
use crate::telemetry::{self, Running};
use crate::translate::BrokerJobs;

/// Serves `config` until SIGINT or SIGTERM, and reads it again on SIGHUP or when it changes, as `named`.
pub(crate) async fn run(
    named: Option<PathBuf>,
    config: Config,
    flags: Serving,
    reader: Reader,
) -> Result<(), Failure> {
    let log = log::start(flags.log.unwrap_or(config.server.log))?;
    let printed = Lines::start(&io::stdout(), |_| String::new())
        .map_err(|error| unable("could not use standard output", &error))?;
    let ended = serve(named, config, flags, reader, &printed).await;
    printed.finish();
    log.finish();
    ended
}

async fn serve(
    named: Option<PathBuf>,
    mut config: Config,
    flags: Serving,
    reader: Reader,
    printed: &Lines,
) -> Result<(), Failure> {
    let watch = Watch::of(named.as_deref(), &config);
    let Serving { http, resp, grpc, data, allow_anonymous, log: _ } = flags;
    let http = http.unwrap_or(config.server.http);
    let resp = resp.unwrap_or(config.server.resp).address();
    let grpc = grpc.unwrap_or(config.server.grpc).address();
    let keys = keys_of(&config)?;
    let tls = config.server.tls.clone().map(Tls::open).transpose()?;
    let exposed = [Some(http), resp, grpc].into_iter().flatten().find(|at| !at.ip().is_loopback());
    // Without a certificate that clients must have, only keys keep others out.
    let open = exposed.filter(|_| !config.server.has_client_authority());
    let needs_keys = open.is_some() && !(allow_anonymous || config.server.anonymous);
    if let Some(address) = open.filter(|_| needs_keys && keys.is_none()) {
        let otherwise = "--allow-anonymous or anonymous = true in [server]";
        return Err(refuse_exposed(address, otherwise));
    }
    if let Some(address) = exposed.filter(|_| keys.is_some() && tls.is_none()) {
        tracing::warn!(
            "keys travel unencrypted to {address}, where others can read them; add [server.tls], or listen on 127.0.0.1 behind \
             a proxy with TLS"
        );
    }
    let store = store_of(&config, data)?;
    if let Some(format) = store.older_format() {
        tracing::warn!(
            "[store] format = {format}: entries and permits are written as brokers of the version before read them, which takes \
             two calls of the store for each ask; remove it when every broker on this store is of this version"
        );
    }
    // From here on a signal ends the broker in order, however early it comes.
    let (mut stop, hang_up) = (Stop::new()?, handler(SignalKind::hangup())?);
    let (http, http_at) = bind("--http", http).await?;
    let mut place = Place::of(&config, &store, http_at, open.is_some());
    let mut listeners = Listeners::http(http);
    if let Some(address) = resp {
        let (resp, resp_at) = bind("--resp", address).await?;
        place.resp = Some(callable(resp_at));
        listeners = listeners.resp(resp);
    }
    if let Some(address) = grpc {
        let (grpc, grpc_at) = bind("--grpc", address).await?;
        place.serves_grpc(grpc_at);
        listeners = listeners.grpc(grpc);
    }
    if let Some(most) = files::room_for_connections() {
        listeners = listeners.connections(most);
    }
    if let Some(tls) = &tls {
        listeners = listeners.tls(tls.clone());
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let assembly = Assembly {
        config: &config,
        store: &store,
        url: &place.http,
        kind: place.store,
        is_loopback: exposed.is_none(),
        permit_key: None,
    };
    let Assembled { app, running, opened } = assemble(assembly, &clock).await?;
    let permit_keys = opened.keys();
    log::serving(&place);
    printed.push(&output::rendered(reader, &place, || place.for_people(&config))?);
    app.replace_keys(keys);
    app.replace_envoy(std::mem::take(&mut config.envoy));
    notify::tell("READY=1");
    let drain_delay = config.server.drain_delay;
    let stopping = async {
        stop.next().await;
        app.begin_stopping();
        notify::tell("STOPPING=1");
        if !drain_delay.is_zero() {
            tracing::info!(%drain_delay, "not ready any more");
        }
        tokio::select! {
            () = clock.sleep_until(clock.now() + drain_delay) => {}
            // Told twice, it does not wait.
            () = stop.next() => {}
        }
    };
    let adopting = adopt_keys(permit_keys, Arc::clone(&app));
    let mut reload = Reload {
        named,
        running: config,
        app: Arc::clone(&app),
        tls,
        needs_keys,
        refused: false,
        printed: (reader == Reader::Person).then(|| printed.clone()),
    };
    tokio::select! {
        _ = tollgate_server::run(listeners, Arc::clone(&app), stopping) => {}
        () = adopting => {}
        () = notify::keep_watchdog(&*clock) => {}
        () = reload.on(hang_up, watch, &*clock) => {}
    }
    if !running.drain().await {
        tracing::warn!("a telemetry sink did not finish in time");
    }
    opened.close().await?;
    if reader == Reader::Person {
        printed.push(b"stopped\n");
    }
    Ok(())
}

/// What a broker is made of.
pub(crate) struct Assembly<'a> {
    pub(crate) config: &'a Config,
    pub(crate) store: &'a StoreConfig,
    /// Where it answers.
    pub(crate) url: &'a str,
    /// The word for its store.
    pub(crate) kind: &'static str,
    /// Whether only this machine reaches it.
    pub(crate) is_loopback: bool,
    /// What permits are sealed with instead of the key that the store keeps.
    pub(crate) permit_key: Option<[u8; KEY_BYTES]>,
}

/// A broker that is ready to answer.
pub(crate) struct Assembled {
    pub(crate) app: Arc<App>,
    pub(crate) running: Running,
    pub(crate) opened: Opened,
}

/// Starts the sinks of telemetry, opens the store, and puts together what answers.
pub(crate) async fn assemble(
    Assembly { config, store, url, kind, is_loopback, permit_key }: Assembly<'_>,
    clock: &Arc<dyn Clock>,
) -> Result<Assembled, Failure> {
    let running = telemetry::start(&config.telemetry, clock).await?;
    let told = Arc::clone(&running.telemetry) as Arc<dyn Observer>;
    let opened = open::for_server(store, config, url, Arc::clone(clock), told).await?;
    // The store may have made the folder that it is in.
    incidents::warn_if_lost(&config.telemetry.incident_file);
    let gate = watched(opened.gate(), &running, clock);
    let kept = match config.audit.recording {
        Recording::Nothing => None,
        _ => open::audit(store).await?,
    };
    let permit_key = permit_key.unwrap_or_else(|| opened.key());
    let mut app = App::new(gate, config.policies.clone(), permit_key, Arc::clone(clock))?
        .legacy_fields(config.server.legacy_fields)
        .settings(Settings { is_loopback, ..config.server.settings.clone() })
        .audit(config.audit, kept)
        .health(opened.health(kind))
        .incidents(Arc::clone(&running.recorder), Arc::clone(&running.telemetry) as _);
    if config.telemetry.prometheus {
        let meters = Arc::clone(running.telemetry.meters());
        let media_type = prometheus::OPENMETRICS;
        app = app.metrics(move || MetricsPage { media_type, text: prometheus::page(&meters) });
    }
    if config.serves_translations {
        app = app.translations(Arc::new(BrokerJobs::new(config.jobs.clone(), Arc::clone(clock))));
    }
    if store.older_format().is_some() {
        app = app.without_ids_in_permits();
    }
    if let Some(store) = opened.overrides() {
        app = app.overrides(store);
    }
    app.refresh_overrides().await?;
    Ok(Assembled { app: Arc::new(app), running, opened })
}

/// Seals permits with each key that replaces the one before, for as long as the store is open.
pub(crate) async fn adopt_keys(mut keys: watch::Receiver<[u8; KEY_BYTES]>, app: Arc<App>) {
    while keys.changed().await.is_ok() {
        let key = *keys.borrow_and_update();
        app.replace_permit_key(key);
        tracing::warn!(
            "permits are sealed with the key that the store has now; those from before are still accepted"
        );
    }
    std::future::pending::<()>().await;
}

/// `gate`, with everything that happens at it told to the sinks.
fn watched(gate: Arc<dyn Gate>, running: &Running, clock: &Arc<dyn Clock>) -> Arc<dyn Gate> {
    let observer = Arc::clone(&running.telemetry) as Arc<dyn Observer>;
    Arc::new(Observed::new(gate, observer, Arc::clone(clock)))
}

/// The keys of `config`, read from where they are; nothing if everybody is let in.
pub(crate) fn keys_of(config: &Config) -> Result<Option<Keys>, Error> {
    if config.keys.is_empty() {
        return Ok(None);
    }
    config.keys.iter().map(KeyConfig::read).collect::<Result<Keys, _>>().map(Some)
}

/// An address that others can reach, where nobody would be asked for a key, must have been meant.
pub(crate) fn refuse_exposed(address: SocketAddr, otherwise: &str) -> Failure {
    Failure::new(
        ErrorKind::Invalid,
        format!(
            "others than this machine can reach {address}, and there is no [[key]]; make one with tollgate keys new, or let \
             everybody in with {otherwise}"
        ),
    )
}

fn store_of(config: &Config, data: Option<PathBuf>) -> Result<StoreConfig, Failure> {
    match (&config.store, data) {
        (store, None) => Ok(store.clone()),
        (StoreConfig::Memory { .. }, Some(_)) => Err(Failure::new(
            ErrorKind::Invalid,
            "--data names a folder, but the configured store is memory; leave --data out, or use kind = \"embedded\"",
        )),
        (StoreConfig::Embedded { durability, .. }, Some(path)) => {
            Ok(StoreConfig::Embedded { path, durability: *durability })
        }
        (_, Some(_)) => Err(Failure::new(
            ErrorKind::Invalid,
            "--data names a folder, but the configured store is a server; leave --data out, or use kind = \"embedded\"",
        )),
    }
}

/// Listens on `address`, which `flag` can change, and says where that is.
pub(crate) async fn bind(
    flag: &str,
    address: SocketAddr,
) -> Result<(TcpListener, SocketAddr), Failure> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        let next = match error.kind() {
            io::ErrorKind::AddrInUse => {
                format!("; stop what runs there, or choose another address with {flag}")
            }
            io::ErrorKind::AddrNotAvailable => {
                format!("; it is not an address of this machine, choose another with {flag}")
            }
            io::ErrorKind::PermissionDenied => format!("; choose a port from 1024 on with {flag}"),
            _ => String::new(),
        };
        let what = match error.kind() {
            io::ErrorKind::AddrInUse => "the address is in use".to_owned(),
            _ => error.to_string(),
        };
        Failure::new(ErrorKind::Unavailable, format!("could not listen on {address}: {what}{next}"))
    })?;
    let at = listener.local_addr().map_err(|error| unable("could not read the address", &error))?;
    Ok((listener, at))
}

/// The signals that end the process.
pub(crate) struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    /// The handlers are in place when this returns.
    pub(crate) fn new() -> Result<Self, Failure> {
        let interrupt = handler(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: handler(SignalKind::terminate())? })
    }

    /// Resolves when the process is told to end.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

fn handler(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| unable("could not handle signals", &error))
}

fn unable(what: &str, error: &io::Error) -> Failure {
    Failure::new(ErrorKind::Unavailable, format!("{what}: {error}"))
}
