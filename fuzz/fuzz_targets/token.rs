//! Any text as a permit, and any content under a right seal: what decodes encodes to itself, and can be given back.
#![no_main]

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use libfuzzer_sys::fuzz_target;
use tollgate_fuzz::{Broker, KEY, policies};
use tollgate_protocol::permit_token as token;

fuzz_target!(|input: &[u8]| {
    let policies = policies();
    let decode = |text: &str| token::decode(text, &KEY.into(), |name| policies.get(name).cloned());
    let text = String::from_utf8_lossy(input);
    assert!(decode(&text).is_err(), "a permit that nobody gave out: {text}");
    let sealed = token::forged(input, &KEY.into());
    if let Ok(permit) = decode(&sealed) {
        let again = token::encode(&permit, &KEY.into());
        assert_eq!(decode(&again).expect("it was made here"), permit);
    }
    let broker = Broker::default();
    for path in ["/v1/renew", "/v1/settle", "/v1/release"] {
        let body = Body::from(format!("{{\"permit\": {sealed:?}}}"));
        let request = Request::post(path).header("content-type", "application/json").body(body);
        let request = request.expect("a right request");
        let answer = tollgate_server::fuzz::http(Arc::clone(&broker.app), request);
        let (head, body) = broker.call(answer);
        let text = String::from_utf8_lossy(&body);
        assert!(head.status().as_u16() < 500, "{path} {} {text}", head.status());
    }
});
