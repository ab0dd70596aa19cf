//! `tollgate serve`: the broker, from binding its addresses to closing its store.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tollgate::clock::SystemClock;
use tollgate::observe::{Observed, Observer};
use tollgate::{Clock, Error, ErrorKind, Span};
use tollgate_protocol::permit_token::KEY_BYTES;
use tollgate_server::keys::Keys;
use tollgate_server::{App, Listeners, MetricsPage, RateLimitPages, Recording, ServerOptions, Tls};
use tollgate_telemetry::sinks::prometheus;

use tollgate_config::StoreConfig;

use crate::args::Serve;
use crate::config::{KeyConfig, Listen, LogFormat, ServeConfig};
use crate::envoy_ratelimit::{DropIn, PageListeners};
use crate::file_limit;
#[cfg(feature = "gateway")]
use crate::gateway;
use crate::incidents;
use crate::jwks;
use crate::log;
use crate::notify;
use crate::reload::{ConfigSource, Reload, Watch};
use crate::startup_report::{StartupReport, reachable};
use crate::xds::XdsClient;
use tollgate_config::open::{self, Opened, SHUTDOWN_MAX};
use tollgate_config::sinks::{self, Running};
use tollgate_terminal::Failure;
use tollgate_terminal::LineWriter;
use tollgate_terminal::output::{self, OutputFormat};

/// The time that systemd gives the broker to stop after `drain_delay`: `TimeoutStopSec` in deploy/tollgate.service.
const STOP_TIME: Span = Span::from_secs(30);

/// The flags of `serve`, which override the configuration.
#[derive(Debug)]
pub(crate) struct Options {
    http: Option<SocketAddr>,
    resp: Option<Listen>,
    grpc: Option<Listen>,
    data: Option<PathBuf>,
    allow_anonymous: bool,
    log: Option<LogFormat>,
    /// The listeners of a drop-in for envoyproxy/ratelimit, which serves nothing else.
    pages: Option<PageListeners>,
}

impl Options {
    pub(crate) fn parse(args: Serve) -> Result<Self, Error> {
        let Serve { http, resp, grpc, allow_anonymous, log_format, data } = args;
        let log = |text: &str| {
            LogFormat::parse(text)
                .ok_or_else(|| invalid(format!("--log-format {text:?} is neither text nor json")))
        };
        let http = http.as_deref().map(|text| parse_address("--http", text, "127.0.0.1:8080"));
        let resp = resp.as_deref().map(|text| parse_listen("--resp", text, "127.0.0.1:6380"));
        let grpc = grpc.as_deref().map(|text| parse_listen("--grpc", text, "127.0.0.1:8081"));
        Ok(Self {
            http: http.transpose()?,
            resp: resp.transpose()?,
            grpc: grpc.transpose()?,
            data,
            allow_anonymous,
            log: log_format.as_deref().map(log).transpose()?,
            pages: None,
        })
    }
}

/// Parses the value of `flag`, an address and port.
pub(crate) fn parse_address(flag: &str, text: &str, example: &str) -> Result<SocketAddr, Error> {
    text.parse().map_err(|_| {
        invalid(format!("{flag} {text:?} is not an address and port, as in {example}"))
    })
}

