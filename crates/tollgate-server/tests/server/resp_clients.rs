//! Clients of the Redis protocol that are lost, or slow.

use tokio::io::AsyncReadExt as _;
use tollgate::{Span, Timestamp};
use tollgate_server::bounds::HEAD_WAIT_MAX;
use tollgate_server::keys::{Key, KeyHash, Scope};

use crate::client::{START, Server};
use crate::resp::{Line, request};

const BODY: &str = "TG.CHARGE gemini victim\r\nTG.RESET gemini victim\r\n";

/// Sends `bytes` and gives all that is answered until the end of the connection.
async fn said(server: &Server, bytes: &str) -> String {
    let mut line = Line::to(server).await;
    line.send(bytes).await;
    let mut answer = String::new();
    line.0.read_to_string(&mut answer).await.unwrap();
    answer
}

/// A web page can have a browser send a head and then lines of its choice. None of them is executed.
#[tokio::test]
async fn a_web_page_runs_no_commands() {
    let server = Server::start().await;
    let length = BODY.len();
    let fields = format!("Host: localhost\r\nContent-Type: text/plain\r\nContent-Length: {length}");
    let methods = ["POST", "post", "GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "PRI"];
    let heads = methods.map(|method| format!("{method} / HTTP/1.1\r\n{fields}\r\n\r\n"));
    // A head without its first line, and one that looks like a request.
    let more = [format!("{fields}\r\n\r\n"), request(&["post", "/"]), request(&["Host:", "x"])];
    for head in heads.iter().chain(&more) {
        let answer = said(&server, &format!("{head}{BODY}")).await;
        assert!(answer.starts_with("-ERR this port speaks the Redis protocol; HTTP "), "{answer}");
        assert_eq!(answer.lines().count(), 1, "{answer}");
    }
    let standing = server.get("/v1/standing?policy=gemini&subject=victim").await.json();
    assert_eq!(standing["limits"][0]["used"], 0);

    // Nor does it get as far as to guess at a key.
    let scopes = [Scope::Administer].into_iter().collect();
    let key = Key::new("secret", KeyHash::from_key("secret"), scopes);
    let guarded = Server::guarded([key]).await;
    let answer = said(&guarded, &format!("{}AUTH secret\r\n{BODY}", heads[0])).await;
    assert_eq!(answer.lines().count(), 1, "{answer}");
}

/// Waits until the connection has an alarm at `at`.
async fn alarm_at(server: &Server, at: Timestamp) {
    while server.clock.next_alarm() != Some(at) {
        tokio::task::yield_now().await;
    }
}

/// A request has a read deadline from its first byte; further bytes do not extend it.
#[tokio::test]
async fn a_request_that_is_not_finished_in_time_ends_the_connection() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    line.says("PING\r\n", "+PONG\r\n").await;
    line.send("*1\r\n$4\r\nPI").await;
    alarm_at(&server, START + HEAD_WAIT_MAX).await;
    server.clock.set(START + HEAD_WAIT_MAX - Span::from_secs(1));
    line.send("N").await;
    // A later connection is answered, so the byte has been read.
    Line::to(&server).await.says("PING\r\n", "+PONG\r\n").await;
    server.clock.set(START + HEAD_WAIT_MAX);
    assert!(line.closes().await);
}

/// The time is that of each request, from its own beginning; between requests a connection may rest.
#[tokio::test]
async fn a_request_that_is_finished_in_time_is_answered() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    let second = Span::from_secs(1);
    let almost = START + HEAD_WAIT_MAX - second;
    line.send("*1\r\n$4\r\nPI").await;
    alarm_at(&server, START + HEAD_WAIT_MAX).await;
    server.clock.set(almost);
    // The end of one and the beginning of the next.
    line.says("NG\r\n*1\r\n$4\r\nPI", "+PONG\r\n").await;
    server.clock.set(START + HEAD_WAIT_MAX);
    alarm_at(&server, almost + HEAD_WAIT_MAX).await;
    server.clock.set(almost + HEAD_WAIT_MAX - second);
    line.says("NG\r\n", "+PONG\r\n").await;
    server.clock.advance(HEAD_WAIT_MAX.plus(HEAD_WAIT_MAX));
    line.says("PING\r\n", "+PONG\r\n").await;
}
