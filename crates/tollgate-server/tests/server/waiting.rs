//! Asks that wait for room.

use serde_json::{Value, json};
use tollgate::Span;
use tollgate::internal::SLOT_POLL_MAX;
use tollgate_server::bounds::AHEAD_BYTES_MAX;

use crate::bounds::{http2, post};
use crate::client::{Pending, START, Server};
use crate::resp::{Line, request};

const ASK: &str = r#"{"policy": "jobs", "subject": "p7"}"#;
const PATIENT: &str = r#"{"policy": "jobs", "subject": "p7", "wait_ms": 60000}"#;
const PATIENT_WORDS: [&str; 5] = ["TG.ACQUIRE", "jobs", "p7", "WAIT", "60000"];

/// A patient ask that has found no room and waits.
async fn waiting(server: &Server) -> Pending {
    let waiting = server.start_send("POST", "/v1/acquire", PATIENT).await;
    found_no_room(server).await;
    waiting
}

/// The first of the line polls for a slot.
async fn found_no_room(server: &Server) {
    while server.clock.next_alarm() != Some(START + SLOT_POLL_MAX) {
        tokio::task::yield_now().await;
    }
}

/// Waits until as many asks wait for the slot.
async fn wait_ahead(server: &Server, asks: Value) {
    while server.post("/v1/acquire", ASK).await.json()["waiting_ahead"] != asks {
        tokio::task::yield_now().await;
    }
}

async fn nobody_waits(server: &Server) {
    wait_ahead(server, Value::Null).await;
}

/// A client that leaves while it waits leaves the line too: in HTTP/1.1 it closes its connection, in HTTP/2 its stream.
#[tokio::test]
async fn an_ask_stops_waiting_when_its_client_leaves() {
    let server = Server::start().await;
    let permit = server.permit(ASK).await;
    drop(waiting(&server).await);
    nobody_waits(&server).await;

    let mut sender = http2(&server).await;
    let mut leaving = sender.clone();
    let waiting = tokio::spawn(async move { post(&mut leaving, PATIENT).await });
    found_no_room(&server).await;
    assert_eq!(server.post("/v1/acquire", ASK).await.field("retry-after"), Some("2"));
    waiting.abort();
    nobody_waits(&server).await;
    // The released slot is free for the next ask, on the same connection too.
    server.post("/v1/release", &json!({ "permit": permit }).to_string()).await;
    assert_eq!(post(&mut sender, ASK).await.0, 200);
}

/// The same over the Redis protocol, where a client has nothing but its connection to close.
#[tokio::test]
async fn an_ask_over_resp_stops_waiting_when_its_client_leaves() {
    let server = Server::start().await;
    let permit = server.permit(ASK).await;
    let mut line = Line::to(&server).await;
    // What else it sent is no reason to go on.
    line.send(&(request(&PATIENT_WORDS) + "PING\r\n")).await;
    found_no_room(&server).await;
    assert_eq!(server.post("/v1/acquire", ASK).await.field("retry-after"), Some("2"));
    line.send("PING\r\n*1\r\n").await;
    drop(line);
    nobody_waits(&server).await;
    server.post("/v1/release", &json!({ "permit": permit }).to_string()).await;
    assert_eq!(server.post("/v1/acquire", ASK).await.status, 200);
}

/// A waiting ask does not delay earlier replies.
#[tokio::test]
async fn what_was_asked_before_an_ask_that_waits_is_answered_before_it() {
    let server = Server::start().await;
    server.permit(ASK).await;
    let mut line = Line::to(&server).await;
    line.says(&("PING\r\n".to_owned() + &request(&PATIENT_WORDS)), "+PONG\r\n").await;
    found_no_room(&server).await;
}

