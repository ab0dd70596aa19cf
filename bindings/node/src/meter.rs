//! Calls to LLM providers: estimates, usage and refusals.

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use napi::bindgen_prelude::{Buffer, Uint8Array};
use napi_derive::napi;
use tollgate_bindings::{Costs, Span};
use tollgate_providers::{
    Dialect, End, ErrorCode, Meter, ProviderErrorKind, UsageMap, classify_error, error_body,
};

use crate::convert::{Result, amount, invalid, parse, timestamp, to_json};

/// Meters one call.
#[napi]
pub struct NativeMeter {
    meter: Meter,
}

/// A call as the wrapper of `fetch` sees it.
#[napi(object, object_to_js = false)]
pub struct MeteredCall {
    /// `openai`, `anthropic` or `gemini`.
    pub dialect: String,
    /// The HTTP method.
    pub method: String,
    /// The path of the URL.
    pub path: String,
    /// The query of the URL, without its question mark.
    pub query: Option<String>,
    /// The body of the request.
    pub body: Uint8Array,
    /// The JSON of units and the most that one ask can cost: `[["tokens", 30000]]`.
    pub limits: String,
    /// The JSON of usage expressions by unit.
    pub usage: Option<String>,
}

/// A refusal of a provider.
#[napi(object, object_from_js = false)]
pub struct Refusal {
    /// Whether a quota that time refills was exceeded.
    pub is_quota: bool,
    /// The units whose limit was exceeded, if the provider says so.
    pub units: Vec<&'static str>,
    /// How long to wait, if the provider says so.
    pub retry_after_ms: Option<f64>,
}

/// Returns the dialect of a provider's own host.
#[napi]
pub fn dialect_of_host(host: String) -> Option<&'static str> {
    let is_own = |dialect: &Dialect| dialect.url().strip_prefix("https://") == Some(host.as_str());
    Dialect::ALL.into_iter().find(is_own).map(Dialect::name)
}

/// Returns the meter of a call; nothing if it uses no tokens. Calls that the dialect does not cover are errors.
#[napi]
pub fn meter(call: MeteredCall) -> Result<Option<NativeMeter>> {
    let dialect = dialect(&call.dialect)?;
    let method = Method::from_bytes(call.method.as_bytes())
        .map_err(|_| invalid(format!("method: {:?} is not one of HTTP", call.method)))?;
    let meter = Meter::new(dialect, &method, &call.path, call.query.as_deref(), &call.body);
    let Some(mut meter) = meter.map_err(|error| invalid(error.to_string()))? else {
        return Ok(None);
    };
    if let Some(usage) = &call.usage {
        meter = meter.usage_map(usage_map(usage)?);
    }
    let limits: Vec<(String, u64)> = parse(&call.limits)?;
    let limits: Vec<_> = limits.iter().map(|(unit, most)| (unit.as_str(), *most)).collect();
    Ok(Some(NativeMeter { meter: meter.fit_output(&limits) }))
}

#[napi]
impl NativeMeter {
    /// Returns the JSON of the costs to charge before the call.
    #[napi]
    pub fn estimate(&self) -> String {
        costs_json(&self.meter.estimate())
    }

    /// Returns the model.
    #[napi]
    pub fn model(&self) -> String {
        self.meter.model().to_owned()
    }

    /// Returns the body to send.
    #[napi]
    pub fn request_body(&self, body: Uint8Array) -> Buffer {
        self.meter.request_body(&body).into_owned().into()
    }

    /// Begins a response. Returns whether its length may change.
    #[napi]
    pub fn begin(&mut self, content_type: String) -> bool {
        self.meter.begin(&content_type.to_ascii_lowercase(), false)
    }

    /// Reads the next bytes. Returns what the caller gets of them; nothing if that is all of them.
    #[napi]
    pub fn feed(&mut self, bytes: Uint8Array) -> Option<Buffer> {
        match self.meter.feed(&bytes) {
            std::borrow::Cow::Borrowed(_) => None,
            std::borrow::Cow::Owned(bytes) => Some(bytes.into()),
        }
    }

    /// Returns what was held back, at the end of the body.
    #[napi]
    pub fn finish(&mut self) -> Buffer {
        self.meter.finish().into()
    }

    /// Returns the JSON of what the call used: `complete`, `broken` or `abandoned`.
    #[napi]
    pub fn end(&self, ending: String) -> Result<String> {
        let ending = match ending.as_str() {
            "complete" => End::Complete,
            "broken" => End::Broken,
            "abandoned" => End::Abandoned,
            other => return Err(invalid(format!("unknown ending {other:?}"))),
        };
        Ok(costs_json(&self.meter.end(ending)))
    }
}

/// Classifies an answer with status 429 or 5xx.
#[napi]
pub fn refusal(
    dialect_name: String,
    status: u16,
    headers: String,
    body: Uint8Array,
    now_ms: f64,
) -> Result<Refusal> {
    let dialect = dialect(&dialect_name)?;
    let headers: Vec<(String, String)> = parse(&headers)?;
    let header = |(name, value): (String, String)| {
        Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?))
    };
    let headers: HeaderMap = headers.into_iter().filter_map(header).collect();
    let status = StatusCode::from_u16(status).map_err(|error| invalid(error.to_string()))?;
    let now = timestamp("nowMs", now_ms)?;
    let error = classify_error(dialect.url(), status, &headers, &body, now);
    let wait = match error.kind {
        ProviderErrorKind::DailyQuota => Some(dialect.day_ends(now).since(now)),
        _ => error.retry_after,
    };
    Ok(Refusal {
        is_quota: error.kind.is_quota(),
        units: error.kind.units().to_vec(),
        retry_after_ms: wait.map(|wait| whole(wait.as_millis_ceil())),
    })
}

/// Returns the body of a denial in the shape of a dialect.
#[napi]
pub fn denial_body(
    dialect_name: String,
    message: String,
    retry_after_ms: Option<f64>,
) -> Result<Buffer> {
    let wait = match retry_after_ms {
        Some(ms) => Some(Span::from_millis(amount("retryAfterMs", ms)?)),
        None => None,
    };
    let code = if wait.is_some() { ErrorCode::RateLimited } else { ErrorCode::NeverFits };
    Ok(error_body(dialect(&dialect_name)?, code, &message, wait).into())
}

/// Checks the JSON of usage expressions by unit.
#[napi]
pub fn check_usage(usage: String) -> Result<()> {
    usage_map(&usage).map(|_| ())
}

fn usage_map(json: &str) -> Result<UsageMap> {
    let usage: std::collections::BTreeMap<String, String> = parse(json)?;
    let map = UsageMap::parse(usage.iter().map(|(unit, sum)| (unit.as_str(), sum.as_str())));
    map.map_err(|error| invalid(error.to_string()))
}

fn dialect(name: &str) -> Result<Dialect> {
    name.parse().map_err(|error: tollgate_providers::Error| invalid(error.to_string()))
}

#[expect(clippy::cast_precision_loss, reason = "waits are far below 2^53 milliseconds")]
const fn whole(milliseconds: u64) -> f64 {
    milliseconds as f64
}

fn costs_json(costs: &Costs) -> String {
    let costs: serde_json::Map<String, serde_json::Value> =
        costs.iter().map(|(unit, amount)| (unit.to_owned(), amount.into())).collect();
    to_json(&costs)
}
