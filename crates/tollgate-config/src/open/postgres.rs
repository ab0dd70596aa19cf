//! A PostgreSQL database as the store.

use std::sync::Arc;

use tollgate::audit::AuditLog;
use tollgate::observe::Observer;
use tollgate::{Error, Span};
use tollgate_postgres::{LOCK_TIMEOUT_DEFAULT, Options, Postgres, PostgresAudit};

use super::certificates;
use super::remote::{Chore, Remote};
use crate::PostgresConfig;

pub(super) async fn open(
    config: &PostgresConfig,
    timeout: Span,
    observer: Option<Arc<dyn Observer>>,
) -> Result<Remote, Error> {
    // Waiting for a row is no outage, so it ends well before the attempt does, also for asks that queue behind.
    let lock = Span::from_micros(timeout.as_micros() / 4);
    let options = postgres_options(config)?.reply_timeout(timeout);
    let mut options = options.lock_timeout(lock.min(LOCK_TIMEOUT_DEFAULT));
    if let Some(observer) = observer {
        options = options.observer(observer);
    }
    let postgres = Arc::new(Postgres::open(options).await?);
    let key = postgres.permit_key().await?;
    let (gate, overrides) = (Arc::clone(&postgres) as _, Arc::clone(&postgres) as _);
    Ok(Remote { gate, key, overrides, chore: Some(Chore::CleanUp(postgres)) })
}

pub(super) async fn audit(config: &PostgresConfig) -> Result<Arc<dyn AuditLog>, Error> {
    Ok(Arc::new(PostgresAudit::open(postgres_options(config)?).await?))
}

/// Returns how to reach the configured database.
pub fn postgres_options(config: &PostgresConfig) -> Result<Options, Error> {
    let mut options = Options::new(&config.url.read()?)?;
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
