//! From a request to its response.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hyper::body::Incoming;
use hyper::header::EXPECT;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, Response};
use tollgate::{Span, Timestamp};
use tollgate_providers::{Call, CallKind, Dialect, ErrorCode, RequestFacts};
use tollgate_server::Busy;
use tollgate_server::keys::{KeyHash, Refused};

use crate::admission::Waiting;
use crate::body::{HeldBody, discard};
use crate::call_timer::CallTimer;
use crate::config::Config;
use crate::exchange::{Exchange, Step};
use crate::gateway::Shared;
use crate::headers::{self, REQUEST_ID, WAITED};
use crate::observe::{GatewayEvent, RefusalReason};
use crate::open_call::{CallContext, shown};
use crate::options::GatewayKey;
use crate::refusal::Refusal;
use crate::relay::{During, GatewayBody};

/// What is known about a request when it is refused.
#[derive(Default)]
struct Known {
    dialect: Option<Dialect>,
    key: Option<Arc<GatewayKey>>,
    model: Option<Arc<str>>,
    waited: Span,
}

/// Returns the response to `request`.
pub(crate) async fn answer(
    shared: Arc<Shared>,
    request: Request<Incoming>,
    busy: Busy,
) -> Response<GatewayBody> {
    let (head, mut body) = request.into_parts();
    // Such a client sends its body only once it is asked for, and reading asks for it.
    let awaits_continue = head.headers.contains_key(EXPECT);
    let mut known = Known::default();
    // Boxed, because the connection keeps room for this future for as long as it lives, also while a response streams.
    let answered = Box::pin(handle(&shared, head, &mut body, &mut known, busy)).await;
    let mut response = match answered {
        Ok(response) => response,
        Err(refusal) => {
            shared.observe(&GatewayEvent::Refused {
                dialect: known.dialect,
                key: known.key.as_ref().map(|key| key.name.as_str()),
                model: known.model.as_deref().unwrap_or_default(),
                reason: refusal.reason,
            });
            if !awaits_continue {
                Box::pin(discard(&shared, &mut body)).await;
            }
            refusal.response(known.dialect.unwrap_or(Dialect::OpenAi))
        }
    };
    finish_headers(response.headers_mut(), known.waited);
    response
}

fn finish_headers(headers: &mut HeaderMap, waited: Span) {
    headers.insert(&WAITED, waited.as_millis_ceil().into());
    if !headers.contains_key(&REQUEST_ID) {
        headers.insert(&REQUEST_ID, tollgate_server::generate_request_id());
    }
}

async fn handle(
    shared: &Arc<Shared>,
    head: Parts,
    body: &mut Incoming,
    known: &mut Known,
    busy: Busy,
) -> Result<Response<GatewayBody>, Refusal> {
    let Parts { method, uri, headers, .. } = head;
    let (dialect, path) = dialect_of(uri.path()).ok_or_else(|| {
        let text = "there is nothing here; the base URL ends in /openai/v1, /anthropic or /gemini";
        Refusal::new(ErrorCode::NotFound, RefusalReason::Unsupported, text)
    })?;
    known.dialect = Some(dialect);
    let config = shared.config();
    let query = uri.query();
    let key = authenticate(shared, &config, headers::caller_key(&headers, query).as_deref())?;
    known.key = Some(Arc::clone(&key));
    let call = dialect.classify(&method, path, query).map_err(|error| {
        let reason = RefusalReason::Unsupported;
        Refusal::new(error.code(), reason, error.to_string())
    })?;
    if shared.app.is_closing() {
        return Err(Refusal::stopping());
    }
    let limits = config.limits;
    if limits.in_flight_max <= shared.in_flight.load(Ordering::Relaxed) {
        return Err(Refusal::full("calls"));
    }
    let mut timer = CallTimer::default();
    let held = HeldBody::read(shared, &limits, &headers, body, &mut timer).await?;
    let facts = call.read_request(&held.bytes).map_err(|error| {
        let reason = match error.kind() {
            tollgate_providers::ErrorKind::Unsupported => RefusalReason::Unsupported,
            _ => RefusalReason::Invalid,
        };
        Refusal::new(error.code(), reason, error.to_string())
    })?;
    let (route, pattern) = route_of(&config, &call, &facts, &key)?;
    let query = query.and_then(headers::without_key);
    let context =
        CallContext { shared: Arc::clone(shared), config, key, call, facts, route, pattern };
    let context = Arc::new(context);
    known.model = Some(Arc::clone(&context.deployment(0).model));
    let waiting = Waiting::begin(&context, &headers)?;
    let mut exchange = Exchange {
        context: &context,
        method: &method,
        path,
        query: query.as_deref(),
        headers: &headers,
        body: &held.bytes,
        timer,
        waiting,
        waited: Span::ZERO,
        attempts: 0,
    };
    let kind = context.call.kind();
    let answered = if matches!(kind, CallKind::Generate | CallKind::Embed) {
        loop {
            match exchange.attempt().await {
                Ok(Step::Again) => {}
                Ok(Step::Answered(answer)) => break Ok(answer),
                Err(refusal) => break Err(refusal),
            }
        }
    } else {
        exchange.send_free().await
    };
    known.waited = exchange.waited;
    let during = During { busy, timer: exchange.timer, idle_max: limits.idle_timeout };
    answered.map(|answered| answered.into_response(shared, during))
}

/// Returns the dialect that `path` begins with, and the rest.
fn dialect_of(path: &str) -> Option<(Dialect, &str)> {
    let (name, _) = path.strip_prefix('/')?.split_once('/')?;
    Some((name.parse().ok()?, &path[1 + name.len()..]))
}

fn authenticate(
    shared: &Shared,
    config: &Config,
    given: Option<&str>,
) -> Result<Arc<GatewayKey>, Refusal> {
    let refuse = |refused: Refused, name: &str| {
        shared.app.record_unauthenticated(name);
        let text = match refused {
            Refused::Missing => {
                "this needs a key of the gateway; send it as the API key".to_owned()
            }
            Refused::Wrong => "the key is not one of this gateway's".to_owned(),
            other => other.to_string(),
        };
        Refusal::new(ErrorCode::Unauthorized, RefusalReason::Key, text)
    };
    let given = given.ok_or_else(|| refuse(Refused::Missing, ""))?;
    let hash = KeyHash::from_key(given);
    let key = config.keys().find(&hash, shared.app.now()).map_err(|refused| {
        // An expired key has a name, which it had from the start.
        let expired = config.keys().find(&hash, Timestamp::EPOCH);
        refuse(refused, expired.map_or("", |key| &key.name))
    })?;
    config.caller(&key.name).cloned().ok_or_else(|| refuse(Refused::Wrong, ""))
}

/// Returns the route of a call, and the index of its model's pattern.
fn route_of(
    config: &Config,
    call: &Call,
    facts: &RequestFacts,
    key: &GatewayKey,
) -> Result<(usize, usize), Refusal> {
    let dialect = call.dialect();
    if call.kind() == CallKind::ListModels {
        let is_open =
            |route: &crate::config::RouteState| route.dialect == dialect && route.allows(key);
        let route = config.routes.iter().position(is_open).ok_or_else(|| {
            let text = format!("the key may use no route of {dialect}");
            Refusal::new(ErrorCode::Forbidden, RefusalReason::NoRoute, text)
        })?;
        return Ok((route, 0));
    }
    config.route(dialect, &facts.model, key).ok_or_else(|| {
        let text = format!("no route of this key serves the model {:?}", shown(&facts.model));
        Refusal::new(ErrorCode::NotFound, RefusalReason::NoRoute, text)
    })
}
