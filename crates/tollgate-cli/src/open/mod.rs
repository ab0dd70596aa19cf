//! Opening the configured store, and closing it again.

mod servers;

use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tollgate::audit::AuditLog;
use tollgate::entries::EntryStore;
use tollgate::overrides::OverrideStore;
use tollgate::{
    Atomic, Clock, Error, ErrorKind, Gate, KEYS_MAX_DEFAULT, Memory, Observer, Resend, Span,
};
use tollgate_dynamodb::DynamoDb;
use tollgate_embedded::{
    Durability, Embedded, EmbeddedAudit, EmbeddedOverrides, Holder, Options, Reopening,
};
use tollgate_postgres::{Postgres, PostgresAudit};
use tollgate_redis::Redis;
use tollgate_server::token::KEY_BYTES;
use tollgate_server::wire::StoreHealth;

use self::servers::Remote;
pub(crate) use self::servers::{certificates, dynamodb_options, postgres_options};
use crate::config::{self, Config, FallbackConfig, StoreConfig, StrategyConfig};
use crate::strategy::{self, Resilient};

/// A store that is open.
#[derive(Debug)]
pub(crate) struct Opened {
    store: Kept,
    /// The key of permits, which changes if the store lost it.
    key: watch::Sender<[u8; KEY_BYTES]>,
    /// Where overrides are kept; nothing if they end with the process.
    overrides: Option<Arc<dyn OverrideStore>>,
    /// What a broker does beside answering, until it closes.
    chore: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Kept {
    Memory(Arc<Atomic<Memory>>),
    Embedded(Arc<Atomic<Embedded>>),
    /// The same for a broker.
    Reopening(Arc<Atomic<Reopening>>),
    /// On a server, asked by a command.
    Remote(Arc<dyn Gate>),
    /// On a server that may be away.
    Resilient(Box<Resilient>),
}

impl Opened {
    /// The store as a gate.
    pub(crate) fn gate(&self) -> Arc<dyn Gate> {
        match &self.store {
            Kept::Memory(gate) => Arc::clone(gate) as Arc<dyn Gate>,
            Kept::Embedded(gate) => Arc::clone(gate) as Arc<dyn Gate>,
            Kept::Reopening(gate) => Arc::clone(gate) as Arc<dyn Gate>,
            Kept::Remote(gate) => Arc::clone(gate),
            Kept::Resilient(resilient) => resilient.gate(),
        }
    }

