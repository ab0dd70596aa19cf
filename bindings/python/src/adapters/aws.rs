//! Buckets of AWS calls, and slots of jobs, for clients of boto3.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use pyo3::prelude::{Bound, PyResult, Python};
use pyo3::{pyclass, pymethods};
use tollgate::clock::SystemClock;
use tollgate::policy::Rule;
use tollgate::spec::{LimitSpec, PolicySpec};
use tollgate::{
    Ask, Concurrency, Decision, Gate as CoreGate, GateExt as _, Limit, Memory, Permit, Policy, Span,
};
use tollgate_aws::{Bucket as CallBucket, Key, RETRY_AFTER_MAX, Rate, is_throttling};
use tollgate_bindings::Error;

use crate::call::block_on;
use crate::convert;
use crate::error::{invalid, raise};
use crate::gate::Gate;

const JOBS: &str = "jobs";

/// The slots of jobs without a gate, shared in the process.
static PROCESS: LazyLock<Arc<dyn CoreGate>> = LazyLock::new(|| Arc::new(Memory::new()));

fn core_gate(gate: Option<&Bound<'_, Gate>>) -> Option<Arc<dyn CoreGate>> {
    gate.map(|gate| Arc::new(gate.get().0.clone()) as Arc<dyn CoreGate>)
}

/// Returns a rate such as `10/s`, as configuration has it.
fn rate(refill: &str, burst: u64, is_adaptive: bool) -> Result<Rate, Error> {
    let limit = LimitSpec {
        name: "rate".to_owned(),
        unit: Some("requests".to_owned()),
        rule: Some("token-bucket".to_owned()),
        capacity: Some(burst),
        refill: Some(refill.to_owned()),
        ..LimitSpec::default()
    };
    let spec = PolicySpec { name: "aws".to_owned(), limits: vec![limit], ..PolicySpec::default() };
    let policy = spec.build()?;
    match policy.limits().next().map(Limit::rule) {
        Some(Rule::TokenBucket(bucket)) if is_adaptive => Ok(Rate::new(*bucket)),
        Some(Rule::TokenBucket(bucket)) => Ok(Rate::new(*bucket).fixed()),
        _ => Err(Error::invalid(format!("{refill} with a burst of {burst} is not a rate"))),
    }
}

fn to_error(error: tollgate_aws::Error) -> Error {
    match error {
        tollgate_aws::Error::Gate(error) => error.into(),
        other => Error::invalid(other.to_string()),
    }
}

/// A token bucket for calls, first come first served, whose rate adapts to throttling.
#[pyclass(frozen, module = "tollgate_rs._native")]
pub(crate) struct Bucket(Arc<CallBucket>);

#[pymethods]
impl Bucket {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "called in one place, in boto3.py")]
    fn new(
        py: Python<'_>,
        service: &str,
        account: &str,
        region: &str,
        refill: &str,
        burst: u64,
        is_adaptive: bool,
        gate: Option<&Bound<'_, Gate>>,
    ) -> PyResult<Self> {
        let key = Key { account: account.into(), region: region.into(), class: service.into() };
        let rate = rate(refill, burst, is_adaptive).map_err(|error| raise(py, &error))?;
        let bucket = CallBucket::new(key, rate, core_gate(gate), Arc::new(SystemClock));
        let bucket = bucket.map_err(|error| raise(py, &to_error(error)))?;
        Ok(Self(Arc::new(bucket)))
    }

    /// Takes a token, waiting for it up to `wait` seconds. Returns whether there was one.
    fn take(&self, py: Python<'_>, wait: f64) -> PyResult<bool> {
        let (bucket, wait) = (Arc::clone(&self.0), convert::span(py, "wait", wait)?);
        let taken = block_on(py, Box::pin(async move { bucket.take(wait).await }))?;
        match taken {
            Ok(()) => Ok(true),
            Err(tollgate_aws::Error::RateLimitTimeout(_)) => Ok(false),
            Err(error) => Err(raise(py, &to_error(error))),
        }
    }

    /// Adapts the rate to a response. Returns whether it was throttled.
    fn answered(
        &self,
        py: Python<'_>,
        status: u16,
        code: &str,
        retry_after: Option<&str>,
    ) -> PyResult<bool> {
        if status == 429 || (!(200..300).contains(&status) && is_throttling(code)) {
            let secs = retry_after.and_then(|text| text.trim().parse().ok());
            let wait = secs.map(|secs| Span::from_secs(secs).min(RETRY_AFTER_MAX));
            let bucket = Arc::clone(&self.0);
            block_on(py, Box::pin(async move { bucket.throttled(wait).await }))?;
            return Ok(true);
        }
        if (200..300).contains(&status) {
            self.0.succeeded();
        }
        Ok(false)
    }

    /// The current rate, in percent of the configured one.
    #[getter]
    fn percent(&self) -> u8 {
        self.0.percent()
    }

    /// The whole tokens that are available in this process.
    #[getter]
    fn available(&self) -> u64 {
        self.0.available()
    }
}

/// The slots of jobs that are being started.
#[pyclass(frozen, module = "tollgate_rs._native")]
pub(crate) struct JobSlots {
    gate: Arc<dyn CoreGate>,
    policy: Policy,
    subject: String,
}

#[pymethods]
impl JobSlots {
    #[new]
    fn new(
        py: Python<'_>,
        account: &str,
        region: &str,
        threshold: u64,
        ttl: f64,
        gate: Option<&Bound<'_, Gate>>,
    ) -> PyResult<Self> {
        let rule = Concurrency::new(threshold, convert::span(py, "slot_ttl", ttl)?);
        // The name of the Rust client, so that both share the slots of one store.
        let policy = Policy::new("aws.drs.jobs", [Limit::new(JOBS, JOBS, rule)]);
        let policy = policy.map_err(|error| invalid(py, error.to_string()))?;
        let gate = core_gate(gate).unwrap_or_else(|| Arc::clone(&PROCESS));
        Ok(Self { gate, policy, subject: format!("{account}/{region}") })
    }

    /// Takes a slot; `None` if all are taken.
    fn acquire(&self, py: Python<'_>) -> PyResult<Option<JobSlot>> {
        let (gate, policy) = (Arc::clone(&self.gate), self.policy.clone());
        let subject = self.subject.clone();
        let asking = async move {
            let ask = Ask::new(&policy, subject.as_str()).cost(JOBS, 1);
            gate.acquire(&ask).await
        };
        match block_on(py, Box::pin(asking))?.map_err(|error| raise(py, &error.into()))? {
            Decision::Denied(_) => Ok(None),
            Decision::Admitted(permit) => {
                let used = permit.limits.first().map_or(1, |limit| limit.used).max(1);
                let permit = Mutex::new(Some(permit));
                Ok(Some(JobSlot { gate: Arc::clone(&self.gate), permit, used }))
            }
        }
    }
}

/// The slot of one job. It expires if it is not released.
#[pyclass(frozen, module = "tollgate_rs._native")]
pub(crate) struct JobSlot {
    gate: Arc<dyn CoreGate>,
    permit: Mutex<Option<Permit>>,
    /// How many slots are taken, with this one.
    #[pyo3(get)]
    used: u64,
}

#[pymethods]
impl JobSlot {
    /// Gives the slot back. Idempotent.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(permit) = permit else { return Ok(()) };
        let gate = Arc::clone(&self.gate);
        let released = block_on(py, Box::pin(async move { gate.release(&permit).await }))?;
        released.map(|_| ()).map_err(|error| raise(py, &error.into()))
    }
}
