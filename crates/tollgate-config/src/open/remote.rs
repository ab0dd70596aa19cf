//! Stores on a server: their gate, and the key of permits that programs on the same store share.

use std::sync::Arc;

use tokio::sync::watch;
use tollgate::observe::Observer;
use tollgate::overrides::OverrideStore;
use tollgate::{Clock, Error, ErrorKind, Gate, Span};
use tollgate_protocol::permit_token::KEY_BYTES;

use crate::StoreConfig;

/// A gate on a server.
pub(super) struct Remote {
    pub(super) gate: Arc<dyn Gate>,
    /// The key that permits are sealed with.
    pub(super) key: [u8; KEY_BYTES],
    pub(super) overrides: Arc<dyn OverrideStore>,
    /// What a broker does in the background.
    pub(super) chore: Option<Chore>,
}

/// What a broker does in the background.
pub(super) enum Chore {
    /// Deletes rows that are not used any more.
    #[cfg(feature = "postgres")]
    CleanUp(Arc<tollgate_postgres::Postgres>),
    /// Notices that the data is gone.
    #[cfg(feature = "redis")]
    DetectLoss(Arc<tollgate_redis::Redis>),
}

impl Chore {
    /// Runs until it is aborted, and replaces `key` if the store lost it.
    pub(super) async fn run(self, key: watch::Sender<[u8; KEY_BYTES]>, clock: Arc<dyn Clock>) {
        let _ = (&key, &clock);
        match self {
            #[cfg(feature = "postgres")]
            Self::CleanUp(postgres) => {
                postgres.keep_clean(tollgate_postgres::CLEAN_UP_EVERY).await;
            }
            #[cfg(feature = "redis")]
            Self::DetectLoss(redis) => super::redis::detect_loss(&redis, &key, &*clock).await,
        }
    }
}

/// Opens a store on a server, with attempts of up to `timeout`. Only brokers and workers have an observer.
pub(super) async fn open(
    store: &StoreConfig,
    timeout: Span,
    clock: Arc<dyn Clock>,
    observer: Option<Arc<dyn Observer>>,
) -> Result<Remote, Error> {
    let _ = (timeout, &clock, &observer);
    match store {
        #[cfg(feature = "broker")]
        StoreConfig::Broker(config) => {
            super::broker::open(config, timeout, clock, observer.is_some())
        }
        #[cfg(feature = "dynamodb")]
        StoreConfig::DynamoDb(config) => {
            super::dynamodb::open(config, timeout, clock, observer).await
        }
        #[cfg(feature = "postgres")]
        StoreConfig::Postgres(config) => super::postgres::open(config, timeout, observer).await,
        #[cfg(feature = "redis")]
        StoreConfig::Redis(config) => super::redis::open(config, timeout, observer).await,
        _ => Err(not_compiled(store)),
    }
}

/// Returns the error of a store whose feature is off. A configuration with such a store is refused earlier.
pub(super) fn not_compiled(store: &StoreConfig) -> Error {
    let message = format!("this program was built without the store {:?}", store.kind());
    Error::new(ErrorKind::Invalid, message)
}
