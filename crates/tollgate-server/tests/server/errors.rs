//! Each error, with its status and a text that says what would be right.

use std::sync::Arc;

use serde_json::json;
use tollgate::{Error, ErrorKind, Span};
use tollgate_protocol::permit_token;
use tollgate_server::bounds::{BATCH_ASKS_MAX, BODY_BYTES_MAX};

use crate::client::{Answer, Pending, Server, pass, policies};
use crate::shutdown::Broken;

const ASK: &str = r#"{"policy": "gemini", "subject": "p7"}"#;

fn check(answer: &Answer, status: u16, kind: &str, detail: &str) {
    assert_eq!(answer.status, status, "{}", answer.text);
    assert_eq!(answer.field("content-type"), Some("application/problem+json"));
    let body = answer.json();
    assert_eq!((&body["status"], &body["kind"]), (&json!(status), &json!(kind)));
    assert_eq!(body["type"], "about:blank");
    assert_eq!(body["detail"], detail);
}

/// JSON has one kind of number, and clients write whole ones with a fraction.
#[tokio::test]
async fn a_whole_number_may_have_a_fraction_of_zero() {
    let server = Server::start().await;
    let ask = |cost: &str| {
        format!(
            r#"{{"policy": "gemini", "subject": "p7", "costs": {{"tokens": {cost}}}, "wait_ms": 0.0}}"#
        )
    };
    for cost in ["1.0", "2e3", "7"] {
        let answer = server.send("POST", "/v1/acquire", &ask(cost)).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    for cost in ["1.5", "-1.0", "1e300"] {
        let answer = server.send("POST", "/v1/acquire", &ask(cost)).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
        let detail = answer.json()["detail"].to_string();
        assert!(detail.contains("expected an unsigned whole number"), "{detail}");
    }
}

/// A charge neither waits nor queues.
#[tokio::test]
async fn a_charge_has_its_own_members() {
    let server = Server::start().await;
    let charge = r#"{"policy": "gemini", "subject": "p7", "wait_ms": 5}"#;
    check(
        &server.send("POST", "/v1/charge", charge).await,
        400,
        "invalid",
        "wait_ms: there is no \"wait_ms\" here; known: policy, subject, costs, id, id_ttl_ms, charges at line 1 column 47",
    );
}

/// Input that is wrong is named, together with what would be right.
#[tokio::test]
async fn bad_input_names_the_field() {
    let server = Server::start().await;
    let rows = [
        ("", "the body is not valid JSON: EOF while parsing a value at line 1 column 0"),
        (
            "{\"policy\": ",
            "the body is not valid JSON: EOF while parsing a value at line 1 column 11",
        ),
        (r#"{"policy": "gemini"}"#, "a subject must be 1 to 256 bytes long, not 0"),
        (
            r#"{"policy": "gemini", "subject": "p7", "cost": {}}"#,
            "cost: there is no \"cost\" here; did you mean costs? known: policy, subject, costs, id, wait_ms, id_ttl_ms, behind, charges, tenant at line 1 column 44",
        ),
        (
            r#"{"policy": "gemini", "subject": "p7", "costs": {"tokens": "3"}}"#,
            "costs.tokens: invalid type: string \"3\", expected an unsigned whole number at line 1 column 61",
        ),
        (
            r#"{"policy": "gemini", "subject": "p7", "costs": {"tokens": -1}}"#,
            "costs.tokens: invalid value: integer `-1`, expected an unsigned whole number at line 1 column 60",
        ),
        (
            r#"{"policy": "gemini", "subject": "p7", "costs": 5}"#,
            "costs: invalid type: integer `5`, expected an object of units and whole numbers, as in {\"tokens\": 3750} at line 1 column 48",
        ),
        (
            r#"{"policy": "gemini", "subject": "p7", "costs": {"tokens": 1, "tokens": 2}}"#,
            "costs: unit \"tokens\" is named twice at line 1 column 73",
        ),
        (
            r#"{"policy": "gemini", "subject": "p7", "costs": {"jobs": 1}}"#,
            "policy \"gemini\" has no limit on \"jobs\"; it counts requests, tokens",
        ),
        (r#"{"policy": "gemini", "subject": ""}"#, "a subject must be 1 to 256 bytes long, not 0"),
        (
            r#"{"policy": "gemini", "subject": "p7", "wait_ms": 300001}"#,
            "wait_ms 300001 must be at most 300000",
        ),
        (r#" ["gemini", "p7"]"#, "the body must be an object, not a list"),
        ("5", "invalid type: integer `5`, expected an object at line 1 column 1"),
        ("{}", "missing field `policy`; name a policy and a subject, or charges"),
    ];
    for (body, detail) in rows {
        check(&server.post("/v1/acquire", body).await, 400, "invalid", detail);
    }
    let two = format!("{ASK} {ASK}");
    let detail = "the body is not one value of JSON: trailing characters at line 1 column 39";
    check(&server.post("/v1/acquire", &two).await, 400, "invalid", detail);
    let path = "/v1/standing?policy=gemini";
    let detail =
        "the query: missing field `subject`; write ?policy=api&subject=alice, percent-encoded";
    check(&server.get(path).await, 400, "invalid", detail);
    let path = "/v1/standing?policy=gemini&Subject=p7";
    let detail = "the query: Subject: unknown field `Subject`, expected `policy` or `subject`; write ?policy=api&subject=alice, percent-encoded";
    check(&server.get(path).await, 400, "invalid", detail);
}

/// Bytes that are not UTF-8 are refused and not replaced: otherwise different subjects would share one entry.
#[tokio::test]
async fn a_query_that_is_not_utf8_is_refused() {
    let server = Server::start().await;
    let detail = "the query is not UTF-8; write ?policy=api&subject=alice, percent-encoded";
    for subject in ["%ff", "%FE", "a%c3", "%c3&x=%a4", "%ed%a0%80"] {
        let path = format!("/v1/standing?policy=gemini&subject={subject}");
        check(&server.get(&path).await, 400, "invalid", detail);
        check(&server.send("DELETE", &path, "").await, 400, "invalid", detail);
    }
    for (subject, meant) in [("%C3%a4", "ä"), ("%ef%bf%bd", "\u{fffd}"), ("50%", "50%")] {
        let path = format!("/v1/standing?policy=gemini&subject={subject}");
        let answer = server.get(&path).await;
        assert_eq!((answer.status, &answer.json()["subject"]), (200, &json!(meant)));
    }
}

/// What is not there says what is.
#[tokio::test]
async fn unknown_names_are_answered_with_the_known_ones() {
    let server = Server::start().await;
    let detail = "no policy is called \"gemino\"; did you mean gemini? known: gemini, trial, jobs";
    let ask = r#"{"policy": "gemino", "subject": "p7"}"#;
    check(&server.post("/v1/acquire", ask).await, 404, "unknown-policy", detail);
    let path = "/v1/standing?policy=gemino&subject=p7";
    check(&server.get(path).await, 404, "unknown-policy", detail);
    check(&server.send("DELETE", path, "").await, 404, "unknown-policy", detail);

    let detail = "there is nothing at \"/v2/acquire\"; /openapi.json lists the calls";
    check(&server.post("/v2/acquire", ASK).await, 404, "not-found", detail);
    let answer = server.get("/v1/acquire").await;
    let detail = "\"/v1/acquire\" does not take GET; the header Allow lists what it takes";
    check(&answer, 405, "method-not-allowed", detail);
    assert_eq!(answer.field("allow"), Some("POST"));
}

/// The same id with other costs is a conflict; a permit that is too old is gone.
#[tokio::test]
async fn conflicts_and_expired_permits_have_their_own_status() {
    let server = Server::start().await;
    let ask = |tokens: u64| json!({ "policy": "gemini", "subject": "p7", "costs": { "tokens": tokens }, "id": "a" });
    let permit = server.permit(&ask(1).to_string()).await;
    let answer = server.post("/v1/acquire", &ask(2).to_string()).await;
    assert_eq!((answer.status, &answer.json()["kind"]), (409, &json!("conflict")));
    server.clock.advance(Span::from_hours(1));
    let answer = server.post("/v1/release", &json!({ "permit": permit }).to_string()).await;
    assert_eq!((answer.status, &answer.json()["kind"]), (410, &json!("expired")));
}

/// A permit that this server did not give out gives nothing back.
#[tokio::test]
async fn a_forged_permit_is_refused() {
    let server = Server::start().await;
    let permit = server.permit(ASK).await;
    let policies = policies();
    let lookup = |name: &str| policies.get(name).cloned();
    let own = permit_token::decode(&permit, &crate::client::KEY.into(), lookup).unwrap();
    let foreign = permit_token::encode(&own, &[8; 32].into());
    let changed = "the permit was changed, or given out under another permit key; send it unchanged to a server with the same key";
    let strange =
        "the permit is not one that was given out; send it unchanged, as one piece of text";
    let rows = [
        (foreign.as_str(), changed),
        (&permit[..permit.len() / 4 * 4 - 4], changed),
        (&permit[..8], "the permit is cut short; send it unchanged"),
        ("", "the permit is cut short; send it unchanged"),
        ("not a permit", strange),
    ];
    for (forged, detail) in rows {
        let body = json!({ "permit": forged }).to_string();
        for path in ["/v1/release", "/v1/renew", "/v1/settle"] {
            check(&server.post(path, &body).await, 400, "invalid", detail);
        }
    }
    let standing = server.get("/v1/standing?policy=gemini&subject=p7").await.json();
    assert_eq!(standing["limits"][0]["used"], 1);
}

/// Every bound on what a caller sends is answered by its name and number.
#[tokio::test]
async fn what_is_too_large_is_refused() {
    let server = Server::start().await;
    let full =
        json!({ "asks": vec![json!({ "policy": "trial", "subject": "p7" }); BATCH_ASKS_MAX] });
    assert_eq!(server.post("/v1/acquire/batch", &full.to_string()).await.status, 200);
    let over =
        json!({ "asks": vec![json!({ "policy": "trial", "subject": "p7" }); BATCH_ASKS_MAX + 1] });
    let detail = "asks: a batch has at most 100, not 101";
    check(&server.post("/v1/acquire/batch", &over.to_string()).await, 400, "invalid", detail);
    let waits = json!({ "asks": [{ "policy": "trial", "subject": "p7", "wait_ms": 1 }] });
    let detail = "asks[0].wait_ms: an ask in a batch does not wait; leave it out";
    check(&server.post("/v1/acquire/batch", &waits.to_string()).await, 400, "invalid", detail);
    let lists = r#"{"asks": [["gemini", "p7"]]}"#;
    let detail = "asks[0]: invalid type: sequence, expected an object at line 1 column 10";
    check(&server.post("/v1/acquire/batch", lists).await, 400, "invalid", detail);

    let large = format!("{ASK}{}", " ".repeat(BODY_BYTES_MAX + 1 - ASK.len()));
    let detail = "a body has at most 262144 bytes; send less at once";
    check(&server.post("/v1/acquire", &large).await, 413, "too-large", detail);
    assert_eq!(server.post("/v1/acquire", &large[..BODY_BYTES_MAX]).await.status, 200);
}

/// A page of another site can send forms without asking, but not JSON; so only JSON is taken.
#[tokio::test]
async fn only_json_is_taken() {
    let server = Server::start().await;
    let json = "send JSON, and say so: content-type: application/json";
    let packed = "send the body as it is, without content-encoding: \"gzip\"";
    for (fields, detail) in [
        ("content-type: text/plain", json),
        ("content-type: application/x-www-form-urlencoded", json),
        ("content-type: application/json\r\ncontent-encoding: gzip", packed),
    ] {
        let fields = format!("{fields}\r\ncontent-length: {}", ASK.len());
        let head = "POST /v1/acquire HTTP/1.1\r\nhost: test\r\nconnection: close";
        let request = format!("{head}\r\n{fields}\r\n\r\n{ASK}");
        let answer = Pending::send(server.address, &request).await.answer().await;
        check(&answer, 415, "unsupported-media-type", detail);
    }
}

/// A body that does not arrive is not waited for without end.
#[tokio::test]
async fn a_body_that_does_not_arrive_times_out() {
    let server = Server::start().await;
    let head = "POST /v1/acquire HTTP/1.1\r\nhost: test\r\nconnection: close";
    let fields = "content-type: application/json\r\ncontent-length: 10";
    let pending = Pending::send(server.address, &format!("{head}\r\n{fields}\r\n\r\n{{")).await;
    pass(&server.clock, Span::from_secs(30)).await;
    let answer = pending.answer().await;
    check(&answer, 408, "timeout", "the body did not arrive within 30s");
}

/// What the gate could not decide keeps its kind, and says when to ask again where time helps.
#[tokio::test]
async fn errors_of_the_gate_keep_their_kind() {
    let rows = [
        (ErrorKind::Contended, 503, "contended", Some("1")),
        (ErrorKind::Full, 503, "full", None),
        (ErrorKind::Unavailable, 503, "unavailable", None),
        (ErrorKind::Corrupt, 500, "corrupt", None),
    ];
    for (kind, status, name, retry_after) in rows {
        let broken = Broken(Error::new(kind, "the store is a teapot"));
        let server = Server::around(|_| Arc::new(broken)).await;
        let answer = server.post("/v1/acquire", ASK).await;
        check(&answer, status, name, "the store is a teapot");
        assert_eq!(answer.field("retry-after"), retry_after);
        assert_eq!(server.get("/v1/stats").await.json()["policies"][0]["failed"], 1);
        assert_eq!(server.get("/readyz").await.status, 503);
        assert_eq!(server.get("/healthz").await.status, 200);
    }
}
