//! The page of metrics of a worker: the broker's, with its keys, its certificate and its bounds, and without its calls.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tollgate::ErrorKind;
use tollgate_server::keys::Keys;
use tollgate_server::{App, Listeners, MetricsPage, Settings, Tls};
use tollgate_telemetry::sinks::prometheus;

use super::desk::Desk;
use crate::config::Config;
use crate::failure::Failure;
use crate::intent;
use crate::serve;

/// An address that is bound, and what it takes to serve it.
pub(super) struct Page {
    listener: TcpListener,
    at: SocketAddr,
    keys: Option<Keys>,
    tls: Option<Tls>,
    settings: Settings,
}

impl Page {
    /// Listens on `address`, which may be reached from elsewhere only with keys, as a broker's may.
    pub(super) async fn bind(address: &str, config: &Config) -> Result<Self, Failure> {
        let address = intent::address("--metrics", address, "127.0.0.1:9464")?;
        let (server, keys) = (&config.server, serve::keys_of(config)?);
        let is_loopback = address.ip().is_loopback();
        let is_meant = server.anonymous || server.has_client_authority();
        if !is_loopback && keys.is_none() && !is_meant {
            return Err(serve::refuse_exposed(address, "anonymous = true in [server]"));
        }
        let tls = server.tls.clone().map(Tls::open).transpose()?;
        let settings = Settings { is_loopback, ..server.settings.clone() };
        let (listener, at) = serve::bind("--metrics", address).await?;
        Ok(Self { listener, at, keys, tls, settings })
    }

    /// Where it is.
    pub(super) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}/metrics", self.at)
    }

    /// Serves what `desk` counts, until this is dropped.
    pub(super) async fn serve(self, desk: &Desk<'_>) -> Failure {
        let (gate, policies) = (Arc::clone(&desk.gate), desk.policies().clone());
        // No permit is sealed here, so no key of a store is needed.
        let app = match App::new(gate, policies, Default::default(), Arc::clone(&desk.clock)) {
            Ok(app) => app,
            Err(error) => return error.into(),
        };
        let meters = Arc::clone(desk.meters());
        let media_type = prometheus::OPENMETRICS;
        let app = app
            .settings(self.settings)
            .metrics(move || MetricsPage { media_type, text: prometheus::page(&meters) })
            .only_metrics();
        app.replace_keys(self.keys);
        let mut listeners = Listeners::http(self.listener);
        if let Some(tls) = self.tls {
            listeners = listeners.tls(tls);
        }
        tollgate_server::run(listeners, app, std::future::pending()).await;
        Failure::new(ErrorKind::Unavailable, "the page of metrics ended unexpectedly")
    }
}
