//! Opens the configured store as a gate, and shuts it down.

#[cfg(feature = "broker")]
mod broker;
#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "embedded")]
mod embedded;
mod entries;
mod operator_errors;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
mod remote;
mod resilient;

use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tollgate::audit::AuditLog;
use tollgate::memory::KEYS_MAX_DEFAULT;
use tollgate::observe::Observer;
use tollgate::overrides::OverrideStore;
use tollgate::strategy::Resend;
use tollgate::{Clock, Error, ErrorKind, Gate, Memory, Span, Timestamp};
use tollgate_protocol::json::StoreHealth;
use tollgate_protocol::permit_token::KEY_BYTES;

#[cfg(feature = "dynamodb")]
pub use self::dynamodb::dynamodb_options;
pub use self::entries::{OpenedEntries, Purpose, entries};
#[cfg(feature = "postgres")]
pub use self::postgres::postgres_options;
use self::remote::Remote;
use self::resilient::Resilient;
use crate::{Config, FallbackConfig, StoreConfig, StrategyConfig};

/// The longest that the telemetry sinks, and then the store, may take to shut down when the process ends.
pub const SHUTDOWN_MAX: Span = Span::from_secs(5);

/// A store that is open.
#[derive(Debug)]
pub struct Opened {
    gate: Arc<dyn Gate>,
    owner: Owner,
    /// The key that permits are sealed with, which changes if the store lost it.
    key: watch::Sender<[u8; KEY_BYTES]>,
    /// The overrides; `None` if they end with the process.
    overrides: Option<Arc<dyn OverrideStore>>,
    /// What a broker does in the background until it closes.
    background: Option<JoinHandle<()>>,
}

/// The part of a store that has to be shut down.
#[derive(Debug)]
enum Owner {
    /// Nothing.
    None,
    #[cfg(feature = "embedded")]
    Embedded(embedded::Owner),
    /// A store on a server that may be unavailable.
    Resilient(Box<Resilient>),
}

impl Opened {
    fn new(gate: Arc<dyn Gate>, key: [u8; KEY_BYTES]) -> Self {
        let key = watch::Sender::new(key);
        Self { gate, owner: Owner::None, key, overrides: None, background: None }
    }

    /// Returns the store as a gate.
    #[must_use]
    pub fn gate(&self) -> Arc<dyn Gate> {
        Arc::clone(&self.gate)
    }

