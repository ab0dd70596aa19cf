//! The page for people: what is in force, what is being admitted and refused, and where a subject stands.
//!
//! It is three files inside the binary, so it needs no network but the server's own, and its content policy lets the
//! browser load nothing else. It uses the same calls as any other client.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::IntoResponse;

const HTML: &str = include_str!("index.html");
const CSS: &str = include_str!("style.css");
const JS: &str = include_str!("script.js");

/// Nothing but what the server itself sends, in no frame, posting nowhere.
const CONTENT_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; \
     connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(crate) async fn page() -> impl IntoResponse {
    asset("text/html; charset=utf-8", HTML)
}

pub(crate) async fn style() -> impl IntoResponse {
    asset("text/css; charset=utf-8", CSS)
}

pub(crate) async fn script() -> impl IntoResponse {
    asset("text/javascript; charset=utf-8", JS)
}

fn asset(media_type: &'static str, body: &'static str) -> impl IntoResponse {
    let fields = [
        (CONTENT_TYPE, media_type),
        (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // A new binary brings a new page.
        (CACHE_CONTROL, "no-cache"),
    ];
    (fields, body)
}
