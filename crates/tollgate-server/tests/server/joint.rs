//! Asks with several charges, by every protocol.

use serde_json::{Value, json};
use tollgate::Span;
use tollgate_protocol::protobuf::tollgate::v1::acquire_response::Decision;
use tollgate_protocol::protobuf::tollgate::v1::{
    AcquireRequest, Charge, ChargeActual, Costs, SettleRequest,
};
use tollgate_server::keys::{Key, KeyHash, Scope};

use crate::client::Server;
use crate::forward_auth::ask_of;
use crate::resp::Line;

/// A user under `gemini`, which counts requests and tokens, and a team under `jobs`, which has one slot.
fn both() -> Value {
    json!([{ "policy": "gemini", "subject": "u1" }, { "policy": "jobs", "subject": "t7" }])
}

impl Server {
    /// What `subject` used on each limit of `policy`.
    async fn used_of(&self, policy: &str, subject: &str) -> Vec<u64> {
        let path = format!("/v1/standing?policy={policy}&subject={subject}");
        let limits = self.get(&path).await.json()["limits"].clone();
        let limits = limits.as_array().unwrap();
        limits.iter().map(|limit| limit["used"].as_u64().unwrap()).collect()
    }

    async fn used_by_both(&self) -> [Vec<u64>; 2] {
        [self.used_of("gemini", "u1").await, self.used_of("jobs", "t7").await]
    }
}

/// A refusal by the last charge takes nothing from the first, and the permit gives back both.
#[tokio::test]
async fn several_charges_are_all_or_none() {
    let server = Server::start().await;
    let ask = json!({ "charges": both(), "costs": { "tokens": 400 } }).to_string();
    let answer = server.post("/v1/acquire", &ask).await;
    let admitted = answer.json();
    assert_eq!((answer.status, &admitted["admitted"]), (200, &json!(true)));
    let charges = admitted["charges"].as_array().unwrap();
    assert_eq!((charges.len(), &charges[1]["policy"]), (2, &json!("jobs")));
    assert_eq!(
        (&charges[0]["subject"], &charges[0]["limits"]),
        (&json!("u1"), &admitted["limits"])
    );
    assert_eq!(server.used_by_both().await, [vec![1, 400, 1], vec![1]]);

    let refused = server.post("/v1/acquire", &ask).await;
    let denied = refused.json();
    assert_eq!(
        (refused.status, &denied["policy"], &denied["charge"]),
        (429, &json!("jobs"), &json!(1))
    );
    assert_eq!(denied["refused"][0]["subject"], "t7");
    assert_eq!(denied["refused"][0]["retry_after_ms"], 60_000);
    assert_eq!(denied["refused"].as_array().unwrap().len(), 1);
    assert!(
        denied["detail"].as_str().unwrap().contains("of policy \"jobs\" for \"t7\""),
        "{denied}"
    );
    assert!(refused.field("ratelimit-policy").unwrap().starts_with("\"slots\";q=1"));
    assert_eq!(server.used_by_both().await, [vec![1, 400, 1], vec![1]]);

    let release = json!({ "permit": admitted["permit"] }).to_string();
    assert_eq!(server.post("/v1/release", &release).await.json(), json!({ "changed": true }));
    assert_eq!(server.used_by_both().await, [vec![0, 0, 0], vec![0]]);
    // The counts are those of the policies that admitted or refused.
    let stats = server.get("/v1/stats").await.json();
    let counts = |index: usize| {
        let policy = &stats["policies"][index];
        (policy["admitted"].as_u64().unwrap(), policy["refused"].as_u64().unwrap())
    };
    assert_eq!((counts(0), counts(2)), ((1, 0), (1, 1)));
}