    /// Says how a store of `kind` is, whenever it is asked.
    pub(crate) fn health(
        &self,
        kind: &'static str,
    ) -> impl Fn() -> StoreHealth + Send + Sync + 'static {
        let watch = match &self.store {
            Kept::Resilient(resilient) => Some(resilient.watch()),
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

    /// The key that permits are sealed with.
    pub(crate) fn key(&self) -> [u8; KEY_BYTES] {
        *self.key.borrow()
    }

    /// The same, and every key that replaces it.
    pub(crate) fn keys(&self) -> watch::Receiver<[u8; KEY_BYTES]> {
        self.key.subscribe()
    }

    /// Where overrides are kept; nothing if they end with the process.
    pub(crate) fn overrides(&self) -> Option<Arc<dyn OverrideStore>> {
        self.overrides.clone()
    }

    /// Posts what was admitted without the store, if the store takes it within `most`; otherwise it stays owed.
    pub(crate) async fn flush(&self, most: Span, clock: &dyn Clock) {
        if let Kept::Resilient(resilient) = &self.store {
            let posted = tollgate::within(clock, most, resilient.flush()).await;
            if !matches!(posted, Some(Ok(()))) {
                tracing::warn!("what was admitted without the store is not posted yet");
            }
        }
    }

    /// Writes what is not written yet and lets go of the folder.
    pub(crate) async fn close(self) -> Result<(), Error> {
        if let Some(chore) = self.chore {
            chore.abort();
            // It was told to end, so how it ended is no news.
            let _ = chore.await;
        }
        match &self.store {
            Kept::Memory(_) | Kept::Remote(_) => Ok(()),
            Kept::Embedded(gate) => gate.store().close().await,
            Kept::Reopening(gate) => gate.store().close().await,
            Kept::Resilient(resilient) => resilient.close().await,
        }
    }
}

/// Opens `store` for one question, after those who came before.
pub(crate) async fn for_command(
    store: &StoreConfig,
    fallback: &FallbackConfig,
    clock: Arc<dyn Clock>,
) -> Result<Opened, Error> {
    match store {
        StoreConfig::Memory { .. } => Err(inside_the_broker()),
        StoreConfig::Embedded { path, durability } => {
            embedded(path, options(*durability, Holder::Command, clock))
        }
        _ => {
            let timeout = strategy::attempt_timeout(store, fallback.attempt_timeout, false);
            let remote = Box::pin(servers::open(store, timeout, Arc::clone(&clock), None)).await?;
            let attempts = strategy::attempts(store, fallback.attempt_timeout, false);
            let gate = Resend::new(remote.gate, attempts, clock);
            let (store, overrides) = (Kept::Remote(Arc::new(gate)), Some(remote.overrides));
            Ok(Opened { store, key: watch::Sender::new(remote.key), overrides, chore: None })
        }
    }
}

/// What all entries of a store are needed for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Repair,
    Export,
    /// A dry run makes no folder.
    Import {
        dry_run: bool,
    },
}

impl Purpose {
    const fn command(self) -> &'static str {
        match self {
            Self::Repair => "repair",
            Self::Export => "export",
            Self::Import { .. } => "import",
        }
    }
}

/// A store whose entries can be listed and rewritten, and its overrides.
pub(crate) struct OpenedEntries {
    pub(crate) entries: Arc<dyn EntryStore>,
    pub(crate) overrides: Arc<dyn OverrideStore>,
}

impl OpenedEntries {
    fn of<S: EntryStore + OverrideStore>(store: S) -> Self {
        let store = Arc::new(store);
        Self { entries: Arc::clone(&store) as _, overrides: store }
    }
}

/// Opens `store` for its entries; nothing if there is no store yet.
pub(crate) async fn entries(
    store: &StoreConfig,
    fallback: &FallbackConfig,
    clock: Arc<dyn Clock>,
    purpose: Purpose,
) -> Result<Option<OpenedEntries>, Error> {
    let timeout = strategy::attempt_timeout(store, fallback.attempt_timeout, false);
    let (invalid, command) = (|text| Err(Error::new(ErrorKind::Invalid, text)), purpose.command());
    Ok(Some(match store {
        StoreConfig::Memory { .. } => {
            return invalid(match purpose {
                Purpose::Repair => "the configured store is memory, which ends with the broker; restart it, there is \
                                    nothing else to repair"
                    .to_owned(),
                _ => format!(
                    "the configured store is memory, which is inside the broker and ends with it, so there is nothing to \
                     {command}; name a configuration with another store with --config"
                ),
            });
        }
        StoreConfig::Broker(_) => {
            return invalid(format!(
                "the configured store is another broker; run {command} with the configuration of that one"
            ));
        }
        StoreConfig::Embedded { path, durability } => {
            if !matches!(purpose, Purpose::Import { dry_run: false }) && !Embedded::exists(path)? {
                return Ok(None);
            }
            let options = options(*durability, Holder::Command, clock);
            let opened = match purpose {
                Purpose::Repair => Embedded::open_for_repair(path, options),
                _ => Embedded::open(path, options),
            };
            let opened = opened.map_err(|error| match error.kind() {
                ErrorKind::Contended => {
                    let text = format!("{error}; to {command} it, stop whatever holds it");
                    Error::new(ErrorKind::Contended, text)
                }
                _ => error,
            });
            let overrides = Arc::new(EmbeddedOverrides::new(path));
            OpenedEntries { entries: Arc::new(opened?), overrides }
        }
        StoreConfig::DynamoDb(config) => {
            let options = dynamodb_options(config)?.attempt_timeout(timeout).clock(clock);
            OpenedEntries::of(DynamoDb::connect(options).await?)
        }
        StoreConfig::Postgres(config) => {
            let options = postgres_options(config)?.reply_timeout(timeout);
            OpenedEntries::of(Postgres::open(options).await?)
        }
        StoreConfig::Redis(config) => {
            let options = servers::redis_options(config)?.attempt_timeout(timeout);
            OpenedEntries::of(Redis::connect(options).await?)
        }
    }))
}

