//! The sections of the configuration that only the binary knows, read and checked with the rest of the file.

mod audit;
mod envoy;
#[cfg(feature = "gateway")]
mod gateway;
mod jwt;
mod keys;
mod server;
mod xds;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use hyper::Uri;
use tollgate::Span;
use tollgate::internal::Step;
use tollgate_config::{Config, Diagnostic};
use tollgate_server::{AuditOptions, check_policy_name};

pub(crate) use envoy::{EnvoyConfig, with_limits};
#[cfg(feature = "gateway")]
pub(crate) use gateway::{GatewayConfig, UpstreamConfig};
pub(crate) use jwt::{JwtConfig, KeySetSource};
pub(crate) use keys::KeyConfig;
pub(crate) use server::{Listen, LogFormat, ServerConfig};
pub(crate) use xds::XdsConfig;

/// The configuration of a broker.
#[derive(Debug)]
pub(crate) struct ServeConfig {
    /// What the gate is opened with.
    pub(crate) gates: Config,
    /// The listeners.
    pub(crate) server: ServerConfig,
    /// The API keys; without any, calls need none.
    pub(crate) keys: Vec<KeyConfig>,
    /// Whose JSON Web Tokens are accepted, if any are.
    pub(crate) jwt: Option<JwtConfig>,
    /// Which decisions the audit log records.
    pub(crate) audit: AuditOptions,
    /// The job store of `[translate]`, if the broker serves translations.
    #[cfg(feature = "translate")]
    pub(crate) jobs: Option<tollgate_translate::command::JobsConfig>,
    /// Which policy and subject each descriptor of Envoy means.
    pub(crate) envoy: EnvoyConfig,
    /// The gateway for LLM APIs, if there is one.
    #[cfg(feature = "gateway")]
    pub(crate) gateway: Option<GatewayConfig>,
}

/// Reads `file` and checks all of its sections; see [`Config::load`].
pub(crate) fn load(file: Option<&Path>) -> Result<Config, Diagnostic> {
    ServeConfig::load(file).map(|config| config.gates)
}

impl ServeConfig {
    /// Reads `file` and checks all of its sections; see [`Config::load`].
    pub(crate) fn load(file: Option<&Path>) -> Result<Self, Diagnostic> {
        Self::resolve(Config::load(file)?)
    }

    /// Checks `source`, the contents of `file`.
    pub(crate) fn parse(file: Option<&Path>, source: &str) -> Result<Self, Diagnostic> {
        Self::resolve(Config::parse(file, source)?)
    }

    /// Returns how long calls of the gateway may take to finish at shutdown; zero without one.
    pub(crate) fn gateway_drain(&self) -> Span {
        #[cfg(feature = "gateway")]
        if let Some(gateway) = &self.gateway {
            return gateway.settings.drain;
        }
        Span::ZERO
    }

    /// Returns the files that limits of envoyproxy/ratelimit were read from.
    pub(crate) fn ratelimit_files(&self) -> Vec<PathBuf> {
        let folder = self.envoy.folder.as_deref();
        folder.and_then(|folder| tollgate_ratelimit_config::files(folder).ok()).unwrap_or_default()
    }

    /// Returns the files that the gateway was read from.
    pub(crate) fn gateway_files(&self) -> impl Iterator<Item = &Path> {
        #[cfg(feature = "gateway")]
        let files = self.gateway.iter().flat_map(GatewayConfig::files);
        #[cfg(not(feature = "gateway"))]
        let files = std::iter::empty();
        files
    }

    fn resolve(mut gates: Config) -> Result<Self, Diagnostic> {
        let envoy = envoy::resolve(&gates.document, &gates.policies)?;
        if !envoy.policies.is_empty() {
            let all = gates.policies.with_policies(envoy.policies.iter().cloned());
            gates.policies =
                all.map_err(|error| gates.document.error(&["envoy"], error.to_string()))?;
        }
        let Config { document, policies, .. } = &gates;
        for (index, policy) in policies.iter().enumerate() {
            check_policy_name(policy.name()).map_err(|error| {
                let path = [Step::Field("name")];
                document.element_error("policy", index, &path, error.to_string())
            })?;
        }
        let server = ServerConfig::resolve(document)?;
        if server.settings.throttle_subjects_max.is_some() && !gates.store.bounds_keys() {
            let message = format!(
                "throttle_subjects_max is for the stores \"memory\" and \"embedded\"; remove it, the server of a {} \
                 store has bounds of its own",
                gates.store.kind()
            );
            return Err(document.error(&["server", "throttle_subjects_max"], message));
        }
        let keys = KeyConfig::resolve_all(document, policies)?;
        let jwt = JwtConfig::resolve(document)?;
        if server.anonymous && (jwt.is_some() || !keys.is_empty()) {
            let message =
                "anonymous = true lets everyone in, but there are keys; keep one of the two";
            return Err(document.error(&["server", "anonymous"], message));
        }
        #[cfg(not(feature = "translate"))]
        if document.section::<serde::de::IgnoredAny>("translate")?.is_some() {
            let message =
                "this tollgate was built without the feature translate; remove the section";
            return Err(document.error(&["translate"], message));
        }
        #[cfg(not(feature = "gateway"))]
        for section in ["gateway", "upstream", "route", "prices"] {
            if document.section::<serde::de::IgnoredAny>(section)?.is_some() {
                let message =
                    "this tollgate was built without the feature gateway; remove the section";
                return Err(document.error(&[section], message));
            }
        }
        Ok(Self {
            server,
            keys,
            jwt,
            audit: audit::resolve(document)?,
            #[cfg(feature = "translate")]
            jobs: tollgate_translate::command::JobsConfig::configured(&gates)?,
            envoy,
            #[cfg(feature = "gateway")]
            gateway: GatewayConfig::resolve(document, policies)?,
            gates,
        })
    }
}

/// Returns whether `url` is one of plain HTTP to another machine.
fn is_plain_beyond_loopback(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let host = uri.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let is_loopback = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
    uri.scheme_str() == Some("http") && !is_loopback
}
