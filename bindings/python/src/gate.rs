//! The class `Gate`.

use std::path::PathBuf;

use pyo3::prelude::{Bound, Py, PyAnyMethods as _, PyResult, Python};
use pyo3::types::{PyAny, PyDict, PyTuple};
use pyo3::{pyclass, pymethods};
use serde_json::{Map, Value as Json, json};
use tollgate_bindings::{self as bindings, ChargeRequest, Decision, Source, runtime};

use crate::call::{self, Acquire, Call, Flavour, Value, block_on, claim, work};
use crate::convert::{self, AskArguments, span_of, text};
use crate::error::{denied, invalid, raise};
use crate::permit::SyncPermit;
use crate::value::ManualClock;

/// Answers asks.
#[pyclass(frozen, module = "tollgate_rs._native")]
pub(crate) struct Gate(pub(crate) bindings::Gate);

/// Opens `source` in this thread, without the interpreter.
fn open(
    py: Python<'_>,
    source: Result<Source, bindings::Error>,
    clock: Option<&Bound<'_, ManualClock>>,
) -> PyResult<Gate> {
    let source = source.map_err(|error| raise(py, &error))?;
    let clock = clock.map(|clock| clock.get().0.clone());
    let opened = py.detach(|| runtime::block_on(bindings::Gate::open(source, clock)));
    opened.and_then(|opened| opened).map(Gate).map_err(|error| raise(py, &error))
}

/// Returns the sections of a configuration with a store of `kind`.
fn sections(
    kind: &str,
    store: Vec<(&str, Json)>,
    options: Option<&Bound<'_, PyDict>>,
    policies: Json,
) -> PyResult<Map<String, Json>> {
    let mut table = Map::new();
    if let Some(options) = options
        && let Json::Object(options) = convert::json(options)?
    {
        table.extend(options);
    }
    table.extend(store.into_iter().map(|(name, value)| (name.to_owned(), value)));
    table.insert("kind".to_owned(), kind.into());
    let mut sections = Map::new();
    sections.insert("store".to_owned(), Json::Object(table));
    sections.insert("policy".to_owned(), policies);
    Ok(sections)
}

/// Converts policies, of which a single one may be given without a list.
fn policies(value: &Bound<'_, PyAny>) -> PyResult<Json> {
    match convert::json(value)? {
        Json::Array(policies) if policies.iter().all(Json::is_object) => Ok(Json::Array(policies)),
        policy @ Json::Object(_) => Ok(Json::Array(vec![policy])),
        _ => Err(invalid(
            value.py(),
            "policies must be a list of dicts, as in [{\"name\": \"api\", \"limits\": [{\"name\": \"burst\", \"unit\": \
             \"requests\", \"rule\": \"token-bucket\", \"capacity\": 20, \"refill\": \"10/s\"}]}]",
        )),
    }
}

/// Adds a section that is a mapping.
fn add_section(
    sections: &mut Map<String, Json>,
    name: &str,
    value: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let Some(value) = value else { return Ok(()) };
    match convert::json(value)? {
        section @ Json::Object(_) => {
            sections.insert(name.to_owned(), section);
            Ok(())
        }
        _ => {
            Err(invalid(value.py(), format!("{name} must be a dict, as [{name}] in tollgate.toml")))
        }
    }
}

/// Opens a store on a server.
fn on_server(
    py: Python<'_>,
    mut values: Map<String, Json>,
    strategy: Option<&Bound<'_, PyAny>>,
    fallback: Option<&Bound<'_, PyAny>>,
) -> PyResult<Gate> {
    add_section(&mut values, "strategy", strategy)?;
    add_section(&mut values, "fallback", fallback)?;
    open(py, Source::from_values(&Json::Object(values)), None)
}

impl Gate {
    fn charge_work(&self, py: Python<'_>, ask: &AskArguments<'_, '_>) -> PyResult<call::Work> {
        let charging = self.0.charge(ChargeRequest::from(ask.request(py)?));
        Ok(work(charging, Value::Permit))
    }

    fn standing_work(
        &self,
        policy: &Bound<'_, PyAny>,
        subject: &Bound<'_, PyAny>,
    ) -> PyResult<call::Work> {
        let reading = self.0.standing(text("policy", policy)?, text("subject", subject)?);
        Ok(work(reading, Value::Standings))
    }

    fn reset_work(
        &self,
        policy: &Bound<'_, PyAny>,
        subject: &Bound<'_, PyAny>,
    ) -> PyResult<call::Work> {
        let resetting = self.0.reset(text("policy", policy)?, text("subject", subject)?);
        Ok(work(resetting, Value::Changed))
    }

