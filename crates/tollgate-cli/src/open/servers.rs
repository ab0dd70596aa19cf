//! Stores that are on a server: how each is reached, and the key of permits that programs on it share.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;
use tollgate::overrides::OverrideStore;
use tollgate::{Atomic, Clock, Error, ErrorKind, Gate, Observer, Span};
use tollgate_dynamodb::DynamoDb;
use tollgate_postgres::{CLEAN_UP_EVERY, Postgres};
use tollgate_redis::Redis;
use tollgate_server::token::KEY_BYTES;

use crate::broker;
use crate::config::{
    DynamoDbConfig, PostgresConfig, RedisConfig, RedisServers, Secret, StoreConfig,
};

/// How often a broker looks whether Redis has its data.
const DATA_CHECK_EVERY: Span = Span::from_secs(1);

/// A gate on a server.
pub(super) struct Remote {
    pub(super) gate: Arc<dyn Gate>,
    /// The key of its permits.
    pub(super) key: [u8; KEY_BYTES],
    pub(super) overrides: Arc<dyn OverrideStore>,
    /// What a broker does beside answering.
    pub(super) chore: Option<Chore>,
}

/// What a broker does beside answering.
pub(super) enum Chore {
    /// Removes what nobody asks for any more.
    Tidy(Arc<Postgres>),
    /// Notices that the data is gone.
    Watch(Arc<Redis>),
}

/// The gate of a store that is on a server, with attempts of up to `timeout`.
pub(super) async fn open(
    store: &StoreConfig,
    timeout: Span,
    clock: Arc<dyn Clock>,
    observer: Option<Arc<dyn Observer>>,
) -> Result<Remote, Error> {
    match store {
        StoreConfig::Broker(config) => {
            let (client, key) = broker::client(config, timeout, clock)?;
            // Only a broker has somebody to tell.
            let key = broker::permit_key(key.as_deref(), observer.is_some())?;
            let overrides = Arc::new(broker::Elsewhere);
            Ok(Remote { gate: Arc::new(client), key, overrides, chore: None })
        }
        StoreConfig::DynamoDb(config) => {
            let options = dynamodb_options(config)?.attempt_timeout(timeout).clock(clock);
            dynamodb(match observer {
                Some(observer) => options.observer(observer),
                None => options,
            })
            .await
        }
        StoreConfig::Postgres(config) => postgres(config, timeout, observer).await,
        StoreConfig::Redis(config) => {
            redis(redis_options(config)?.attempt_timeout(timeout), observer).await
        }
        StoreConfig::Memory { .. } | StoreConfig::Embedded { .. } => {
            Err(Error::new(ErrorKind::Invalid, "this store is not on a server"))
        }
    }
}

async fn dynamodb(options: tollgate_dynamodb::Options) -> Result<Remote, Error> {
    let store = DynamoDb::connect(options).await?;
    // Programs on one table accept each other's permits.
    let key = store.permit_key(super::fresh_key()?).await?;
    let store = Arc::new(Atomic::new(store));
    Ok(Remote { gate: Arc::clone(&store) as _, key, overrides: store, chore: None })
}

/// How to reach the configured table.
pub(crate) fn dynamodb_options(
    config: &DynamoDbConfig,
) -> Result<tollgate_dynamodb::Options, Error> {
    let mut options = tollgate_dynamodb::Options::new(&config.table);
    if let Some(region) = &config.region {
        options = options.region(region);
    }
    if let Some(endpoint) = &config.endpoint {
        options = options.endpoint(endpoint);
    }
    if let Some(format) = config.format {
        options = options.format(format)?;
    }
    Ok(options)
}

