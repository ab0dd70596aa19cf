//! A gate on the embedded store that opens its folder for each operation.
//!
//! A translation runs for hours, and one process at a time can open the folder. So it is open for one operation only, and other jobs
//! and commands such as `tollgate standing` share the quota.

use std::sync::Arc;

use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{Clock, Error, ErrorKind, Gate};

use tollgate_config::open::{self, Opened, SHUTDOWN_MAX};
use tollgate_config::{FallbackConfig, StoreConfig};

/// A gate that opens its store for each operation.
#[derive(Debug)]
pub(super) struct ReopeningGate {
    store: StoreConfig,
    fallback: FallbackConfig,
    clock: Arc<dyn Clock>,
}

impl ReopeningGate {
    pub(super) const fn new(
        store: StoreConfig,
        fallback: FallbackConfig,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { store, fallback, clock }
    }

    /// Opens the store on a thread where blocking is allowed.
    async fn open(&self) -> Result<Opened, Error> {
        let (store, fallback) = (self.store.clone(), self.fallback.clone());
        let (clock, runtime) = (Arc::clone(&self.clock), tokio::runtime::Handle::current());
        let wait = move || runtime.block_on(open::for_command(&store, &fallback, clock));
        tokio::task::spawn_blocking(wait).await.map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the store could not be opened").caused_by(error)
        })?
    }
}

impl Gate for ReopeningGate {
    /// Runs one operation. Its outcome counts only if the store was closed without an error.
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            let opened = self.open().await?;
            let outcome = opened.gate().run(operation).await;
            opened.shutdown(self.clock.now() + SHUTDOWN_MAX).await?;
            outcome
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
