//! Each call, with its body and its fields exactly.

use serde_json::json;
use tollgate::Span;

use crate::client::Server;

const ASK: &str = r#"{"policy": "gemini", "subject": "p7", "costs": {"tokens": 3750}}"#;

fn row(name: &str, unit: &str, numbers: [u64; 3], reset: Option<[&str; 2]>) -> serde_json::Value {
    let [limit, used, remaining] = numbers;
    json!({
        "name": name, "unit": unit, "limit": limit, "used": used, "remaining": remaining,
        "reset_at": reset.map(|[at, _]| at), "reset_in": reset.map(|[_, span]| span),
        "full_at": reset.map(|[at, _]| at), "refilled_at": null,
    })
}

const MINUTE: Option<[&str; 2]> = Some(["2026-11-15T05:46:00Z", "1m"]);
/// A minute and the rest of a slot.
const SLOT_END: Option<[&str; 2]> = Some(["2026-11-15T05:46:00.9375Z", "1m 1s"]);
const NIGHT: Option<[&str; 2]> = Some(["2026-11-15T08:00:00Z", "2h 15m"]);

/// R000.1: an ask within the limits is admitted at once, `remaining` is exact, and every limit has its standing in
/// the body and in the fields.
#[tokio::test]
async fn r000_1_an_admitted_ask_says_where_every_limit_stands() {
    let server = Server::start().await;
    let answer = server.post("/v1/acquire", ASK).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.field("content-type"), Some("application/json"));
    assert_eq!(answer.field("cache-control"), Some("no-store"));
    assert_eq!(
        answer.field("ratelimit"),
        Some(r#""rpm";r=4;t=60, "tpm";r=246250;t=61, "rpd";r=24;t=8100"#)
    );
    assert_eq!(
        answer.field("ratelimit-policy"),
        Some(r#""rpm";q=5;w=60, "tpm";q=250000;w=60;tollgate-unit="tokens", "rpd";q=25;w=86400"#)
    );
    assert_eq!(answer.field("retry-after"), None);
    let mut body = answer.json();
    assert!(body["permit"].take().is_string());
    let limits = [
        row("rpm", "requests", [5, 1, 4], MINUTE),
        row("tpm", "tokens", [250_000, 3_750, 246_250], SLOT_END),
        row("rpd", "requests", [25, 1, 24], NIGHT),
    ];
    let wanted = json!({ "admitted": true, "permit": null, "limits": limits, "degraded": false });
    assert_eq!(body, wanted);
}

/// A refusal is a problem document of status 429 that names the limit and the wait; waits are rounded up.
#[tokio::test]
async fn a_refusal_says_which_limit_and_until_when() {
    let server = Server::start().await;
    for _ in 0..5 {
        server.permit(ASK).await;
    }
    server.clock.advance(Span::from_micros(47_999_001));
    let answer = server.post("/v1/acquire", ASK).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.field("content-type"), Some("application/problem+json"));
    assert_eq!(answer.field("retry-after"), Some("13"));
    assert_eq!(
        answer.field("ratelimit"),
        Some(r#""rpm";r=0;t=13, "tpm";r=231250;t=13, "rpd";r=20;t=8053"#)
    );
    let mut body = answer.json();
    assert_eq!(body["limits"].take().as_array().map(Vec::len), Some(3));
    let wanted = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota exceeded",
        "status": 429,
        "detail": "limit \"rpm\" has no room for 1 request now; ask again in 13s",
        "admitted": false,
        "policy": "gemini",
        "limit": "rpm",
        "violated-policies": ["rpm"],
        "unit": "requests",
        "asked": 1,
        "most": 5,
        "retry_after_ms": 12_001,
        "reset_at": "2026-11-15T05:46:00Z",
        "decided_at": "2026-11-15T05:45:47.999001Z",
        "limits": null,
        "degraded": false,
    });
    assert_eq!(body, wanted);
}

