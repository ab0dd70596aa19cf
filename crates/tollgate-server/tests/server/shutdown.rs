//! Stopping while requests are in flight, and gates that misbehave.

use std::sync::Arc;

use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{Error, Gate};
use tollgate_server::bounds::DRAIN_MAX;

use crate::client::{Server, pass};
use crate::resp::{Line, request};

const ASK: &str = r#"{"policy": "jobs", "subject": "p7"}"#;

/// A request in flight is finished while no new one is taken.
#[tokio::test]
async fn a_request_in_flight_is_finished() {
    let held = Arc::new(Doors::default());
    let server = Server::around(|gate| Arc::new(Held { gate, doors: Arc::clone(&held) })).await;
    let waiting = server.start_send("POST", "/v1/acquire", ASK).await;
    held.entered.notified().await;
    let stopping = server.stop();
    while TcpStream::connect(stopping.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    held.open.add_permits(1);
    let answer = waiting.answer().await;
    assert_eq!(answer.status, 200);
    assert_eq!(stopping.done.await.unwrap().cut, 0);
}

/// A request that does not finish within the bound is cut, so that stopping always ends.
#[tokio::test]
async fn draining_ends() {
    let held = Arc::new(Doors::default());
    let server = Server::around(|gate| Arc::new(Held { gate, doors: Arc::clone(&held) })).await;
    let _waiting = server.start_send("POST", "/v1/acquire", ASK).await;
    held.entered.notified().await;
    let stopping = server.stop();
    pass(&stopping.clock, DRAIN_MAX).await;
    assert_eq!(stopping.done.await.unwrap().cut, 1);
}

/// A connection that is kept open without a request does not hold the server up.
#[tokio::test]
async fn an_idle_connection_does_not_hold_the_server_up() {
    let server = Server::start().await;
    let _idle = TcpStream::connect(server.address).await.unwrap();
    server.permit(ASK).await;
    assert_eq!(server.stop().done.await.unwrap().cut, 0);
}

/// Who pipelines without end does not keep the server running: what was read is answered, nothing after it is executed,
/// and no answer is lost that the client has yet to take.
#[tokio::test]
async fn a_busy_connection_of_resp_is_answered_and_ends() {
    let held = Arc::new(Doors::default());
    let server = Server::around(|gate| Arc::new(Held { gate, doors: Arc::clone(&held) })).await;
    let socket = TcpSocket::new_v4().unwrap();
    // So little fits that most answers are at the server still when it closes.
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut line = Line(socket.connect(server.resp).await.unwrap());
    let word = "x".repeat(1_024);
    line.send(&request(&["ECHO", &word]).repeat(64)).await;
    line.send("TG.RESET jobs p7\r\n").await;
    held.entered.notified().await;
    line.send(&"PING\r\n".repeat(10_000)).await;
    let stopping = server.stop();
    while TcpStream::connect(stopping.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    held.open.add_permits(1);
    line.expect(&format!("$1024\r\n{word}\r\n").repeat(64)).await;
    line.expect("*2\r\n$7\r\nchanged\r\n:0\r\n").await;
    assert!(line.closes().await);
    assert_eq!(stopping.done.await.unwrap().cut, 0);
}

#[derive(Debug)]
pub(crate) struct Doors {
    pub(crate) entered: Notify,
    pub(crate) open: Semaphore,
}

impl Default for Doors {
    fn default() -> Self {
        Self { entered: Notify::new(), open: Semaphore::new(0) }
    }
}

/// A gate that answers no ask until it is opened.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) gate: Arc<dyn Gate>,
    pub(crate) doors: Arc<Doors>,
}

/// A gate that answers everything with one error.
#[derive(Debug)]
pub(crate) struct Broken(pub(crate) Error);

impl Gate for Broken {
    fn run<'a>(&'a self, _: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async { Err(self.0.clone()) })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}

impl Gate for Held {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            self.doors.entered.notify_one();
            self.doors.open.acquire().await.unwrap().forget();
            self.gate.run(operation).await
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
