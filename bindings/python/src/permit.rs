//! Permits for tasks and for threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::{Bound, Py, PyAnyMethods as _, PyResult, Python};
use pyo3::types::{
    PyAny, PyDict, PyDictMethods as _, PyListMethods as _, PyMapping, PyMappingMethods as _,
};
use pyo3::{pyclass, pymethods};
use tollgate_bindings::{self as bindings, BoxFuture, ChargeActual, Costs, Error};

use crate::call::{self, Call, Flavour, Value, block_on, claim, work};
use crate::convert::{self, span_of};
use crate::error::{invalid, raise};
use crate::value::{self, unix};

/// What both kinds of permits do.
struct Held(Mutex<State>);

struct State {
    permit: bindings::Permit,
    /// In a block, what its end sends.
    block: Option<Ending>,
}

/// What the end of a block sends.
#[derive(Default)]
enum Ending {
    /// Nothing was said about the cost, so the estimate is kept. Slots are freed.
    #[default]
    Kept,
    Settled(Costs, Vec<ChargeActual>),
    Released,
}

type Settlement = BoxFuture<'static, Result<bool, Error>>;

impl Held {
    const fn new(permit: bindings::Permit) -> Self {
        Self(Mutex::new(State { permit, block: None }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn permit(&self) -> bindings::Permit {
        self.state().permit.clone()
    }

    fn enter(&self) {
        self.state().block = Some(Ending::Kept);
    }

    /// Returns what the end of the block sends, if anything.
    fn leave(&self) -> Option<Settlement> {
        let mut state = self.state();
        let ending = state.block.take()?;
        let permit = &state.permit;
        match ending {
            Ending::Kept if !permit.holds_slots() => None,
            Ending::Kept => Some(permit.settle(Costs::new(), Vec::new())),
            Ending::Settled(actual, charges) => Some(permit.settle(actual, charges)),
            Ending::Released => Some(permit.release()),
        }
    }

    /// Settles, or records it for the end of the block. Several records of one block are joined.
    fn settle(
        &self,
        py: Python<'_>,
        costs: Option<&Bound<'_, PyAny>>,
        charges: Option<&Bound<'_, PyAny>>,
        units: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Option<Settlement>> {
        let actual = convert::costs(costs, units)?;
        let mut state = self.state();
        state.permit.check_units(&actual).map_err(|error| raise(py, &error))?;
        let count = state.permit.charges().count();
        let charges = charge_actuals(py, charges, count)?;
        for charge in &charges {
            state.permit.check_units(&charge.actual).map_err(|error| raise(py, &error))?;
        }
        let Some(ending) = &mut state.block else {
            return Ok(Some(state.permit.settle(actual, charges)));
        };
        match ending {
            Ending::Settled(earlier, earlier_charges) => {
                for (unit, amount) in actual.iter() {
                    earlier.set(unit, amount);
                }
                earlier_charges.retain(|own| charges.iter().all(|new| new.charge != own.charge));
                earlier_charges.extend(charges);
            }
            other => *other = Ending::Settled(actual, charges),
        }
        Ok(None)
    }

    fn release(&self) -> Option<Settlement> {
        let mut state = self.state();
        if let Some(ending) = &mut state.block {
            *ending = Ending::Released;
            return None;
        }
        Some(state.permit.release())
    }

    fn charges(&self) -> Vec<(String, String)> {
        let owned = |(policy, subject): (&str, &str)| (policy.to_owned(), subject.to_owned());
        self.state().permit.charges().map(owned).collect()
    }

    fn costs(&self, py: Python<'_>) -> PyResult<Vec<Py<PyDict>>> {
        let state = self.state();
        let dict = |costs: Costs| {
            let dict = PyDict::new(py);
            for (unit, amount) in costs.iter() {
                dict.set_item(unit, amount)?;
            }
            Ok(dict.unbind())
        };
        state.permit.costs().map(dict).collect()
    }

    fn limits(&self, py: Python<'_>) -> PyResult<Vec<Vec<Py<value::Standing>>>> {
        self.permit().limits().map(|limits| value::standings(py, limits)).collect()
    }

    fn token(&self, py: Python<'_>) -> PyResult<String> {
        self.state().permit.token().map_err(|error| raise(py, &error))
    }

    fn repr(&self, class: &str) -> String {
        let charges: Vec<_> = self.charges();
        let charges: Vec<_> =
            charges.iter().map(|(policy, subject)| format!("{policy}:{subject}")).collect();
        format!("{class}({})", charges.join(", "))
    }
}

/// Converts actual costs by the index of their charge.
fn charge_actuals(
    py: Python<'_>,
    charges: Option<&Bound<'_, PyAny>>,
    count: usize,
) -> PyResult<Vec<ChargeActual>> {
    let Some(charges) = charges else { return Ok(Vec::new()) };
    let Ok(charges) = charges.cast::<PyMapping>() else {
        let text = "charges must be a mapping from the index of a charge to its costs, as in {1: {\"tokens\": 5}}";
        return Err(invalid(py, text));
    };
    let mut actuals = Vec::new();
    for item in charges.items()?.iter() {
        let (index, costs): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
        let charge = index.extract::<usize>().ok().filter(|index| *index < count);
        let Some(charge) = charge else {
            let last = count.saturating_sub(1);
            let text = format!(
                "there is no charge {index}; the charges of this permit have the indexes 0 to {last}"
            );
            return Err(invalid(py, text));
        };
        actuals.push(ChargeActual { charge, actual: convert::costs(Some(&costs), None)? });
    }
    Ok(actuals)
}

/// The getters of both kinds of permits, which PyO3 cannot share.
macro_rules! permit_class {
    ($name:ident { $($methods:tt)* }) => {
        /// Proof of admission.
        #[pyclass(frozen, module = "tollgate_rs._native")]
        pub(crate) struct $name(Held);

        impl $name {
            pub(crate) const fn new(permit: bindings::Permit) -> Self {
                Self(Held::new(permit))
            }
        }

        #[pymethods]
        impl $name {
            #[getter]
            fn charges(&self) -> Vec<(String, String)> {
                self.0.charges()
            }

            #[getter]
            fn costs(&self, py: Python<'_>) -> PyResult<Vec<Py<PyDict>>> {
                self.0.costs(py)
            }

            #[getter]
            fn limits(&self, py: Python<'_>) -> PyResult<Vec<Vec<Py<value::Standing>>>> {
                self.0.limits(py)
            }

            #[getter]
            fn decided_at(&self) -> f64 {
                unix(self.0.state().permit.decided_at())
            }

            #[getter]
            fn use_by(&self) -> Option<f64> {
                self.0.state().permit.use_by().map(unix)
            }

            #[getter]
            fn expires_at(&self) -> Option<f64> {
                self.0.state().permit.expires_at().map(unix)
            }

            #[getter]
            fn degraded(&self) -> bool {
                self.0.state().permit.is_degraded()
            }

            #[getter]
            fn shadow_denied(&self) -> bool {
                self.0.state().permit.is_shadow_denied()
            }

            #[getter]
            fn token(&self, py: Python<'_>) -> PyResult<String> {
                self.0.token(py)
            }

            fn __repr__(&self) -> String {
                self.0.repr(stringify!($name))
            }

            $($methods)*
        }
    };
}

permit_class!(Permit {
    #[pyo3(signature = (*, costs = None, charges = None, **units))]
    fn settle(
        &self,
        py: Python<'_>,
        costs: Option<&Bound<'_, PyAny>>,
        charges: Option<&Bound<'_, PyAny>>,
        units: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Call> {
        Ok(sending(self.0.settle(py, costs, charges, units)?))
    }

    fn release(&self) -> Call {
        sending(self.0.release())
    }

    fn renew(slf: Py<Self>) -> Call {
        let renewing = slf.get().0.permit().renew();
        Call::new(Box::pin(async move {
            let renewed = renewing.await?;
            slf.get().0.state().permit = renewed;
            Ok(Value::Nothing)
        }))
    }

    #[pyo3(signature = (*, retry_after, limit = None))]
    fn violation(
        &self,
        retry_after: &Bound<'_, PyAny>,
        limit: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Call> {
        Ok(Call::new(violation(&self.0, retry_after, limit)?))
    }
});

impl Permit {
    pub(crate) fn held(&self) -> bindings::Permit {
        self.0.permit()
    }

    pub(crate) fn enter(&self) {
        self.0.enter();
    }

    pub(crate) fn leave(&self) -> Option<Settlement> {
        self.0.leave()
    }
}

/// Inside a block nothing is sent yet.
fn sending(settlement: Option<Settlement>) -> Call {
    match settlement {
        Some(settlement) => Call::new(work(settlement, Value::Changed)),
        None => Call::done(Value::Changed(false)),
    }
}

fn violation(
    held: &Held,
    retry_after: &Bound<'_, PyAny>,
    limit: Option<&Bound<'_, PyAny>>,
) -> PyResult<call::Work> {
    let limit = limit.map(|limit| convert::text("limit", limit)).transpose()?;
    let retry_after = span_of("retry_after", retry_after)?;
    let reporting = held.permit().violation(limit, retry_after);
    Ok(work(reporting, |incident| Value::Incident(Box::new(incident))))
}

permit_class!(SyncPermit {
    #[pyo3(signature = (*, costs = None, charges = None, **units))]
    fn settle(
        &self,
        py: Python<'_>,
        costs: Option<&Bound<'_, PyAny>>,
        charges: Option<&Bound<'_, PyAny>>,
        units: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        finish(py, self.0.settle(py, costs, charges, units)?)
    }

    fn release(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        finish(py, self.0.release())
    }

    fn renew(&self, py: Python<'_>) -> PyResult<()> {
        let renewed = block_on(py, work(self.0.permit().renew(), Value::Permit))?;
        match renewed.map_err(|error| raise(py, &error))? {
            Value::Permit(renewed) => self.0.state().permit = renewed,
            other => drop(other),
        }
        Ok(())
    }

    #[pyo3(signature = (*, retry_after, limit = None))]
    fn violation(
        &self,
        py: Python<'_>,
        retry_after: &Bound<'_, PyAny>,
        limit: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let reported = block_on(py, violation(&self.0, retry_after, limit)?)?;
        claim(py, reported, Flavour::Sync)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf.get().0.enter();
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (kind, error, traceback);
        let Some(ending) = self.0.leave() else { return Ok(()) };
        match block_on(py, work(ending, Value::Changed))? {
            Ok(_) => Ok(()),
            Err(error) => call::log(py, &error),
        }
    }
});

fn finish(py: Python<'_>, settlement: Option<Settlement>) -> PyResult<Py<PyAny>> {
    let changed = match settlement {
        Some(settlement) => block_on(py, work(settlement, Value::Changed))?,
        None => Ok(Value::Changed(false)),
    };
    claim(py, changed, Flavour::Sync)
}
