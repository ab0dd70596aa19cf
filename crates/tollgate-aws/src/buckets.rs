//! The buckets of a process: one for each account, region and class, however many clients there are.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use tollgate::{Clock, Gate};

use crate::bucket::{Bucket, Key};
use crate::error::Error;
use crate::rate::{Rate, Rates};

/// The most buckets of one set.
pub const BUCKETS_MAX: usize = 10_000;

/// A set of buckets. Clones are the same set.
#[derive(Clone, Debug, Default)]
pub struct Buckets(Arc<Mutex<HashMap<Key, Arc<Bucket>>>>);

static PROCESS: LazyLock<Buckets> = LazyLock::new(Buckets::default);

impl Buckets {
    /// A set of its own.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The set that all clients of this process share unless they are told otherwise.
    #[must_use]
    pub fn of_process() -> Self {
        PROCESS.clone()
    }

    /// The bucket of `key`, made now if there is none.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is one with another rate or another gate: the service counts both callers together, so
    /// they cannot differ.
    pub fn open(
        &self,
        key: Key,
        rate: Rate,
        shared: Option<&Arc<dyn Gate>>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Arc<Bucket>, Error> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = buckets.get(&key) {
            if bucket.rate() == rate && bucket.shares(shared) {
                return Ok(Arc::clone(bucket));
            }
            let Key { account, region, class } = key;
            return Err(Error::Invalid(format!(
                "{class} in {region} of account {account} has a bucket with another rate or gate already ({:?}, now {:?}); \
                 give both clients the same, or sets of buckets of their own",
                bucket.rate().bucket,
                rate.bucket
            )));
        }
        if BUCKETS_MAX <= buckets.len() {
            return Err(Error::Invalid(format!("a set has at most {BUCKETS_MAX} buckets")));
        }
        let bucket = Arc::new(Bucket::new(key.clone(), rate, shared.cloned(), Arc::clone(clock))?);
        buckets.insert(key, Arc::clone(&bucket));
        Ok(bucket)
    }
}

/// The buckets of one service in one region of one account.
#[derive(Clone, Debug)]
pub(crate) struct Desk {
    shared: Arc<Bucket>,
    own: Arc<HashMap<String, Arc<Bucket>>>,
}

impl Desk {
    pub(crate) fn open(
        buckets: &Buckets,
        (account, region, service): (&Arc<str>, &Arc<str>, &str),
        rates: &Rates,
        gate: Option<&Arc<dyn Gate>>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let open = |class: &str, rate: Rate| {
            let key = Key {
                account: Arc::clone(account),
                region: Arc::clone(region),
                class: class.into(),
            };
            buckets.open(key, rate, gate, clock)
        };
        let own = rates.own.iter().map(|(operation, rate)| {
            Ok((operation.clone(), open(&format!("{service}.{operation}"), *rate)?))
        });
        let own = own.collect::<Result<_, Error>>()?;
        Ok(Self { shared: open(service, rates.shared)?, own: Arc::new(own) })
    }

    /// The bucket that calls of `operation` take from.
    pub(crate) fn of(&self, operation: Option<&str>) -> &Arc<Bucket> {
        operation.and_then(|operation| self.own.get(operation)).unwrap_or(&self.shared)
    }
}
