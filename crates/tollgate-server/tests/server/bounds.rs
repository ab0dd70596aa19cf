//! Slow, silent, greedy and confused clients of HTTP, in both versions.

use axum::BoxError;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::{Body, Bytes};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tollgate::Span;
use tollgate_server::bounds::{BODY_BYTES_MAX, BODY_WAIT_MAX, HEAD_BYTES_MAX, HEAD_WAIT_MAX};
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;

use crate::client::{Pending, Server, pass};

pub(crate) async fn http2<B>(server: &Server) -> SendRequest<B>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let io = TokioIo::new(TcpStream::connect(server.address).await.unwrap());
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Sends `body` and gives status and body of the answer.
pub(crate) async fn post(
    sender: &mut SendRequest<Full<Bytes>>,
    body: impl Into<Bytes>,
) -> (u16, String) {
    let request =
        Request::post("http://test/v1/acquire").header("content-type", "application/json");
    let request = request.body(Full::new(body.into())).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    let status = answer.status().as_u16();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test]
async fn http2_answers_as_http1_does_many_at_once() {
    let server = Server::start().await;
    let sender = http2(&server).await;
    let asks = (0..7).map(|_| {
        let mut sender = sender.clone();
        tokio::spawn(async move {
            post(&mut sender, r#"{"policy": "gemini", "subject": "p7"}"#).await.0
        })
    });
    let mut statuses = Vec::new();
    for ask in asks.collect::<Vec<_>>() {
        statuses.push(ask.await.unwrap());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    let (status, text) = post(&mut sender.clone(), vec![b' '; BODY_BYTES_MAX + 1]).await;
    assert!(status == 413 && text.contains("too-large"), "{status} {text}");
    drop(sender);
    assert_eq!(server.stop().done.await.unwrap().cut, 0);
}

/// An answer that comes before the body was read leaves the stream open: a client that looks at the end of its stream
/// first would not see what is wrong.
#[tokio::test]
async fn an_unread_body_is_drained_over_http2() {
    let server = Server::start().await;
    let mut sender = http2(&server).await;
    let (chunks, arriving) = tokio::sync::mpsc::channel::<Result<Bytes, BoxError>>(1);
    let body = axum::body::Body::from_stream(ReceiverStream::new(arriving));
    let request = Request::post("http://test/v1/nothing").body(body).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 404);
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert!(!chunks.is_closed(), "the stream was reset");
    chunks.send(Ok(Bytes::from_static(b"{}"))).await.unwrap();
    // Not for ever.
    pass(&server.clock, BODY_WAIT_MAX).await;
    chunks.closed().await;
}

/// A client that says nothing, sends half a head, or has been answered and says no more, loses its connection.
#[tokio::test]
async fn half_open_connections_are_closed() {
    let server = Server::start().await;
    let whole = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    for bytes in ["", "P", "PRI * HTT", "GET /healthz HTTP/1.1\r\nhost: ", whole] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        if bytes == whole {
            let mut answer = [0; 15];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200 OK");
        }
        pass(&server.clock, HEAD_WAIT_MAX).await;
        stream.read_to_end(&mut Vec::new()).await.ok();
    }
    let mut sender = http2(&server).await;
    post(&mut sender, "{}").await;
    pass(&server.clock, HEAD_WAIT_MAX).await;
    while !sender.is_closed() {
        tokio::task::yield_now().await;
    }
}

/// A head that arrives byte by byte does not put the alarm off.
#[tokio::test]
async fn a_slow_head_is_not_waited_for() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    while server.clock.next_alarm().is_none() {
        tokio::task::yield_now().await;
    }
    for byte in b"GET /" {
        stream.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
        server.clock.advance(Span::from_secs(15));
    }
    stream.read_to_end(&mut Vec::new()).await.ok();
}

/// A head that is a little too large is answered with a document, in both versions.
#[tokio::test]
async fn the_error_of_too_large_a_head_names_its_bound() {
    let server = Server::start().await;
    let detail = "the head of a request has at most 32768 bytes; send less";
    let field = "a".repeat(HEAD_BYTES_MAX);
    let request =
        format!("GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx: {field}\r\n\r\n");
    let answer = Pending::send(server.address, &request).await.answer().await;
    assert_eq!((answer.status, &answer.json()["detail"]), (431, &json!(detail)));
    assert_eq!(answer.field("content-type"), Some("application/problem+json"));

    let mut sender = http2::<Full<Bytes>>(&server).await;
    let request = Request::get("http://test/healthz").header("x", field).body(Full::default());
    let answer = sender.send_request(request.unwrap()).await.unwrap();
    assert_eq!(answer.status(), 431);
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["detail"], detail);
}

/// Who asks and asks and never takes an answer is cut, in both versions.
#[tokio::test]
async fn a_client_that_takes_no_answers_is_cut() {
    let server = Server::start().await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    let flood = "GET /main.js HTTP/1.1\r\nhost: x\r\n\r\n".repeat(64);
    // Once both sides have all that fits on the way, nothing more is taken.
    let mut idle = 0;
    while idle < 1_000 {
        match stream.try_write(flood.as_bytes()) {
            Ok(_) => idle = 0,
            Err(_) => idle += 1,
        }
        tokio::task::yield_now().await;
    }
    pass(&server.clock, HEAD_WAIT_MAX).await;
    stream.read_to_end(&mut Vec::new()).await.ok();

    let io = TokioIo::new(TcpStream::connect(server.address).await.unwrap());
    let mut client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    // No byte of a body may come.
    let (mut sender, connection) =
        client.initial_stream_window_size(0).handshake(io).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("http://test/v1/policies").body(Full::<Bytes>::default());
    let answer = sender.send_request(request.unwrap()).await.unwrap();
    pass(&server.clock, HEAD_WAIT_MAX).await;
    assert!(answer.into_body().collect().await.is_err());
}

#[tokio::test]
async fn oversize_and_malformed_heads_are_refused_and_the_server_goes_on() {
    let server = Server::start().await;
    let long =
        format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "a".repeat(2 * HEAD_BYTES_MAX));
    let many = format!("GET / HTTP/1.1\r\nhost: x\r\n{}\r\n", "x: y\r\n".repeat(200));
    let rows = [
        (long.as_str(), "HTTP/1.1 431 "),
        (&many, "HTTP/1.1 431 "),
        ("nonsense\r\n\r\n", "HTTP/1.1 400 "),
        ("GET / HTTP/1.1\r\nhost : x\r\n\r\n", "HTTP/1.1 400 "),
        ("POST /v1/acquire HTTP/1.1\r\ncontent-length: x\r\n\r\n", "HTTP/1.1 400 "),
    ];
    for (bytes, status) in rows {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        let mut answer = vec![0; status.len()];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), status);
    }
    // HTTP/2, and then frames of an unknown kind that claim to be larger than any may be.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    stream.write_all(&[255; 64]).await.unwrap();
    stream.read_to_end(&mut Vec::new()).await.ok();
    assert_eq!(server.get("/healthz").await.status, 200);
}
