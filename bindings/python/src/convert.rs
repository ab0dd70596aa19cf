//! Arguments as values of the engine.

use pyo3::prelude::{
    Bound, PyAnyMethods as _, PyDictMethods, PyResult, PyStringMethods as _, PyTypeMethods as _,
    Python,
};
use pyo3::types::{PyAny, PyBool, PyDict, PyFloat, PyInt, PyMapping, PyString, PyTuple};
use pyo3::types::{PyListMethods as _, PyMappingMethods as _, PyTupleMethods as _};
use serde_json::{Map, Value};
use tollgate_bindings::{AcquireRequest, Charge, Costs, Span, Timestamp, WAIT_MAX};

use crate::error::invalid;

/// The deepest value of a policy.
const DEPTH_MAX: usize = 16;

/// The longest duration in seconds that a number of microseconds holds exactly.
const SECONDS_MAX: f64 = 9e9;

fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string())
}

/// The arguments of an ask.
pub(crate) struct AskArguments<'a, 'py> {
    pub(crate) policy: Option<&'a Bound<'py, PyAny>>,
    pub(crate) subject: Option<&'a Bound<'py, PyAny>>,
    pub(crate) charges: Option<&'a Bound<'py, PyAny>>,
    pub(crate) costs: Option<&'a Bound<'py, PyAny>>,
    pub(crate) wait: Option<&'a Bound<'py, PyAny>>,
    pub(crate) id: Option<&'a Bound<'py, PyAny>>,
    pub(crate) tenant: Option<&'a Bound<'py, PyAny>>,
    pub(crate) units: Option<&'a Bound<'py, PyDict>>,
}

impl AskArguments<'_, '_> {
    pub(crate) fn request(&self, py: Python<'_>) -> PyResult<AcquireRequest> {
        let named = |name, value: Option<&Bound<'_, PyAny>>| {
            value.map(|value| text(name, value)).transpose()
        };
        let charges = match self.charges {
            None => Vec::new(),
            Some(charges) => self::charges(charges)?,
        };
        if charges.is_empty() {
            if self.charges.is_some() {
                return Err(invalid(py, "charges is empty; name at least one (policy, subject)"));
            }
            if self.policy.is_none() || self.subject.is_none() {
                return Err(invalid(
                    py,
                    "name a policy and a subject, as in acquire(\"api\", \"alice\"), or charges",
                ));
            }
        }
        let wait_ms = match self.wait {
            None => None,
            Some(wait) => {
                let wait = span_of("wait", wait)?;
                if WAIT_MAX < wait {
                    let most = WAIT_MAX.as_secs_ceil();
                    return Err(invalid(py, format!("wait must be at most {most} seconds")));
                }
                Some(wait.as_millis_ceil())
            }
        };
        Ok(AcquireRequest {
            policy: named("policy", self.policy)?.unwrap_or_default(),
            subject: named("subject", self.subject)?.unwrap_or_default(),
            costs: self::costs(self.costs, self.units)?,
            id: named("id", self.id)?,
            wait_ms,
            charges,
            tenant: named("tenant", self.tenant)?,
            ..AcquireRequest::default()
        })
    }
}

/// Converts an argument that has to be a string.
pub(crate) fn text(name: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    match value.cast::<PyString>() {
        Ok(text) => Ok(text.to_cow()?.into_owned()),
        Err(_) => {
            let kind = type_name(value);
            Err(invalid(value.py(), format!("{name} must be a string, not {kind}")))
        }
    }
}

/// Converts costs by unit, from a mapping and from keyword arguments.
pub(crate) fn costs(
    mapping: Option<&Bound<'_, PyAny>>,
    units: Option<&Bound<'_, PyDict>>,
) -> PyResult<Costs> {
    let mut costs = Costs::new();
    for (unit, amount) in units.into_iter().flat_map(PyDictMethods::iter) {
        set_cost(&mut costs, &unit, &amount)?;
    }
    let Some(mapping) = mapping else { return Ok(costs) };
    if let Ok(mapping) = mapping.cast::<PyDict>() {
        for (unit, amount) in mapping.iter() {
            set_cost(&mut costs, &unit, &amount)?;
        }
        return Ok(costs);
    }
    let Ok(items) = mapping.cast::<PyMapping>() else {
        let kind = type_name(mapping);
        let message = format!("costs must be a mapping, as in {{\"tokens\": 100}}, not {kind}");
        return Err(invalid(mapping.py(), message));
    };
    for item in items.items()?.iter() {
        let (unit, amount): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
        set_cost(&mut costs, &unit, &amount)?;
    }
    Ok(costs)
}

fn set_cost(costs: &mut Costs, unit: &Bound<'_, PyAny>, amount: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = unit.py();
    let Ok(unit) = unit.cast::<PyString>() else {
        let kind = type_name(unit);
        return Err(invalid(py, format!("a unit must be a string, not {kind}")));
    };
    let unit = unit.to_cow()?;
    if costs.get(&unit).is_some() {
        return Err(invalid(py, format!("{unit} is given twice; name its cost once")));
    }
    let wrong = || {
        let shown = amount.repr().map_or_else(|_| type_name(amount), |text| text.to_string());
        let message = format!("the cost of {unit} must be a non-negative integer, not {shown}");
        invalid(py, message)
    };
    if !amount.is_instance_of::<PyInt>() || amount.is_instance_of::<PyBool>() {
        return Err(wrong());
    }
    let amount: u64 = amount.extract().map_err(|_| wrong())?;
    costs.set(&*unit, amount);
    Ok(())
}