/// R000.6: the daily limit is tracked, its refusal carries the time at which it resets, and it resets at midnight of its
/// own zone.
#[tokio::test]
async fn r000_6_the_daily_limit_is_refused_until_midnight_of_its_zone() {
    let server = Server::start().await;
    for _ in 0..5 {
        for _ in 0..5 {
            server.permit(r#"{"policy": "gemini", "subject": "p7"}"#).await;
        }
        server.clock.advance(Span::from_mins(1));
    }
    let body = server.post("/v1/acquire", ASK).await.json();
    assert_eq!(
        (&body["limit"], &body["reset_at"]),
        (&json!("rpd"), &json!("2026-11-15T08:00:00Z"))
    );
    server.clock.advance(Span::from_mins(2 * 60 + 10));
    server.permit(ASK).await;
}

/// What can never fit says so, and promises no time.
#[tokio::test]
async fn what_never_fits_is_refused_without_a_time() {
    let server = Server::start().await;
    let ask = r#"{"policy": "gemini", "subject": "p7", "costs": {"tokens": 250001}}"#;
    let answer = server.post("/v1/acquire", ask).await;
    assert_eq!((answer.status, answer.field("retry-after")), (429, None));
    let body = answer.json();
    assert_eq!(body["never"], true);
    assert_eq!(body.get("retry_after_ms"), None);
    assert_eq!(body.get("reset_at"), None);
    assert_eq!(
        body["detail"],
        "limit \"tpm\" never admits 250001 tokens at once, at most 250000; ask for less"
    );
}

/// The old fields have room for one limit: the one with the least left, or the one that binds. They are there only if
/// a caller wants them.
#[tokio::test]
async fn the_old_fields_are_there_if_they_are_wanted() {
    let triple = |answer: &crate::client::Answer| {
        ["limit", "remaining", "reset"].map(|name| {
            answer.field(&format!("x-ratelimit-{name}")).map(|value| value.parse::<u64>().unwrap())
        })
    };
    let server = Server::start().await;
    assert_eq!(triple(&server.post("/v1/acquire", ASK).await), [None; 3]);
    let server = Server::serving(|app| app.legacy_fields(true)).await;
    let ask = |requests: u64, tokens: u64| {
        let costs = json!({ "requests": requests, "tokens": tokens });
        json!({ "policy": "gemini", "subject": "p7", "costs": costs }).to_string()
    };
    let admitted = server.post("/v1/acquire", &ask(2, 9)).await;
    assert_eq!(triple(&admitted), [Some(5), Some(3), Some(60)]);
    server.clock.advance(Span::from_millis(500));
    let refused = server.post("/v1/acquire", &ask(1, 250_000)).await;
    assert_eq!((refused.status, refused.field("retry-after")), (429, Some("61")));
    assert_eq!(triple(&refused), [Some(250_000), Some(249_991), Some(61)]);
    let never = server.post("/v1/acquire", &ask(6, 0)).await;
    assert_eq!(triple(&never), [Some(5), Some(3), None]);
}

/// R004.7: asking for the standing consumes nothing. R004.8: it has what is used, the limit, the time of the reset and
/// the time until then for people.
#[tokio::test]
async fn r004_7_r004_8_standing_consumes_nothing_and_reads_well() {
    let server = Server::start().await;
    server.permit(ASK).await;
    for _ in 0..10 {
        let answer = server.get("/v1/standing?policy=gemini&subject=p7").await;
        let mut limits = [
            row("rpm", "requests", [5, 1, 4], MINUTE),
            row("tpm", "tokens", [250_000, 3_750, 246_250], SLOT_END),
            row("rpd", "requests", [25, 1, 24], NIGHT),
        ];
        limits[1]["resolution"] = json!(64);
        let wanted = json!({ "policy": "gemini", "subject": "p7", "limits": limits });
        assert_eq!((answer.status, answer.json()), (200, wanted));
    }
    let fresh = server.get("/v1/standing?policy=gemini&subject=a%20%26%2Fb").await.json();
    assert_eq!(fresh["subject"], "a &/b");
    assert_eq!(fresh["limits"][0], row("rpm", "requests", [5, 0, 5], None));
}

/// An estimate is replaced by the actual cost once; a release gives everything back.
#[tokio::test]
async fn permits_are_settled_and_released_once() {
    let server = Server::start().await;
    let permit = server.permit(ASK).await;
    let settle = json!({ "permit": permit, "actual": { "tokens": 3_100 } }).to_string();
    for changed in [true, false] {
        let answer = server.post("/v1/settle", &settle).await;
        assert_eq!((answer.status, answer.json()), (200, json!({ "changed": changed })));
    }
    let standing = server.get("/v1/standing?policy=gemini&subject=p7").await.json();
    assert_eq!(standing["limits"][1]["used"], 3_100);

    let second = server.permit(ASK).await;
    let release = json!({ "permit": second }).to_string();
    assert_eq!(server.post("/v1/release", &release).await.json(), json!({ "changed": true }));
    let standing = server.get("/v1/standing?policy=gemini&subject=p7").await.json();
    assert_eq!(standing["limits"][1]["used"], 3_100);
    assert_eq!(standing["limits"][0]["used"], 1);
}

/// A slot that is renewed lives on, and the new permit is the one that releases it.
#[tokio::test]
async fn a_slot_is_renewed() {
    let server = Server::start().await;
    let ask = r#"{"policy": "jobs", "subject": "p7"}"#;
    let answer = server.post("/v1/acquire", ask).await;
    assert_eq!(answer.field("ratelimit-policy"), Some(r#""slots";q=1;qu="concurrent-requests""#));
    let body = answer.json();
    assert_eq!(body["expires_at"], "2026-11-15T05:46:00Z");
    server.clock.advance(Span::from_secs(30));
    let renew = json!({ "permit": body["permit"] }).to_string();
    let renewed = server.post("/v1/renew", &renew).await.json();
    assert_eq!(renewed["expires_at"], "2026-11-15T05:46:30Z");
    server.clock.advance(Span::from_secs(59));
    assert_eq!(server.post("/v1/acquire", ask).await.status, 429);
    let release = json!({ "permit": renewed["permit"] }).to_string();
    assert_eq!(server.post("/v1/release", &release).await.json(), json!({ "changed": true }));
    assert_eq!(server.post("/v1/acquire", ask).await.status, 200);
}

/// A policy in shadow mode admits, says what it would have refused, and its permit gives nothing back.
#[tokio::test]
async fn shadow_admits_and_says_so() {
    let server = Server::start().await;
    let ask = r#"{"policy": "trial", "subject": "p7", "costs": {"requests": 2}}"#;
    assert_eq!(server.post("/v1/acquire", ask).await.json().get("shadow_denied"), None);
    let body = server.post("/v1/acquire", ask).await.json();
    assert_eq!(
        (&body["admitted"], &body["shadow_denied"]["limit"]),
        (&json!(true), &json!("burst"))
    );
    assert_eq!(body["shadow_denied"]["retry_after_ms"], 200);
    let release = json!({ "permit": body["permit"] }).to_string();
    assert_eq!(server.post("/v1/release", &release).await.json(), json!({ "changed": false }));
    let stats = server.get("/v1/stats").await.json();
    assert_eq!(
        (&stats["policies"][1]["admitted"], &stats["policies"][1]["shadow_denied"]),
        (&json!(2), &json!(1))
    );
}

/// The same id is charged once, and gets the same permit.
#[tokio::test]
async fn a_repeat_is_charged_once() {
    let server = Server::start().await;
    let ask = r#"{"policy": "gemini", "subject": "p7", "costs": {"tokens": 10}, "id": "a"}"#;
    let first = server.permit(ask).await;
    server.clock.advance(Span::from_secs(1));
    assert_eq!(server.permit(ask).await, first);
    let standing = server.get("/v1/standing?policy=gemini&subject=p7").await.json();
    assert_eq!(standing["limits"][0]["used"], 1);
}

/// Each ask of a batch is decided alone: a wrong one and a refused one do not touch the others.
#[tokio::test]
async fn a_batch_decides_each_ask_alone() {
    let server = Server::start().await;
    let body = json!({ "asks": [
        { "policy": "jobs", "subject": "p7" },
        { "policy": "jobs", "subject": "p7" },
        { "policy": "none", "subject": "p7" },
        { "policy": "jobs", "subject": "p8" },
    ] });
    let answer = server.post("/v1/acquire/batch", &body.to_string()).await;
    assert_eq!(answer.status, 200);
    let answers = answer.json()["answers"].as_array().unwrap().clone();
    assert_eq!(answers[0]["admitted"], true);
    assert_eq!((&answers[1]["admitted"], &answers[1]["status"]), (&json!(false), &json!(429)));
    assert_eq!(
        (&answers[2]["kind"], &answers[2]["status"]),
        (&json!("unknown-policy"), &json!(404))
    );
    assert_eq!(answers[3]["admitted"], true);
}

/// An operator forgets a subject; there may have been nothing.
#[tokio::test]
async fn a_subject_is_reset() {
    let server = Server::start().await;
    server.permit(ASK).await;
    let path = "/v1/standing?policy=gemini&subject=p7";
    assert_eq!(server.send("DELETE", path, "").await.json(), json!({ "changed": true }));
    assert_eq!(server.get(path).await.json()["limits"][0]["used"], 0);
}

/// What is in force, with the numbers that follow from it; and what was answered, by policy.
#[tokio::test]
async fn policies_and_counts_are_listed() {
    let server = Server::start().await;
    let policies = server.get("/v1/policies").await.json();
    let gemini = &policies["policies"][0];
    assert_eq!(
        (&gemini["name"], &gemini["on_store_failure"]),
        (&json!("gemini"), &json!("closed"))
    );
    let wanted = json!({
        "name": "rpd", "unit": "requests", "rule": "calendar-window", "limit": 25, "effective": 25,
        "summary": "25 per day in America/Los_Angeles", "headroom": null, "margin": null,
    });
    assert_eq!(gemini["limits"][2], wanted);

    for _ in 0..3 {
        server.post("/v1/acquire", r#"{"policy": "jobs", "subject": "p7"}"#).await;
    }
    let stats = server.get("/v1/stats").await.json();
    assert_eq!(stats["since"], "2026-11-15T05:45:00Z");
    let wanted = json!({
        "name": "jobs", "admitted": 1, "refused": 2, "failed": 0, "shadow_denied": 0, "degraded": 0,
    });
    assert_eq!(stats["policies"][2], wanted);
}
