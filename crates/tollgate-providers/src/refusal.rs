//! Parsing of refusals. Providers send many shapes: details in any order, no details, an array, or no JSON at all.

use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use tollgate_core::Timestamp;

use crate::bounds::{ERROR_BYTES_MAX, MESSAGE_CHARS_MAX};
use crate::provider_error::{ProviderError, ProviderErrorKind as Kind, QuotaViolation};
use crate::retry_hint::{header_delay, message_delay, seconds};

/// The hint for an address of another server.
pub const NOT_PROVIDER_HINT: &str =
    "; the provider does not answer like this, so check its url, and resume";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Body {
    error: Inside,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Inside {
    status: Option<Value>,
    code: Option<Value>,
    #[serde(rename = "type")]
    kind: Option<Value>,
    message: String,
    details: Vec<Detail>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Detail {
    violations: Vec<Violation>,
    retry_delay: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Violation {
    quota_metric: String,
    quota_id: String,
    quota_value: Option<String>,
}

/// Classifies a response of `url` with another status than 200. The shapes of all dialects are understood, since compatible servers
/// mix them.
#[must_use]
pub fn classify_error(
    url: &str,
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    now: Timestamp,
) -> ProviderError {
    let status = status.as_u16();
    let body = &body[..body.len().min(ERROR_BYTES_MAX)];
    let inside = read(body);
    let message = if inside.message.is_empty() {
        let text = String::from_utf8_lossy(body);
        format!("{url} answered with status {status}: {}", text.trim())
    } else {
        inside.message.clone()
    };
    let violations: Vec<QuotaViolation> = inside
        .details
        .iter()
        .flat_map(|detail| &detail.violations)
        .map(|violation| QuotaViolation {
            quota_id: violation.quota_id.clone(),
            metric: violation.quota_metric.clone(),
            limit: violation.quota_value.as_deref().and_then(|value| value.parse().ok()),
        })
        .collect();
    let delay = inside
        .details
        .iter()
        .find_map(|detail| seconds(detail.retry_delay.as_deref()?))
        .or_else(|| header_delay(headers, now))
        .or_else(|| message_delay(&message));
    let kind = match kind_of(status, &inside, &message, &violations) {
        Kind::Gone | Kind::BadRequest | Kind::Garbled if !says_why(body) => Kind::NotProvider,
        kind => kind,
    };
    let mut text: String = message.chars().take(MESSAGE_CHARS_MAX).collect();
    match kind {
        Kind::NotProvider => text += NOT_PROVIDER_HINT,
        Kind::Gone => text += &format!(" ({url})"),
        _ => {}
    }
    ProviderError { kind, text, retry_after: delay, violations }
}

/// Returns whether a refusal has the shape of a provider's or a model server's error.
fn says_why(body: &[u8]) -> bool {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let first = value.get(0).unwrap_or(&value);
    ["error", "message"].iter().any(|key| first.get(key).is_some())
}

fn read(body: &[u8]) -> Inside {
    // The streaming and the compatible endpoint wrap the error in an array. Parsed first, since an array also parses as a struct.
    let wrapped =
        serde_json::from_slice::<Vec<Body>>(body).ok().and_then(|all| all.into_iter().next());
    wrapped.or_else(|| serde_json::from_slice(body).ok()).unwrap_or_default().error
}

fn kind_of(status: u16, inside: &Inside, message: &str, violations: &[QuotaViolation]) -> Kind {
    let word = |value: &Option<Value>| value.as_ref().and_then(Value::as_str).map(str::to_owned);
    let words = [word(&inside.status), word(&inside.code), word(&inside.kind)];
    let says = |wanted: &str| words.iter().flatten().any(|word| word == wanted);
    match status {
        402 => Kind::InsufficientQuota,
        400 | 403 | 429
            if says("insufficient_quota")
                || says("billing_hard_limit_reached")
                || message.contains("credit balance is too low") =>
        {
            Kind::InsufficientQuota
        }
        // OpenAI's answer to a request that no window of the limit can hold.
        429 if message.starts_with("Request too large") => Kind::TooLarge,
        429 => classify_quota(message, violations),
        401 | 403 => Kind::Denied,
        404 => Kind::Gone,
        408 | 409 | 500.. => Kind::Overloaded,
        // The cause is the account, so no other request would succeed: its region, or a feature that is not enabled or paid.
        400 if says("FAILED_PRECONDITION") => Kind::Denied,
        // An invalid key is a 400 with this message.
        400 if ["API key not valid", "API key expired", "API_KEY_INVALID"]
            .iter()
            .any(|words| message.contains(words)) =>
        {
            Kind::Denied
        }
        400.. => Kind::BadRequest,
        _ => Kind::Garbled,
    }
}

fn classify_quota(message: &str, violations: &[QuotaViolation]) -> Kind {
    let none = |violation: &QuotaViolation| violation.limit == Some(0);
    if violations.iter().any(none) || says_limit_0(message) {
        return Kind::NotInTier;
    }
    let named = |part: &str| {
        violations.iter().any(|it| it.quota_id.contains(part) || it.metric.contains(part))
    };
    let said = |part: &str| message.to_ascii_lowercase().contains(part);
    if named("PerDay") || named("per_day") || said("per day") || said("perday") {
        return Kind::DailyQuota;
    }
    if named("Token") || named("token") || said("tokens per min") {
        return Kind::TokenQuota;
    }
    if violations.is_empty() && !said("requests per min") {
        return Kind::Quota;
    }
    Kind::MinuteQuota
}

/// Returns whether the message has a limit of exactly 0: the model is not in the tier.
fn says_limit_0(message: &str) -> bool {
    let is_0 = |rest: &str| {
        rest.strip_prefix('0').is_some_and(|rest| {
            !rest.starts_with(|next: char| next.is_ascii_digit() || next == '.')
        })
    };
    message.split("limit: ").skip(1).any(is_0)
}

#[cfg(test)]
mod tests {
    use tollgate_core::Span;

    use super::*;

    const URL: &str = "https://api.example";

    fn classify(status: u16, body: &str, headers: &[(&str, &str)]) -> ProviderError {
        let status = StatusCode::from_u16(status).unwrap();
        let headers =
            headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        classify_error(URL, status, &headers.collect(), body.as_bytes(), Timestamp::EPOCH)
    }

    fn kind(status: u16, body: &str) -> (Kind, Option<Span>) {
        let error = classify(status, body, &[]);
        (error.kind, error.retry_after)
    }

    fn quota(id: &str, value: &str, delay: &str) -> String {
        format!(
            r#"{{"error":{{"code":429,"status":"RESOURCE_EXHAUSTED","message":"You exceeded your current quota","details":[
                {{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"{delay}"}},
                {{"@type":"type.googleapis.com/google.rpc.Help","links":[{{"description":"d","url":"u"}}]}},
                {{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[
                    {{"quotaMetric":"generativelanguage.googleapis.com/m","quotaId":"{id}","quotaDimensions":{{"model":"x"}},"quotaValue":"{value}"}}]}}]}}}}"#
        )
    }

    #[test]
    fn r003_4_each_shape_of_a_429_is_told_apart() {
        let minute = quota("GenerateRequestsPerMinutePerProjectPerModel-FreeTier", "10", "38.2s");
        assert_eq!(kind(429, &minute), (Kind::MinuteQuota, Some(Span::from_micros(38_200_000))));
        assert_eq!(kind(429, &format!("[{minute}]")), kind(429, &minute), "in an array");
        let tokens = quota("GenerateContentInputTokensPerModelPerMinute-FreeTier", "250000", "7s");
        assert_eq!(kind(429, &tokens), (Kind::TokenQuota, Some(Span::from_secs(7))));
        let day = quota("GenerateRequestsPerDayPerProjectPerModel-FreeTier", "20", "65205s");
        assert_eq!(kind(429, &day).0, Kind::DailyQuota);
        assert_eq!(kind(429, &quota("GenerateRequestsPerMinute", "0", "38s")).0, Kind::NotInTier);
        let bare = r#"{"error":{"code":429,"message":"Resource has been exhausted (e.g. check quota).","status":"RESOURCE_EXHAUSTED"}}"#;
        assert_eq!(kind(429, bare), (Kind::Quota, None));
        let said = r#"{"error":{"code":429,"message":"Quota exceeded for metric: m, limit: 0, model: x\nPlease retry in 12.5s."}}"#;
        assert_eq!(kind(429, said), (Kind::NotInTier, Some(Span::from_millis(12_500))));
        assert!(!says_limit_0("limit: 05 and limit: 0.5 and limit: 20"));
        assert_eq!(kind(429, "").0, Kind::Quota);
    }

    #[test]
    fn r003_4_all_violations_of_a_refusal_are_kept_and_a_missing_value_is_none() {
        let body = r#"{"error":{"details":[{"violations":[{"quotaId":"GenerateRequestsPerMinute","quotaValue":"5"},{"quotaId":"GenerateRequestsPerDay"}]}]}}"#;
        let error = classify(429, body, &[]);
        assert_eq!(error.kind, Kind::DailyQuota, "the longest wait decides");
        assert_eq!(error.violations.iter().map(|it| it.limit).collect::<Vec<_>>(), [Some(5), None]);
    }

    #[test]
    fn r003_4_other_refusals_are_told_apart() {
        for (status, wanted) in [
            (503, Kind::Overloaded),
            (500, Kind::Overloaded),
            (504, Kind::Overloaded),
            (400, Kind::BadRequest),
            (401, Kind::Denied),
            (403, Kind::Denied),
            (404, Kind::Gone),
        ] {
            assert_eq!(kind(status, r#"{"error":{"message":"x"}}"#).0, wanted, "{status}");
        }
        let key =
            r#"{"error":{"code":400,"message":"API key not valid. Please pass a valid API key."}}"#;
        assert_eq!(kind(400, key).0, Kind::Denied);
        assert_eq!(kind(502, "<html>bad gateway</html>").0, Kind::Overloaded);
    }

    #[test]
    fn a_refusal_by_something_else_is_told_from_one_of_the_provider() {
        for (status, body) in [
            (404, "<html>Not Found</html>"),
            (405, "Method Not Allowed"),
            (400, ""),
            (404, r#"{"detail":"Not Found"}"#),
            (302, "<a href=/login>"),
        ] {
            let error = classify(status, body, &[]);
            assert_eq!(error.kind, Kind::NotProvider, "{error}");
            let said = format!("{URL} answered with status {status}: {body}");
            assert!(
                error.text.starts_with(&said) && error.text.contains("check its url"),
                "{error}"
            );
        }
        for (status, body, wanted) in [
            (404, r#"{"error":"model \"x\" not found"}"#, Kind::Gone),
            (404, r#"[{"error":{"message":"models/x is not found"}}]"#, Kind::Gone),
            (400, r#"{"object":"error","message":"too long"}"#, Kind::BadRequest),
        ] {
            assert_eq!(kind(status, body).0, wanted, "{body}");
        }
        assert!(classify(404, r#"{"error":{"message":"gone"}}"#, &[]).text.contains(URL));
    }

    #[test]
    fn r003_4_a_compatible_endpoint_is_understood_too() {
        let rate = r#"{"error":{"message":"Rate limit reached for requests per min (RPM): Limit 3","type":"requests","code":"rate_limit_exceeded"}}"#;
        let error = classify(429, rate, &[("retry-after", "20")]);
        assert_eq!((error.kind, error.retry_after), (Kind::MinuteQuota, Some(Span::from_secs(20))));
        let tokens = r#"{"error":{"message":"Rate limit reached on tokens per min (TPM)","code":"rate_limit_exceeded"}}"#;
        assert_eq!(kind(429, tokens).0, Kind::TokenQuota);
        let broke = r#"{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}"#;
        assert_eq!(kind(429, broke).0, Kind::InsufficientQuota);
    }

    #[test]
    fn errors_of_openai_and_anthropic_are_told_apart() {
        let table = [
            (
                429,
                r#"{"error":{"message":"Rate limit reached for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Used 29000, Requested 1500. Please try again in 1.242s.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#,
                (Kind::TokenQuota, Some(Span::from_millis(1_242))),
            ),
            (
                429,
                r#"{"error":{"message":"Rate limit reached for gpt-4o on requests per day (RPD): Limit 200, Used 200, Requested 1. Please try again in 7m12s.","type":"requests","param":null,"code":"rate_limit_exceeded"}}"#,
                (Kind::DailyQuota, Some(Span::from_secs(432))),
            ),
            (
                429,
                r#"{"error":{"message":"Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 50000. The input or output tokens must be reduced.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#,
                (Kind::TooLarge, None),
            ),
            (
                429,
                r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#,
                (Kind::InsufficientQuota, None),
            ),
            (
                401,
                r#"{"error":{"message":"Incorrect API key provided: sk-x.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}"#,
                (Kind::Denied, None),
            ),
            (
                404,
                r#"{"error":{"message":"The model `x` does not exist","type":"invalid_request_error","param":null,"code":"model_not_found"}}"#,
                (Kind::Gone, None),
            ),
            (
                429,
                r#"{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed the rate limit for your organization of 50 requests per minute."},"request_id":"req_1"}"#,
                (Kind::MinuteQuota, None),
            ),
            (
                429,
                r#"{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed your organization's rate limit of 30,000 input tokens per minute."}}"#,
                (Kind::TokenQuota, None),
            ),
            (
                529,
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                (Kind::Overloaded, None),
            ),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API."}}"#,
                (Kind::InsufficientQuota, None),
            ),
            (
                402,
                r#"{"type":"error","error":{"type":"billing_error","message":"There is an issue with your billing."}}"#,
                (Kind::InsufficientQuota, None),
            ),
            (
                413,
                r#"{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}"#,
                (Kind::BadRequest, None),
            ),
        ];
        for (status, body, wanted) in table {
            assert_eq!(kind(status, body), wanted, "{body}");
        }
    }
}