/// The error of a command that would need a store in memory.
pub(crate) fn inside_the_broker() -> Error {
    Error::new(
        ErrorKind::Invalid,
        "the configured store is memory, which is inside the broker, so a command on its own would find it empty; \
         start tollgate serve and name it with --server URL, or use kind = \"embedded\"",
    )
}

/// Where the running broker that holds the folder of `store` answers.
pub(crate) fn served_at(store: &StoreConfig) -> Option<String> {
    match store {
        StoreConfig::Embedded { path, .. } => Embedded::served_at(path),
        _ => None,
    }
}

/// The folder of `store`, if there is nothing in it yet.
pub(crate) fn missing(store: &StoreConfig) -> Result<Option<&Path>, Error> {
    match store {
        StoreConfig::Embedded { path, .. } if !Embedded::exists(path)? => Ok(Some(path)),
        _ => Ok(None),
    }
}

/// A store in memory, with nothing used. It also answers questions about a store at `folder` that is not there yet.
pub(crate) fn empty(clock: Arc<dyn Clock>, folder: Option<&Path>) -> Result<Opened, Error> {
    in_memory(Memory::with(clock, KEYS_MAX_DEFAULT), folder)
}

fn in_memory(memory: Memory, folder: Option<&Path>) -> Result<Opened, Error> {
    let store = Kept::Memory(Arc::new(Atomic::new(memory.share_per_policy())));
    let overrides = folder.map(|folder| Arc::new(EmbeddedOverrides::new(folder)) as _);
    Ok(Opened { store, key: watch::Sender::new(fresh_key()?), overrides, chore: None })
}

/// Where the overrides of `store` are kept, without opening the rest of it; nothing if that is inside the broker.
pub(crate) async fn overrides(
    store: &StoreConfig,
    fallback: &FallbackConfig,
    clock: Arc<dyn Clock>,
) -> Result<Option<Arc<dyn OverrideStore>>, Error> {
    Ok(match store {
        StoreConfig::Memory { .. } => None,
        StoreConfig::Embedded { path, .. } => Some(Arc::new(EmbeddedOverrides::new(path))),
        _ => {
            let timeout = strategy::attempt_timeout(store, fallback.attempt_timeout, false);
            Some(Box::pin(servers::open(store, timeout, clock, None)).await?.overrides)
        }
    })
}

/// Opens `store` for a broker at `url`, which keeps it until it ends. What happens between the two is told to `observer`.
pub(crate) async fn for_server(
    store: &StoreConfig,
    Config { strategy, fallback, .. }: &Config,
    url: &str,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
) -> Result<Opened, Error> {
    match store {
        StoreConfig::Memory { keys_max, ids_max } => {
            in_memory(Memory::with_bounds(clock, *keys_max, *ids_max), None)
        }
        StoreConfig::Embedded { path, durability } => {
            let holder = Holder::Server { url: url.to_owned() };
            let options = options(*durability, holder, clock).observer(observer);
            let store = Reopening::open(path, options)?;
            let key = watch::Sender::new(store.permit_key());
            let overrides = embedded_overrides(path);
            let store = Kept::Reopening(Arc::new(Atomic::new(store)));
            Ok(Opened { store, key, overrides, chore: None })
        }
        _ => Box::pin(resilient(store, strategy, fallback, true, clock, observer)).await,
    }
}

