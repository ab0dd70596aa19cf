//! Meters of LLM calls, for the transports of HTTP clients.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::{Bound, PyErr, PyResult, Python};
use pyo3::types::{PyBytes, PyBytesMethods as _};
use pyo3::{pyclass, pyfunction, pymethods};
use tollgate::clock::SystemClock;
use tollgate::{Clock as _, Costs, Span};
use tollgate_providers::{
    Dialect, End, ErrorCode, ErrorKind, Meter as CallMeter, ProviderErrorKind, UsageMap,
    classify_error, error_body,
};

use crate::value::seconds;

/// Meters one call to OpenAI, Anthropic or Gemini, from its request to the end of its response.
#[pyclass(module = "tollgate_rs._native")]
pub(crate) struct Meter {
    dialect: Dialect,
    meter: CallMeter,
}

fn invalid(error: impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn amounts(costs: &Costs) -> BTreeMap<String, u64> {
    costs.iter().map(|(unit, amount)| (unit.to_owned(), amount)).collect()
}

#[pymethods]
impl Meter {
    /// The meter of a call, or `None` for one that uses no tokens. `ValueError` if it cannot be metered.
    #[staticmethod]
    #[pyo3(signature = (method, path, query, body, usage))]
    fn read(
        method: &str,
        path: &str,
        query: Option<&str>,
        body: &[u8],
        usage: BTreeMap<String, String>,
    ) -> PyResult<Option<Self>> {
        let method = Method::from_bytes(method.as_bytes()).map_err(invalid)?;
        let mut uncovered = None;
        for dialect in Dialect::ALL {
            let meter = match CallMeter::new(dialect, &method, path, query, body) {
                Ok(Some(meter)) => meter,
                Ok(None) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    uncovered.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(invalid(error)),
            };
            let map =
                UsageMap::parse(usage.iter().map(|(unit, sum)| (unit.as_str(), sum.as_str())));
            let meter = meter.usage_map(map.map_err(invalid)?);
            return Ok(Some(Self { dialect, meter }));
        }
        Err(invalid(uncovered.map_or_else(String::new, |error| error.to_string())))
    }

    /// The model that the call names.
    #[getter]
    fn model(&self) -> &str {
        self.meter.model()
    }

    /// The API: `openai`, `anthropic` or `gemini`.
    #[getter]
    fn dialect(&self) -> &'static str {
        self.dialect.name()
    }

    /// Charges an undeclared output with at most a quarter of each limit.
    fn fit_output(&mut self, limits: Vec<(String, u64)>) {
        let limits: Vec<_> = limits.iter().map(|(unit, most)| (unit.as_str(), *most)).collect();
        self.meter = self.meter.clone().fit_output(&limits);
    }

    /// The costs to charge before the call.
    fn estimate(&self) -> BTreeMap<String, u64> {
        amounts(&self.meter.estimate())
    }

    /// The body to send.
    fn request_body<'py>(&self, py: Python<'py>, body: &[u8]) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.meter.request_body(body))
    }

    /// Begins the response. Returns whether its length may change.
    fn begin(&mut self, content_type: &str, is_compressed: bool) -> bool {
        self.meter.begin(content_type, is_compressed)
    }

    /// Reads the next bytes of the response, and returns what the client gets of them.
    fn feed<'py>(&mut self, chunk: &Bound<'py, PyBytes>) -> Bound<'py, PyBytes> {
        match self.meter.feed(chunk.as_bytes()) {
            std::borrow::Cow::Borrowed(_) => chunk.clone(),
            std::borrow::Cow::Owned(stripped) => PyBytes::new(chunk.py(), &stripped),
        }
    }

    /// Returns what was held back, at the end of the body.
    fn finish<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.meter.finish())
    }

    /// What the call used, if its response was `complete`, `broken` or `abandoned`.
    fn end(&self, how: &str) -> PyResult<BTreeMap<String, u64>> {
        let end = match how {
            "complete" => End::Complete,
            "broken" => End::Broken,
            "abandoned" => End::Abandoned,
            _ => return Err(invalid(format!("unknown end {how:?}"))),
        };
        Ok(amounts(&self.meter.end(end)))
    }
}

/// A provider's refusal of a call.
#[pyclass(frozen, module = "tollgate_rs._native")]
pub(crate) struct ProviderRefusal {
    /// Whether a quota is exhausted that time refills.
    #[pyo3(get)]
    is_quota: bool,
    /// How long the provider wants to be left alone, in seconds.
    #[pyo3(get)]
    retry_after: Option<f64>,
    /// The units whose limit was exceeded.
    #[pyo3(get)]
    units: Vec<&'static str>,
}

#[pymethods]
impl ProviderRefusal {
    /// Classifies a response of `url` with an error status.
    #[staticmethod]
    fn read(
        dialect: &str,
        url: &str,
        status: u16,
        headers: Vec<(String, String)>,
        body: &[u8],
    ) -> PyResult<Self> {
        let dialect: Dialect = dialect.parse().map_err(invalid)?;
        let status = StatusCode::from_u16(status).map_err(invalid)?;
        let headers: HeaderMap = headers
            .iter()
            .filter_map(|(name, value)| {
                Some((name.parse::<HeaderName>().ok()?, HeaderValue::try_from(value).ok()?))
            })
            .collect();
        let now = SystemClock.now();
        let error = classify_error(url, status, &headers, body, now);
        let retry_after = match error.kind {
            ProviderErrorKind::DailyQuota => Some(dialect.day_ends(now).since(now)),
            _ => error.retry_after,
        };
        Ok(Self {
            is_quota: error.kind.is_quota(),
            retry_after: retry_after.map(seconds),
            units: error.kind.units().to_vec(),
        })
    }
}

/// The body of an error in the shape of `dialect`: 429 for a denial, 503 for a gate that could not decide.
#[pyfunction]
#[pyo3(signature = (dialect, message, retry_after, is_denial))]
pub(crate) fn llm_error_body<'py>(
    py: Python<'py>,
    dialect: &str,
    message: &str,
    retry_after: Option<f64>,
    is_denial: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let dialect: Dialect = dialect.parse().map_err(invalid)?;
    let code = match retry_after {
        _ if !is_denial => ErrorCode::Overloaded,
        Some(_) => ErrorCode::RateLimited,
        None => ErrorCode::NeverFits,
    };
    let retry_after = retry_after.map(std::time::Duration::try_from_secs_f64);
    let retry_after = retry_after.transpose().map_err(invalid)?.map(Span::from);
    Ok(PyBytes::new(py, &error_body(dialect, code, message, retry_after)))
}
