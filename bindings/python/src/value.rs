//! Values that operations return.

use pyo3::prelude::{Py, PyResult, Python};
use pyo3::{pyclass, pymethods};
use tollgate_bindings::{self as bindings, Span, Timestamp};

use crate::convert;

/// Seconds with microseconds, which a double keeps apart until the year 2255.
#[allow(clippy::cast_precision_loss, reason = "microseconds of a Unix time fit into 53 bits")]
pub(crate) fn seconds(span: Span) -> f64 {
    span.as_micros() as f64 / 1e6
}

pub(crate) fn unix(time: Timestamp) -> f64 {
    seconds(time.since(Timestamp::from_micros(0)))
}

/// Where a subject stands on one limit.
#[pyclass(frozen, module = "tollgate_rs._native")]
pub(crate) struct Standing(bindings::Standing);

#[pymethods]
impl Standing {
    #[new]
    #[pyo3(signature = (name, unit, limit, used, remaining, reset_at = None, full_at = None))]
    #[allow(clippy::too_many_arguments, reason = "the fields, for pickle")]
    fn new(
        py: Python<'_>,
        name: &str,
        unit: &str,
        limit: u64,
        used: u64,
        remaining: u64,
        reset_at: Option<f64>,
        full_at: Option<f64>,
    ) -> PyResult<Self> {
        let time = |name, at: Option<f64>| at.map(|at| convert::time(py, name, at)).transpose();
        Ok(Self(bindings::Standing {
            name: name.into(),
            unit: unit.into(),
            limit,
            used,
            remaining,
            reset_at: time("reset_at", reset_at)?,
            full_at: time("full_at", full_at)?,
            refilled_at: None,
        }))
    }

    fn __getnewargs__(&self) -> (&str, &str, u64, u64, u64, Option<f64>, Option<f64>) {
        let bindings::Standing { name, unit, limit, used, remaining, .. } = &self.0;
        (name, unit, *limit, *used, *remaining, self.reset_at(), self.full_at())
    }

    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    #[getter]
    fn unit(&self) -> &str {
        &self.0.unit
    }

    #[getter]
    const fn limit(&self) -> u64 {
        self.0.limit
    }

    #[getter]
    const fn used(&self) -> u64 {
        self.0.used
    }

    #[getter]
    const fn remaining(&self) -> u64 {
        self.0.remaining
    }

    #[getter]
    fn reset_at(&self) -> Option<f64> {
        self.0.reset_at.map(unix)
    }

    #[getter]
    fn full_at(&self) -> Option<f64> {
        self.0.full_at.map(unix)
    }

    fn __repr__(&self) -> String {
        let bindings::Standing { name, unit, limit, used, remaining, .. } = &self.0;
        format!(
            "Standing(name={name:?}, unit={unit:?}, limit={limit}, used={used}, remaining={remaining})"
        )
    }
}

pub(crate) fn standings(
    py: Python<'_>,
    standings: &[bindings::Standing],
) -> PyResult<Vec<Py<Standing>>> {
    standings.iter().map(|standing| Py::new(py, Standing(standing.clone()))).collect()
}

/// What is known about a refusal by a provider.
#[pyclass(frozen, module = "tollgate_rs._native")]
pub(crate) struct Incident(pub(crate) bindings::Incident);

#[pymethods]
impl Incident {
    #[getter]
    fn id(&self) -> &str {
        &self.0.id
    }

    #[getter]
    fn policy(&self) -> &str {
        &self.0.policy
    }

    #[getter]
    fn subject(&self) -> &str {
        &self.0.subject
    }

    #[getter]
    fn limit(&self) -> &str {
        &self.0.limit
    }

    #[getter]
    fn until(&self) -> f64 {
        unix(self.0.until)
    }

    #[getter]
    const fn closed(&self) -> bool {
        self.0.closed
    }

    #[getter]
    fn trouble(&self) -> Option<&str> {
        self.0.trouble.as_deref()
    }

    fn __repr__(&self) -> String {
        let bindings::Incident { id, policy, subject, limit, until, .. } = &self.0;
        format!(
            "Incident(id={id:?}, policy={policy:?}, subject={subject:?}, limit={limit:?}, until={until})"
        )
    }
}

/// A clock that is moved by hand.
#[pyclass(frozen, module = "tollgate_rs._native")]
pub(crate) struct ManualClock(pub(crate) bindings::ManualClock);

#[pymethods]
impl ManualClock {
    #[new]
    #[pyo3(signature = (now = None))]
    fn new(py: Python<'_>, now: Option<f64>) -> PyResult<Self> {
        Ok(Self(match now {
            None => bindings::ManualClock::new(),
            Some(now) => bindings::ManualClock::at(convert::time(py, "now", now)?),
        }))
    }

    #[getter]
    fn now(&self) -> f64 {
        use bindings::Clock as _;
        unix(self.0.now())
    }

    fn set(&self, py: Python<'_>, now: f64) -> PyResult<()> {
        self.0.set(convert::time(py, "now", now)?);
        Ok(())
    }

    fn advance(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        self.0.advance(convert::span(py, "seconds", seconds)?);
        Ok(())
    }
}
