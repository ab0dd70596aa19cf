//! Redis as the store.

use std::sync::Arc;

use tokio::sync::watch;
use tollgate::observe::Observer;
use tollgate::{Clock, Error, Span};
use tollgate_protocol::permit_token::KEY_BYTES;
use tollgate_redis::{Options, Redis};

use super::remote::{Chore, Remote};
use super::{certificates, random_bytes};
use crate::{RedisConfig, RedisServers, Secret};

/// How often a broker checks that Redis has its data.
const DATA_CHECK_INTERVAL: Span = Span::from_secs(1);

pub(super) async fn open(
    config: &RedisConfig,
    timeout: Span,
    observer: Option<Arc<dyn Observer>>,
) -> Result<Remote, Error> {
    let mut options = options(config)?.attempt_timeout(timeout);
    let is_broker = observer.is_some();
    if let Some(observer) = observer {
        options = options.observer(observer);
    }
    let redis = Redis::open(options).await?;
    if is_broker {
        for warning in redis.check_server().await {
            tracing::warn!("{warning}");
        }
    }
    // Programs on one server accept each other's permits.
    let key = redis.permit_key(random_bytes()?).await?;
    let redis = Arc::new(redis);
    let (gate, overrides) = (Arc::clone(&redis) as _, Arc::clone(&redis) as _);
    Ok(Remote { gate, key, overrides, chore: Some(Chore::DetectLoss(redis)) })
}

/// Returns how to reach the configured server or cluster.
pub(super) fn options(config: &RedisConfig) -> Result<Options, Error> {
    let mut options = match &config.servers {
        RedisServers::Single(url) => Options::single(url.read()?),
        RedisServers::Cluster(url) => Options::cluster(url.read()?.split(',').map(str::trim)),
        RedisServers::Sentinel(sentinel) => {
            let read = |secret: &Option<Secret>| secret.as_ref().map(Secret::read).transpose();
            let options = Options::sentinel(sentinel.addresses.clone(), &sentinel.master)
                .login(sentinel.user.clone(), read(&sentinel.password)?)
                .sentinel_login(sentinel.sentinel_user.clone(), read(&sentinel.sentinel_password)?)
                .database(sentinel.database);
            if sentinel.tls { options.tls() } else { options }
        }
    };
    if let Some(prefix) = &config.prefix {
        options = options.prefix(prefix);
    }
    if let Some(tag) = &config.slot_tag {
        options = options.slot_tag(tag)?;
    }
    if let Some(path) = &config.authority {
        options = options.authority(certificates(path)?);
    }
    if let Some(format) = config.format {
        options = options.format(format)?;
    }
    Ok(options.wait_replicas(config.wait_replicas).once())
}

/// Warns when Redis lost its data, and adopts the key of permits that it has then. Never returns.
pub(super) async fn detect_loss(
    redis: &Redis,
    key: &watch::Sender<[u8; KEY_BYTES]>,
    clock: &dyn Clock,
) {
    loop {
        clock.sleep_until(clock.now() + DATA_CHECK_INTERVAL).await;
        let own = *key.borrow();
        // Asks notice a server that is unavailable.
        let Ok(kept) = redis.check_data(own).await else { continue };
        if kept.is_lost {
            tracing::warn!(
                "Redis lost its data: every subject starts fresh, so limits may be exceeded by earlier usage. \
                 Look for FLUSHALL, a restart without persistence or a failover to an empty replica"
            );
        }
        if kept.key != own {
            key.send_replace(kept.key);
        }
    }
}
