//! The dialects with bodies as the providers send them.

mod classify;
mod error_bodies;
mod prices;
mod requests;
mod rewriting;
mod streams;
mod stripping;

use http::Method;
use tollgate_providers::{Call, Dialect, RequestFacts};

/// Returns the call of a POST to `path`, which may have a query.
fn post(dialect: Dialect, path: &str) -> Call {
    let (path, query) =
        path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    dialect.classify(&Method::POST, path, query).expect("the call is covered")
}

fn chat() -> Call {
    post(Dialect::OpenAi, "/v1/chat/completions")
}

fn responses() -> Call {
    post(Dialect::OpenAi, "/v1/responses")
}

fn messages() -> Call {
    post(Dialect::Anthropic, "/v1/messages")
}

fn gemini() -> Call {
    post(Dialect::Gemini, "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse")
}

fn read(call: &Call, body: &str) -> RequestFacts {
    call.read_request(body.as_bytes()).expect("the request is valid")
}
