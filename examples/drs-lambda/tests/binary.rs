//! The function's own binary on a runtime interface: its settings come from environment variables.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper of a test fails by panicking"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use tollgate::Span;
use tollgate::clock::SystemClock;
use tollgate_testkit::fakes::drs::{FakeDrs, Fault, Server, Settings};
use tollgate_testkit::servers::{Inbox, Ministack, eventually};

/// Reads a request: its first line and its body.
fn request(stream: &TcpStream) -> (String, Vec<u8>) {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if head.is_empty() {
            head = line;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (head, body)
}

/// Gives `event` to the function that asks for one, and returns its answer.
fn invoke(listener: &TcpListener, event: &Value) -> Value {
    loop {
        let (mut stream, _) = listener.accept().unwrap();
        let (head, body) = request(&stream);
        let text = if head.contains("/next") { event.to_string() } else { String::new() };
        let head_of_reply = "HTTP/1.1 200 OK\r\nLambda-Runtime-Aws-Request-Id: r-1\r\nLambda-Runtime-Deadline-Ms: 9999999999999";
        let reply = format!(
            "{head_of_reply}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        );
        stream.write_all(reply.as_bytes()).unwrap();
        if head.contains("/response") || head.contains("/error") {
            return serde_json::from_slice(&body).unwrap();
        }
    }
}

/// A call that fails in all its attempts: as many as the variable says, a line for each in the log, and one message to the
/// topic before the answer.
#[tokio::test(flavor = "multi_thread")]
async fn r001_12_r001_13_the_environment_sets_retries_log_and_alerts_of_the_function() {
    let emulator = Ministack::start().unwrap();
    let inbox = Inbox::new(&emulator, "drs").unwrap();
    let account = Settings { retry_after: Span::ZERO, ..Settings::default() };
    let fake = Arc::new(FakeDrs::new(Arc::new(SystemClock), account));
    let server = Server::start(fake, 0).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut function = Command::new(env!("CARGO_BIN_EXE_drs-lambda"))
        .env("AWS_LAMBDA_RUNTIME_API", listener.local_addr().unwrap().to_string())
        .env("AWS_LAMBDA_FUNCTION_NAME", "drs")
        .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128")
        .env("AWS_LAMBDA_FUNCTION_VERSION", "1")
        .env("AWS_REGION", "eu-central-1")
        .envs([("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")])
        .env("AWS_ENDPOINT_URL_SNS", emulator.endpoint())
        .env("AWS_ENDPOINT_URL_STS", emulator.endpoint())
        .env("DRS_ENDPOINT", server.endpoint())
        .env("DRS_ALERTS_TOPIC_ARN", inbox.topic())
        .envs([("DRS_MAX_RETRIES", "1"), ("DRS_BASE_DELAY", "1ms"), ("DRS_LOG_LEVEL", "warning")])
        .env("DRS_ROLE_ARN", "arn:aws:iam::210987654321:role/operator")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    server.fake().inject(None, 2, Fault::Throttled);
    let event = json!({
        "version": "2.0", "rawPath": "/capacity", "isBase64Encoded": false,
        "requestContext": { "http": { "method": "GET", "path": "/capacity" } },
    });
    let answer = tokio::task::spawn_blocking(move || invoke(&listener, &event)).await.unwrap();
    function.kill().unwrap();
    let mut printed = String::new();
    function.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    function.wait().unwrap();
    assert_eq!(answer["statusCode"], 503, "{answer}");
    assert_eq!(server.fake().arrivals().all().len(), 2);
    let lines = printed.lines().map(|line| serde_json::from_str(line).unwrap());
    let log: Vec<Value> = lines.filter(|line: &Value| line["event"].is_string()).collect();
    let events: Vec<&str> = log.iter().filter_map(|line| line["event"].as_str()).collect();
    assert_eq!(events, ["rate_limit_error", "rate_limit_error", "retry_exhausted"]);
    assert!(log.iter().all(|line| line["account"] == "210987654321"), "{log:?}");
    let messages =
        eventually(|| Some(inbox.take(&emulator).unwrap()).filter(|all| !all.is_empty()));
    let messages = messages.unwrap();
    assert_eq!(messages.len(), 1);
    let text = messages[0]["Message"].as_str().unwrap();
    assert!(text.contains("Attempts: 2") && text.contains("210987654321"), "{text}");
}
