//! Opens a store to list and to rewrite all of its entries.

use std::sync::Arc;

use tollgate::entries::EntryStore;
use tollgate::overrides::OverrideStore;
use tollgate::{Clock, Error, ErrorKind};

use super::resilient;
use crate::{FallbackConfig, StoreConfig};

/// What the entries of a store are needed for.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// Rewriting damaged entries.
    Repair,
    /// Reading all entries.
    Export,
    /// Writing entries.
    Import {
        /// Whether nothing is written, so that no folder is made.
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
#[derive(Debug)]
pub struct OpenedEntries {
    /// The entries.
    pub entries: Arc<dyn EntryStore>,
    /// The overrides.
    pub overrides: Arc<dyn OverrideStore>,
}

impl OpenedEntries {
    #[cfg(any(feature = "dynamodb", feature = "postgres", feature = "redis"))]
    fn new<S: EntryStore + OverrideStore>(store: S) -> Self {
        let store = Arc::new(store);
        Self { entries: Arc::clone(&store) as _, overrides: store }
    }
}

/// Opens `store` for its entries; `None` if there is no store yet.
///
/// # Errors
/// If the store cannot be opened, or has no entries of its own.
pub async fn entries(
    store: &StoreConfig,
    fallback: &FallbackConfig,
    clock: Arc<dyn Clock>,
    purpose: Purpose,
) -> Result<Option<OpenedEntries>, Error> {
    let timeout = resilient::attempt_timeout(store, fallback.attempt_timeout, false);
    let command = purpose.command();
    let invalid = |message| Err(Error::new(ErrorKind::Invalid, message));
    let _ = (&clock, timeout);
    match store {
        StoreConfig::Memory { .. } => invalid(match purpose {
            Purpose::Repair => {
                "the configured store is memory, which ends with the broker; restart it, there is \
                                    nothing else to repair"
                    .to_owned()
            }
            _ => format!(
                "the configured store is memory, which is inside the broker and ends with it, so there is nothing to \
                     {command}; name a configuration with another store with --config"
            ),
        }),
        StoreConfig::Broker(_) => invalid(format!(
            "the configured store is another broker; run {command} with the configuration of that one"
        )),
        #[cfg(feature = "embedded")]
        StoreConfig::Embedded { path, durability, keys_max } => {
            embedded(path, (*durability, *keys_max), clock, purpose)
        }
        #[cfg(feature = "dynamodb")]
        StoreConfig::DynamoDb(config) => {
            let options = super::dynamodb_options(config)?.attempt_timeout(timeout).clock(clock);
            Ok(Some(OpenedEntries::new(tollgate_dynamodb::DynamoDb::open(options).await?)))
        }
        #[cfg(feature = "postgres")]
        StoreConfig::Postgres(config) => {
            let options = super::postgres_options(config)?.reply_timeout(timeout);
            Ok(Some(OpenedEntries::new(tollgate_postgres::Postgres::open(options).await?)))
        }
        #[cfg(feature = "redis")]
        StoreConfig::Redis(config) => {
            let options = super::redis::options(config)?.attempt_timeout(timeout);
            Ok(Some(OpenedEntries::new(tollgate_redis::Redis::open(options).await?)))
        }
        #[allow(unreachable_patterns, reason = "reached where a feature of a store is off")]
        _ => Err(super::remote::not_compiled(store)),
    }
}

#[cfg(feature = "embedded")]
fn embedded(
    path: &std::path::Path,
    settings: super::embedded::Settings,
    clock: Arc<dyn Clock>,
    purpose: Purpose,
) -> Result<Option<OpenedEntries>, Error> {
    use tollgate_embedded::{Embedded, Holder};

    if !matches!(purpose, Purpose::Import { dry_run: false }) && !Embedded::exists(path)? {
        return Ok(None);
    }
    let options = super::embedded::options(settings, Holder::Command, clock);
    let opened = match purpose {
        Purpose::Repair => Embedded::open_for_repair(path, options),
        _ => Embedded::open(path, options),
    };
    let opened = opened.map_err(|error| match error.kind() {
        ErrorKind::Contended => {
            let command = purpose.command();
            let message = format!("{error}; to {command} it, stop whatever holds it");
            Error::new(ErrorKind::Contended, message)
        }
        _ => error,
    });
    let overrides = super::embedded::overrides(path);
    Ok(Some(OpenedEntries { entries: Arc::new(opened?), overrides }))
}
