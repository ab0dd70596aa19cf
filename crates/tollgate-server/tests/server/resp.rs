//! The Redis protocol, byte for byte over real connections.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate::policy::Policies;
use tollgate::{Clock, Error, ErrorKind, Limit, Policy, Span, TokenBucket};
use tollgate_server::App;
use tollgate_server::bounds::{ARGS_MAX, FRAME_BYTES_MAX, HEAD_WAIT_MAX, IDLE_MAX, WRITE_WAIT_MAX};

use crate::client::{KEY, Server, pass};
use crate::shutdown::Broken;

/// A connection that shows every byte.
pub(crate) struct Line(pub(crate) TcpStream);

impl Line {
    pub(crate) async fn to(server: &Server) -> Self {
        let stream = TcpStream::connect(server.resp).await.unwrap();
        // What is sent is there at once, also a single byte.
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    pub(crate) async fn send(&mut self, bytes: &str) {
        self.0.write_all(bytes.as_bytes()).await.unwrap();
    }

    /// Sends `bytes` and expects exactly `answer`.
    pub(crate) async fn says(&mut self, bytes: &str, answer: &str) {
        self.send(bytes).await;
        self.expect(answer).await;
    }

    pub(crate) async fn expect(&mut self, answer: &str) {
        let mut read = vec![0; answer.len()];
        self.0.read_exact(&mut read).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&read), answer);
    }

    /// Sends `words` and gives the answer, which is one that fits into one packet.
    pub(crate) async fn ask(&mut self, words: &[&str]) -> String {
        self.send(&request(words)).await;
        let mut read = vec![0; 8_192];
        let length = self.0.read(&mut read).await.unwrap();
        String::from_utf8(read[..length].to_vec()).unwrap()
    }

    /// What is answered before `end`.
    pub(crate) async fn answered_before(&mut self, end: &str) -> String {
        let mut read = Vec::new();
        while !read.ends_with(end.as_bytes()) {
            read.push(self.0.read_u8().await.unwrap());
        }
        read.truncate(read.len() - end.len());
        String::from_utf8(read).unwrap()
    }

    /// Whether the server closes the connection without another word. If it does so while there is something left to
    /// read, that is a reset.
    pub(crate) async fn closes(mut self) -> bool {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).await.ok();
        rest.is_empty()
    }
}

/// `words` as clients send them.
pub(crate) fn request(words: &[&str]) -> String {
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text += &format!("${}\r\n{word}\r\n", word.len());
    }
    text
}

pub(crate) fn numbers(numbers: [i64; 5]) -> String {
    let numbers = numbers.map(|number| format!(":{number}\r\n"));
    format!("*5\r\n{}", numbers.concat())
}

/// What redis-cell answers to its README's example: a burst of 15 and 30 per minute.
#[tokio::test]
async fn cl_throttle_answers_as_redis_cell_does() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    let call = request(&["CL.THROTTLE", "user123", "15", "30", "60", "1"]);
    line.says(&call, &numbers([0, 16, 15, -1, 2])).await;
    for taken in 2..=16 {
        line.says(&call, &numbers([0, 16, 16 - taken, -1, taken * 2])).await;
    }
    line.says(&call, &numbers([1, 16, 0, 2, 32])).await;
    server.clock.advance(Span::from_micros(1));
    line.says(&call, &numbers([1, 16, 0, 2, 32])).await;
    server.clock.advance(Span::from_micros(1_999_999));
    line.says(&call, &numbers([0, 16, 0, -1, 32])).await;
}

#[tokio::test]
async fn cl_throttle_peeks_takes_many_and_says_never() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    let call = |quantity: &str| request(&["cl.throttle", "k", "9", "10", "1", quantity]);
    line.says(&call("0"), &numbers([0, 10, 10, -1, 0])).await;
    line.says(&call("10"), &numbers([0, 10, 0, -1, 1])).await;
    line.says(&call("0"), &numbers([0, 10, 0, -1, 1])).await;
    line.says(&call("5"), &numbers([1, 10, 0, 1, 1])).await;
    line.says(&call("11"), &numbers([1, 10, 0, -1, 1])).await;
    // Without a quantity it is one. Other numbers keep the time at which all is back: in 1 s, of which 0.5 s are tolerated.
    line.says(&request(&["CL.THROTTLE", "k", "9", "20", "1"]), &numbers([1, 10, 0, 1, 1])).await;
}

