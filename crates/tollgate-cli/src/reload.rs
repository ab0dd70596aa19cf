//! SIGHUP: the configuration and the certificates read again, all of it or nothing.
//!
//! Policies, keys and the meaning of Envoy's descriptors take effect at once. An address or a store cannot change under open connections, so a file that
//! changes one is refused with the rest of it.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::signal::unix::Signal;
use tollgate::ErrorKind;
use tollgate_server::{App, Tls};

use crate::config::Config;
use crate::failure::Failure;
use crate::output::{self, Reader};
use crate::serve::keys_of;

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
}

impl Reload {
    /// Reads everything again each time the signal comes. It never ends.
    pub(crate) async fn on(&self, mut hang_up: Signal, reader: Reader) {
        while hang_up.recv().await.is_some() {
            match self.once() {
                Ok(()) if reader == Reader::Person => drop(output::line("reloaded")),
                Ok(()) => {}
                Err(failure) => {
                    // A line of the log is a line: what shows the place in the file is left out.
                    let text = failure.to_string();
                    let why = text.lines().next().unwrap_or_default();
                    tracing::error!("not reloaded, everything stays as it was: {why}");
                }
            }
        }
        std::future::pending::<()>().await;
    }

    fn once(&self) -> Result<(), Failure> {
        let refuse = |text: &str| Err(Failure::new(ErrorKind::Invalid, text));
        let config = Config::load(self.named.as_deref())?;
        if config.server != self.running.server {
            return refuse("[server] changed, which takes a restart");
        }
        if config.store != self.running.store || config.fallback != self.running.fallback {
            return refuse("[store] or [fallback] changed, which takes a restart");
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
        self.app.replace_policies(config.policies);
        self.app.replace_keys(keys);
        self.app.replace_envoy(config.envoy);
        Ok(())
    }
}
