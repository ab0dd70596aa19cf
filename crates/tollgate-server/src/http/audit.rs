//! `GET /v1/audit` and `GET /v1/audit/top`: who was limited, when and why.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;

use super::{input, reply};
use crate::app::App;

/// The records that were asked for, newest first.
pub(super) async fn records(State(app): State<Arc<App>>, uri: Uri) -> Response {
    match input::query(&uri, "?policy=api&subject=alice&since=24h&outcome=denied&limit=100") {
        Ok(query) => reply::result(app.audited(&query).await),
        Err(problem) => reply::problem(&problem),
    }
}

/// The subjects that were limited most often.
pub(super) async fn top(State(app): State<Arc<App>>, uri: Uri) -> Response {
    match input::query(&uri, "?limit=10") {
        Ok(query) => reply::result(app.top(query).await),
        Err(problem) => reply::problem(&problem),
    }
}
