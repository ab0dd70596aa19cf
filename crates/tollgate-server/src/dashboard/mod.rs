//! The dashboard: policies, decisions, limited subjects, queues and standings in a browser.
//!
//! Its files are compiled into the binary, and its content security policy forbids loading anything else. It uses the HTTP API
//! like any other client.

use std::sync::Arc;

use axum::Router;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::app::App;

const HTML: &str = include_str!("index.html");

const HTML_TYPE: &str = "text/html; charset=utf-8";
const CSS_TYPE: &str = "text/css; charset=utf-8";
const JS_TYPE: &str = "text/javascript; charset=utf-8";

/// All files that the page loads.
const FILES: [(&str, &str, &str); 12] = [
    ("style.css", CSS_TYPE, include_str!("style.css")),
    ("main.js", JS_TYPE, include_str!("main.js")),
    ("actions.js", JS_TYPE, include_str!("actions.js")),
    ("chart.js", JS_TYPE, include_str!("chart.js")),
    ("gateway.js", JS_TYPE, include_str!("gateway.js")),
    ("history.js", JS_TYPE, include_str!("history.js")),
    ("page.js", JS_TYPE, include_str!("page.js")),
    ("policies.js", JS_TYPE, include_str!("policies.js")),
    ("refusals.js", JS_TYPE, include_str!("refusals.js")),
    ("subject.js", JS_TYPE, include_str!("subject.js")),
    ("translations.js", JS_TYPE, include_str!("translations.js")),
    ("waiting.js", JS_TYPE, include_str!("waiting.js")),
];

/// Only this server's files, no frames, no forms.
const CONTENT_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; \
     connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Returns the routes of the page and its files.
pub(crate) fn routes() -> Router<Arc<App>> {
    let page = Router::new().route("/", get(|| async { asset(HTML_TYPE, HTML) }));
    FILES.into_iter().fold(page, |router, (name, media_type, body)| {
        let file = move || async move { asset(media_type, body) };
        router.route(&format!("/dashboard/{name}"), get(file))
    })
}

fn asset(media_type: &'static str, body: &'static str) -> Response {
    let fields = [
        (CONTENT_TYPE, media_type),
        (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // The page changes with the binary.
        (CACHE_CONTROL, "no-cache"),
    ];
    (fields, body).into_response()
}
