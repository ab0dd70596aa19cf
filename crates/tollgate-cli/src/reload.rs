//! Reloads the configuration, keys and certificates, all or nothing: on SIGHUP, and when a file changes.
//!
//! Policies, keys, the mapping of Envoy's descriptors and the gateway's keys, upstreams and routes take effect at once. Addresses and the store cannot change under
//! open connections, so a file that changes one of them is refused as a whole.
//!
//! Limits that a management server sends replace only those that it sent before.
//!
//! Files are polled for changed contents every second, so it does not matter how a file is replaced: in place, by a rename
//! as editors do, or by a symbolic link as in Kubernetes.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use tollgate::policy::Policies;
use tollgate::{Clock, ErrorKind, Span};
use tollgate_protocol::protobuf::envoy::service::discovery::v3::DiscoveryResponse;
use tollgate_ratelimit_config::RateLimitConfig;
use tollgate_server::{App, Tls};

use tollgate_config::DEFAULT_FILE;

#[cfg(feature = "gateway")]
use crate::config::GatewayConfig;
use crate::config::{JwtConfig, KeyConfig, ServeConfig, with_limits};
use crate::serve::read_keys;
use crate::xds::Push;
#[cfg(feature = "gateway")]
use tollgate_gateway::{Gateway, GatewayOptions};
use tollgate_terminal::Failure;
use tollgate_terminal::LineWriter;

/// The polling interval. A change counts when two polls see it, so it takes effect within two intervals.
const POLL_INTERVAL: Span = Span::from_secs(1);

/// Where a configuration comes from.
#[derive(Clone, Debug)]
pub(crate) enum ConfigSource {
    /// The file that was named on the command line, or the default one.
    File(Option<PathBuf>),
    /// A text that was made of environment variables.
    Environment(String),
}

impl ConfigSource {
    /// Reads the configuration.
    pub(crate) fn load(&self) -> Result<ServeConfig, Failure> {
        Ok(match self {
            Self::File(named) => ServeConfig::load(named.as_deref())?,
            Self::Environment(text) => {
                let name = Some(Path::new("environment"));
                // The excerpt of an error would show lines that nobody wrote, with passwords.
                ServeConfig::parse(name, text)
                    .map_err(|error| Failure::new(ErrorKind::Invalid, error.message()))?
            }
        })
    }

    fn file(&self) -> Option<&Path> {
        match self {
            Self::File(named) => Some(named.as_deref().unwrap_or(Path::new(DEFAULT_FILE))),
            Self::Environment(_) => None,
        }
    }
}

/// The parts of a running broker that a reload replaces.
pub(crate) struct Reload {
    /// Where the configuration comes from.
    pub(crate) source: ConfigSource,
    /// The configuration in force.
    pub(crate) running: ServeConfig,
    pub(crate) app: Arc<App>,
    pub(crate) tls: Option<Tls>,
    #[cfg(feature = "gateway")]
    pub(crate) gateway: Option<Arc<Gateway>>,
    /// Whether other machines can reach the broker and only keys protect it.
    pub(crate) needs_keys: bool,
    /// The limits that the management server sent, if it has.
    pub(crate) limits: Option<RateLimitConfig>,
    /// Whether the last reload was refused.
    pub(crate) refused: bool,
    /// Standard output, if a person reads it.
    pub(crate) printed: Option<LineWriter>,
}

impl Reload {
    /// Reloads on each signal and on each change that `watch` detects, and takes each of `pushes`. Never returns.
    pub(crate) async fn on(
        &mut self,
        mut hang_up: Signal,
        mut watch: Watch,
        mut pushes: mpsc::Receiver<Push>,
        clock: &dyn Clock,
    ) {
        loop {
            tokio::select! {
                Some(()) = hang_up.recv() => {
                    watch.loaded(self.digest());
                    self.reload();
                }
                () = clock.sleep_until(clock.now() + POLL_INTERVAL), if self.running.server.watch => {
                    if watch.changed(self.digest()) {
                        self.reload();
                    }
                }
                Some(push) = pushes.recv() => {
                    let answer = self.take(&push.response);
                    push.answer(answer);
                }
                else => std::future::pending::<()>().await,
            }
        }
    }

    fn digest(&self) -> u64 {
        digest(&self.source, &self.running)
    }