    fn violation_work(
        &self,
        policy: &Bound<'_, PyAny>,
        subject: &Bound<'_, PyAny>,
        retry_after: &Bound<'_, PyAny>,
        limit: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<call::Work> {
        let (policy, subject) = (text("policy", policy)?, text("subject", subject)?);
        let limit = limit.map(|limit| text("limit", limit)).transpose()?;
        let retry_after = span_of("retry_after", retry_after)?;
        let reporting = self.0.violation(policy, subject, limit, retry_after);
        Ok(work(reporting, |incident| Value::Incident(Box::new(incident))))
    }

    fn permit_work(&self, token: &Bound<'_, PyAny>) -> PyResult<call::Work> {
        Ok(work(self.0.permit(text("token", token)?), Value::Permit))
    }

    fn decide(&self, py: Python<'_>, ask: &AskArguments<'_, '_>) -> PyResult<Decision> {
        let request = ask.request(py)?;
        let decided = match self.0.try_acquire(&request) {
            Some(decided) => decided,
            None => match block_on(py, work(self.0.acquire(request), Value::Decision))? {
                Ok(Value::Decision(decision)) => Ok(decision),
                Ok(_) => return Err(invalid(py, "unexpected answer of the gate")),
                Err(error) => Err(error),
            },
        };
        decided.map_err(|error| raise(py, &error))
    }
}

#[pymethods]
impl Gate {
    #[staticmethod]
    #[pyo3(signature = (path = None, *, clock = None), text_signature = "(path='tollgate.toml', *, clock=None)")]
    fn open(
        py: Python<'_>,
        path: Option<PathBuf>,
        clock: Option<&Bound<'_, ManualClock>>,
    ) -> PyResult<Self> {
        let path = path.unwrap_or_else(|| "tollgate.toml".into());
        open(py, Source::from_file(&path), clock)
    }

    #[staticmethod]
    #[pyo3(signature = (text, *, clock = None))]
    fn parse(py: Python<'_>, text: &str, clock: Option<&Bound<'_, ManualClock>>) -> PyResult<Self> {
        open(py, Source::from_text(text), clock)
    }

    #[staticmethod]
    #[pyo3(signature = (policies, *, keys_max = None, ids_max = None, clock = None))]
    fn memory(
        py: Python<'_>,
        policies: &Bound<'_, PyAny>,
        keys_max: Option<u64>,
        ids_max: Option<u64>,
        clock: Option<&Bound<'_, ManualClock>>,
    ) -> PyResult<Self> {
        let store = vec![("keys_max", json!(keys_max)), ("ids_max", json!(ids_max))];
        let values = sections("memory", store, None, self::policies(policies)?)?;
        open(py, Source::from_values(&Json::Object(values)), clock)
    }

    #[staticmethod]
    #[pyo3(signature = (path, policies, *, durability = None, keys_max = None))]
    fn embedded(
        py: Python<'_>,
        path: PathBuf,
        policies: &Bound<'_, PyAny>,
        durability: Option<&str>,
        keys_max: Option<u64>,
    ) -> PyResult<Self> {
        let Some(path) = path.to_str() else {
            return Err(invalid(py, "path must be valid UTF-8"));
        };
        let store = vec![
            ("path", json!(path)),
            ("durability", json!(durability)),
            ("keys_max", json!(keys_max)),
        ];
        let values = sections("embedded", store, None, self::policies(policies)?)?;
        open(py, Source::from_values(&Json::Object(values)), None)
    }

    #[staticmethod]
    #[pyo3(signature = (url, policies, *, strategy = None, fallback = None, **options))]
    fn redis(
        py: Python<'_>,
        url: &str,
        policies: &Bound<'_, PyAny>,
        strategy: Option<&Bound<'_, PyAny>>,
        fallback: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let store = vec![("url", json!(url))];
        let values = sections("redis", store, options, self::policies(policies)?)?;
        on_server(py, values, strategy, fallback)
    }

    #[staticmethod]
    #[pyo3(signature = (url, policies, *, strategy = None, fallback = None, **options))]
    fn postgres(
        py: Python<'_>,
        url: &str,
        policies: &Bound<'_, PyAny>,
        strategy: Option<&Bound<'_, PyAny>>,
        fallback: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let store = vec![("url", json!(url))];
        let values = sections("postgres", store, options, self::policies(policies)?)?;
        on_server(py, values, strategy, fallback)
    }

