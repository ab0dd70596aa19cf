//! The HTTP pages of envoyproxy/ratelimit, each on a listener of its own, as there.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use futures_util::FutureExt as _;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tollgate::gate::BoxFuture;
use tollgate::{ErrorKind, Span};
use tollgate_protocol::protobuf::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_protocol::protobuf::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus,
};
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
};
use tonic::codegen::Service as _;

use super::decide;
use crate::access::Caller;
use crate::app::App;
use crate::bounds::{BODY_BYTES_MAX, DRAIN_MAX};
use crate::http::{Busy, ConnectionOptions, serve_connection};
use crate::server::{Connection, MountedProtocol};

/// Pages that need no key, for [`Listeners::mount`](crate::Listeners::mount).
#[derive(Debug)]
pub struct RateLimitPages {
    app: Arc<App>,
    router: Router,
}

impl RateLimitPages {
    /// Serves `/rlconfig`, which prints the limits, and `/stats`.
    #[must_use]
    pub fn debug(app: &Arc<App>) -> Self {
        let router = Router::new()
            .route(
                "/",
                get(async || "/rlconfig: the limits that are in force\n/stats: their counters\n"),
            )
            .route("/rlconfig", get(rlconfig))
            .route("/stats", get(async |State(app): State<Arc<App>>| app.limit_stats().lines()));
        Self::new(app, router)
    }

    /// Serves the counters for Prometheus at `path`.
    #[must_use]
    pub fn metrics(app: &Arc<App>, path: &str) -> Self {
        let page = async |State(app): State<Arc<App>>| {
            let text = app.limit_stats().text(false) + &app.unmatched().text();
            ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text)
        };
        Self::new(app, Router::new().route(path, get(page)))
    }

    fn new(app: &Arc<App>, router: Router<Arc<App>>) -> Self {
        Self { router: router.with_state(Arc::clone(app)), app: Arc::clone(app) }
    }
}

impl MountedProtocol for RateLimitPages {
    fn serve(
        self: Arc<Self>,
        stream: Box<dyn Connection>,
        shutdown: BoxFuture<'static, ()>,
    ) -> BoxFuture<'static, ()> {
        let app = Arc::clone(&self.app);
        let handler = move |request: axum::http::Request<hyper::body::Incoming>, busy: Busy| {
            let answer = self.router.clone().call(request.map(Body::new));
            answer.map(move |Ok(response)| {
                drop(busy);
                response
            })
        };
        let options = ConnectionOptions { half_close: true, writev: false, unread_max: None };
        Box::pin(serve_connection(stream, app, options, handler, shutdown))
    }

    fn drain_max(&self) -> Span {
        DRAIN_MAX
    }
}

/// Returns `/healthcheck` and `/json`, the pages of the service itself.
pub(crate) fn service() -> Router<Arc<App>> {
    Router::new().route("/healthcheck", get(healthcheck)).route("/json", post(answer_json))
}

async fn healthcheck(State(app): State<Arc<App>>) -> Response {
    match app.ready().await {
        Ok(()) => "OK".into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "not ready").into_response(),
    }
}

async fn rlconfig(State(app): State<Arc<App>>) -> String {
    app.envoy().limits().map(|limits| limits.config().dump()).unwrap_or_default()
}

/// A request in the JSON form of protobuf.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct JsonRequest {
    #[serde(default)]
    domain: String,
    #[serde(default)]
    descriptors: Vec<JsonDescriptor>,
    #[serde(default, alias = "hits_addend")]
    hits_addend: Number,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct JsonDescriptor {
    #[serde(default)]
    entries: Vec<JsonEntry>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
}

/// A number, or one in quotes, as the JSON form of a 64-bit number is.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(try_from = "Value")]
struct Number(u64);

impl TryFrom<Value> for Number {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
        number.map(Self).ok_or_else(|| format!("{value} is not a non-negative integer"))
    }
}

async fn answer_json(State(app): State<Arc<App>>, body: Bytes) -> Response {
    if BODY_BYTES_MAX < body.len() {
        return (StatusCode::PAYLOAD_TOO_LARGE, format!("at most {BODY_BYTES_MAX} bytes\n"))
            .into_response();
    }
    let request: JsonRequest = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => {
            return (StatusCode::BAD_REQUEST, format!("not a RateLimitRequest: {error}\n"))
                .into_response();
        }
    };
    let entry = |JsonEntry { key, value }| Entry { key, value };
    let descriptor = |it: JsonDescriptor| RateLimitDescriptor {
        entries: it.entries.into_iter().map(entry).collect(),
        hits_addend: it.hits_addend.map(|Number(hits)| hits),
        ..RateLimitDescriptor::default()
    };
    let Ok(hits_addend) = u32::try_from(request.hits_addend.0) else {
        return (StatusCode::BAD_REQUEST, "hitsAddend is larger than 32 bits\n").into_response();
    };
    let request = RateLimitRequest {
        domain: request.domain,
        descriptors: request.descriptors.into_iter().map(descriptor).collect(),
        hits_addend,
    };
    let (running, caller) = (Arc::clone(&app), Caller::ANONYMOUS);
    let decided =
        app.run_to_completion(async move { decide(&running, &caller, &request).await }).await;
    match decided {
        Ok(response) => {
            let status = match response.overall_code() {
                Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
                _ => StatusCode::OK,
            };
            (status, [(CONTENT_TYPE, "application/json")], json_of(&response).to_string())
                .into_response()
        }
        Err(error) => {
            let status = match error.kind() {
                ErrorKind::Invalid => StatusCode::BAD_REQUEST,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            (status, format!("{error}\n")).into_response()
        }
    }
}

/// Returns `response` in the JSON form of protobuf, which leaves out fields at their default.
fn json_of(response: &RateLimitResponse) -> Value {
    let status = |status: &DescriptorStatus| {
        let mut fields = Map::new();
        fields.insert("code".to_owned(), status.code().as_str_name().into());
        if let Some(limit) = &status.current_limit {
            let unit = if limit.unit == 7 { "WEEK" } else { limit.unit().as_str_name() };
            let mut current = json!({ "requestsPerUnit": limit.requests_per_unit, "unit": unit });
            if !limit.name.is_empty() {
                current["name"] = limit.name.clone().into();
            }
            fields.insert("currentLimit".to_owned(), current);
        }
        if status.limit_remaining != 0 {
            fields.insert("limitRemaining".to_owned(), status.limit_remaining.into());
        }
        if let Some(left) = &status.duration_until_reset {
            fields.insert("durationUntilReset".to_owned(), format!("{}s", left.seconds).into());
        }
        Value::Object(fields)
    };
    let statuses: Vec<Value> = response.statuses.iter().map(status).collect();
    let mut body = json!({
        "overallCode": response.overall_code().as_str_name(),
        "statuses": statuses,
    });
    if !response.response_headers_to_add.is_empty() {
        let header = |it: &tollgate_protocol::protobuf::envoy::config::core::v3::HeaderValue| json!({ "key": it.key, "value": it.value });
        let headers: Vec<Value> = response.response_headers_to_add.iter().map(header).collect();
        body["responseHeadersToAdd"] = headers.into();
    }
    body
}
