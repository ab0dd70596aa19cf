//! The configuration, keys and certificates read again while the broker runs, all of it or nothing: on SIGHUP, and when a
//! file changes.
//!
//! Policies, keys and the meaning of Envoy's descriptors take effect at once. An address or a store cannot change under open connections, so a file that
//! changes one is refused with the rest of it.
//!
//! Whether a file changed is told by what is in it, looked at every second. So it does not matter how it changed: written in
//! place, replaced by a rename as editors do, or by a link that points elsewhere as in Kubernetes.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::signal::unix::Signal;
use tollgate::{Clock, ErrorKind, Span};
use tollgate_server::{App, Tls};

use crate::config::{Config, DEFAULT_FILE, KeyConfig};
use crate::failure::Failure;
use crate::lines::Lines;
use crate::serve::keys_of;

/// How often files are looked at. A change counts when it is seen twice, so that it takes effect within two of these.
const LOOK_EVERY: Span = Span::from_secs(1);

/// What can be replaced while the broker runs.
pub(crate) struct Reload {
    /// The file that was named on the command line.
    pub(crate) named: Option<PathBuf>,
    /// The configuration it runs on.
    pub(crate) running: Config,
    pub(crate) app: Arc<App>,
    pub(crate) tls: Option<Tls>,
    /// Whether others can reach it and only keys keep them out.
    pub(crate) needs_keys: bool,
    /// Whether the files were refused when they were last read.
    pub(crate) refused: bool,
    /// Standard output, where a person reads it.
    pub(crate) printed: Option<Lines>,
}

impl Reload {
    /// Reads everything again each time the signal comes, or when the files that `watch` is about change. It never ends.
    pub(crate) async fn on(&mut self, mut hang_up: Signal, mut watch: Watch, clock: &dyn Clock) {
        loop {
            tokio::select! {
                Some(()) = hang_up.recv() => {
                    watch.taken(self.digest());
                    self.reload();
                }
                () = clock.sleep_until(clock.now() + LOOK_EVERY), if self.running.server.watch => {
                    if watch.is_news(self.digest()) {
                        self.reload();
                    }
                }
                else => std::future::pending::<()>().await,
            }
        }
    }

    fn digest(&self) -> u64 {
        digest(self.named.as_deref(), &self.running)
    }

    fn reload(&mut self) {
        match self.once() {
            Ok(()) => {
                self.app.reloaded();
                // Whoever was told of a mistake is told that it is mended, in the same place.
                if std::mem::take(&mut self.refused) {
                    tracing::warn!("reloaded: the files are right again");
                }
                if let Some(printed) = &self.printed {
                    printed.push(b"reloaded\n");
                }
            }
            Err(failure) => {
                self.refused = true;
                // A line of the log is a line: what shows the place in the file is left out.
                let text = failure.to_string();
                let why = text.lines().next().unwrap_or_default();
                tracing::error!("not reloaded, everything stays as it was: {why}");
            }
        }
    }

    fn once(&mut self) -> Result<(), Failure> {
        let refuse = |text: &str| Err(Failure::new(ErrorKind::Invalid, text));
        let config = Config::load(self.named.as_deref())?;
        if config.file.is_none() && self.running.file.is_some() {
            return refuse(
                "the configuration is gone; put it back, or restart for the sample policies",
            );
        }
        if config.server != self.running.server {
            return refuse("[server] changed, which takes a restart");
        }
        if config.store != self.running.store || config.fallback != self.running.fallback {
            return refuse("[store] or [fallback] changed, which takes a restart");
        }
        if !config.strategy.is(&self.running.strategy) {
            return refuse("[strategy] changed, which takes a restart");
        }
        if config.telemetry != self.running.telemetry || config.audit != self.running.audit {
            return refuse("[telemetry] or [audit] changed, which takes a restart");
        }
        let serves = self.running.serves_translations;
        if config.serves_translations != serves || serves && config.jobs != self.running.jobs {
            return refuse("[translate] changed, which takes a restart");
        }
        let keys = keys_of(&config)?;
        if keys.is_none() && self.needs_keys {
            return refuse(
                "without a [[key]] everybody could come in; keep one, or restart with --allow-anonymous",
            );
        }
        if let Some(tls) = &self.tls {
            tls.reload()?;
        }
        self.app.replace_policies(config.policies)?;
        self.app.replace_keys(keys);
        self.app.replace_envoy(config.envoy);
        // Its files are the ones to watch from now on.
        self.running.keys = config.keys;
        self.running.file = config.file;
        Ok(())
    }
}

/// Whether files changed, from what is in them.
#[derive(Debug)]
pub(crate) struct Watch {
    /// What was in them when they were last read for good.
    taken: u64,
    /// What was in them at the last look.
    seen: u64,
}

impl Watch {
    /// Files that `config` has just been read from.
    pub(crate) fn of(named: Option<&Path>, config: &Config) -> Self {
        let digest = digest(named, config);
        Self { taken: digest, seen: digest }
    }

    /// They are read now.
    const fn taken(&mut self, digest: u64) {
        self.taken = digest;
        self.seen = digest;
    }

    /// Whether `digest` is news, of which each is told once. What is seen the first time may be half of a file.
    const fn is_news(&mut self, digest: u64) -> bool {
        let is_whole = self.seen == digest;
        self.seen = digest;
        let is_news = is_whole && self.taken != digest;
        if is_news {
            self.taken = digest;
        }
        is_news
    }
}

/// Stands for what is in the files of `config`. A file that is missing differs from every one that is there.
fn digest(named: Option<&Path>, config: &Config) -> u64 {
    let tls = config.server.tls.iter();
    let tls =
        tls.flat_map(|tls| [Some(&tls.certificate), Some(&tls.key), tls.client_authority.as_ref()]);
    let others = tls.flatten().map(PathBuf::as_path);
    let others = others.chain(config.keys.iter().filter_map(KeyConfig::file));
    let mut hasher = DefaultHasher::new();
    for path in others.chain([named.unwrap_or(Path::new(DEFAULT_FILE))]) {
        std::fs::read(path).ok().hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_counts_when_it_is_seen_twice_and_once() {
        let mut watch = Watch { taken: 1, seen: 1 };
        let rows = [
            (1, false),
            // Half of a file, and then all of it.
            (2, false),
            (3, false),
            (3, true),
            (3, false),
            // Back before anybody read it.
            (4, false),
            (3, false),
            (3, false),
            (1, false),
            (1, true),
        ];
        for (place, (digest, is_news)) in rows.into_iter().enumerate() {
            assert_eq!(watch.is_news(digest), is_news, "look {place}");
        }
        watch.taken(9);
        assert!(!watch.is_news(9), "who was told by a signal is not told again");
    }
}
