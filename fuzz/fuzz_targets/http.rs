//! Any body or query of any call over HTTP: an answer of JSON, a problem document if it is no, and never that the server
//! is to blame.
#![no_main]

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Method, Request};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tollgate_fuzz::Broker;

/// Calls with a body, then calls with a query.
const BODIES: [&str; 8] = [
    "/v1/acquire",
    "/v1/acquire/batch",
    "/v1/settle",
    "/v1/release",
    "/v1/renew",
    "/v1/violations",
    "/v1/charge",
    "/v1/close",
];
const QUERIES: [(Method, &str); 4] = [
    (Method::GET, "/v1/standing"),
    (Method::DELETE, "/v1/standing"),
    (Method::GET, "/v1/audit"),
    (Method::GET, "/v1/audit/top"),
];

fuzz_target!(|input: &[u8]| {
    let Some((place, rest)) = input.split_first() else { return };
    let place = usize::from(*place) % (BODIES.len() + QUERIES.len());
    let request = match BODIES.get(place) {
        Some(path) => Request::post(*path)
            .header("content-type", "application/json")
            .body(Body::from(rest.to_vec())),
        None => {
            let (method, path) = QUERIES[place - BODIES.len()].clone();
            let query = String::from_utf8_lossy(rest);
            Request::builder().method(method).uri(format!("{path}?{query}")).body(Body::empty())
        }
    };
    // What is no address never reaches the server.
    let Ok(request) = request else { return };
    let broker = Broker::default();
    let answer = tollgate_server::fuzz::http(Arc::clone(&broker.app), request);
    let (head, body) = broker.call(answer);
    let text = String::from_utf8_lossy(&body);
    assert!(head.status().as_u16() < 500, "{} {text}", head.status());
    let json: Value = serde_json::from_slice(&body).expect("JSON");
    if head.status() != 200 {
        assert_eq!(json["status"], head.status().as_u16(), "{text}");
        assert!(json["kind"].is_string() || json["admitted"] == false, "{text}");
    }
});
