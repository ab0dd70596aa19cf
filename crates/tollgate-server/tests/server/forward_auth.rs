//! What proxies ask before they pass a request on, by hand.

use serde_json::json;
use tollgate_server::keys::{Key, KeyHash, Scopes};

use crate::client::{Answer, Pending, Server};
use crate::keys::guarded;

const TARGET: &str = "/v1/forward-auth?policy=jobs&subject_header=X-Real-IP";
const CALLER: &str = "X-Real-IP: 192.0.2.1\r\n";

/// The answer to a proxy that asks `target` with `fields`, each of which ends its line.
pub(crate) async fn ask_of(server: &Server, target: &str, fields: &str) -> Answer {
    let head = format!("GET {target} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{fields}");
    Pending::send(server.address, &format!("{head}\r\n")).await.answer().await
}

/// What of the policy `gemini` was used by `subject`, in requests and tokens.
pub(crate) async fn used(server: &Server, subject: &str) -> [u64; 2] {
    let path = format!("/v1/standing?policy=gemini&subject={subject}");
    let limits = &server.get(&path).await.json()["limits"];
    [0, 1].map(|place: usize| limits[place]["used"].as_u64().unwrap())
}

/// A refusal has what a client needs; nginx, which passes no 429 on, may have it as a 403.
#[tokio::test]
async fn a_proxy_learns_whether_a_request_may_pass() {
    let server = Server::start().await;
    let answer = ask_of(&server, TARGET, CALLER).await;
    assert_eq!((answer.status, &answer.json()["admitted"]), (200, &json!(true)));
    assert_eq!(answer.field("ratelimit"), Some("\"slots\";r=0;t=60"));
    let permit = answer.field("tollgate-permit").unwrap();
    for (target, status) in [(TARGET.to_owned(), 429), (format!("{TARGET}&refusal=403"), 403)] {
        let refused = ask_of(&server, &target, CALLER).await;
        assert_eq!(refused.status, status);
        assert_eq!(refused.field("content-type"), Some("application/problem+json"));
        assert_eq!(refused.field("retry-after"), Some("1"));
        assert_eq!(refused.field("ratelimit"), Some("\"slots\";r=0;t=1"));
        assert_eq!(refused.json()["estimated"], true);
        assert_eq!(refused.field("tollgate-permit"), None);
        assert_eq!(
            (&refused.json()["limit"], &refused.json()["status"]),
            (&json!("slots"), &json!(429))
        );
    }
    // The upstream releases the slot.
    server.post("/v1/release", &json!({ "permit": permit }).to_string()).await;
    assert_eq!(ask_of(&server, TARGET, CALLER).await.status, 200);
}

/// What is charged to whom, by each way to say so.
#[tokio::test]
async fn policy_subject_and_costs_come_from_the_query_or_from_the_fields_that_it_names() {
    let server = Server::start().await;
    let long = "a".repeat(257);
    // A secret, and what is too long, is known by its digest.
    let rows = [
        ("policy=gemini&subject=s1&costs=tokens=5", "X-Real-IP: x", "s1", [1, 5]),
        ("policy=gemini&subject=s2&costs=requests=2,tokens=5", "X-Real-IP: x", "s2", [2, 5]),
        ("policy_header=X-P&subject=s3", "X-Real-IP: x\r\nX-P: gemini", "s3", [1, 0]),
        (
            "policy=gemini&subject=s4&costs_header=X-C",
            "X-Forwarded-Host: x\r\nX-C: tokens=9",
            "s4",
            [1, 9],
        ),
        ("policy=gemini&subject_header=x-user", "X-Forwarded-For: 9\r\nX-User: ann", "ann", [1, 0]),
        (
            "policy=gemini&subject_header=X-Forwarded-For&hops=1",
            "X-Forwarded-For: forged, 192.0.2.9",
            "192.0.2.9",
            [1, 0],
        ),
        (
            "policy=gemini&subject_header=X-Forwarded-For&hops=2",
            "X-Forwarded-For: forged, s5\r\nX-Forwarded-For: 10.0.0.1",
            "s5",
            [1, 0],
        ),
        (
            "policy=gemini&subject_header=Authorization",
            "X-Real-IP: x\r\nAuthorization: Bearer abc",
            "sha256:c355dce96c1612880d11940ffdd9014d386c253e0c3652a6cd06a7226f7bd2b6",
            [1, 0],
        ),
        (
            "policy=gemini&subject_header=X-User",
            &format!("X-Real-IP: x\r\nX-User: {long}"),
            "sha256:e8d95cc2b4bc198c54b40bd214df958afb65f5e73d2c2eafe0593cf5c635c1f0",
            [1, 0],
        ),
    ];
    for (query, fields, subject, charged) in rows {
        let answer =
            ask_of(&server, &format!("/v1/forward-auth?{query}"), &format!("{fields}\r\n")).await;
        assert_eq!(answer.status, 200, "{query}: {}", answer.text);
        assert_eq!(used(&server, subject).await, charged, "{query}");
    }
}

