//! The buckets of a process: one per account, region and class, which all clients share.

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
    /// Returns a new set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the set that all clients of this process share by default.
    #[must_use]
    pub fn process_wide() -> Self {
        PROCESS.clone()
    }

    /// Returns the bucket of `key`, and creates it if there is none.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it exists with another rate or another gate: the service counts both clients together, so
    /// they cannot differ.
    pub fn get_or_create(
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
pub struct ServiceBuckets {
    shared: Arc<Bucket>,
    by_operation: Arc<HashMap<String, Arc<Bucket>>>,
}

impl ServiceBuckets {
    /// Returns the buckets of a service: one for each operation with a rate of its own, and one for all others.
    ///
    /// # Errors
    /// Those of [`Buckets::get_or_create`].
    pub fn new(
        buckets: &Buckets,
        (account, region, service): (&Arc<str>, &Arc<str>, &str),
        rates: &Rates,
        gate: Option<&Arc<dyn Gate>>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let bucket = |class: &str, rate: Rate| {
            let key = Key {
                account: Arc::clone(account),
                region: Arc::clone(region),
                class: class.into(),
            };
            buckets.get_or_create(key, rate, gate, clock)
        };
        let by_operation = rates.own.iter().map(|(operation, rate)| {
            Ok((operation.clone(), bucket(&format!("{service}.{operation}"), *rate)?))
        });
        let by_operation = by_operation.collect::<Result<_, Error>>()?;
        Ok(Self { shared: bucket(service, rates.shared)?, by_operation: Arc::new(by_operation) })
    }

    /// Returns the bucket that calls of `operation` take tokens from.
    #[must_use]
    pub fn for_operation(&self, operation: Option<&str>) -> &Arc<Bucket> {
        operation.and_then(|name| self.by_operation.get(name)).unwrap_or(&self.shared)
    }
}