fn parse_listen(flag: &str, text: &str, example: &str) -> Result<Listen, Error> {
    Listen::parse(text).ok_or_else(|| {
        invalid(format!("{flag} {text:?} is neither an address and port, as in {example}, nor off"))
    })
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// Serves the rate limit service with the settings of envoyproxy/ratelimit.
pub(crate) async fn run_drop_in(drop_in: DropIn, format: OutputFormat) -> Result<(), Failure> {
    let DropIn { toml, pages, ignored } = drop_in;
    let source = ConfigSource::Environment(toml);
    let config = source.load()?;
    for (variable, reason) in &ignored {
        output::print_error(&format!("{variable} has no effect: {reason}"));
    }
    let options = Options {
        http: None,
        resp: None,
        grpc: None,
        data: None,
        allow_anonymous: true,
        log: None,
        pages: Some(pages),
    };
    run(source, config, options, format).await
}

/// Serves `config` until SIGINT or SIGTERM, and reads `source` again on SIGHUP or when a file changes.
pub(crate) async fn run(
    source: ConfigSource,
    config: ServeConfig,
    options: Options,
    format: OutputFormat,
) -> Result<(), Failure> {
    let log = log::start(options.log.unwrap_or(config.server.log))?;
    let printed = LineWriter::start(&io::stdout(), |_| String::new())
        .map_err(|error| unable("could not use standard output", &error))?;
    let ended = serve(source, config, options, format, &printed).await;
    printed.finish();
    log.finish();
    ended
}

async fn serve(
    source: ConfigSource,
    config: ServeConfig,
    options: Options,
    format: OutputFormat,
    printed: &LineWriter,
) -> Result<(), Failure> {
    let watch = Watch::new(&source, &config);
    let Options { http, resp, grpc, data, allow_anonymous, log: _, pages } = options;
    let http = http.unwrap_or(config.server.http);
    let resp = resp.unwrap_or(config.server.resp).address();
    let grpc = grpc.unwrap_or(config.server.grpc).address();
    let keys = read_keys(&config)?;
    let tls = config.server.tls.clone().map(Tls::open).transpose()?;
    let exposed = [Some(http), resp, grpc].into_iter().flatten().find(|at| !at.ip().is_loopback());
    // Without client certificates, only keys protect the broker.
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
    if let Some(pushed) = &config.envoy.pushed {
        // Each connection reads the files again; here a wrong one is an error.
        pushed.server.client_tls()?;
    }
    let store = select_store(&config, data)?;
    // With a handler, a write beyond the limit of file sizes fails, like one on a full disk, and does not end the process.
    let _ = handler(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?;
    if let Some(format) = store.older_format() {
        tracing::warn!(
            "[store] format = {format}: entries and permits are written as brokers of the version before read them, which takes \
             two calls of the store for each ask; remove it when every broker on this store is of this version"
        );
    }
    // From here on a signal shuts the broker down gracefully.
    let (mut stop, hang_up) = (Stop::new()?, handler(SignalKind::hangup())?);
    let (http, http_at) = bind("--http", http).await?;
    let mut report = StartupReport::new(&config, &store, http_at, open.is_some());
    let mut listeners = Listeners::http(http);
    if let Some(address) = resp {
        let (resp, resp_at) = bind("--resp", address).await?;
        report.resp = Some(reachable(resp_at));
        listeners = listeners.resp(resp);
    }
    if let Some(address) = grpc {
        let (grpc, grpc_at) = bind("--grpc", address).await?;
        report.set_grpc(grpc_at);
        listeners = listeners.grpc(grpc);
    }
    #[cfg(feature = "gateway")]
    let mut gateway_listener = None;
    #[cfg(feature = "gateway")]
    if let Some(gateway) = &config.gateway {
        gateway.warn(tls.is_some());
        let (listener, at) = bind("listen in [gateway]", gateway.settings.listen).await?;
        report.set_gateway(at, gateway);
        gateway_listener = Some(listener);
    }
    if let Some(most) = file_limit::connections_max() {
        listeners = listeners.connections(most);
    }
    if let Some(tls) = &tls {
        listeners = listeners.tls(tls.clone());
    }
    let mut page_listeners = Vec::new();
    if let Some(PageListeners { debug, metrics }) = &pages {
        // Probes of the original are plain HTTP.
        listeners = listeners.tls_only_for_grpc();
        page_listeners.push((bind("DEBUG_PORT", *debug).await?, None));
        if let Some((address, path)) = metrics {
            page_listeners.push((bind("PROMETHEUS_ADDR", *address).await?, Some(path)));
        }
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let assembly = Assembly {
        config: &config,
        store: &store,
        url: &report.http,
        kind: report.store,
        is_loopback: exposed.is_none(),
        permit_key: None,
        only_rate_limits: pages.is_some(),
    };
    let Assembled { app, running, opened } = assemble(assembly, &clock).await?;
    let mut page_addresses = Vec::new();
    for ((listener, at), path) in page_listeners {
        let pages = match path {
            None => RateLimitPages::debug(&app),
            Some(path) => RateLimitPages::metrics(&app, path),
        };
        page_addresses.push(at);
        listeners = listeners.mount(listener, Arc::new(pages));
    }
    #[cfg(feature = "gateway")]
    let gateway = match &config.gateway {
        Some(gateway) => Some(gateway::start(gateway, &app, &running.telemetry)?),
        None => None,
    };
    #[cfg(feature = "gateway")]
    if let (Some(listener), Some(gateway)) = (gateway_listener, &gateway) {
        listeners = listeners.mount(listener, Arc::clone(gateway) as _);
    }
    let permit_keys = opened.keys();
    log::serving(&report);
    printed.push(&output::render(format, &report, || match pages {
        None => report.text(&config),
        Some(_) => report.drop_in_text(&config, &page_addresses),
    })?);
    app.replace_keys(keys);
    for warning in &config.envoy.warnings {
        tracing::warn!("{warning}");
    }
    if config.envoy.folder.is_some() {
        app.limit_stats().loaded(true);
    }
    app.replace_envoy(config.envoy.map.clone());
    notify::send_state("READY=1");
    let drain_delay = config.server.drain_delay;
    let stop_delay = drain_delay.plus(config.gateway_drain());
    let (hand_over, handed) = oneshot::channel();
    let stopping = async {
        stop.next().await;
        app.begin_stopping();
        notify::send_state("STOPPING=1");
        if !drain_delay.is_zero() {
            tracing::info!(%drain_delay, "not ready any more");
        }
        if !stop_delay.is_zero() {
            let micros = stop_delay.plus(STOP_TIME).as_micros();
            notify::send_state(&format!("EXTEND_TIMEOUT_USEC={micros}"));
        }
        tokio::select! {
            () = clock.sleep_until(clock.now() + drain_delay) => {}
            // A second signal skips the delay.
            () = stop.next() => {}
        }
        let _ = hand_over.send(stop);
    };
    // The calls of a gateway may take minutes, and a further signal does not wait for them.
    let hurry = async {
        // The same handlers, which remember a signal that arrives in between.
        match handed.await {
            Ok(mut stop) => stop.next().await,
            Err(_) => pending().await,
        }
    };
    let adopting = adopt_keys(permit_keys, Arc::clone(&app));
    let (pushes, pushed) = mpsc::channel(1);
    let xds = config.envoy.pushed.as_ref().map(|limits| limits.server.clone());
    let xds = xds.map(|server| XdsClient::new(server, Arc::clone(&clock), pushes));
    let following = async {
        match &xds {
            Some(client) => client.run().await,
            None => pending().await,
        }
    };
    let mut reload = Reload {
        source,
        running: config,
        app: Arc::clone(&app),
        tls,
        #[cfg(feature = "gateway")]
        gateway,
        needs_keys,
        limits: None,
        refused: false,
        printed: (format == OutputFormat::Text).then(|| printed.clone()),
    };
    tokio::select! {
        _ = tollgate_server::run(listeners, Arc::clone(&app), stopping) => {}
        () = hurry => tracing::warn!("stopped by a further signal; calls in flight are cut and keep their estimates"),
        () = adopting => {}
        () = notify::keep_watchdog(&*clock) => {}
        () = following => {}
        () = reload.on(hang_up, watch, pushed, &*clock) => {}
    }
    if !running.shutdown(clock.now() + SHUTDOWN_MAX).await {
        tracing::warn!("a telemetry sink did not finish in time");
    }
    opened.shutdown(clock.now() + SHUTDOWN_MAX).await?;
    if format == OutputFormat::Text {
        printed.push(b"stopped\n");
    }
    Ok(())
}

/// The inputs of [`assemble`].
pub(crate) struct Assembly<'a> {
    pub(crate) config: &'a ServeConfig,
    pub(crate) store: &'a StoreConfig,
    /// The URL of the broker.
    pub(crate) url: &'a str,
    /// The kind of its store.
    pub(crate) kind: &'static str,
    /// Whether it listens on loopback addresses only.
    pub(crate) is_loopback: bool,
    /// The key that permits are sealed with, instead of the one in the store.
    pub(crate) permit_key: Option<[u8; KEY_BYTES]>,
    /// Whether it serves only Envoy's rate limit service.
    pub(crate) only_rate_limits: bool,
}

/// A broker that is ready to serve.
pub(crate) struct Assembled {
    pub(crate) app: Arc<App>,
    pub(crate) running: Running,
    pub(crate) opened: Opened,
}

/// Starts the telemetry sinks, opens the store and builds the application.
pub(crate) async fn assemble(
    Assembly { config, store, url, kind, is_loopback, permit_key, only_rate_limits }: Assembly<'_>,
    clock: &Arc<dyn Clock>,
) -> Result<Assembled, Failure> {
    let running = sinks::start(&config.gates.telemetry, clock).await?;
    let observer = Arc::clone(&running.telemetry) as Arc<dyn Observer>;
    let opened =
        open::for_server(store, &config.gates, url, Arc::clone(clock), Arc::clone(&observer))
            .await?;
    // The store may have created the folder of the file.
    incidents::warn_if_lost(&config.gates.telemetry.incident_file);
    let gate = Arc::new(Observed::new(opened.gate(), observer, Arc::clone(clock)));
    let audit_log = match config.audit.recording {
        Recording::Nothing => None,
        _ => open::audit(store).await?,
    };
    let permit_key = permit_key.unwrap_or_else(|| opened.key());
    let mut app = App::new(gate, config.gates.policies.clone(), permit_key, Arc::clone(clock))?
        .check_policies(config.gates.policy_check())
        .legacy_fields(config.server.legacy_fields)
        .with_options(ServerOptions { is_loopback, ..config.server.settings.clone() })
        .audit(config.audit, audit_log)
        .history()
        .health(opened.health(kind))
        .incidents(Arc::clone(&running.recorder), Arc::clone(&running.telemetry) as _);
    if config.gates.telemetry.prometheus {
        let meters = Arc::clone(running.telemetry.meters());
        let media_type = prometheus::OPENMETRICS;
        app = app.metrics(move || MetricsPage { media_type, text: prometheus::page(&meters) });
    }
    #[cfg(feature = "translate")]
    if let Some(jobs) = config.jobs.clone() {
        let clock = Arc::clone(clock);
        let service = tollgate_translate::command::TranslationService::new(jobs, clock);
        app = app.translations(Arc::new(service));
    }
    if let Some(jwt) = &config.jwt {
        app = app.jwt_verifier(jwks::open(jwt, clock).await?);
    }
    if only_rate_limits {
        app = app.only_rate_limits();
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

/// Seals permits with each key that the store adopts. Never returns.
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

/// Reads the API keys of `config`; `None` if callers need neither a key nor a token.
pub(crate) fn read_keys(config: &ServeConfig) -> Result<Option<Keys>, Error> {
    if config.keys.is_empty() && config.jwt.is_none() {
        return Ok(None);
    }
    config.keys.iter().map(KeyConfig::read).collect::<Result<Keys, _>>().map(Some)
}

/// Returns the error of an address that other machines can reach without a key, which has to be allowed explicitly.
pub(crate) fn refuse_exposed(address: SocketAddr, otherwise: &str) -> Failure {
    Failure::new(
        ErrorKind::Invalid,
        format!(
            "others than this machine can reach {address}, and there is no [[key]]; make one with tollgate keys new, or let \
             everyone in with {otherwise}"
        ),
    )
}

fn select_store(config: &ServeConfig, data: Option<PathBuf>) -> Result<StoreConfig, Failure> {
    match (&config.gates.store, data) {
        (store, None) => Ok(store.clone()),
        (StoreConfig::Memory { .. }, Some(_)) => Err(Failure::new(
            ErrorKind::Invalid,
            "--data names a folder, but the configured store is memory; leave --data out, or use kind = \"embedded\"",
        )),
        (StoreConfig::Embedded { durability, keys_max, .. }, Some(path)) => {
            Ok(StoreConfig::Embedded { path, durability: *durability, keys_max: *keys_max })
        }
        (_, Some(_)) => Err(Failure::new(
            ErrorKind::Invalid,
            "--data names a folder, but the configured store is a server; leave --data out, or use kind = \"embedded\"",
        )),
    }
}

/// Binds `address`, and returns the listener with its actual address. Errors name `flag`, which sets another address.
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

/// The signals that stop the process.
pub(crate) struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    /// Installs the signal handlers.
    pub(crate) fn new() -> Result<Self, Failure> {
        let interrupt = handler(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: handler(SignalKind::terminate())? })
    }

    /// Waits for a signal.
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