fn charges(value: &Bound<'_, PyAny>) -> PyResult<Vec<Charge>> {
    let py = value.py();
    let wrong = |kind: String| {
        let message = format!(
            "charges must be a list of (policy, subject) or (policy, subject, costs), not {kind}"
        );
        invalid(py, message)
    };
    if value.is_instance_of::<PyString>() {
        return Err(wrong("str".to_owned()));
    }
    let elements = value.try_iter().map_err(|_| wrong(type_name(value)))?;
    let charge = |element: PyResult<Bound<'_, PyAny>>| {
        let element = element?;
        let tuple = element.cast::<PyTuple>().map_err(|_| wrong(type_name(&element)))?;
        let (policy, subject, own) = match tuple.len() {
            2 => (tuple.get_item(0)?, tuple.get_item(1)?, None),
            3 => (tuple.get_item(0)?, tuple.get_item(1)?, Some(tuple.get_item(2)?)),
            length => return Err(wrong(format!("a tuple of {length}"))),
        };
        let own = own.filter(|own| !own.is_none());
        Ok(Charge {
            policy: text("the policy of a charge", &policy)?,
            subject: text("the subject of a charge", &subject)?,
            costs: own.map(|own| costs(Some(&own), None)).transpose()?,
        })
    };
    elements.map(charge).collect()
}

/// Converts a number of seconds.
pub(crate) fn span_of(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Span> {
    let is_number = value.is_instance_of::<PyFloat>() || value.is_instance_of::<PyInt>();
    match value.extract::<f64>() {
        Ok(seconds) if is_number && !value.is_instance_of::<PyBool>() => {
            span(value.py(), name, seconds)
        }
        _ => {
            let kind = type_name(value);
            Err(invalid(value.py(), format!("{name} must be a number of seconds, not {kind}")))
        }
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range is checked first"
)]
pub(crate) fn span(py: Python<'_>, name: &str, seconds: f64) -> PyResult<Span> {
    if (0.0..=SECONDS_MAX).contains(&seconds) {
        return Ok(Span::from_micros((seconds * 1e6).round() as u64));
    }
    Err(invalid(py, format!("{name} must be 0 to {SECONDS_MAX:.0} seconds, not {seconds}")))
}

pub(crate) fn time(py: Python<'_>, name: &str, seconds: f64) -> PyResult<Timestamp> {
    Ok(Timestamp::from_micros(0) + span(py, name, seconds)?)
}

/// Converts configuration: dicts, lists, strings, numbers, booleans and `None`.
pub(crate) fn json(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    json_within(value, DEPTH_MAX)
}

fn json_within(value: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    let py = value.py();
    if value.is_none() {
        return Ok(Value::Null);
    }
    let Some(depth) = depth.checked_sub(1) else {
        return Err(invalid(py, format!("configuration has more than {DEPTH_MAX} levels")));
    };
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(Value::String(text.to_cow()?.into_owned()));
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(Value::Bool(flag.extract()?));
    }
    if value.is_instance_of::<PyInt>() {
        let number = value.extract::<i64>().map_err(|_| {
            invalid(py, format!("{value} is too large for configuration; at most {}", i64::MAX))
        })?;
        return Ok(number.into());
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(value.extract::<f64>()?.into());
    }
    if let Ok(mapping) = value.cast::<PyMapping>() {
        let mut fields = Map::new();
        for item in mapping.items()?.iter() {
            let (name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            fields.insert(text("a key of configuration", &name)?, json_within(&value, depth)?);
        }
        return Ok(Value::Object(fields));
    }
    // Paths.
    if let Ok(path) = value.call_method0("__fspath__") {
        return Ok(Value::String(text("a path", &path)?));
    }
    match value.try_iter() {
        Ok(elements) => {
            let elements = elements.map(|element| json_within(&element?, depth));
            Ok(Value::Array(elements.collect::<PyResult<_>>()?))
        }
        Err(_) => {
            let kind = type_name(value);
            Err(invalid(py, format!("configuration has no place for a value of type {kind}")))
        }
    }
}

/// Converts back to dicts and lists.
pub(crate) fn from_json<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    use pyo3::IntoPyObjectExt as _;
    match value {
        Value::Null => Ok(py.None().into_bound(py)),
        Value::Bool(flag) => flag.into_bound_py_any(py),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => number.into_bound_py_any(py),
            (_, Some(number)) => number.into_bound_py_any(py),
            _ => number.as_f64().into_bound_py_any(py),
        },
        Value::String(text) => text.into_bound_py_any(py),
        Value::Array(elements) => {
            let elements = elements.iter().map(|element| from_json(py, element));
            elements.collect::<PyResult<Vec<_>>>()?.into_bound_py_any(py)
        }
        Value::Object(fields) => {
            let dict = PyDict::new(py);
            for (name, value) in fields {
                dict.set_item(name, from_json(py, value)?)?;
            }
            Ok(dict.into_any())
        }
    }
}
