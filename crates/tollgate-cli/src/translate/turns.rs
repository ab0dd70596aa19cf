//! A folder that many processes take turns at.
//!
//! A translation runs for hours, and the folder of the embedded store belongs to one process at a time. So it is held for one
//! answer only: other jobs, and commands such as `tollgate standing`, share the quota meanwhile.

use std::sync::Arc;

use tollgate::{
    Ask, BoxFuture, Clock, Costs, Decision, Error, ErrorKind, Gate, Permit, Policy, Standing,
    Timestamp,
};

use crate::config::{FallbackConfig, StoreConfig};
use crate::open::{self, Opened};

/// A gate that opens its store for each answer.
#[derive(Debug)]
pub(super) struct Turns {
    store: StoreConfig,
    fallback: FallbackConfig,
    clock: Arc<dyn Clock>,
}

impl Turns {
    pub(super) const fn new(
        store: StoreConfig,
        fallback: FallbackConfig,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { store, fallback, clock }
    }

    /// Waits for a turn on a thread where waiting is allowed.
    async fn open(&self) -> Result<Opened, Error> {
        let (store, fallback) = (self.store.clone(), self.fallback.clone());
        let (clock, runtime) = (Arc::clone(&self.clock), tokio::runtime::Handle::current());
        let wait = move || runtime.block_on(open::for_command(&store, &fallback, clock));
        tokio::task::spawn_blocking(wait).await.map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the store could not be opened").caused_by(error)
        })?
    }
}

/// One turn. An answer counts only if the store kept it.
macro_rules! turn {
    ($self:ident.$verb:ident($($value:ident),*)) => {
        Box::pin(async move {
            let opened = $self.open().await?;
            let answer = opened.gate().$verb($($value),*).await;
            opened.close().await?;
            answer
        })
    };
}

impl Gate for Turns {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        turn!(self.acquire(ask))
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        turn!(self.settle(permit, actual))
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        turn!(self.release(permit))
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        turn!(self.renew(permit))
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        turn!(self.charge(ask))
    }

    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        turn!(self.close_until(ask, limit, until))
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        turn!(self.standing(policy, subject))
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        turn!(self.reset(policy, subject))
    }
}
