//! Opening the configured store, and closing it again.

use std::path::Path;
use std::sync::Arc;

use tokio::task::JoinHandle;
use tollgate::{Atomic, Clock, Error, ErrorKind, Gate, KEYS_MAX_DEFAULT, Memory, Span};
use tollgate_dynamodb::DynamoDb;
use tollgate_embedded::{Durability, Embedded, Holder, Options};
use tollgate_postgres::{CLEAN_UP_EVERY, Postgres};
use tollgate_redis::Redis;
use tollgate_server::token::KEY_BYTES;

use crate::config::{self, DynamoDbConfig, PostgresConfig, RedisConfig, StoreConfig};

/// How long a command waits for one answer of a service. It has nothing to fall back on, and may be one of hundreds
/// that start at once on a small machine.
const COMMAND_ATTEMPT_TIMEOUT: Span = Span::from_secs(5);

/// A store that is open.
#[derive(Debug)]
pub(crate) struct Opened {
    store: Kept,
    key: [u8; KEY_BYTES],
    /// What a broker does beside answering, until it closes.
    chore: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Kept {
    Memory(Arc<Atomic<Memory>>),
    Embedded(Arc<Atomic<Embedded>>),
    /// On a server, which has everything that was answered.
    Remote(Arc<dyn Gate>),
}

impl Opened {
    /// The store as a gate.
    pub(crate) fn gate(&self) -> Arc<dyn Gate> {
        match &self.store {
            Kept::Memory(gate) => Arc::clone(gate) as Arc<dyn Gate>,
            Kept::Embedded(gate) => Arc::clone(gate) as Arc<dyn Gate>,
            Kept::Remote(gate) => Arc::clone(gate),
        }
    }

    /// The key that permits are sealed with.
    pub(crate) const fn key(&self) -> &[u8; KEY_BYTES] {
        &self.key
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
        }
    }
}

/// Opens `store` for one question, after those who came before.
pub(crate) async fn for_command(
    store: &StoreConfig,
    clock: Arc<dyn Clock>,
) -> Result<Opened, Error> {
    match store {
        StoreConfig::Memory => Err(Error::new(
            ErrorKind::Invalid,
            "the configured store is memory, which is inside the broker, so a command on its own would find it empty; \
             start tollgate serve and name it with --server URL, or use kind = \"embedded\"",
        )),
        StoreConfig::Embedded { path, durability } => {
            embedded(path, options(*durability, Holder::Command, clock))
        }
        StoreConfig::DynamoDb(config) => {
            let options = dynamodb_options(config).attempt_timeout(COMMAND_ATTEMPT_TIMEOUT);
            dynamodb(options.clock(clock)).await
        }
        StoreConfig::Postgres(config) => Ok(postgres(config).await?.0),
        StoreConfig::Redis(config) => {
            redis(redis_options(config)?.attempt_timeout(COMMAND_ATTEMPT_TIMEOUT)).await
        }
    }
}

/// The folder of `store`, if there is nothing in it yet.
pub(crate) fn missing(store: &StoreConfig) -> Result<Option<&Path>, Error> {
    match store {
        StoreConfig::Embedded { path, .. } if !Embedded::exists(path)? => Ok(Some(path)),
        _ => Ok(None),
    }
}

/// A store in memory, with nothing used. It also answers questions about a folder that is not there.
pub(crate) fn empty(clock: Arc<dyn Clock>) -> Result<Opened, Error> {
    let store = Kept::Memory(Arc::new(Atomic::new(Memory::with(clock, KEYS_MAX_DEFAULT))));
    Ok(Opened { store, key: fresh_key()?, chore: None })
}