/// Opens `store` for a translation, which asks for hours and goes on while a server is away. The store decides every call,
/// whatever the strategy of brokers is.
pub(crate) async fn for_translation(
    store: &StoreConfig,
    fallback: &FallbackConfig,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
) -> Result<Opened, Error> {
    match store {
        StoreConfig::Memory { .. } | StoreConfig::Embedded { .. } => {
            for_command(store, fallback, clock).await
        }
        _ => {
            let strategy = &StrategyConfig::Atomic;
            Box::pin(resilient(store, strategy, fallback, false, clock, observer)).await
        }
    }
}

/// Opens a store on a server for a program that goes on while it is away.
async fn resilient(
    store: &StoreConfig,
    strategy: &StrategyConfig,
    fallback: &FallbackConfig,
    is_broker: bool,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
) -> Result<Opened, Error> {
    let timeout = strategy::attempt_timeout(store, fallback.attempt_timeout, is_broker);
    let heard = Some(Arc::clone(&observer));
    let Remote { gate, key, overrides, chore } =
        servers::open(store, timeout, Arc::clone(&clock), heard).await?;
    let attempts = strategy::attempts(store, fallback.attempt_timeout, is_broker);
    // DynamoDB tells of its own attempts.
    let tells = !matches!(store, StoreConfig::DynamoDb(_));
    let tried = Resend::new(gate, attempts, Arc::clone(&clock));
    let tried = if tells { tried.observer(Arc::clone(&observer)) } else { tried };
    let (ticking, key) = (Arc::clone(&clock), watch::Sender::new(key));
    let gate = Resilient::new(tried, attempts, strategy, fallback.settings, clock, observer)?;
    let chore = chore.map(|chore| tokio::spawn(chore.run(key.clone(), ticking)));
    let (store, overrides) = (Kept::Resilient(Box::new(gate)), Some(overrides));
    Ok(Opened { store, key, overrides, chore })
}

/// Where the audit of a broker on `store` is kept; nothing if it is kept in memory.
pub(crate) async fn audit(store: &StoreConfig) -> Result<Option<Arc<dyn AuditLog>>, Error> {
    Ok(match store {
        StoreConfig::Embedded { path, .. } => Some(Arc::new(EmbeddedAudit::open(path)?)),
        StoreConfig::Postgres(config) => {
            Some(Arc::new(PostgresAudit::open(postgres_options(config)?).await?))
        }
        StoreConfig::Memory { .. }
        | StoreConfig::Broker(_)
        | StoreConfig::DynamoDb(_)
        | StoreConfig::Redis(_) => None,
    })
}

fn embedded(path: &Path, options: Options) -> Result<Opened, Error> {
    let embedded = Embedded::open(path, options)?;
    let (key, overrides) = (watch::Sender::new(embedded.permit_key()), embedded_overrides(path));
    let store = Kept::Embedded(Arc::new(Atomic::new(embedded)));
    Ok(Opened { store, key, overrides, chore: None })
}

fn embedded_overrides(path: &Path) -> Option<Arc<dyn OverrideStore>> {
    Some(Arc::new(EmbeddedOverrides::new(path)))
}

fn options(durability: config::Durability, holder: Holder, clock: Arc<dyn Clock>) -> Options {
    let durability = match durability {
        config::Durability::Strict => Durability::Strict,
        config::Durability::Relaxed => Durability::Relaxed,
    };
    Options::new().durability(durability).holder(holder).clock(clock)
}

/// A key that nobody can guess. The permits of a memory store end with it, so its key does too.
fn fresh_key() -> Result<[u8; KEY_BYTES], Error> {
    random_bytes()
}

/// Bytes that nobody can guess.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(ErrorKind::Unavailable, "the system gave no random numbers").caused_by(error)
    })?;
    Ok(bytes)
}
