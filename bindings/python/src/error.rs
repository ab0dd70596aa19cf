//! Errors and denials as Python exceptions.

use pyo3::prelude::{Py, PyAnyMethods as _, PyDictMethods as _, PyErr, PyResult, Python};
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyAny, PyDict, PyModule};
use tollgate_bindings::{self as bindings, Error, ErrorKind, Standing, Wait};

use crate::adapters::Denial;
use crate::value::{self, seconds, unix};

const fn class_of(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "InvalidInput",
        ErrorKind::UnknownPolicy => "UnknownPolicy",
        ErrorKind::Forbidden => "Forbidden",
        ErrorKind::Conflict => "Conflict",
        ErrorKind::Expired => "Expired",
        ErrorKind::Contended => "Contended",
        ErrorKind::Unavailable => "Unavailable",
        ErrorKind::Corrupt => "Corrupt",
        ErrorKind::Closed => "Closed",
        ErrorKind::Forked => "Forked",
        _ => "TollgateError",
    }
}

fn module(py: Python<'_>) -> PyResult<&Py<PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    MODULE.get_or_try_init(py, || Ok(py.import("tollgate_rs._errors")?.unbind()))
}

/// Returns the exception of `error`.
#[cold]
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let built = module(py).and_then(|module| {
        module.bind(py).getattr(class_of(error.kind()))?.call1((error.to_string(),))
    });
    built.map_or_else(|failure| failure, PyErr::from_value)
}

/// Returns the exception of an argument that is wrong.
#[cold]
pub(crate) fn invalid(py: Python<'_>, message: impl Into<String>) -> PyErr {
    raise(py, &Error::invalid(message))
}

/// Returns the exception `Denied`.
pub(crate) fn denied(py: Python<'_>, denial: &bindings::Denial) -> PyErr {
    build_denied(py, denial)
        .map_or_else(|failure| failure, |error| PyErr::from_value(error.into_bound(py)))
}

fn build_denied(py: Python<'_>, denial: &bindings::Denial) -> PyResult<Py<PyAny>> {
    let module = module(py)?.bind(py);
    let standings = |limits: &[Standing]| value::standings(py, limits);
    let retry_after = denial.retry_after().map(seconds);
    let fields = PyDict::new(py);
    fields.set_item("policy", &*denial.policy)?;
    fields.set_item("limit", &*denial.limit)?;
    fields.set_item("unit", &*denial.unit)?;
    fields.set_item("asked", denial.asked)?;
    fields.set_item("most", denial.most)?;
    fields.set_item("retry_after", retry_after)?;
    fields.set_item("retry_at", denial.reset_at().map(unix))?;
    fields.set_item("never", retry_after.is_none())?;
    fields.set_item("estimated", denial.is_estimated())?;
    fields.set_item("waiting_ahead", denial.waiting_ahead)?;
    fields.set_item("degraded", denial.degraded)?;
    fields.set_item("limits", standings(&denial.limits)?)?;
    if let Some(joint) = &denial.joint {
        let class = module.getattr("Refusal")?;
        let refusals = joint.refused.iter().map(|refused| {
            let until = match refused.wait {
                Wait::Until(until) => Some(until),
                Wait::Never => None,
            };
            let (after, at) = (until.map(|until| until.since(denial.decided_at)), until.map(unix));
            let waits = (after.map(seconds), at);
            let (policy, subject) = (&*refused.policy, &*refused.subject);
            let (limit, unit) = (&*refused.limit, &*refused.unit);
            class.call1((refused.charge, policy, subject, limit, unit, waits.0, waits.1))
        });
        fields.set_item("refusals", refusals.collect::<PyResult<Vec<_>>>()?)?;
        let charges = joint.charges.iter().map(|charge| standings(&charge.limits));
        fields.set_item("charges", charges.collect::<PyResult<Vec<_>>>()?)?;
    }
    let class = module.getattr("Denied")?;
    let error = class.call((denial.to_string(),), Some(&fields))?;
    error.setattr("_denial", Py::new(py, Denial(denial.clone()))?)?;
    Ok(error.unbind())
}