    /// Returns a function that reports the health of a store of `kind`.
    pub fn health(&self, kind: &'static str) -> impl Fn() -> StoreHealth + Send + Sync + 'static {
        let watch = match &self.owner {
            Owner::Resilient(resilient) => Some(resilient.watch()),
            _ => None,
        };
        move || {
            let mut health = StoreHealth { kind: kind.to_owned(), ..StoreHealth::default() };
            if let Some((gate, outage)) = &watch {
                health.degraded = gate.is_degraded();
                health.degraded_since = health.degraded.then(|| outage.began());
                health.owing = gate.owing();
                health.misconfigured = gate.is_misconfigured();
            }
            health
        }
    }

    /// Returns the key that permits are sealed with.
    #[must_use]
    pub fn key(&self) -> [u8; KEY_BYTES] {
        *self.key.borrow()
    }

    /// Returns the key that permits are sealed with, and every key that replaces it.
    #[must_use]
    pub fn keys(&self) -> watch::Receiver<[u8; KEY_BYTES]> {
        self.key.subscribe()
    }

    /// Returns where overrides are kept; `None` if they end with the process.
    #[must_use]
    pub fn overrides(&self) -> Option<Arc<dyn OverrideStore>> {
        self.overrides.clone()
    }

    /// Posts the charges of an outage. Charges that the store does not accept in time stay owed.
    pub async fn flush(&self, timeout: Span, clock: &dyn Clock) {
        if let Owner::Resilient(resilient) = &self.owner {
            let posted = tollgate::internal::timeout(clock, timeout, resilient.flush()).await;
            if !matches!(posted, Some(Ok(()))) {
                tracing::warn!("the charges of an outage are not posted yet");
            }
        }
    }

    /// Flushes the store, and releases the folder of an embedded store. What a strategy did not post by `deadline` is lost;
    /// an embedded store commits however long its disk takes.
    pub async fn shutdown(self, deadline: Timestamp) -> Result<(), Error> {
        if let Some(background) = self.background {
            background.abort();
            // It was aborted, so its result says nothing.
            let _ = background.await;
        }
        match &self.owner {
            Owner::None => Ok(()),
            #[cfg(feature = "embedded")]
            Owner::Embedded(owner) => owner.shutdown().await,
            Owner::Resilient(resilient) => resilient.shutdown(deadline).await,
        }
    }
}

/// Opens `store` for one operation of a command, which waits for other commands on the same folder.
pub async fn for_command(
    store: &StoreConfig,
    fallback: &FallbackConfig,
    clock: Arc<dyn Clock>,
) -> Result<Opened, Error> {
    match store {
        StoreConfig::Memory { .. } => Err(memory_store_error()),
        #[cfg(feature = "embedded")]
        StoreConfig::Embedded { path, durability, keys_max } => {
            embedded::for_command(path, (*durability, *keys_max), clock)
        }
        _ => {
            let timeout = resilient::attempt_timeout(store, fallback.attempt_timeout, false);
            let remote = Box::pin(remote::open(store, timeout, Arc::clone(&clock), None)).await?;
            let attempts = resilient::attempts(store, fallback.attempt_timeout, false);
            let gate = Arc::new(Resend::new(remote.gate, attempts, clock));
            Ok(Opened { overrides: Some(remote.overrides), ..Opened::new(gate, remote.key) })
        }
    }
}

/// Opens `store` for a broker at `url`, which keeps it open until it ends. `observer` sees what happens at the store.
pub async fn for_server(
    store: &StoreConfig,
    Config { strategy, fallback, .. }: &Config,
    url: &str,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
) -> Result<Opened, Error> {
    #[cfg(not(feature = "embedded"))]
    let _ = url;
    match store {
        StoreConfig::Memory { keys_max, ids_max } => {
            in_memory(Memory::with_bounds(clock, *keys_max, *ids_max))
        }
        #[cfg(feature = "embedded")]
        StoreConfig::Embedded { path, durability, keys_max } => {
            embedded::for_server(path, (*durability, *keys_max), url, clock, observer)
        }
        _ => Box::pin(resilient(store, strategy, fallback, true, clock, observer)).await,
    }
}

/// Opens `store` for a worker that asks for hours and goes on while a server is unavailable. The store decides every ask,
/// whatever the strategy of brokers is.
pub async fn for_worker(
    store: &StoreConfig,
    fallback: &FallbackConfig,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
) -> Result<Opened, Error> {
    match store.remote_kind() {
        None => for_command(store, fallback, clock).await,
        Some(_) => {
            let strategy = &StrategyConfig::Atomic;
            Box::pin(resilient(store, strategy, fallback, false, clock, observer)).await
        }
    }
}

/// Opens a store on a server for a program that goes on while the server is unavailable.
async fn resilient(
    store: &StoreConfig,
    strategy: &StrategyConfig,
    fallback: &FallbackConfig,
    is_broker: bool,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
) -> Result<Opened, Error> {
    let timeout = resilient::attempt_timeout(store, fallback.attempt_timeout, is_broker);
    let Remote { gate, key, overrides, chore } =
        remote::open(store, timeout, Arc::clone(&clock), Some(Arc::clone(&observer))).await?;
    let attempts = resilient::attempts(store, fallback.attempt_timeout, is_broker);
    let resend = Resend::new(gate, attempts, Arc::clone(&clock));
    // DynamoDB reports its own attempts.
    let resend = match store {
        StoreConfig::DynamoDb(_) => resend,
        _ => resend.observer(Arc::clone(&observer)),
    };
    let key = watch::Sender::new(key);
    let background = chore.map(|chore| tokio::spawn(chore.run(key.clone(), Arc::clone(&clock))));
    let owner = Resilient::new(resend, attempts, strategy, fallback.settings, clock, observer)?;
    let (gate, owner) = (owner.gate(), Owner::Resilient(Box::new(owner)));
    Ok(Opened { gate, owner, key, overrides: Some(overrides), background })
}

/// Opens the overrides of `store` alone; `None` if they are in the memory of a broker.
pub async fn overrides(
    store: &StoreConfig,
    fallback: &FallbackConfig,
    clock: Arc<dyn Clock>,
) -> Result<Option<Arc<dyn OverrideStore>>, Error> {
    Ok(match store {
        StoreConfig::Memory { .. } => None,
        #[cfg(feature = "embedded")]
        StoreConfig::Embedded { path, .. } => Some(embedded::overrides(path)),
        _ => {
            let timeout = resilient::attempt_timeout(store, fallback.attempt_timeout, false);
            Some(Box::pin(remote::open(store, timeout, clock, None)).await?.overrides)
        }
    })
}

/// Opens the audit log of a broker on `store`; `None` if the broker keeps it in memory.
pub async fn audit(store: &StoreConfig) -> Result<Option<Arc<dyn AuditLog>>, Error> {
    match store {
        #[cfg(feature = "embedded")]
        StoreConfig::Embedded { path, .. } => embedded::audit(path).map(Some),
        #[cfg(feature = "postgres")]
        StoreConfig::Postgres(config) => postgres::audit(config).await.map(Some),
        _ => Ok(None),
    }
}

/// Returns the error of a command that would need a store in memory.
#[must_use]
pub fn memory_store_error() -> Error {
    Error::new(
        ErrorKind::Invalid,
        "the configured store is memory, which is inside the broker, so a command on its own would find it empty; \
         start tollgate serve and name it with --server URL, or use kind = \"embedded\"",
    )
}

/// Returns the URL of the running broker that holds the folder of `store`.
#[must_use]
pub fn served_at(store: &StoreConfig) -> Option<String> {
    match store {
        #[cfg(feature = "embedded")]
        StoreConfig::Embedded { path, .. } => tollgate_embedded::Embedded::served_at(path),
        _ => None,
    }
}

/// Returns the folder of `store` if there is no store in it yet.
pub fn missing_folder(store: &StoreConfig) -> Result<Option<&Path>, Error> {
    match store {
        #[cfg(feature = "embedded")]
        StoreConfig::Embedded { path, .. } if !tollgate_embedded::Embedded::exists(path)? => {
            Ok(Some(path))
        }
        _ => Ok(None),
    }
}

/// Opens an empty store in memory, in place of a store at `folder` that does not exist yet.
pub fn empty(clock: Arc<dyn Clock>, folder: &Path) -> Result<Opened, Error> {
    let opened = in_memory(Memory::with(clock, KEYS_MAX_DEFAULT))?;
    #[cfg(feature = "embedded")]
    let opened = Opened { overrides: Some(embedded::overrides(folder)), ..opened };
    #[cfg(not(feature = "embedded"))]
    let _ = folder;
    Ok(opened)
}

/// Permits of a store in memory end with the process, so their key does too.
fn in_memory(memory: Memory) -> Result<Opened, Error> {
    Ok(Opened::new(Arc::new(memory.share_per_policy()), random_bytes()?))
}

/// Returns random bytes from the system.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(ErrorKind::Unavailable, "the system gave no random numbers").caused_by(error)
    })?;
    Ok(bytes)
}

/// Reads a file with certificates or a private key.
#[cfg(any(feature = "broker", feature = "postgres", feature = "redis"))]
fn certificates(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| {
        let message = format!("the certificates in {} cannot be read: {error}", path.display());
        Error::new(ErrorKind::Invalid, message)
    })
}
