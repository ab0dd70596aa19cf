//! Errors that a gateway answers, as the provider's SDKs and this crate read them.

use http::HeaderMap;
use serde_json::{Value, json};
use tollgate_core::{Span, Timestamp};
use tollgate_providers::{
    Dialect, ErrorCode, ProviderErrorKind as Kind, classify_error, error_body,
};

fn body(dialect: Dialect, code: ErrorCode, retry_after: Option<Span>) -> Value {
    serde_json::from_slice(&error_body(dialect, code, "say \"hello\"", retry_after))
        .expect("an error is JSON")
}

#[test]
fn an_error_has_the_shape_of_its_dialect() {
    let delay = Some(Span::from_millis(1_500));
    assert_eq!(
        body(Dialect::OpenAi, ErrorCode::RateLimited, delay),
        json!({"error": {"message": "say \"hello\"", "type": "rate_limit_error", "param": null, "code": "rate_limit_exceeded"}})
    );
    assert_eq!(
        body(Dialect::Anthropic, ErrorCode::RateLimited, delay),
        json!({"type": "error", "error": {"type": "rate_limit_error", "message": "say \"hello\""}})
    );
    assert_eq!(
        body(Dialect::Gemini, ErrorCode::RateLimited, delay),
        json!({"error": {"code": 429, "message": "say \"hello\"", "status": "RESOURCE_EXHAUSTED", "details": [
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1.500000s"}]}})
    );
    assert_eq!(
        body(Dialect::Gemini, ErrorCode::Unauthorized, None),
        json!({"error": {"code": 401, "message": "say \"hello\"", "status": "UNAUTHENTICATED"}})
    );
}

#[test]
fn an_error_of_a_gateway_is_classified_as_one_of_the_provider() {
    let table = [
        (ErrorCode::InvalidRequest, Kind::BadRequest),
        (ErrorCode::Unauthorized, Kind::Denied),
        (ErrorCode::Forbidden, Kind::Denied),
        (ErrorCode::NotFound, Kind::Gone),
        (ErrorCode::TooLarge, Kind::BadRequest),
        (ErrorCode::RateLimited, Kind::Quota),
        (ErrorCode::Internal, Kind::Overloaded),
        (ErrorCode::BadGateway, Kind::Overloaded),
        (ErrorCode::Overloaded, Kind::Overloaded),
        (ErrorCode::Timeout, Kind::Overloaded),
    ];
    for dialect in Dialect::ALL {
        for (code, wanted) in table {
            let delay = Some(Span::from_secs(3));
            let body = error_body(dialect, code, "no", delay);
            let error =
                classify_error("u", code.status(), &HeaderMap::new(), &body, Timestamp::EPOCH);
            assert_eq!(error.kind, wanted, "{dialect} {code:?}");
            assert_eq!(error.retry_after, delay.filter(|_| dialect == Dialect::Gemini));
        }
    }
}