    fn reload(&mut self) {
        match self.once() {
            Ok(()) => {
                if self.running.envoy.folder.is_some() {
                    self.app.limit_stats().loaded(true);
                }
                self.app.reloaded();
                // The log that got the error also gets its end.
                if std::mem::take(&mut self.refused) {
                    tracing::warn!("reloaded: the files are right again");
                }
                if let Some(printed) = &self.printed {
                    printed.push(b"reloaded\n");
                }
            }
            Err(failure) => {
                self.refused = true;
                if self.running.envoy.folder.is_some() {
                    self.app.limit_stats().loaded(false);
                }
                // A log entry is one line, so the excerpt of the file is left out.
                let text = failure.to_string();
                let why = text.lines().next().unwrap_or_default();
                tracing::error!("not reloaded, everything stays as it was: {why}");
            }
        }
    }

    /// Puts the limits of the management server in force, or changes nothing.
    fn take(&mut self, response: &DiscoveryResponse) -> Result<(), String> {
        let version = &*response.version_info;
        let taken = self.replace_limits(response);
        self.app.limit_stats().loaded(taken.is_ok());
        let [domains, limits] = taken.inspect_err(|why| {
            tracing::error!(
                version,
                "refused the limits of the management server, those from before stay: {why}"
            );
        })?;
        self.app.reloaded();
        if domains == 0 {
            tracing::warn!(
                version,
                "the management server withdrew all limits, so that every request is admitted"
            );
        } else {
            tracing::info!(
                version,
                domains,
                limits,
                "the limits of the management server are in force"
            );
        }
        if let Some(printed) = &self.printed {
            let line = format!("limits of version {version:?} are in force\n");
            printed.push(line.as_bytes());
        }
        Ok(())
    }

    /// Returns how many domains and limits there are now.
    fn replace_limits(&mut self, response: &DiscoveryResponse) -> Result<[usize; 2], String> {
        let Some(pushed) = &self.running.envoy.pushed else {
            return Err("no management server is configured".to_owned());
        };
        let limits = pushed.check(response).map_err(|error| error.to_string())?;
        let policies = with_limits(&self.running.gates.policies, Some(&limits))?;
        self.app.replace_policies(policies).map_err(|error| error.to_string())?;
        self.app.replace_envoy(self.running.envoy.map_with(Some(&limits)));
        let counts = [limits.domains().len(), limits.rules().len()];
        self.limits = Some(limits);
        Ok(counts)
    }

    /// Returns the policies of `config`, and those of the limits that the management server sent.
    fn policies(&self, config: &ServeConfig) -> Result<Policies, Failure> {
        with_limits(&config.gates.policies, self.limits.as_ref())
            .map_err(|why| Failure::new(ErrorKind::Invalid, why))
    }

    fn once(&mut self) -> Result<(), Failure> {
        let refuse = |text: &str| Err(Failure::new(ErrorKind::Invalid, text));
        let config = self.source.load()?;
        if config.gates.document.file().is_none() && self.running.gates.document.file().is_some() {
            return refuse(
                "the configuration is gone; put it back, or restart for the sample policies",
            );
        }
        if config.server != self.running.server {
            return refuse("[server] changed, which takes a restart");
        }
        if config.gates.store != self.running.gates.store
            || config.gates.fallback != self.running.gates.fallback
        {
            return refuse("[store] or [fallback] changed, which takes a restart");
        }
        if !config.gates.strategy.is_same(&self.running.gates.strategy) {
            return refuse("[strategy] changed, which takes a restart");
        }
        if config.gates.telemetry != self.running.gates.telemetry
            || config.audit != self.running.audit
        {
            return refuse("[telemetry] or [audit] changed, which takes a restart");
        }
        #[cfg(feature = "translate")]
        if config.jobs != self.running.jobs {
            return refuse("[translate] changed, which takes a restart");
        }
        if config.envoy.pushed != self.running.envoy.pushed {
            return refuse("[envoy.xds] or [envoy] beside it changed, which takes a restart");
        }
        if config.jwt != self.running.jwt {
            return refuse("[jwt] changed, which takes a restart");
        }
        let key_set = config.jwt.as_ref().map(JwtConfig::read).transpose()?.flatten();
        let keys = read_keys(&config)?;
        if keys.is_none() && self.needs_keys {
            return refuse(
                "without a [[key]] everyone could call the broker; keep one, or restart with --allow-anonymous",
            );
        }
        if let Some(tls) = &self.tls {
            tls.reload()?;
        }
        #[cfg(feature = "gateway")]
        let gateway = self.gateway_options(&config)?;
        self.app.replace_policies(self.policies(&config)?)?;
        #[cfg(feature = "gateway")]
        if let Some((gateway, options)) = self.gateway.as_ref().zip(gateway)
            && let Err(error) = gateway.replace(options)
        {
            // The gateway is checked against the policies in force, so they are replaced first, and back.
            self.app.replace_policies(self.policies(&self.running)?)?;
            return Err(error.into());
        }
        self.app.replace_keys(keys);
        if let Some(key_set) = key_set {
            self.app.replace_jwt_keys(key_set);
        }
        for warning in &config.envoy.warnings {
            tracing::warn!("{warning}");
        }
        self.app.replace_envoy(config.envoy.map_with(self.limits.as_ref()));
        self.running.envoy = config.envoy;
        self.running.gates.policies = config.gates.policies;
        // These name the files to watch from now on.
        self.running.keys = config.keys;
        self.running.gates.document = config.gates.document;
        #[cfg(feature = "gateway")]
        {
            self.running.gateway = config.gateway;
        }
        Ok(())
    }