    #[staticmethod]
    #[pyo3(signature = (table, policies, *, strategy = None, fallback = None, **options))]
    fn dynamodb(
        py: Python<'_>,
        table: &str,
        policies: &Bound<'_, PyAny>,
        strategy: Option<&Bound<'_, PyAny>>,
        fallback: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let store = vec![("table", json!(table))];
        let values = sections("dynamodb", store, options, self::policies(policies)?)?;
        on_server(py, values, strategy, fallback)
    }

    #[staticmethod]
    #[pyo3(signature = (url, policies = None, *, key = None, fallback = None, **options))]
    fn broker(
        py: Python<'_>,
        url: &str,
        policies: Option<&Bound<'_, PyAny>>,
        key: Option<&str>,
        fallback: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let policies = match policies {
            Some(policies) => self::policies(policies)?,
            None => {
                let asking = bindings::broker_policies(url, key);
                let listed = py.detach(|| runtime::block_on(asking));
                listed.and_then(|listed| listed).map_err(|error| raise(py, &error))?
            }
        };
        let store = vec![("url", json!(url)), ("key", json!(key))];
        let values = sections("broker", store, options, policies)?;
        on_server(py, values, None, fallback)
    }

    #[pyo3(signature = (policy = None, subject = None, *, charges = None, costs = None, wait = None, id = None, tenant = None,
        **units))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn acquire(
        &self,
        py: Python<'_>,
        policy: Option<&Bound<'_, PyAny>>,
        subject: Option<&Bound<'_, PyAny>>,
        charges: Option<&Bound<'_, PyAny>>,
        costs: Option<&Bound<'_, PyAny>>,
        wait: Option<&Bound<'_, PyAny>>,
        id: Option<&Bound<'_, PyAny>>,
        tenant: Option<&Bound<'_, PyAny>>,
        units: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Acquire> {
        let ask = AskArguments { policy, subject, charges, costs, wait, id, tenant, units };
        Ok(Acquire::new(self.0.clone(), ask.request(py)?))
    }

    #[pyo3(signature = (policy = None, subject = None, *, charges = None, costs = None, wait = None, id = None, tenant = None,
        **units))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn acquire_sync(
        &self,
        py: Python<'_>,
        policy: Option<&Bound<'_, PyAny>>,
        subject: Option<&Bound<'_, PyAny>>,
        charges: Option<&Bound<'_, PyAny>>,
        costs: Option<&Bound<'_, PyAny>>,
        wait: Option<&Bound<'_, PyAny>>,
        id: Option<&Bound<'_, PyAny>>,
        tenant: Option<&Bound<'_, PyAny>>,
        units: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<SyncPermit> {
        let ask = AskArguments { policy, subject, charges, costs, wait, id, tenant, units };
        match self.decide(py, &ask)? {
            Decision::Admitted(admitted) => Ok(SyncPermit::new(admitted.claim())),
            Decision::Denied(denial) => Err(denied(py, &denial)),
        }
    }

    #[pyo3(signature = (policy = None, subject = None, *, charges = None, costs = None, id = None, tenant = None, **units))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn try_acquire(
        &self,
        py: Python<'_>,
        policy: Option<&Bound<'_, PyAny>>,
        subject: Option<&Bound<'_, PyAny>>,
        charges: Option<&Bound<'_, PyAny>>,
        costs: Option<&Bound<'_, PyAny>>,
        id: Option<&Bound<'_, PyAny>>,
        tenant: Option<&Bound<'_, PyAny>>,
        units: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Option<SyncPermit>> {
        let ask = AskArguments { policy, subject, charges, costs, wait: None, id, tenant, units };
        match self.decide(py, &ask)? {
            Decision::Admitted(admitted) => Ok(Some(SyncPermit::new(admitted.claim()))),
            Decision::Denied(_) => Ok(None),
        }
    }

    #[pyo3(signature = (policy = None, subject = None, *, charges = None, costs = None, id = None, **units))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn charge(
        &self,
        py: Python<'_>,
        policy: Option<&Bound<'_, PyAny>>,
        subject: Option<&Bound<'_, PyAny>>,
        charges: Option<&Bound<'_, PyAny>>,
        costs: Option<&Bound<'_, PyAny>>,
        id: Option<&Bound<'_, PyAny>>,
        units: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Call> {
        let (wait, tenant) = (None, None);
        let ask = AskArguments { policy, subject, charges, costs, wait, id, tenant, units };
        Ok(Call::new(self.charge_work(py, &ask)?))
    }

    #[pyo3(signature = (policy = None, subject = None, *, charges = None, costs = None, id = None, **units))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn charge_sync(
        &self,
        py: Python<'_>,
        policy: Option<&Bound<'_, PyAny>>,
        subject: Option<&Bound<'_, PyAny>>,
        charges: Option<&Bound<'_, PyAny>>,
        costs: Option<&Bound<'_, PyAny>>,
        id: Option<&Bound<'_, PyAny>>,
        units: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        let (wait, tenant) = (None, None);
        let ask = AskArguments { policy, subject, charges, costs, wait, id, tenant, units };
        claim(py, block_on(py, self.charge_work(py, &ask)?)?, Flavour::Sync)
    }

    #[pyo3(signature = (policy, subject, *, costs = None, wait = None, tenant = None, permit = None, **units))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn limit<'py>(
        slf: &Bound<'py, Self>,
        policy: &Bound<'py, PyAny>,
        subject: &Bound<'py, PyAny>,
        costs: Option<&Bound<'py, PyAny>>,
        wait: Option<&Bound<'py, PyAny>>,
        tenant: Option<&Bound<'py, PyAny>>,
        permit: Option<&Bound<'py, PyAny>>,
        units: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        use pyo3::types::PyDictMethods as _;
        let py = slf.py();
        let named = match units {
            Some(units) => units.copy()?,
            None => PyDict::new(py),
        };
        let options = [("costs", costs), ("wait", wait), ("tenant", tenant), ("permit", permit)];
        for (name, value) in options {
            named.set_item(name, value)?;
        }
        let arguments = PyTuple::new(py, [slf.as_any(), policy, subject])?;
        py.import("tollgate_rs._limit")?.getattr("decorate")?.call(arguments, Some(&named))
    }

    fn standing(&self, policy: &Bound<'_, PyAny>, subject: &Bound<'_, PyAny>) -> PyResult<Call> {
        Ok(Call::new(self.standing_work(policy, subject)?))
    }

    fn standing_sync(
        &self,
        py: Python<'_>,
        policy: &Bound<'_, PyAny>,
        subject: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        claim(py, block_on(py, self.standing_work(policy, subject)?)?, Flavour::Sync)
    }

    #[pyo3(signature = (policy, subject, *, retry_after, limit = None))]
    fn violation(
        &self,
        policy: &Bound<'_, PyAny>,
        subject: &Bound<'_, PyAny>,
        retry_after: &Bound<'_, PyAny>,
        limit: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Call> {
        Ok(Call::new(self.violation_work(policy, subject, retry_after, limit)?))
    }

    #[pyo3(signature = (policy, subject, *, retry_after, limit = None))]
    fn violation_sync(
        &self,
        py: Python<'_>,
        policy: &Bound<'_, PyAny>,
        subject: &Bound<'_, PyAny>,
        retry_after: &Bound<'_, PyAny>,
        limit: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let reporting = self.violation_work(policy, subject, retry_after, limit)?;
        claim(py, block_on(py, reporting)?, Flavour::Sync)
    }

    fn reset(&self, policy: &Bound<'_, PyAny>, subject: &Bound<'_, PyAny>) -> PyResult<Call> {
        Ok(Call::new(self.reset_work(policy, subject)?))
    }

    fn reset_sync(
        &self,
        py: Python<'_>,
        policy: &Bound<'_, PyAny>,
        subject: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        claim(py, block_on(py, self.reset_work(policy, subject)?)?, Flavour::Sync)
    }

    fn permit(&self, token: &Bound<'_, PyAny>) -> PyResult<Call> {
        Ok(Call::new(self.permit_work(token)?))
    }

    fn permit_sync(&self, py: Python<'_>, token: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        claim(py, block_on(py, self.permit_work(token)?)?, Flavour::Sync)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = block_on(py, work(self.0.close(), |()| Value::Nothing))?;
        claim(py, closed, Flavour::Sync).map(drop)
    }

    fn aclose(&self) -> Call {
        Call::new(work(self.0.close(), |()| Value::Nothing))
    }

    #[getter]
    fn policies<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let policies = serde_json::to_value(self.0.policies());
        let policies = policies.map_err(|error| invalid(py, error.to_string()))?;
        convert::from_json(py, &policies)
    }

    #[getter]
    fn store(&self) -> &'static str {
        self.0.store_kind()
    }

    #[getter]
    fn degraded(&self) -> bool {
        self.0.is_degraded()
    }

    #[getter]
    fn waiting(&self) -> usize {
        self.0.waiting()
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
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
        self.close(py)
    }

    fn __aenter__(slf: Py<Self>) -> Call {
        Call::done(Value::Nothing).returning(slf.into_any())
    }

    fn __aexit__(
        &self,
        kind: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> Call {
        let _ = (kind, error, traceback);
        self.aclose()
    }

    fn __repr__(&self) -> String {
        format!("<Gate on {}>", self.0.store_kind())
    }
}
