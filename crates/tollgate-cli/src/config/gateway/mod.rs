//! `[gateway]`, `[[gateway.key]]`, `[[upstream]]`, `[[route]]` and `[prices]`: the gateway for LLM APIs.

mod keys;
mod prices;
mod routes;
#[cfg(test)]
mod tests;
mod upstreams;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use serde::Deserialize;
use tollgate::policy::Policies;
use tollgate::{Error, Span};
use tollgate_config::{Diagnostic, Document, Secret};
use tollgate_gateway::{GatewayOptions, Route, bounds};
use tollgate_providers::{Dialect, Prices};

use keys::{GatewayKeyConfig, GatewayKeyTable};
pub(crate) use upstreams::UpstreamConfig;

/// The section as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GatewayTable {
    listen: Option<String>,
    body_bytes_max: Option<u64>,
    queue_calls_max: Option<u64>,
    queue_bytes_max: Option<u64>,
    in_flight_max: Option<u64>,
    connect_timeout: Option<String>,
    first_byte_timeout: Option<String>,
    idle_timeout: Option<String>,
    drain: Option<String>,
    #[serde(default)]
    key: Vec<GatewayKeyTable>,
}

const LISTEN_DEFAULT: &str = "127.0.0.1:8090";

/// The smallest and the largest `body_bytes_max`.
const BODY_RANGE: [usize; 2] = [1 << 10, 1 << 30];

/// The smallest and the largest `queue_calls_max`.
const QUEUE_RANGE: [usize; 2] = [1, 1_000_000];

/// The largest `queue_bytes_max`.
const QUEUE_BYTES_MOST: usize = 64 << 30;

/// The smallest and the largest `in_flight_max`.
const IN_FLIGHT_RANGE: [usize; 2] = [1, 100_000];

/// The shortest and the longest time-out.
const TIMEOUT_RANGE: [Span; 2] = [Span::from_millis(100), Span::from_hours(24)];

/// The shortest and the longest `drain`.
const DRAIN_RANGE: [Span; 2] = [Span::ZERO, Span::from_hours(24)];

/// The gateway of a broker.
#[derive(Clone, Debug)]
pub(crate) struct GatewayConfig {
    /// What only a restart changes.
    pub(crate) settings: GatewaySettings,
    keys: Vec<GatewayKeyConfig>,
    pub(crate) upstreams: Vec<UpstreamConfig>,
    pub(crate) routes: Vec<Route>,
    prices: Prices,
    /// What is allowed and probably a mistake.
    pub(crate) warnings: Vec<String>,
}

/// The table `[gateway]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GatewaySettings {
    /// Where it listens.
    pub(crate) listen: SocketAddr,
    body_bytes_max: usize,
    queue_calls_max: usize,
    queue_bytes_max: usize,
    in_flight_max: usize,
    connect_timeout: Span,
    first_byte_timeout: Span,
    idle_timeout: Span,
    /// How long calls in flight may take to finish at shutdown.
    pub(crate) drain: Span,
}

impl GatewayConfig {
    /// Checks the sections of the gateway; `None` if there is none.
    pub(super) fn resolve(
        document: &Document,
        policies: &Policies,
    ) -> Result<Option<Self>, Diagnostic> {
        check_written(document)?;
        let Some(table) = document.section::<GatewayTable>("gateway")? else { return Ok(None) };
        let settings = GatewaySettings::resolve(document, &table)?;
        let mut warnings = Vec::new();
        let prices = prices::resolve(document)?;
        let upstreams = upstreams::resolve_all(document, &mut warnings)?;
        let keys = keys::resolve_all(document, &table.key)?;
        let routes = routes::resolve_all(document, policies, &upstreams, &keys, &prices)?;
        keys::check_routes(document, &keys, &routes)?;
        Ok(Some(Self { settings, keys, upstreams, routes, prices, warnings }))
    }

    /// Reads the secrets and returns the options of the gateway.
    pub(crate) fn read(&self) -> Result<GatewayOptions, Error> {
        let GatewaySettings { body_bytes_max, queue_calls_max, queue_bytes_max, .. } =
            self.settings;
        Ok(GatewayOptions {
            upstreams: self.upstreams.iter().map(UpstreamConfig::read).collect::<Result<_, _>>()?,
            routes: self.routes.clone(),
            keys: self.keys.iter().map(GatewayKeyConfig::read).collect::<Result<_, _>>()?,
            prices: self.prices.clone(),
            body_bytes_max,
            queue_calls_max,
            queue_bytes_max,
            in_flight_max: self.settings.in_flight_max,
            connect_timeout: self.settings.connect_timeout.into(),
            first_byte_timeout: self.settings.first_byte_timeout.into(),
            idle_timeout: self.settings.idle_timeout.into(),
            drain: self.settings.drain.into(),
        })
    }

    /// Logs what is allowed and probably a mistake.
    pub(crate) fn warn(&self, has_tls: bool) {
        for warning in &self.warnings {
            // A log entry is one line, so the excerpt of the file is left out.
            tracing::warn!("{}", warning.lines().next().unwrap_or_default());
        }
        let listen = self.settings.listen;
        if !listen.ip().is_loopback() && !has_tls {
            tracing::warn!(
                "keys and prompts travel unencrypted to the gateway at {listen}, where others can read them; add [server.tls], or \
                 listen on 127.0.0.1 behind a proxy with TLS"
            );
        }
    }