    /// Reads the secrets of the gateway of `config`.
    #[cfg(feature = "gateway")]
    fn gateway_options(&self, config: &ServeConfig) -> Result<Option<GatewayOptions>, Failure> {
        let settings = |config: &ServeConfig| config.gateway.as_ref().map(|it| it.settings.clone());
        if settings(config) != settings(&self.running) {
            let text = "[gateway] changed, apart from its keys, which takes a restart";
            return Err(Failure::new(ErrorKind::Invalid, text));
        }
        Ok(config.gateway.as_ref().map(GatewayConfig::read).transpose()?)
    }
}

/// Detects changed contents of files.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The digest at the last reload.
    loaded: u64,
    /// The digest at the last poll.
    seen: u64,
}

impl Watch {
    /// Watches the files that `config` was just read from.
    pub(crate) fn new(source: &ConfigSource, config: &ServeConfig) -> Self {
        let digest = digest(source, config);
        Self { loaded: digest, seen: digest }
    }

    /// Records a reload.
    const fn loaded(&mut self, digest: u64) {
        self.loaded = digest;
        self.seen = digest;
    }

    /// Returns whether to reload: once per change, at the second poll that sees it, since the first may see half a file.
    const fn changed(&mut self, digest: u64) -> bool {
        let is_stable = self.seen == digest;
        self.seen = digest;
        let changed = is_stable && self.loaded != digest;
        if changed {
            self.loaded = digest;
        }
        changed
    }
}

/// Hashes the contents of all files of `config`. A missing file differs from an empty one.
fn digest(source: &ConfigSource, config: &ServeConfig) -> u64 {
    let tls = config.server.tls.iter();
    let tls =
        tls.flat_map(|tls| [Some(&tls.certificate), Some(&tls.key), tls.client_authority.as_ref()]);
    let others = tls.flatten().map(PathBuf::as_path);
    let others = others.chain(config.keys.iter().filter_map(KeyConfig::file));
    let others = others.chain(config.jwt.as_ref().and_then(JwtConfig::file));
    let others = others.chain(config.gateway_files());
    let mut hasher = DefaultHasher::new();
    for path in others.chain(source.file()) {
        std::fs::read(path).ok().hash(&mut hasher);
    }
    for path in config.ratelimit_files() {
        std::fs::read(&path).ok().hash(&mut hasher);
        path.hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_reloads_once_at_the_second_poll() {
        let mut watch = Watch { loaded: 1, seen: 1 };
        let rows = [
            (1, false),
            // Half of a file, and then all of it.
            (2, false),
            (3, false),
            (3, true),
            (3, false),
            // Reverted before a reload.
            (4, false),
            (3, false),
            (3, false),
            (1, false),
            (1, true),
        ];
        for (poll, (digest, changed)) in rows.into_iter().enumerate() {
            assert_eq!(watch.changed(digest), changed, "poll {poll}");
        }
        watch.loaded(9);
        assert!(!watch.changed(9), "a reload by a signal is not repeated");
    }
}
