//! The metrics page of a worker: that of a broker, with its keys, its certificate and its limits, and without its calls.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tollgate::ErrorKind;
use tollgate_server::keys::Keys;
use tollgate_server::{App, Listeners, MetricsPage, ServerOptions, Tls};
use tollgate_telemetry::sinks::prometheus;
use tollgate_terminal::Failure;

use super::context::Context;

/// A bound address, and the settings of its server.
#[derive(Debug)]
pub struct MetricsEndpoint {
    /// The listener.
    pub listener: TcpListener,
    /// Its address.
    pub address: SocketAddr,
    /// The API keys; without any, requests need none.
    pub keys: Option<Keys>,
    /// The certificate.
    pub tls: Option<Tls>,
    /// The limits.
    pub options: ServerOptions,
}

impl MetricsEndpoint {
    /// Returns its URL.
    pub(super) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}/metrics", self.address)
    }

    /// Serves the metrics of `context`, until the future is dropped.
    pub(super) async fn serve(self, context: &Context<'_>) -> Failure {
        let (gate, policies) = (Arc::clone(&context.gate), context.policies().clone());
        // No permit is sealed here, so no key of a store is needed.
        let app = match App::new(gate, policies, Default::default(), Arc::clone(&context.clock)) {
            Ok(app) => app,
            Err(error) => return error.into(),
        };
        let meters = Arc::clone(context.meters());
        let media_type = prometheus::OPENMETRICS;
        let app = app
            .with_options(self.options)
            .metrics(move || MetricsPage { media_type, text: prometheus::page(&meters) })
            .only_metrics();
        app.replace_keys(self.keys);
        let mut listeners = Listeners::http(self.listener);
        if let Some(tls) = self.tls {
            listeners = listeners.tls(tls);
        }
        tollgate_server::run(listeners, app, std::future::pending()).await;
        Failure::new(ErrorKind::Unavailable, "the metrics page ended unexpectedly")
    }
}