/// Nothing is lost of what a client sends while its ask waits, and all of it is answered in its order, wherever it is cut;
/// also if it is more than is read ahead, and if another ask among it waits too.
#[tokio::test]
async fn what_arrives_while_an_ask_waits_is_answered_after_it() {
    let server = Server::start().await;
    let permit = server.permit(ASK).await;
    let mut line = Line::to(&server).await;
    line.send(&(request(&PATIENT_WORDS) + "PING 1\r\n")).await;
    found_no_room(&server).await;
    let text = "x".repeat(1_000);
    let many = AHEAD_BYTES_MAX / text.len() + 10;
    let (first, last) = (request(&["ECHO", "2"]), request(&["ECHO", "3"]));
    let (before, after) = last.split_at(9);
    line.send(&(first + &request(&PATIENT_WORDS))).await;
    line.send(&(request(&["ECHO", &text]).repeat(many) + before)).await;
    server.post("/v1/release", &json!({ "permit": permit }).to_string()).await;
    while server.get("/v1/stats").await.json()["policies"][2]["admitted"] != 2 {
        tokio::task::yield_now().await;
    }
    wait_ahead(&server, json!(1)).await;
    server.clock.set(START + Span::from_mins(1));
    let admitted = "$8\r\nadmitted\r\n:1\r\n";
    assert!(line.answered_before("$1\r\n1\r\n$1\r\n2\r\n").await.contains(admitted));
    let echoed = format!("$1000\r\n{text}\r\n");
    assert!(line.answered_before(&echoed).await.contains(admitted));
    line.expect(&echoed.repeat(many - 1)).await;
    line.says(after, "$1\r\n3\r\n").await;
}

/// An ask that may wait is admitted at the time that was promised.
#[tokio::test]
async fn a_patient_ask_is_admitted_when_there_is_room() {
    let server = Server::start().await;
    server.permit(ASK).await;
    let waiting = waiting(&server).await;
    server.clock.set(START + Span::from_mins(1));
    let answer = waiting.answer().await;
    assert_eq!((answer.status, &answer.json()["admitted"]), (200, &json!(true)));
}

/// A released slot goes to the first waiting ask at once; an ask that does not wait does not overtake it.
#[tokio::test]
async fn a_released_slot_goes_to_the_first_waiting_ask() {
    let server = Server::start().await;
    let permit = server.permit(ASK).await;
    let waiting = waiting(&server).await;
    assert_eq!(server.post("/v1/acquire", ASK).await.field("retry-after"), Some("2"));
    server.post("/v1/release", &json!({ "permit": permit }).to_string()).await;
    assert_eq!(waiting.answer().await.status, 200);
}

/// An ask that time alone will not admit before its deadline is refused at once.
#[tokio::test]
async fn an_ask_that_would_wait_too_long_is_refused_at_once() {
    let server = Server::start().await;
    let all =
        r#"{"policy": "gemini", "subject": "p7", "costs": {"requests": 5}, "wait_ms": 59999}"#;
    server.permit(all).await;
    let answer = server.post("/v1/acquire", all).await;
    assert_eq!((answer.status, answer.field("retry-after")), (429, Some("60")));
}

/// `GET /v1/queues` counts the waiting asks of each tenant, and needs a key for every subject.
#[tokio::test]
async fn the_tenants_of_a_queue_are_counted() {
    let server = Server::start().await;
    let nothing = json!({ "waiting": 0, "queue_count": 0, "queues": [] });
    assert_eq!(server.get("/v1/queues").await.json(), nothing);
    let permit = server.permit(ASK).await;
    let mut waiting = Vec::new();
    for tenant in ["a", "b", "a"] {
        let charges = [("gemini", tenant), ("jobs", "p7")];
        let charges =
            charges.map(|(policy, subject)| json!({ "policy": policy, "subject": subject }));
        let ask = json!({ "charges": charges, "wait_ms": 60_000 }).to_string();
        waiting.push(server.start_send("POST", "/v1/acquire", &ask).await);
        while server.get("/v1/queues").await.json()["waiting"] != waiting.len() {
            tokio::task::yield_now().await;
        }
    }
    let tenant =
        |name: &str, waiting: u64| json!({ "tenant": name, "weight": 1, "waiting": waiting });
    let queue = json!({
        "policy": "jobs", "subject": "p7", "waiting": 3, "tenant_count": 2,
        "tenants": [tenant("a", 2), tenant("b", 1)],
    });
    let expected = json!({ "waiting": 3, "queue_count": 1, "queues": [queue] });
    assert_eq!(server.get("/v1/queues").await.json(), expected);
    server.post("/v1/release", &json!({ "permit": permit }).to_string()).await;
    assert_eq!(waiting.remove(0).answer().await.status, 200);
    assert_eq!(server.get("/v1/queues").await.json()["waiting"], 2);
}

/// A shutdown answers every waiting ask with the decision at that time.
#[tokio::test]
async fn a_waiting_ask_is_answered_when_the_server_stops() {
    let server = Server::start().await;
    server.permit(ASK).await;
    let waiting = waiting(&server).await;
    let stopping = server.stop();
    let answer = waiting.answer().await;
    assert_eq!((answer.status, answer.field("retry-after")), (429, Some("1")));
    assert_eq!(stopping.done.await.unwrap().cut, 0);
}
