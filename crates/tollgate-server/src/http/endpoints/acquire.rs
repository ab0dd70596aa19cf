//! `POST /v1/acquire` and `/v1/acquire/batch`.

use std::future::poll_fn;
use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::request::Parts;
use axum::response::Response;
use axum::routing::post;
use axum::{BoxError, Extension};
use futures_util::future::join_all;
use http_body_util::{Either, Full};
use tollgate::{Error, ErrorKind};
use tollgate_protocol::json::{
    AcquireRequest, AcquireResponse, BatchRequest, BatchResponse, Problem,
};

use super::super::connection::Peer;
use super::super::input::{self, Json};
use super::super::{authorize, reply};
use super::{ASK_PROBLEMS, Endpoint, Method, Output};
use crate::access::Caller;
use crate::app::App;
use crate::bounds::BATCH_ASKS_MAX;
use crate::error_log;
use crate::keys::Scope;

/// The response to an ask, which is one buffer, or any other response.
pub(crate) type AcquireReply = Response<Either<Full<Bytes>, Body>>;

pub(crate) const ACQUIRE: Endpoint = Endpoint::unrouted(
    Method::Post,
    "/v1/acquire",
    "acquire",
    "Asks whether something may go through now.",
)
.scope(Scope::Acquire)
.body::<AcquireRequest>()
.output(Output::Decision)
.problems(ASK_PROBLEMS);

/// Authorizes, reads and decides one ask.
pub(crate) async fn acquire<B>(
    app: &App,
    Parts { headers, extensions, .. }: &Parts,
    body: B,
    peer: Option<&Arc<dyn Peer>>,
) -> AcquireReply
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    authorize::await_key(app, headers).await;
    let caller = match authorize::check(app, headers, extensions, Scope::Acquire) {
        Ok(caller) => caller,
        Err(refused) => return authorize::refusal(refused, Scope::Acquire).map(Either::Right),
    };
    let mut request: AcquireRequest = match input::read(app, headers, body).await {
        Ok(request) => request,
        Err(problem) => return reply::problem(&problem).map(Either::Right),
    };
    caller.fill_subject(&mut request);
    let decided = async {
        let policies = app.policies_of(&caller, &request)?;
        let decision = app.acquire(&policies, &request).await?;
        Ok::<_, Error>((policies, decision))
    };
    let waits = request.wait_ms.is_some_and(|wait_ms| 0 < wait_ms);
    let decided = match peer.filter(|_| waits) {
        None => decided.await,
        // Boxed, because few asks wait, and all would carry the larger future.
        Some(peer) => Box::pin(while_sending(decided, &**peer)).await,
    };
    match decided {
        Ok((policies, decision)) => {
            reply::decision(app, &policies, &request, &decision).map(Either::Left)
        }
        Err(error) => reply::error(&error).map(Either::Right),
    }
}

/// Runs `decided`; an error once `peer` shuts down its sending side: it may have disconnected, and then no caller would use
/// the permit.
async fn while_sending<T>(
    decided: impl Future<Output = Result<T, Error>>,
    peer: &dyn Peer,
) -> Result<T, Error> {
    tokio::select! {
        biased;
        decided = decided => decided,
        () = poll_fn(|context| peer.poll_end_of_input(context)) => Err(Error::new(
            ErrorKind::Invalid,
            "the client shut down its sending side while its ask waited for room; keep it open, or ask without wait_ms",
        )),
    }
}

pub(super) const BATCH: Endpoint = Endpoint::new(
    Method::Post,
    "/v1/acquire/batch",
    "acquireBatch",
    "Many asks in one call, each decided alone, in order.",
    || post(batch),
)
.scope(Scope::Acquire)
.body::<BatchRequest>()
.returns::<BatchResponse>();

/// Decides each ask alone. They start in order and wait for the store together, so that a store with group commit writes
/// them in one group.
async fn batch(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(BatchRequest { mut asks }): Json<BatchRequest>,
) -> Response {
    asks.iter_mut().for_each(|ask| caller.fill_subject(ask));
    if BATCH_ASKS_MAX < asks.len() {
        let detail = format!("asks: a batch has at most {BATCH_ASKS_MAX}, not {}", asks.len());
        return reply::problem(&Problem::invalid(detail));
    }
    if let Some(index) = asks.iter().position(|ask| ask.wait_ms.is_some_and(|wait| 0 < wait)) {
        let detail =
            format!("asks[{index}].wait_ms: an ask in a batch does not wait; leave it out");
        return reply::problem(&Problem::invalid(detail));
    }
    let answers = join_all(asks.iter().map(|ask| decide(&app, &caller, ask))).await;
    reply::ok(&BatchResponse { answers })
}

async fn decide(app: &App, caller: &Caller, request: &AcquireRequest) -> AcquireResponse {
    let decided = async {
        let policies = app.policies_of(caller, request)?;
        app.acquire(&policies, request).await
    };
    match decided.await {
        Ok(decision) => AcquireResponse::new(&decision, app.permit_keys().sealing(), app.now()),
        Err(error) => {
            error_log::log(&error);
            AcquireResponse::Failed(error.into())
        }
    }
}