/// The denial names every limit that refuses, and the longest wait binds.
#[tokio::test]
async fn a_denial_lists_every_limit_that_refuses() {
    let server = Server::start().await;
    let charges = json!([
        { "policy": "gemini", "subject": "soon" },
        { "policy": "trial", "subject": "soon" },
        { "policy": "gemini", "subject": "late" },
    ]);
    let full = |subject: &str| json!({ "policy": "gemini", "subject": subject, "costs": { "requests": 5 } });
    server.permit(&full("soon").to_string()).await;
    server.clock.advance(Span::from_secs(20));
    server.permit(&full("late").to_string()).await;
    let answer = server.post("/v1/acquire", &json!({ "charges": charges }).to_string()).await;
    let denied = answer.json();
    let waits: Vec<_> = denied["refused"]
        .as_array()
        .unwrap()
        .iter()
        .map(|refused| {
            (
                refused["charge"].as_u64().unwrap(),
                refused["limit"].as_str().unwrap(),
                refused["retry_after_ms"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(waits, [(0, "rpm", 40_000), (2, "rpm", 60_000)]);
    assert_eq!((&denied["charge"], &denied["retry_after_ms"]), (&json!(2), &json!(60_000)));
    assert_eq!(answer.field("retry-after"), Some("60"));
    assert_eq!(denied["charges"].as_array().unwrap().len(), 3);
    let never = json!({ "charges": both(), "costs": { "tokens": 250_001 } });
    let denied = server.post("/v1/acquire", &never.to_string()).await.json();
    assert_eq!((&denied["never"], &denied["refused"][0]["never"]), (&json!(true), &json!(true)));
}

/// Every mistake is refused with what would be right, and nothing is charged.
#[tokio::test]
async fn wrong_charges_are_explained() {
    let server = Server::start().await;
    let one = |subject: usize| json!({ "policy": "gemini", "subject": format!("u{subject}") });
    let nine: Vec<Value> = (0..9).map(one).collect();
    let own = json!({ "policy": "gemini", "subject": "u1", "costs": { "tokens": 1 } });
    let rows = [
        (json!({ "charges": [one(1), one(1)] }), "twice; add up their costs in one charge"),
        (json!({ "charges": nine }), "at most 8 charges, not 9"),
        (
            json!({ "charges": both(), "costs": { "miles": 1 } }),
            "has a limit on \"miles\"; they count requests, tokens",
        ),
        (
            json!({ "charges": both(), "policy": "gemini", "subject": "u1" }),
            "either a policy and a subject, or charges, not both",
        ),
        (json!({ "charges": [] }), "name a policy and a subject, or charges"),
        (json!({ "charges": [own], "costs": { "tokens": 2 } }), "name them in one place"),
        (json!({ "charges": both(), "behind": [{}] }), "has no others ahead"),
        (json!({ "charges": [{ "policy": "gemini", "subject": "" }] }), "1 to 256 bytes"),
        (json!({ "charges": [{ "policy": "gemini" }] }), "missing field `subject`"),
        (json!({ "charges": [["gemini", "u1"]] }), "an object"),
    ];
    for (body, expected) in rows {
        let answer = server.post("/v1/acquire", &body.to_string()).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text);
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(expected), "{body}: {detail}");
    }
    let unknown = json!({ "charges": [one(1), { "policy": "none", "subject": "x" }] });
    assert_eq!(server.post("/v1/acquire", &unknown.to_string()).await.status, 404);
    assert_eq!(server.used_by_both().await, [vec![0, 0, 0], vec![0]]);
}

/// The same id gets the same permit, and is a conflict with another charge.
#[tokio::test]
async fn an_id_covers_every_charge() {
    let server = Server::start().await;
    let ask = json!({ "charges": both(), "id": "a" }).to_string();
    let first = server.permit(&ask).await;
    assert_eq!(server.permit(&ask).await, first);
    let other = json!({ "charges": [both()[0], { "policy": "jobs", "subject": "t8" }], "id": "a" });
    assert_eq!(server.post("/v1/acquire", &other.to_string()).await.status, 409);
    assert_eq!(server.used_by_both().await, [vec![1, 0, 1], vec![1]]);
}

/// A charge with costs of its own is settled by its own actual costs, by index.
#[tokio::test]
async fn own_costs_are_settled_by_index() {
    let server = Server::start().await;
    let charges = json!([
        { "policy": "gemini", "subject": "u1", "costs": { "tokens": 25 } },
        { "policy": "gemini", "subject": "u2" },
    ]);
    let ask = json!({ "charges": charges, "costs": { "tokens": 400 } }).to_string();
    let permit = server.permit(&ask).await;
    assert_eq!(server.used_of("gemini", "u1").await, [1, 25, 1]);
    assert_eq!(server.used_of("gemini", "u2").await, [1, 400, 1]);
    let settle = async |body: Value| server.post("/v1/settle", &body.to_string()).await;
    let wrong = json!({ "permit": permit, "charges": [{ "charge": 2, "actual": {} }] });
    let answer = settle(wrong).await;
    assert_eq!(answer.status, 400);
    assert!(answer.json()["detail"].as_str().unwrap().contains("indexes 0 to 1"));
    // Without `actual`, only the named charge is settled.
    let own = json!({ "permit": permit, "charges": [{ "charge": 0, "actual": { "tokens": 5 } }] });
    assert_eq!(settle(own).await.json(), json!({ "changed": true }));
    assert_eq!(server.used_of("gemini", "u1").await, [1, 5, 1]);
    let all = json!({ "permit": permit, "actual": { "tokens": 300 } });
    assert_eq!(settle(all.clone()).await.json(), json!({ "changed": true }));
    assert_eq!(settle(all).await.json(), json!({ "changed": false }));
    assert_eq!(server.used_of("gemini", "u1").await, [1, 5, 1]);
    assert_eq!(server.used_of("gemini", "u2").await, [1, 300, 1]);
    // Both in one call.
    let permit = server.permit(&ask).await;
    let both = json!({
        "permit": permit, "actual": { "tokens": 100 },
        "charges": [{ "charge": 0, "actual": { "tokens": 7 } }],
    });
    assert_eq!(settle(both).await.json(), json!({ "changed": true }));
    assert_eq!(server.used_of("gemini", "u1").await, [2, 12, 2]);
    assert_eq!(server.used_of("gemini", "u2").await, [2, 400, 2]);
}

/// A key that is bound to some subjects cannot reach another one in a charge behind an allowed one, nor by its permit.
#[tokio::test]
async fn a_key_must_allow_every_charge() {
    let key = |name: &str| {
        let hash = KeyHash::from_key(&format!("tg_{name}"));
        Key::new(name, hash, [Scope::Acquire, Scope::Administer].into_iter().collect())
    };
    let bound = Key { subjects: vec!["u*".to_owned()], ..key("bound") };
    let server = Server::guarded([key("free"), bound]).await;
    let ask = json!({ "charges": both() }).to_string();
    for path in ["/v1/acquire", "/v1/charge"] {
        let answer = server.send_as("Bearer tg_bound", "POST", path, &ask).await;
        assert_eq!(answer.status, 403, "{path}: {}", answer.text);
        assert!(answer.json()["detail"].as_str().unwrap().contains("\"t7\""), "{}", answer.text);
    }
    let permit = server.send_as("Bearer tg_free", "POST", "/v1/acquire", &ask).await.json();
    let release = json!({ "permit": permit["permit"] }).to_string();
    for path in ["/v1/release", "/v1/renew", "/v1/settle"] {
        let answer = server.send_as("Bearer tg_bound", "POST", path, &release).await;
        assert_eq!(answer.status, 403, "{path}: {}", answer.text);
    }
    let answer = server.send_as("Bearer tg_free", "POST", "/v1/release", &release).await;
    assert_eq!(answer.json(), json!({ "changed": true }));
}

/// The same over gRPC.
#[tokio::test]
async fn several_charges_over_grpc() {
    let server = Server::start().await;
    let mut gate = server.gate();
    let charge = |policy: &str, subject: &str, costs| Charge {
        policy: policy.into(),
        subject: subject.into(),
        costs,
    };
    let own = Costs { amounts: [("tokens".to_owned(), 25)].into() };
    let ask = AcquireRequest {
        charges: vec![charge("gemini", "u1", Some(own)), charge("jobs", "t7", None)],
        ..AcquireRequest::default()
    };
    let decision = gate.acquire(ask.clone()).await.unwrap().into_inner().decision.unwrap();
    let Decision::Admitted(admitted) = decision else { panic!("{decision:?}") };
    assert_eq!(admitted.charges.len(), 2);
    assert_eq!(server.used_by_both().await, [vec![1, 25, 1], vec![1]]);
    let decision = gate.acquire(ask).await.unwrap().into_inner().decision.unwrap();
    let Decision::Denied(denied) = decision else { panic!("{decision:?}") };
    assert_eq!((&*denied.policy, denied.charge), ("jobs", Some(1)));
    let [refused] = &denied.refused[..] else { panic!("{denied:?}") };
    assert_eq!((&*refused.subject, refused.retry_after_ms), ("t7", Some(60_000)));
    let settle = SettleRequest {
        permit: admitted.permit,
        charges: vec![ChargeActual { charge: 0, actual: [("tokens".to_owned(), 5)].into() }],
        ..SettleRequest::default()
    };
    assert!(gate.settle(settle).await.unwrap().into_inner().changed);
    assert_eq!(server.used_by_both().await, [vec![1, 5, 1], vec![1]]);
}

/// The same over the Redis protocol.
#[tokio::test]
async fn several_charges_over_resp() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    let words = "TG.ACQUIRE gemini u1 COST tokens 400 AND gemini u2 COST tokens 25 AND jobs t7";
    let words: Vec<&str> = words.split(' ').collect();
    let answer = line.ask(&words).await;
    assert!(answer.contains("admitted\r\n:1\r\n"), "{answer}");
    assert_eq!(server.used_of("gemini", "u1").await, [1, 400, 1]);
    assert_eq!(server.used_of("gemini", "u2").await, [1, 25, 1]);
    let permit = answer.split("permit\r\n").nth(1).unwrap().split("\r\n").nth(1).unwrap();
    let refused = line.ask(&words).await;
    assert!(refused.contains("admitted\r\n:0\r\n"), "{refused}");
    assert!(refused.contains("$2\r\nt7\r\n"), "{refused}");
    assert_eq!(server.used_of("gemini", "u1").await, [1, 400, 1]);
    let settle = format!("TG.SETTLE {permit} COST tokens 300 CHARGE 1 COST tokens 5");
    line.ask(&settle.split(' ').collect::<Vec<_>>()).await;
    assert_eq!(server.used_of("gemini", "u1").await, [1, 300, 1]);
    assert_eq!(server.used_of("gemini", "u2").await, [1, 5, 1]);
    let twice = line.ask(&["TG.ACQUIRE", "gemini", "u1", "AND", "gemini", "u1"]).await;
    assert!(twice.starts_with("-INVALID an ask names policy"), "{twice}");
    let short = line.ask(&["TG.ACQUIRE", "gemini", "u1", "AND", "jobs"]).await;
    assert!(short.starts_with("-INVALID wrong number of arguments"), "{short}");
}

/// A proxy asks about several subjects at once.
#[tokio::test]
async fn several_charges_of_a_proxy() {
    let server = Server::start().await;
    let target = "/v1/forward-auth?charges=gemini:%7BX-User%7D,jobs:t7&costs=tokens=5";
    let fields = "X-Real-IP: 192.0.2.1\r\nX-User: u1\r\n";
    assert_eq!(ask_of(&server, target, fields).await.status, 200);
    let refused = ask_of(&server, target, fields).await;
    assert_eq!((refused.status, &refused.json()["policy"]), (429, &json!("jobs")));
    assert_eq!(server.used_by_both().await, [vec![1, 5, 1], vec![1]]);
    let rows = [
        ("charges=gemini", "is not a policy with a subject"),
        ("charges=gemini:u1&policy=gemini", "leave policy and subject out"),
        ("charges=gemini:%7BX-Team%7D", "the field x-team is missing"),
        ("charges=gemini:%7BX-Forwarded-For%7D", "write hops=1"),
    ];
    for (query, expected) in rows {
        let fields = "X-Real-IP: x\r\nX-Forwarded-For: a, b\r\n";
        let answer = ask_of(&server, &format!("/v1/forward-auth?{query}"), fields).await;
        assert!(answer.status == 400 && answer.text.contains(expected), "{query}: {}", answer.text);
    }
    let listed = "/v1/forward-auth?charges=gemini:%7BX-Forwarded-For%7D&hops=1";
    assert_eq!(ask_of(&server, listed, "X-Forwarded-For: a, b\r\n").await.status, 200);
    assert_eq!(server.used_of("gemini", "b").await, [1, 0, 1]);
}