/// Nothing is believed that the query does not name, and what is unclear is refused and charges nothing.
#[tokio::test]
async fn what_is_unclear_is_refused() {
    let server = Server::start().await;
    let rows = [
        (
            "policy=jobs&subject=s",
            "",
            "this is for proxies; have yours send X-Forwarded-Host, say, or use POST /v1/acquire",
        ),
        (
            "policy=jobs&subject=s",
            "Origin: https://example.org\r\n",
            "this is for proxies; have yours send X-Forwarded-Host, say, or use POST /v1/acquire",
        ),
        (
            "subject=s",
            CALLER,
            "there is no policy; write ?policy=api&subject_header=X-Real-IP, say",
        ),
        (
            "policy=jobs",
            CALLER,
            "there is no subject; write ?policy=api&subject_header=X-Real-IP, say",
        ),
        (
            "policy=jobs&policy_header=X-P&subject=s",
            CALLER,
            "policy and policy_header are both there; write ?policy=api&subject_header=X-Real-IP, say",
        ),
        (
            "policy=jobs&subject=s&subject_header=X-Real-IP",
            CALLER,
            "subject and subject_header are both there; write ?policy=api&subject_header=X-Real-IP, say",
        ),
        (
            "policy=jobs&subject_header=X-User",
            CALLER,
            "the field x-user is missing or empty; have the proxy send it",
        ),
        (
            "policy=jobs&subject_header=X-Real-IP",
            "X-Real-IP: a\r\nX-Real-IP: b\r\n",
            "the field x-real-ip is there twice; have the proxy replace it",
        ),
        (
            "policy=jobs&subject_header=X-Forwarded-For",
            "X-Forwarded-For: a\r\n",
            "x-forwarded-for is a list that callers can begin; write hops=1 for its last member, which your proxy wrote",
        ),
        (
            "policy=jobs&subject_header=X-Forwarded-For&hops=2",
            "X-Forwarded-For: a\r\n",
            "the field x-forwarded-for has fewer than 2 members",
        ),
        (
            "policy=jobs&subject_header=X-Forwarded-For&hops=1",
            "X-Forwarded-For: a,\r\n",
            "member 1 of the field x-forwarded-for is empty",
        ),
        (
            "policy=jobs&subject_header=X-Forwarded-For&hops=0",
            CALLER,
            "hops 0 must be between 1 and 16",
        ),
        (
            "policy=jobs&subject=s&hops=1",
            CALLER,
            "hops counts members of a field; name it with subject_header",
        ),
        (
            "policy=jobs&subject_header=X%20Y",
            CALLER,
            "\"X Y\" is no name of a field, as X-Real-IP is one",
        ),
        (
            "policy=jobs&subject=s&costs=5",
            CALLER,
            "\"5\" is not a cost; write a unit and a whole number, as in tokens=3750",
        ),
        ("policy=jobs&subject=s&refusal=500", CALLER, "refusal 500 is neither 429 nor 403"),
    ];
    for (query, fields, detail) in rows {
        let answer = ask_of(&server, &format!("/v1/forward-auth?{query}"), fields).await;
        assert_eq!((answer.status, &answer.json()["detail"]), (400, &json!(detail)), "{query}");
    }
    let twice =
        ask_of(&server, "/v1/forward-auth?policy=jobs&policy=gemini&subject=s", CALLER).await;
    assert_eq!(twice.status, 400);
    let stats = server.get("/v1/stats").await.json();
    assert_eq!(stats["policies"][2]["admitted"], 0);
}

/// A proxy needs a key that may ask.
#[tokio::test]
async fn a_proxy_needs_a_key_where_there_are_keys() {
    let server = guarded().await;
    for (fields, status) in [
        (CALLER.to_owned(), 401),
        (format!("{CALLER}authorization: Bearer see\r\n"), 403),
        (format!("{CALLER}authorization: Bearer ask\r\n"), 200),
    ] {
        assert_eq!(ask_of(&server, TARGET, &fields).await.status, status);
    }
}

/// The request that Traefik's ForwardAuth makes, byte for byte but for the names of hosts.
#[tokio::test]
async fn traefik_is_answered() {
    let server = Server::start().await;
    let fields = "User-Agent: curl/8.5.0\r\nAccept: */*\r\nAccept-Encoding: gzip\r\nX-Forwarded-For: 192.0.2.7\r\n\
        X-Forwarded-Host: shop.example\r\nX-Forwarded-Method: POST\r\nX-Forwarded-Port: 443\r\nX-Forwarded-Proto: https\r\n\
        X-Forwarded-Server: traefik\r\nX-Forwarded-Uri: /orders\r\nX-Real-Ip: 192.0.2.7\r\n";
    let target = "/v1/forward-auth?policy=gemini&subject_header=X-Real-Ip";
    for status in [200, 200, 200, 200, 200, 429] {
        assert_eq!(ask_of(&server, target, fields).await.status, status);
    }
    assert_eq!(used(&server, "192.0.2.7").await, [5, 0]);
}

/// A proxy with a key that is bound asks for the policies and subjects of that key only, and is not charged for others.
#[tokio::test]
async fn a_bound_key_is_refused_for_other_subjects() {
    let bound = Key::new("team-a", KeyHash::from_key("bound"), Scopes::all());
    let (policies, subjects) = (vec!["gemini".to_owned()], vec!["team-a/*".to_owned()]);
    let all = Key::new("all", KeyHash::from_key("all"), Scopes::all());
    let server = Server::guarded([Key { policies, subjects, ..bound }, all]).await;
    for (policy, subject, status) in
        [("gemini", "team-a/x", 200), ("gemini", "team-b/x", 403), ("trial", "team-a/x", 403)]
    {
        let target = format!("/v1/forward-auth?policy={policy}&subject_header=X-User");
        let fields = format!("{CALLER}authorization: Bearer bound\r\nX-User: {subject}\r\n");
        let answer = ask_of(&server, &target, &fields).await;
        assert_eq!(answer.status, status, "{policy} {subject}: {}", answer.text);
        let path = format!("/v1/standing?policy={policy}&subject={subject}");
        let standing = server.send_as("Bearer all", "GET", &path, "").await.json();
        assert_eq!(standing["limits"][0]["used"], u64::from(status == 200), "{standing}");
    }
}
