//! The version of the schema, which another program may upgrade at any time.

use std::sync::atomic::{AtomicU8, Ordering};

use tollgate::Error;

use crate::migrate;
use crate::options::FORMAT_NEWEST;
use crate::pool::Pool;

/// The last known version. It never decreases.
#[derive(Debug)]
pub(crate) struct Version(AtomicU8);

impl Version {
    pub(crate) const fn new(version: u8) -> Self {
        Self(AtomicU8::new(version))
    }

    pub(crate) fn number(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn is_old(&self) -> bool {
        self.number() < FORMAT_NEWEST
    }

    /// Reads the version again if it was old. Returns whether it still is.
    pub(crate) async fn is_still_old(&self, pool: &Pool, schema: &str) -> Result<bool, Error> {
        if !self.is_old() {
            return Ok(false);
        }
        let version = migrate::version(pool, schema).await?;
        if version < u32::from(FORMAT_NEWEST) {
            return Ok(true);
        }
        if self.0.swap(FORMAT_NEWEST, Ordering::Relaxed) != FORMAT_NEWEST {
            tracing::info!(schema, version, "the schema was upgraded; using the new version");
        }
        Ok(false)
    }
}