#[tokio::test]
async fn cl_throttle_refuses_what_makes_no_sense_and_changes_nothing() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    for (words, reason) in [
        (&["CL.THROTTLE", "k"][..], "wrong number of arguments"),
        (&["CL.THROTTLE", "k", "9", "10", "1", "-1"], "quantity \"-1\" must be a whole number"),
        (&["CL.THROTTLE", "k", "x", "10", "1"], "max_burst \"x\" must be a whole number"),
        (
            &["CL.THROTTLE", "k", "9007199254740991", "1", "1"],
            "max_burst \"9007199254740991\" must",
        ),
        (
            &["CL.THROTTLE", "k", "9", "0", "1"],
            "-INVALID count \"0\" must be a whole number from 1 to",
        ),
        (
            &["CL.THROTTLE", "k", "9", "1", "0"],
            "-INVALID period \"0\" must be a whole number from 1 to",
        ),
        (&["CL.THROTTLE", "k", "9", "1", "316224001"], "-INVALID period \"316224001\" must be"),
        (&["CL.THROTTLE", "", "9", "10", "1"], "a key must be 1 to 256 bytes long, not 0"),
    ] {
        let answer = line.ask(words).await;
        assert!(answer.starts_with("-INVALID "), "{answer}");
        assert!(answer.contains(reason), "{answer}");
    }
    line.says(&request(&["CL.THROTTLE", "k", "9", "10", "1"]), &numbers([0, 10, 9, -1, 1])).await;
}

/// A key that is seen among the limited ones cannot be looked up by the name of a policy, and the error says how it can.
#[tokio::test]
async fn a_lookup_of_a_cl_throttle_key_names_the_right_command() {
    let server = Server::start().await;
    let answer = server.get("/v1/standing?policy=cl.throttle&subject=k").await;
    assert_eq!(answer.status, 404);
    assert!(answer.text.contains("CL.THROTTLE with a quantity of 0"), "{}", answer.text);
}

/// A gate that only knows policies by their names fails to know that of a call, and the error says where to ask.
#[tokio::test]
async fn cl_throttle_on_a_broker_that_passes_asks_on_says_where_to_ask() {
    let error = Error::new(ErrorKind::UnknownPolicy, "no policy is called \"cl.throttle\"");
    let server = Server::around(|_| Arc::new(Broken(error))).await;
    let mut line = Line::to(&server).await;
    for quantity in ["0", "1"] {
        let answer = line.ask(&["CL.THROTTLE", "k", "9", "10", "1", quantity]).await;
        assert!(answer.contains("passes asks on to another"), "{answer}");
    }
}

