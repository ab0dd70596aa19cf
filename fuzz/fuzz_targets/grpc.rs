//! Any message of any call over gRPC, Envoy's included: an answer with a status that does not blame the server.
#![no_main]

use axum::body::Body;
use axum::http::Request;
use libfuzzer_sys::fuzz_target;
use tollgate_fuzz::Broker;

const METHODS: [&str; 11] = [
    "tollgate.v1.Gate/Acquire",
    "tollgate.v1.Gate/Settle",
    "tollgate.v1.Gate/Release",
    "tollgate.v1.Gate/Renew",
    "tollgate.v1.Gate/Standing",
    "tollgate.v1.Gate/ReportViolation",
    "tollgate.v1.Gate/Charge",
    "tollgate.v1.Gate/CloseUntil",
    "tollgate.v1.Gate/Reset",
    "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
    "grpc.health.v1.Health/Check",
];

/// Codes that mean that the server did not foresee something.
const UNFORESEEN: [&[u8]; 3] = [b"2", b"13", b"15"];

fuzz_target!(|input: &[u8]| {
    let Some((place, message)) = input.split_first() else { return };
    let method = METHODS[usize::from(*place) % METHODS.len()];
    let mut body = vec![0];
    body.extend_from_slice(&u32::try_from(message.len()).expect("a short message").to_be_bytes());
    body.extend_from_slice(message);
    let request = Request::post(format!("/{method}")).header("content-type", "application/grpc");
    let request = request.body(Body::from(body)).expect("a right request");
    let broker = Broker::default();
    let (head, _) = broker.call(tollgate_server::fuzz::grpc(&broker.app, request));
    let field = |name| head.headers().get(name).map_or(&b""[..], |value| value.as_bytes());
    // What is no message at all is INTERNAL by the book of gRPC.
    if !field("grpc-message").starts_with(b"failed%20to%20decode") {
        assert!(!UNFORESEEN.contains(&field("grpc-status")), "{method}: {head:?}");
    }
});