    /// Returns the names of the dialects that a route serves.
    pub(crate) fn dialects(&self) -> Vec<&'static str> {
        let routed = |upstream: &&UpstreamConfig| {
            self.routes.iter().any(|route| route.upstreams.contains(&upstream.name))
        };
        let routed = self.upstreams.iter().filter(routed).map(|upstream| upstream.dialect);
        let routed: BTreeSet<Dialect> = routed.collect();
        routed.into_iter().map(Dialect::name).collect()
    }

    /// Returns the files that it was read from, apart from the configuration itself.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        let keys = self.keys.iter().filter_map(|key| secret_file(&key.hash));
        keys.chain(self.upstreams.iter().flat_map(UpstreamConfig::files))
    }
}

fn secret_file(secret: &Secret) -> Option<&Path> {
    match secret {
        Secret::File(path) => Some(path),
        Secret::Inline(_) | Secret::Environment(_) => None,
    }
}

/// Checks that the sections of a gateway are there together, and written as lists where they are.
fn check_written(document: &Document) -> Result<(), Diagnostic> {
    let sections = ["gateway", "upstream", "route", "prices"];
    let [gateway, upstream, route, prices] = sections.map(|name| {
        document.section::<serde::de::IgnoredAny>(name).map(|section| section.is_some())
    });
    let has_gateway = gateway?;
    for (name, is_there) in [("upstream", upstream?), ("route", route?), ("prices", prices?)] {
        if is_there && !has_gateway {
            let message = format!(
                "{name} belongs to a gateway; add [gateway] with listen = \"{LISTEN_DEFAULT}\""
            );
            return Err(document.error(&[name], message));
        }
    }
    if document.is_table(&["gateway", "key"]) {
        let message = "a key of the gateway is written with two brackets, as in [[gateway.key]]";
        return Err(document.error(&["gateway", "key"], message));
    }
    Ok(())
}

impl GatewaySettings {
    fn resolve(document: &Document, table: &GatewayTable) -> Result<Self, Diagnostic> {
        let listen = table.listen.as_deref().unwrap_or(LISTEN_DEFAULT);
        let listen = listen.parse().map_err(|_| {
            let message =
                format!("listen {listen:?} is not an address and port, as in \"{LISTEN_DEFAULT}\"");
            document.error(&["gateway", "listen"], message)
        })?;
        let number = |key, value: Option<u64>, default, range| match value {
            None => Ok(default),
            Some(value) => in_range(document, key, value, range),
        };
        let span = |key, value: &Option<String>, default, range| match value {
            None => Ok(default),
            Some(value) => document.duration(&["gateway", key], value, range),
        };
        let body_bytes_max =
            number("body_bytes_max", table.body_bytes_max, bounds::BODY_BYTES_MAX, BODY_RANGE)?;
        let queue_bytes_max = number(
            "queue_bytes_max",
            table.queue_bytes_max,
            bounds::QUEUE_BYTES_MAX.max(body_bytes_max),
            [1, QUEUE_BYTES_MOST],
        )?;
        if queue_bytes_max < body_bytes_max {
            let message = format!(
                "queue_bytes_max {queue_bytes_max} must be at least body_bytes_max, which is {body_bytes_max}: one call must fit"
            );
            return Err(document.error(&["gateway", "queue_bytes_max"], message));
        }
        Ok(Self {
            listen,
            body_bytes_max,
            queue_bytes_max,
            queue_calls_max: number(
                "queue_calls_max",
                table.queue_calls_max,
                bounds::QUEUE_CALLS_MAX,
                QUEUE_RANGE,
            )?,
            in_flight_max: number(
                "in_flight_max",
                table.in_flight_max,
                bounds::IN_FLIGHT_MAX,
                IN_FLIGHT_RANGE,
            )?,
            connect_timeout: span(
                "connect_timeout",
                &table.connect_timeout,
                bounds::CONNECT_TIMEOUT,
                TIMEOUT_RANGE,
            )?,
            first_byte_timeout: span(
                "first_byte_timeout",
                &table.first_byte_timeout,
                bounds::FIRST_BYTE_TIMEOUT,
                TIMEOUT_RANGE,
            )?,
            idle_timeout: span(
                "idle_timeout",
                &table.idle_timeout,
                bounds::IDLE_TIMEOUT,
                TIMEOUT_RANGE,
            )?,
            drain: span("drain", &table.drain, bounds::DRAIN, DRAIN_RANGE)?,
        })
    }
}

fn in_range(
    document: &Document,
    key: &str,
    value: u64,
    [least, most]: [usize; 2],
) -> Result<usize, Diagnostic> {
    let found = usize::try_from(value).ok().filter(|value| (least..=most).contains(value));
    found.ok_or_else(|| {
        let message = format!("{key} {value} must be between {least} and {most}");
        document.error(&["gateway", key], message)
    })
}

/// Checks a name that appears in subjects, metrics and logs.
fn check_name(what: &str, name: &str) -> Result<(), String> {
    use tollgate::core::bounds::NAME_BYTES_MAX;
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || NAME_BYTES_MAX < name.len() || !name.chars().all(is_allowed) {
        return Err(format!(
            "{what} {name:?} must be 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.'"
        ));
    }
    Ok(())
}

/// Returns the error of a `what` that is called `name` and is not among `known`.
fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let hint = tollgate::internal::nearest(name, known.clone());
    let hint = hint.map(|name| format!(" did you mean {name}?")).unwrap_or_default();
    let known = known.collect::<Vec<_>>().join(", ");
    format!("no {what} is called {name:?};{hint} known: {known}")
}
