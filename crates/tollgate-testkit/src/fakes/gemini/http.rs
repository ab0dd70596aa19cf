//! The fake on a port of loopback.

use std::io;

use hyper::Request;
use hyper::body::Bytes;
use hyper::header::AUTHORIZATION;

use super::{FakeGemini, anthropic};
use crate::fakes::http::{HttpResponse, Served, json};

impl FakeGemini {
    /// Serves the fake on `port` of loopback, or on a free port for 0, as a task of the current tokio runtime.
    pub async fn serve(&self, port: u16) -> io::Result<Served> {
        let fake = self.clone();
        Served::start(port, move |request| answer(fake.clone(), request)).await
    }
}

async fn answer(fake: FakeGemini, request: Request<Bytes>) -> HttpResponse {
    let headers = request.headers();
    let path = request.uri().path();
    if path.starts_with("/v1/messages") && !headers.contains_key("anthropic-version") {
        let (status, body) = anthropic::error(400, "anthropic-version: header is required");
        return json(status, &[], body);
    }
    let key = headers
        .get("x-goog-api-key")
        .or_else(|| headers.get("x-api-key"))
        .or_else(|| headers.get(AUTHORIZATION))
        .and_then(|value| value.to_str().ok())
        .map(|value| value.trim_start_matches("Bearer "));
    let (status, body) = fake.handle(path, key, request.body()).await;
    json(status, &[], body)
}