async fn postgres(
    config: &PostgresConfig,
    timeout: Span,
    observer: Option<Arc<dyn Observer>>,
) -> Result<Remote, Error> {
    // Waiting for a row is no outage, so it ends well before the attempt does, also for those next in line.
    let lock = Span::from_micros(timeout.as_micros() / 4);
    let options = postgres_options(config)?.reply_timeout(timeout);
    let mut options = options.lock_timeout(lock.min(tollgate_postgres::LOCK_TIMEOUT_DEFAULT));
    if let Some(observer) = observer {
        options = options.observer(observer);
    }
    let postgres = Arc::new(Postgres::open(options).await?);
    let key = postgres.permit_key().await?;
    let (gate, overrides) = (Arc::clone(&postgres) as _, Arc::clone(&postgres) as _);
    Ok(Remote { gate, key, overrides, chore: Some(Chore::Tidy(postgres)) })
}

/// How to reach the configured server or cluster.
pub(super) fn redis_options(config: &RedisConfig) -> Result<tollgate_redis::Options, Error> {
    let mut options = match &config.servers {
        RedisServers::Single(url) => tollgate_redis::Options::single(url.read()?),
        RedisServers::Cluster(url) => {
            tollgate_redis::Options::cluster(url.read()?.split(',').map(str::trim))
        }
        RedisServers::Sentinel(sentinel) => {
            let read = |secret: &Option<Secret>| secret.as_ref().map(Secret::read).transpose();
            let options =
                tollgate_redis::Options::sentinel(sentinel.addresses.clone(), &sentinel.master)
                    .login(sentinel.user.clone(), read(&sentinel.password)?)
                    .sentinel_login(
                        sentinel.sentinel_user.clone(),
                        read(&sentinel.sentinel_password)?,
                    )
                    .database(sentinel.database);
            if sentinel.tls { options.tls() } else { options }
        }
    };
    if let Some(prefix) = &config.prefix {
        options = options.prefix(prefix);
    }
    if let Some(path) = &config.authority {
        options = options.authority(certificates(path)?);
    }
    if let Some(format) = config.format {
        options = options.format(format)?;
    }
    Ok(options.wait_replicas(config.wait_replicas).once())
}

async fn redis(
    options: tollgate_redis::Options,
    observer: Option<Arc<dyn Observer>>,
) -> Result<Remote, Error> {
    let is_broker = observer.is_some();
    let redis = Redis::connect(match observer {
        Some(observer) => options.observer(observer),
        None => options,
    })
    .await?;
    if is_broker {
        for warning in redis.check_server().await {
            tracing::warn!("{warning}");
        }
    }
    // Programs on one server accept each other's permits.
    let key = redis.permit_key(super::fresh_key()?).await?;
    let redis = Arc::new(redis);
    let (gate, overrides) = (Arc::clone(&redis) as _, Arc::clone(&redis) as _);
    Ok(Remote { gate, key, overrides, chore: Some(Chore::Watch(redis)) })
}

impl Chore {
    /// Does it until it is aborted. `key` is the key of permits, which is replaced if the store lost it.
    pub(super) async fn run(self, key: watch::Sender<[u8; KEY_BYTES]>, clock: Arc<dyn Clock>) {
        match self {
            Self::Tidy(postgres) => postgres.keep_clean(CLEAN_UP_EVERY).await,
            Self::Watch(redis) => loop {
                clock.sleep_until(clock.now() + DATA_CHECK_EVERY).await;
                let own = *key.borrow();
                // A server that is away is noticed by whoever asks.
                let Ok(kept) = redis.check_data(own).await else { continue };
                if kept.is_lost {
                    tracing::warn!(
                        metric = "RateLimiterStoreLostData",
                        "Redis lost its data: every subject starts fresh, so limits may be exceeded by what was used before. \
                         Look for FLUSHALL, a restart without persistence or a failover to an empty replica"
                    );
                }
                if kept.key != own {
                    key.send_replace(kept.key);
                }
            },
        }
    }
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
    if let Some(format) = config.format {
        options = options.format(format)?;
    }
    Ok(options)
}

pub(crate) fn certificates(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| {
        let text = format!("the certificates in {} cannot be read: {error}", path.display());
        Error::new(ErrorKind::Invalid, text)
    })
}
