//! Decisions as the broker's HTTP API shows them.

use pyo3::prelude::{Bound, Py, PyResult, Python};
use pyo3::types::PyBytes;
use pyo3::{pyclass, pyfunction, pymethods};
use tollgate_bindings::{self as bindings, Standing, Timestamp};
use tollgate_protocol::json::Denied;
use tollgate_protocol::rate_limit_fields::{rate_limit, rate_limit_policy};

use crate::error::{invalid, raise};
use crate::gate::Gate;
use crate::permit::Permit;

type Field = (Py<PyBytes>, Py<PyBytes>);

/// A denial with everything that is known about it.
#[pyclass(frozen, module = "tollgate_rs._native")]
pub(crate) struct Denial(pub(crate) bindings::Denial);

#[pymethods]
impl Denial {
    /// The problem document, as JSON.
    fn problem<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let json = serde_json::to_vec(&Denied::from(&self.0));
        Ok(PyBytes::new(py, &json.map_err(|error| invalid(py, error.to_string()))?))
    }

    /// The fields of the response to an ask for `subjects`, one for each charge.
    fn fields(
        &self,
        py: Python<'_>,
        gate: &Bound<'_, Gate>,
        subjects: Vec<String>,
    ) -> PyResult<Vec<Field>> {
        let denial = &self.0;
        let mut fields = Vec::with_capacity(3);
        if let Some(wait) = denial.retry_after() {
            let secs = wait.as_secs_ceil().to_string();
            fields.push(field(py, b"retry-after", secs.as_bytes()));
        }
        let charge = denial.binding_charge().unwrap_or(0);
        let subject = subjects.get(charge).map_or("", String::as_str);
        let value = rate_limit(&denial.limits, denial.decided_at, Some(denial));
        push(py, &mut fields, gate, (&denial.policy, subject), &value)?;
        Ok(fields)
    }
}

/// The fields of the response to an admitted request: about its first charge.
#[pyfunction]
pub(crate) fn admitted_fields(
    py: Python<'_>,
    gate: &Bound<'_, Gate>,
    permit: &Bound<'_, Permit>,
) -> PyResult<Vec<Field>> {
    let permit = permit.get().held();
    let (Some((policy, subject)), Some(limits)) = (permit.charges().next(), permit.limits().next())
    else {
        return Ok(Vec::new());
    };
    let decided_at: Timestamp = permit.decided_at();
    let limits: &[Standing] = limits;
    let mut fields = Vec::with_capacity(2);
    push(py, &mut fields, gate, (policy, subject), &rate_limit(limits, decided_at, None))?;
    Ok(fields)
}

fn push(
    py: Python<'_>,
    fields: &mut Vec<Field>,
    gate: &Bound<'_, Gate>,
    (policy, subject): (&str, &str),
    rate_limit: &[u8],
) -> PyResult<()> {
    let policy = gate.get().0.policy(policy, subject).map_err(|error| raise(py, &error))?;
    fields.push(field(py, b"ratelimit", rate_limit));
    fields.push(field(py, b"ratelimit-policy", &rate_limit_policy(&policy)));
    Ok(())
}

fn field(py: Python<'_>, name: &[u8], value: &[u8]) -> Field {
    (PyBytes::new(py, name).unbind(), PyBytes::new(py, value).unbind())
}
