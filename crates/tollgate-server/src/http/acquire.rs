//! `POST /v1/acquire` and `POST /v1/acquire/batch`.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::request::Parts;
use axum::response::Response;
use axum::{BoxError, Extension};
use http_body_util::{Either, Full};
use tollgate::{BoxFuture, Error, ErrorKind};

use super::input::{self, Json};
use super::peer::Peer;
use super::{guard, reply};
use crate::access::Caller;
use crate::app::App;
use crate::bounds::BATCH_ASKS_MAX;
use crate::failures;
use crate::keys::Scope;
use crate::wire::{AcquireRequest, Answer, BatchRequest, BatchResponse, Problem};

/// The answer to an ask in one piece, or whatever else was answered.
pub(crate) type Answered = Response<Either<Full<Bytes>, Body>>;

/// Decides one ask, of whoever may ask.
pub(super) async fn one<B>(
    app: &App,
    Parts { headers, extensions, .. }: &Parts,
    body: B,
    peer: Option<&Arc<dyn Peer>>,
) -> Answered
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let caller = match guard::check(app, headers, extensions, Scope::Acquire) {
        Ok(caller) => caller,
        Err(refused) => return guard::refusal(refused, Scope::Acquire).map(Either::Right),
    };
    let request: AcquireRequest = match input::read(app, headers, body).await {
        Ok(request) => request,
        Err(problem) => return reply::problem(&problem).map(Either::Right),
    };
    let decided = async {
        let policy = app.policy(&request.policy)?;
        let decision = app.acquire(&caller, &policy, &request).await?;
        Ok::<_, Error>((policy, decision))
    };
    let waits = request.wait_ms.is_some_and(|wait_ms| 0 < wait_ms);
    let decided = match peer.filter(|_| waits) {
        None => decided.await,
        // Few wait, and everybody would carry the room for it.
        Some(peer) => Box::pin(unless_silent(decided, &**peer)).await,
    };
    match decided {
        Ok((policy, decision)) => {
            reply::decision(app, &policy, &request.subject, &decision).map(Either::Left)
        }
        Err(error) => reply::error(&error).map(Either::Right),
    }
}

/// Stops waiting once `peer` sends no more: it may be gone, and nobody would use what it took.
async fn unless_silent<T>(
    decided: impl Future<Output = Result<T, Error>>,
    peer: &dyn Peer,
) -> Result<T, Error> {
    tokio::select! {
        biased;
        decided = decided => decided,
        () = poll_fn(|context| peer.poll_silent(context)) => Err(Error::new(
            ErrorKind::Invalid,
            "the client shut down its sending side while its ask waited for room; keep it open, or ask without wait_ms",
        )),
    }
}

/// Decides many asks, each alone: one that is refused or wrong does not touch the others. They are started in their
/// order and wait for the store together, so that a store that writes in groups writes them in one.
pub(super) async fn batch(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(BatchRequest { asks }): Json<BatchRequest>,
) -> Response {
    if BATCH_ASKS_MAX < asks.len() {
        let detail = format!("asks: a batch has at most {BATCH_ASKS_MAX}, not {}", asks.len());
        return reply::problem(&Problem::invalid(detail));
    }
    if let Some(place) = asks.iter().position(|ask| ask.wait_ms.is_some_and(|wait| 0 < wait)) {
        let detail =
            format!("asks[{place}].wait_ms: an ask in a batch does not wait; leave it out");
        return reply::problem(&Problem::invalid(detail));
    }
    let answers =
        asks.iter().map(|ask| -> BoxFuture<'_, Answer> { Box::pin(answer(&app, &caller, ask)) });
    reply::ok(&BatchResponse { answers: all(answers.collect()).await })
}

async fn answer(app: &App, caller: &Caller, request: &AcquireRequest) -> Answer {
    let decided = async {
        let policy = app.policy(&request.policy)?;
        app.acquire(caller, &policy, request).await
    };
    match decided.await {
        Ok(decision) => Answer::of(&decision, app.permit_keys().sealing(), app.now()),
        Err(error) => {
            failures::log(&error);
            Answer::Failed(error.into())
        }
    }
}

/// Runs `futures` together; the outputs are in their order.
async fn all<T>(mut futures: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let mut outputs: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut pending = false;
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_some() {
                continue;
            }
            match future.as_mut().poll(context) {
                Poll::Ready(value) => *output = Some(value),
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
