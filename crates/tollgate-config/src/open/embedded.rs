//! The embedded store, held by a command or by a broker.

use std::path::Path;
use std::sync::Arc;

use tollgate::audit::AuditLog;
use tollgate::observe::Observer;
use tollgate::overrides::OverrideStore;
use tollgate::{Clock, Error, Timestamp};
use tollgate_embedded::{
    Durability, Embedded, EmbeddedAudit, EmbeddedOverrides, Holder, Options, Reopening,
};

use super::Opened;

/// The store that has to be shut down.
#[derive(Debug)]
pub(super) enum Owner {
    Command(Arc<Embedded>),
    /// A broker opens the folder again after an error.
    Broker(Arc<Reopening>),
}

impl Owner {
    /// Waits for the commit however long the disk takes: dropping the store would block on it too.
    pub(super) async fn shutdown(&self) -> Result<(), Error> {
        match self {
            Self::Command(gate) => gate.shutdown(Timestamp::MAX).await,
            Self::Broker(gate) => gate.shutdown(Timestamp::MAX).await,
        }
    }
}

pub(super) fn for_command(
    path: &Path,
    settings: Settings,
    clock: Arc<dyn Clock>,
) -> Result<Opened, Error> {
    let store = Embedded::open(path, options(settings, Holder::Command, clock))?;
    let key = store.permit_key();
    let gate = Arc::new(store);
    let owner = super::Owner::Embedded(Owner::Command(Arc::clone(&gate)));
    Ok(Opened { owner, overrides: Some(overrides(path)), ..Opened::new(gate, key) })
}

pub(super) fn for_server(
    path: &Path,
    settings: Settings,
    url: &str,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
) -> Result<Opened, Error> {
    let holder = Holder::Server { url: url.to_owned() };
    let store = Reopening::open(path, options(settings, holder, clock).observer(observer))?;
    let key = store.permit_key();
    let gate = Arc::new(store);
    let owner = super::Owner::Embedded(Owner::Broker(Arc::clone(&gate)));
    Ok(Opened { owner, overrides: Some(overrides(path)), ..Opened::new(gate, key) })
}

pub(super) fn overrides(path: &Path) -> Arc<dyn OverrideStore> {
    Arc::new(EmbeddedOverrides::new(path))
}

pub(super) fn audit(path: &Path) -> Result<Arc<dyn AuditLog>, Error> {
    Ok(Arc::new(EmbeddedAudit::open(path)?))
}

/// What a crash may lose, and the most keys.
pub(super) type Settings = (crate::Durability, u64);

pub(super) fn options(
    (durability, keys_max): Settings,
    holder: Holder,
    clock: Arc<dyn Clock>,
) -> Options {
    let durability = match durability {
        crate::Durability::Strict => Durability::Strict,
        crate::Durability::Relaxed => Durability::Relaxed,
    };
    let options = Options::new().durability(durability).keys_max(keys_max).share_per_policy();
    options.holder(holder).clock(clock)
}