/// A policy of that name would share its entries with `CL.THROTTLE`, which needs no scope but `acquire`.
#[tokio::test]
async fn no_policy_may_be_called_as_cl_throttle_calls_its_own() {
    let server = Server::start().await;
    let bucket = Limit::new("all", "requests", TokenBucket::per_second(1));
    let own = Policies::new([Policy::new("cl.throttle", [bucket]).unwrap()]).unwrap();
    let refused = server.app.replace_policies(own.clone()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(server.app.policies().get("jobs").is_ok(), "the others stay in force");
    let gate = Arc::new(Broken(Error::new(ErrorKind::Unavailable, "away")));
    let refused = App::new(gate, own, KEY, Arc::new(server.clock.clone())).unwrap_err();
    assert!(
        refused.to_string().contains("the policy name \"cl.throttle\" is reserved"),
        "{refused}"
    );
}

/// Requests that arrive together are answered in their order, wherever the packets are cut.
#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    let calls = request(&["ECHO", "a"]) + "\r\nPING b\n" + &request(&["PING"]);
    for byte in calls.repeat(3).as_bytes() {
        line.0.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    line.expect(&"$1\r\na\r\n$1\r\nb\r\n+PONG\r\n".repeat(3)).await;
    let many = request(&["CL.THROTTLE", "k", "9", "1", "60"]).repeat(12);
    line.send(&many).await;
    for left in (0..10).rev() {
        line.expect(&numbers([0, 10, left, -1, (10 - left) * 60])).await;
    }
    line.expect(&numbers([1, 10, 0, 60, 600]).repeat(2)).await;
}

/// The native calls carry the same members as HTTP, and a permit goes back and forth between the two.
#[tokio::test]
async fn native_calls_answer_as_http_does() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    let standing = "$6\r\npolicy\r\n$4\r\njobs\r\n$7\r\nsubject\r\n$2\r\np7\r\n";
    let answer = line.ask(&["TG.STANDING", "jobs", "p7"]).await;
    for part in [standing, "$4\r\nused\r\n:0\r\n", "$8\r\nreset_at\r\n$-1\r\n"] {
        assert!(answer.contains(part), "{part:?} is not in {answer:?}");
    }
    line.ask(&["HELLO", "3"]).await;
    let answer = line.ask(&["TG.ACQUIRE", "jobs", "p7"]).await;
    assert!(answer.contains("$8\r\nadmitted\r\n#t\r\n"), "{answer:?}");
    let permit = answer.split("$6\r\npermit\r\n").nth(1).unwrap().split("\r\n").nth(1).unwrap();
    let refused = line.ask(&["TG.ACQUIRE", "jobs", "p7", "cost", "requests", "1"]).await;
    assert!(refused.contains("$8\r\nadmitted\r\n#f\r\n"), "{refused:?}");
    assert!(refused.contains("$14\r\nretry_after_ms\r\n:1000\r\n"), "{refused:?}");
    assert!(refused.contains("$9\r\nestimated\r\n#t\r\n"), "{refused:?}");
    assert!(
        refused.contains("$10\r\nexpires_at\r\n$20\r\n2026-11-15T05:46:00Z\r\n"),
        "{refused:?}"
    );
    let renewed = line.ask(&["TG.RENEW", permit]).await;
    assert!(renewed.contains("expires_at"), "{renewed:?}");
    let changed = |changed| format!("%1\r\n$7\r\nchanged\r\n#{changed}\r\n");
    assert_eq!(line.ask(&["TG.RELEASE", permit]).await, changed("t"));
    let over_http = server.post("/v1/release", &format!("{{\"permit\": {permit:?}}}")).await;
    assert_eq!(over_http.json()["changed"], false);
    assert_eq!(line.ask(&["TG.SETTLE", permit, "COST", "requests", "0"]).await, changed("f"));
}

#[tokio::test]
async fn an_ask_over_resp_is_charged_once_and_waits() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    let ask = ["TG.ACQUIRE", "gemini", "p7", "COST", "tokens", "100", "ID", "a1"];
    assert_eq!(line.ask(&ask).await, line.ask(&ask).await);
    let conflict = line.ask(&["TG.ACQUIRE", "gemini", "p7", "ID", "a1"]).await;
    assert!(conflict.starts_with("-CONFLICT "), "{conflict}");
    line.ask(&["TG.ACQUIRE", "jobs", "p7"]).await;
    line.send(&request(&["TG.ACQUIRE", "jobs", "p7", "WAIT", "60000"])).await;
    while server.clock.next_alarm().is_none_or(|at| server.clock.now() + Span::from_mins(1) < at) {
        tokio::task::yield_now().await;
    }
    server.clock.advance(Span::from_mins(1));
    line.expect("*").await;
}

