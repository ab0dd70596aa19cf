//! The policies of a broker, for a program that has none of its own.

use serde_json::{Value, json};
use tollgate::Span;
use tollgate_client::{ApiClient, ApiError, ClientOptions, Method};
use tollgate_protocol::json::{LimitDescription, PoliciesResponse, PolicyDescription};

use crate::{Error, ErrorKind};

/// The longest time to connect, and then to answer.
const DEADLINE: Span = Span::from_secs(5);

/// The largest list of policies.
const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// Asks the broker at `url` for its policies, as the value of `policy` in [`Source::from_values`](crate::Source::from_values).
///
/// The broker decides, so only names, units and kinds of rules matter here: windows and rates, which a broker does not
/// list, have a placeholder.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) if the broker cannot be reached or does not know the key,
/// [`Forbidden`](ErrorKind::Forbidden) if the key may not list policies.
pub async fn broker_policies(url: &str, key: Option<&str>) -> Result<Value, Error> {
    let mut options = ClientOptions::new();
    if let Some(key) = key {
        options = options.key(key.trim())?;
    }
    let api = ApiClient::new(url, &options, DEADLINE.into(), RESPONSE_BYTES_MAX)?;
    let sent = api.send(Method::GET, "/v1/policies", None::<&()>, DEADLINE).await;
    let response = sent.map_err(|error| {
        let cause = match error {
            ApiError::TimedOut(after) => format!("no answer within {after}"),
            ApiError::Tls(fault) => format!("TLS failed: {fault:?}"),
            ApiError::Send(error) => error.to_string(),
            ApiError::Unsendable(cause) => cause,
        };
        let message = format!("the broker at {url} cannot be reached: {cause}");
        Error::new(ErrorKind::Unavailable, message)
    })?;
    if !response.is_success() {
        let status = response.status;
        let detail = response.problem().map(|problem| format!(": {}", problem.detail));
        let detail = detail.unwrap_or_default();
        // As an ask with such a key: the broker cannot be used until the key is corrected.
        let (kind, hint) = match status {
            401 => (ErrorKind::Unavailable, "check the key"),
            403 => (ErrorKind::Forbidden, "use a key with the scope inspect, or name the policies"),
            _ => (ErrorKind::Unavailable, "check that the URL is that of a broker"),
        };
        let message =
            format!("the broker does not list its policies (status {status}{detail}); {hint}");
        return Err(Error::new(kind, message));
    }
    let listed: PoliciesResponse = response.parse().map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("{url} answers like no broker: {error}"))
    })?;
    Ok(listed.policies.iter().map(policy).collect())
}

fn policy(description: &PolicyDescription) -> Value {
    let PolicyDescription { name, shadow, on_store_failure, weight, limits, .. } = description;
    // A share of a limit needs its numbers.
    let on_store_failure = if on_store_failure == "open" { "open" } else { "closed" };
    let limits: Vec<Value> = limits.iter().map(limit).collect();
    json!({
        "name": name, "shadow": shadow, "on_store_failure": on_store_failure, "weight": weight, "limits": limits,
    })
}

fn limit(description: &LimitDescription) -> Value {
    let LimitDescription { name, unit, rule, limit, .. } = description;
    let mut value = json!({ "name": name, "unit": unit, "rule": rule });
    let numbers = match rule.as_str() {
        "token-bucket" => [("capacity", json!(limit)), ("refill", json!("1/s"))],
        "calendar-window" => [("limit", json!(limit)), ("period", json!("day"))],
        "concurrency" => [("limit", json!(limit)), ("ttl", json!("1m"))],
        _ => [("limit", json!(limit)), ("window", json!("1m"))],
    };
    for (field, number) in numbers {
        value[field] = number;
    }
    value
}
