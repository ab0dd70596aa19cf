//! The dashboard of a broker that decided for more than an hour, on a clock that the test moves.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tollgate::clock::{ManualClock, SystemClock};
use tollgate::policy::Policies;
use tollgate::{Clock as _, Limit, Memory, Policy, RollingWindow, Span};
use tollgate_server::{App, run};

use crate::dashboard::look_at;

const STEP: Span = Span::from_secs(10);
/// More steps than there are in an hour.
const STEPS: usize = 370;
/// How many of the last ones ask for more than `p07` has.
const BUSY: usize = 60;

/// 38 policies with room, one in shadow mode without, and one that is never asked. `p07` admits two asks in 10 seconds.
fn policies() -> Policies {
    let limit = |most| Limit::new("burst", "requests", RollingWindow::new(most, STEP));
    let mut all: Vec<Policy> = (1..=38)
        .map(|number| {
            let most = if number == 7 { 2 } else { 100 };
            Policy::new(format!("p{number:02}"), [limit(most)]).expect("a policy")
        })
        .collect();
    all.push(Policy::builder("trial").shadow(true).limit(limit(1)).build().expect("a policy"));
    all.push(Policy::new("idle", [limit(1)]).expect("a policy"));
    Policies::new(all).expect("the names differ")
}

fn call(address: SocketAddr, method: &str, path: &str, body: &Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut stream = TcpStream::connect(address).expect("the broker listens");
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close");
    let fields = format!("content-type: application/json\r\ncontent-length: {}", body.len());
    write!(stream, "{head}\r\n{fields}\r\n\r\n{body}").expect("the broker reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the broker answers with text");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).expect("JSON")
}

#[test]
fn the_dashboard_shows_an_hour_of_40_policies() {
    let clock = ManualClock::at(SystemClock.now());
    let gate = Memory::with(Arc::new(clock.clone()), 1_024);
    let app = App::new(Arc::new(gate), policies(), [7; 32], Arc::new(clock.clone()));
    let app = app.expect("an application").history();
    let runtime = Runtime::new().expect("a runtime");
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
    let address = listener.local_addr().expect("an address");
    runtime.spawn(run(listener, app, std::future::pending()));
    // The start of a bucket, so that each step is in one.
    clock.advance(Span::from_micros(STEP.as_micros() - clock.now().as_micros() % STEP.as_micros()));
    for step in 0..STEPS {
        let names = (1..=38).map(|number| format!("p{number:02}"));
        let mut asks: Vec<Value> =
            names.map(|name| json!({ "policy": name, "subject": "s" })).collect();
        let trial = json!({ "policy": "trial", "subject": "s" });
        asks.extend([trial.clone(), trial]);
        let more = usize::from(step % 2 == 0) + 4 * usize::from(STEPS - BUSY <= step);
        asks.extend(vec![json!({ "policy": "p07", "subject": "s" }); more]);
        call(address, "POST", "/v1/acquire/batch", &json!({ "asks": asks }));
        clock.advance(STEP);
        call(address, "GET", "/v1/history?since=1s", &Value::Null);
    }
    look_at(&format!("http://{address}"), &["history"]);
}