/// Opens `store` for a broker at `url`, which keeps it until it ends.
pub(crate) async fn for_server(
    store: &StoreConfig,
    url: &str,
    clock: Arc<dyn Clock>,
) -> Result<Opened, Error> {
    match store {
        StoreConfig::Memory => empty(clock),
        StoreConfig::Embedded { path, durability } => {
            let holder = Holder::Server { url: url.to_owned() };
            embedded(path, options(*durability, holder, clock))
        }
        StoreConfig::DynamoDb(config) => dynamodb(dynamodb_options(config).clock(clock)).await,
        StoreConfig::Postgres(config) => {
            let (opened, gate) = postgres(config).await?;
            let chore = tokio::spawn(async move { gate.keep_clean(CLEAN_UP_EVERY).await });
            Ok(Opened { chore: Some(chore), ..opened })
        }
        StoreConfig::Redis(config) => redis(redis_options(config)?).await,
    }
}

fn embedded(path: &Path, options: Options) -> Result<Opened, Error> {
    let embedded = Embedded::open(path, options)?;
    let key = embedded.permit_key();
    Ok(Opened { store: Kept::Embedded(Arc::new(Atomic::new(embedded))), key, chore: None })
}

async fn dynamodb(options: tollgate_dynamodb::Options) -> Result<Opened, Error> {
    let store = DynamoDb::connect(options).await?;
    // Programs on one table accept each other's permits.
    let key = store.permit_key(fresh_key()?).await?;
    Ok(Opened { store: Kept::Remote(Arc::new(store)), key, chore: None })
}

/// How to reach the configured table.
pub(crate) fn dynamodb_options(config: &DynamoDbConfig) -> tollgate_dynamodb::Options {
    let mut options = tollgate_dynamodb::Options::new(&config.table);
    if let Some(region) = &config.region {
        options = options.region(region);
    }
    if let Some(endpoint) = &config.endpoint {
        options = options.endpoint(endpoint);
    }
    options
}

async fn postgres(config: &PostgresConfig) -> Result<(Opened, Arc<Postgres>), Error> {
    let postgres = Arc::new(Postgres::open(postgres_options(config)?).await?);
    let key = postgres.permit_key().await?;
    let store = Kept::Remote(Arc::clone(&postgres) as Arc<dyn Gate>);
    Ok((Opened { store, key, chore: None }, postgres))
}

/// How to reach the configured server or cluster.
fn redis_options(config: &RedisConfig) -> Result<tollgate_redis::Options, Error> {
    let url = config.url.read()?;
    let mut options = if config.cluster {
        tollgate_redis::Options::cluster(url.split(',').map(str::trim))
    } else {
        tollgate_redis::Options::single(url)
    };
    if let Some(prefix) = &config.prefix {
        options = options.prefix(prefix);
    }
    if let Some(path) = &config.authority {
        options = options.authority(certificates(path)?);
    }
    Ok(options.wait_replicas(config.wait_replicas))
}

async fn redis(options: tollgate_redis::Options) -> Result<Opened, Error> {
    let redis = Redis::connect(options).await?;
    // Programs on one server accept each other's permits.
    let key = redis.permit_key(fresh_key()?).await?;
    Ok(Opened { store: Kept::Remote(Arc::new(redis)), key, chore: None })
}

/// How to reach the configured database.
pub(crate) fn postgres_options(
    config: &PostgresConfig,
) -> Result<tollgate_postgres::Options, Error> {
    let mut options = tollgate_postgres::Options::new(&config.url.read()?)?;
    if let Some(schema) = &config.schema {
        options = options.schema(schema);
    }
    if config.transaction_pooling {
        options = options.transaction_pooling();
    }
    if let Some(path) = &config.authority {
        options = options.authority(certificates(path)?);
    }
    Ok(options)
}

fn certificates(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| {
        let text = format!("the certificates in {} cannot be read: {error}", path.display());
        Error::new(ErrorKind::Invalid, text)
    })
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
    let mut key = [0; KEY_BYTES];
    getrandom::fill(&mut key).map_err(|error| {
        Error::new(ErrorKind::Unavailable, "the system gave no random numbers").caused_by(error)
    })?;
    Ok(key)
}
