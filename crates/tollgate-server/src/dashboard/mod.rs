//! The page for people: what is in force, what is being admitted and refused, who is limited, and where a subject stands.
//!
//! It is a few files inside the binary, so it needs no network but the server's own, and its content policy lets the
//! browser load nothing else. It uses the same calls as any other client.

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

/// What the page loads, all of it.
const FILES: [(&str, &str, &str); 6] = [
    ("style.css", CSS_TYPE, include_str!("style.css")),
    ("main.js", JS_TYPE, include_str!("main.js")),
    ("audit.js", JS_TYPE, include_str!("audit.js")),
    ("chart.js", JS_TYPE, include_str!("chart.js")),
    ("page.js", JS_TYPE, include_str!("page.js")),
    ("policies.js", JS_TYPE, include_str!("policies.js")),
];

/// Nothing but what the server itself sends, in no frame, posting nowhere.
const CONTENT_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; \
     connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page, and what it loads.
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
        // A new binary brings a new page.
        (CACHE_CONTROL, "no-cache"),
    ];
    (fields, body).into_response()
}