#[tokio::test]
async fn mistakes_are_explained_and_the_connection_goes_on() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    for (words, answer) in [
        (&["GET", "x"][..], "-ERR unknown command \"GET\"; known: CL.THROTTLE, "),
        (&["a-very-long-name-that-is-no-command"], "-ERR unknown command "),
        (&["TG.ACQUIRE", "api"], "-INVALID wrong number of arguments; write TG.ACQUIRE policy"),
        (&["TG.ACQUIRE", "nope", "p"], "-UNKNOWN-POLICY no policy is called \"nope\""),
        (&["TG.ACQUIRE", "jobs", "p", "COST", "requests"], "-INVALID wrong number of arguments"),
        (&["TG.ACQUIRE", "jobs", "p", "COST", "requests", "x"], "-INVALID \"x\" must be a whole"),
        (&["TG.ACQUIRE", "jobs", "p", "HOW"], "-INVALID unknown option \"HOW\"; write TG."),
        (&["TG.RELEASE", "garbage"], "-INVALID the permit is not one that was given out"),
        (&["TG.RELEASE"], "-INVALID wrong number of arguments; write TG.RELEASE permit"),
        (&["HELLO", "4"], "-NOPROTO "),
    ] {
        let got = line.ask(words).await;
        assert!(got.starts_with(answer), "{words:?}: {got}");
    }
    line.says("PING\r\n", "+PONG\r\n").await;
}

#[tokio::test]
async fn clients_find_what_they_ask_for_when_they_connect() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    line.says(&request(&["CLIENT", "SETINFO", "LIB-NAME", "x"]), "+OK\r\n").await;
    line.says(&request(&["SELECT", "0"]), "+OK\r\n").await;
    line.says(&request(&["CLIENT", "GETNAME"]), "$-1\r\n").await;
    line.says(&request(&["CONFIG", "GET", "save"]), "*0\r\n").await;
    line.says(&request(&["COMMAND", "DOCS"]), "*0\r\n").await;
    line.says(&request(&["COMMAND", "COUNT"]), ":21\r\n").await;
    assert!(line.ask(&["COMMAND"]).await.starts_with("*21\r\n*6\r\n$11\r\ncl.throttle\r\n"));
    assert_eq!(line.ask(&["COMMAND", "INFO"]).await, line.ask(&["COMMAND"]).await);
    let throttle = "*6\r\n$11\r\ncl.throttle\r\n:-1\r\n*0\r\n:0\r\n:0\r\n:0\r\n";
    let asked = request(&["COMMAND", "INFO", "CL.THROTTLE", "GET"]);
    line.says(&asked, &format!("*2\r\n{throttle}$-1\r\n")).await;
    assert!(line.ask(&["HELLO"]).await.starts_with("*12\r\n$6\r\nserver\r\n$8\r\ntollgate\r\n"));
    assert!(line.ask(&["HELLO", "3"]).await.starts_with("%6\r\n"));
    line.ask(&["TG.ACQUIRE", "jobs", "p7"]).await;
    assert!(line.ask(&["INFO"]).await.contains("jobs:admitted=1,refused=0,"));
    line.says(&request(&["QUIT"]), "+OK\r\n").await;
    assert!(line.closes().await);
}

/// What is not done is not said to be done.
#[tokio::test]
async fn what_a_redis_does_and_this_does_not_is_refused() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    for (words, error) in [
        (&["CLIENT", "kill"][..], "unknown subcommand 'kill' of CLIENT; known: SETNAME, "),
        (&["CLIENT"], "unknown subcommand '' of CLIENT"),
        (&["CONFIG", "SET", "save", ""], "unknown subcommand 'SET' of CONFIG; known: GET"),
        (&["SELECT", "abc"], "value is not an integer or out of range"),
        (&["SELECT", "-1"], "DB index is out of range"),
        (&["SELECT", "5"], "DB index is out of range; there is only 0"),
        (&["SELECT"], "wrong number of arguments for 'select' command"),
        (&["DEL"], "wrong number of arguments for 'del' command"),
        (&["ECHO"], "wrong number of arguments for 'echo' command"),
    ] {
        let answer = line.ask(words).await;
        assert!(answer.starts_with(&format!("-ERR {error}")), "{words:?}: {answer}");
    }
}

