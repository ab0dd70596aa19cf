//! Bodies of the provider: answers, and refusals in every shape that users have reported.

use serde_json::{Value, json};
use tollgate::Span;

use crate::fakes::quota::{Limit, Quota};

/// A status and a body.
pub(in crate::fakes) type Reply = (u16, String);

const METRIC: &str = "generativelanguage.googleapis.com/generate_content_free_tier";

pub(in crate::fakes) fn error(code: u16, status: &str, message: &str) -> Reply {
    (code, json!({"error": {"code": code, "status": status, "message": message}}).to_string())
}

/// Delays of a fraction of a second come with fractions, as in `38.2s`.
fn seconds(span: Span) -> String {
    let micros = span.as_micros();
    format!("{}.{:06}s", micros / 1_000_000, micros % 1_000_000)
}

/// A refusal that names every limit that was broken. The order of the details varies from call to call.
pub(in crate::fakes) fn quota(
    model: &str,
    broken: &[Limit],
    quota: Quota,
    retry_after: Span,
    number: u64,
) -> Reply {
    let violations: Vec<Value> =
        broken.iter().map(|limit| violation(model, *limit, quota)).collect();
    let lines: Vec<String> = broken
        .iter()
        .map(|limit| {
            let (metric, _, most) = names(*limit, quota);
            format!("* Quota exceeded for metric: {METRIC}_{metric}, limit: {most}, model: {model}")
        })
        .collect();
    let delay = seconds(retry_after);
    let mut details = vec![
        json!({"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": violations}),
        json!({"@type": "type.googleapis.com/google.rpc.Help", "links": [{"description": "Learn more about Gemini API quotas", "url": "https://ai.google.dev/gemini-api/docs/rate-limits"}]}),
        json!({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}),
    ];
    details.rotate_left(usize::try_from(number % 3).unwrap_or(0));
    let message = format!(
        "You exceeded your current quota, please check your plan and billing details. {}\nPlease retry in {delay}.",
        lines.join("\n")
    );
    let body = json!({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": message, "details": details}});
    (429, body.to_string())
}

fn names(limit: Limit, quota: Quota) -> (&'static str, &'static str, u64) {
    match limit {
        Limit::Requests | Limit::AtOnce => {
            ("requests", "GenerateRequestsPerMinutePerProjectPerModel-FreeTier", quota.rpm)
        }
        Limit::Tokens | Limit::Output | Limit::Total => {
            ("input_token_count", "GenerateContentInputTokensPerModelPerMinute-FreeTier", quota.tpm)
        }
        Limit::Daily => {
            ("requests", "GenerateRequestsPerDayPerProjectPerModel-FreeTier", quota.rpd)
        }
    }
}

fn violation(model: &str, limit: Limit, quota: Quota) -> Value {
    let (metric, id, most) = names(limit, quota);
    json!({
        "quotaMetric": format!("{METRIC}_{metric}"),
        "quotaId": id,
        "quotaDimensions": {"location": "global", "model": model},
        "quotaValue": most.to_string(),
    })
}

pub(super) fn bare() -> Reply {
    error(429, "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota).")
}

/// Wraps a reply in an array, as the streaming endpoint does.
pub(super) fn wrapped((status, body): Reply) -> Reply {
    (status, format!("[{body}]"))
}

/// An answer with its usage; `text` is `None` if the answer was blocked.
pub(super) fn answer(
    model: &str,
    text: Option<&str>,
    finish: &str,
    (input, output): (u64, u64),
) -> Reply {
    let mut candidate = json!({"index": 0, "finishReason": finish});
    if let Some(text) = text {
        candidate["content"] = json!({"role": "model", "parts": [{"text": text}]});
    }
    let body = json!({
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": input,
            "candidatesTokenCount": output,
            "totalTokenCount": input + output,
        },
        "modelVersion": model,
    });
    (200, body.to_string())
}

/// A prompt that was blocked has no candidates at all.
pub(super) fn blocked_prompt(model: &str, input: u64) -> Reply {
    let body = json!({
        "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
        "usageMetadata": {"promptTokenCount": input, "totalTokenCount": input},
        "modelVersion": model,
    });
    (200, body.to_string())
}
