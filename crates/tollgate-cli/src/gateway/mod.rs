//! The gateway for LLM APIs in `tollgate serve`, and `tollgate gateway check`.

pub(crate) mod check;
mod observer;

use std::sync::{Arc, Weak};

use serde::Serialize;
use tollgate::Span;
use tollgate_gateway::{DeploymentSnapshot, Gateway, GatewaySnapshot};
use tollgate_protocol::json::{DeploymentStats, GatewayStats};
use tollgate_server::App;
use tollgate_telemetry::{GatewayLevels, Telemetry};

use crate::config::GatewayConfig;
use tollgate_terminal::Failure;

use observer::TelemetryObserver;

/// The gateway in the report that `serve` prints.
#[derive(Debug, Serialize)]
pub(crate) struct GatewayReport {
    pub(crate) url: String,
    /// The dialects that a route serves.
    pub(crate) dialects: Vec<&'static str>,
}

impl GatewayReport {
    pub(crate) fn new(url: String, config: &GatewayConfig) -> Self {
        Self { url, dialects: config.dialects() }
    }
}

/// Builds the gateway of `config` on `app`, with its counts in `telemetry` and in the statistics of `app`.
pub(crate) fn start(
    config: &GatewayConfig,
    app: &Arc<App>,
    telemetry: &Arc<Telemetry>,
) -> Result<Arc<Gateway>, Failure> {
    let gateway = Gateway::new(Arc::clone(app), config.read()?)?;
    let observer = TelemetryObserver::new(Arc::clone(telemetry));
    let gateway = Arc::new(gateway.observed_by(Arc::new(observer)));
    // The application and its meters outlive the gateway, which holds the application.
    let reader: Weak<Gateway> = Arc::downgrade(&gateway);
    let snapshot = move || reader.upgrade().map(|gateway| gateway.snapshot()).unwrap_or_default();
    telemetry.meters().gateway().read_levels_by({
        let snapshot = snapshot.clone();
        move || levels(&snapshot())
    });
    app.report_gateway(move || stats(snapshot()));
    Ok(gateway)
}

fn levels(snapshot: &GatewaySnapshot) -> GatewayLevels {
    GatewayLevels {
        waiting: snapshot.waiting_calls as u64,
        held_bytes: snapshot.held_bytes as u64,
        in_flight: snapshot.in_flight as u64,
    }
}

fn stats(snapshot: GatewaySnapshot) -> GatewayStats {
    GatewayStats {
        waiting: snapshot.waiting_calls as u64,
        held_bytes: snapshot.held_bytes as u64,
        oldest_wait_ms: snapshot.oldest_wait.map(Span::as_millis_ceil),
        in_flight: snapshot.in_flight as u64,
        deployments: snapshot.deployments.into_iter().map(deployment_stats).collect(),
    }
}

fn deployment_stats(deployment: DeploymentSnapshot) -> DeploymentStats {
    DeploymentStats {
        upstream: deployment.upstream,
        dialect: deployment.dialect.to_owned(),
        model: deployment.model,
        in_flight: deployment.in_flight,
        calls: deployment.calls,
        waited_calls: deployment.waited_calls,
        waited_ms: deployment.waited.as_millis_ceil(),
        input_tokens: deployment.input_tokens,
        output_tokens: deployment.output_tokens,
        first_byte_ms: deployment.first_byte.map(Span::as_millis_ceil),
        refused: deployment.refused,
        closed_until: deployment.closed_until,
    }
}