/// A frame that is malformed or too large is answered and ends the connection, before its content is read.
#[tokio::test]
async fn malformed_and_oversize_frames_end_the_connection() {
    let server = Server::start().await;
    let long = "x".repeat(FRAME_BYTES_MAX);
    let wide = format!("*{}\r\n", ARGS_MAX + 1);
    for bytes in ["*1\r\n$999999999\r\n", "*1\r\n+PING\r\n", "*x\r\n", &wide, &long] {
        let mut line = Line::to(&server).await;
        line.send(bytes).await;
        line.expect("-ERR Protocol error: ").await;
        line.0.read_to_end(&mut Vec::new()).await.ok();
    }
    Line::to(&server).await.says("PING\r\n", "+PONG\r\n").await;
}

#[tokio::test]
async fn a_silent_connection_is_closed_in_the_end() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    line.says("PING\r\n", "+PONG\r\n").await;
    while server.clock.next_alarm().is_none() {
        tokio::task::yield_now().await;
    }
    server.clock.advance(IDLE_MAX);
    server.clock.advance(IDLE_MAX);
    assert!(line.closes().await);
}

/// Where keys are needed, a connection that shows none is not kept for an hour, whatever else it says.
#[tokio::test]
async fn a_stranger_is_closed_soon() {
    let server = Server::guarded([]).await;
    let mut line = Line::to(&server).await;
    let end = server.clock.now() + HEAD_WAIT_MAX;
    line.says("PING\r\n", "-NOAUTH Authentication required.\r\n").await;
    server.clock.advance(Span::from_secs(1));
    line.says("PING\r\n", "-NOAUTH Authentication required.\r\n").await;
    assert_eq!(server.clock.next_alarm(), Some(end));
    server.clock.advance(HEAD_WAIT_MAX);
    assert!(line.closes().await);
}

/// A protocol at its connection limit leaves room in the others; further connections wait for one to end.
#[tokio::test]
async fn one_protocol_cannot_shut_out_the_others() {
    let server = Server::with_room(8).await;
    let mut lines = Vec::new();
    // One place is kept for each of three protocols; the other five are shared.
    for _ in 0..6 {
        let mut line = Line::to(&server).await;
        line.says("PING\r\n", "+PONG\r\n").await;
        lines.push(line);
    }
    let mut waiting = Line::to(&server).await;
    waiting.send("PING\r\n").await;
    for _ in 0..3 {
        assert_eq!(server.get("/healthz").await.status, 200);
    }
    assert!(waiting.0.try_read(&mut [0]).is_err(), "there was room for one too many");
    lines.pop();
    waiting.expect("+PONG\r\n").await;
}

/// A client that sends without reading replies is disconnected, and delays no other client.
#[tokio::test]
async fn a_client_that_takes_no_answers_is_cut() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    let flood = request(&["ECHO", &"x".repeat(1_024)]).repeat(64);
    let sends = async {
        loop {
            line.send(&flood).await;
        }
    };
    let others = async {
        Line::to(&server).await.says("PING\r\n", "+PONG\r\n").await;
        // The alarm is there once an answer is stuck.
        pass(&server.clock, WRITE_WAIT_MAX).await;
    };
    tokio::select! {
        () = sends => {}
        () = others => {}
    }
    line.0.read_to_end(&mut Vec::new()).await.ok();
    Line::to(&server).await.says("PING\r\n", "+PONG\r\n").await;
}

#[tokio::test]
async fn a_store_that_is_down_is_an_error() {
    let error = Error::new(ErrorKind::Unavailable, "redis: no route\r\nto host");
    let server = Server::around(|_| Arc::new(Broken(error))).await;
    let mut line = Line::to(&server).await;
    let call = request(&["CL.THROTTLE", "k", "9", "10", "1"]);
    line.says(&call, "-UNAVAILABLE redis: no route  to host\r\n").await;
}

/// Stopping closes idle connections at once.
#[tokio::test]
async fn stopping_does_not_wait_for_idle_connections() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    line.says("PING\r\n", "+PONG\r\n").await;
    assert_eq!(server.stop().done.await.unwrap().cut, 0);
    assert!(line.closes().await);
}
