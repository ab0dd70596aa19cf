//! Clients of gRPC that are slow, half there, too many or wrong: each costs a bounded amount and delays no other client.

use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tollgate_server::bounds::{CALL_HEAD_BYTES_MAX, CALLS_MAX, HEAD_WAIT_MAX};

use crate::client::{Server, pass};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

type Sender = SendRequest<Full<Bytes>>;

async fn connect(server: &Server) -> Sender {
    let stream = TcpStream::connect(server.grpc).await.unwrap();
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// The status of a call whose message is `body`.
async fn call(sender: &mut Sender, fields: &[(&str, &str)], body: &[u8]) -> Option<String> {
    let mut request = Request::post("http://x/tollgate.v1.Gate/Acquire")
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::copy_from_slice(body))).unwrap();
    let answer = sender.send_request(request).await.ok()?;
    let status = answer.headers().get("grpc-status").cloned();
    let body = answer.into_body().collect().await.ok()?;
    let status = status.or_else(|| body.trailers()?.get("grpc-status").cloned());
    Some(status?.to_str().unwrap().to_owned())
}

/// A message of gRPC: whether it is compressed, its length, and the bytes.
fn message(flag: u8, length: u32, bytes: &[u8]) -> Vec<u8> {
    [&[flag][..], &length.to_be_bytes(), bytes].concat()
}

/// `jobs` for `p7`.
fn ask() -> Vec<u8> {
    let bytes = b"\x0a\x04jobs\x12\x02p7";
    message(0, u32::try_from(bytes.len()).unwrap(), bytes)
}

#[tokio::test]
async fn malformed_messages_have_a_status_and_the_connection_goes_on() {
    let server = Server::start().await;
    let mut sender = connect(&server).await;
    let rows: [(&str, Vec<u8>); 6] = [
        ("nothing", Vec::new()),
        ("half a head", vec![0, 0]),
        ("less than it says", message(0, 100, b"abc")),
        ("compressed, without an encoding", message(1, 3, b"abc")),
        ("no message of this kind", message(0, 3, b"\xff\xff\xff")),
        ("more than is taken", message(0, u32::MAX, b"")),
    ];
    for (what, body) in rows {
        let status = call(&mut sender, &[], &body).await;
        assert!(status.as_deref().is_some_and(|status| status != "0"), "{what}: {status:?}");
    }
    assert_eq!(call(&mut sender, &[("grpc-encoding", "gzip")], &ask()).await.unwrap(), "12");
    assert_eq!(call(&mut sender, &[("grpc-timeout", "soon")], &ask()).await.unwrap(), "3");
    let long = "x".repeat(usize::try_from(CALL_HEAD_BYTES_MAX).unwrap());
    assert_ne!(call(&mut sender, &[("x-long", &long)], &ask()).await.as_deref(), Some("0"));
    assert_eq!(call(&mut connect(&server).await, &[], &ask()).await.unwrap(), "0");
}

/// What is no HTTP/2, or breaks its rules, ends its own connection.
#[tokio::test]
async fn malformed_frames_end_their_connection_and_no_other() {
    let server = Server::start().await;
    let mut other = connect(&server).await;
    let rows = [
        ("a frame of 16 MB", vec![255, 255, 255, 0, 0, 0, 0, 0, 1]),
        ("data of a stream that is not open", frame(0, 0, 9, b"x")),
        ("a window of nothing", frame(8, 0, 0, &[0; 4])),
        ("fields that do not decode", frame(HEADERS, END_HEADERS, 1, &[0xff])),
    ];
    for (what, wrong) in rows {
        let mut stream = TcpStream::connect(server.grpc).await.unwrap();
        stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[]), &wrong].concat()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok();
        // Its settings, and then the frame that says why it goes away.
        assert!(answer.windows(2).any(|part| part == [7, 0]), "{what}: {answer:?}");
        assert_eq!(call(&mut other, &[], &ask()).await.unwrap(), "0", "{what}");
        server.clock.advance(tollgate::Span::from_mins(1));
    }
}

/// A connection without a complete preface is closed at the deadline; one with a preface is not.
#[tokio::test]
async fn connections_that_never_begin_are_cut() {
    let server = Server::start().await;
    for begun in [&b""[..], &PREFACE[..23]] {
        let mut stream = TcpStream::connect(server.grpc).await.unwrap();
        stream.write_all(begun).await.unwrap();
        pass(&server.clock, HEAD_WAIT_MAX).await;
        stream.read_to_end(&mut Vec::new()).await.ok();
    }
    let mut sender = connect(&server).await;
    for _ in 0..2 {
        assert_eq!(call(&mut sender, &[], &ask()).await.unwrap(), "0");
        server.clock.advance(HEAD_WAIT_MAX);
    }
}

/// Calls beyond the advertised limit of concurrent streams are refused, and only those.
#[tokio::test]
async fn a_connection_has_so_many_calls_at_once() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.grpc).await.unwrap();
    let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let fields = [
        // POST, http, the path, the authority and the type, as HPACK writes them without a table.
        &[0x83, 0x86, 0x04, 24][..],
        b"/tollgate.v1.Gate/Acquire",
        &[0x01, 1, b'x', 0x0f, 0x10, 16],
        b"application/grpc",
    ];
    let mut fields = fields.concat();
    fields[3] = u8::try_from("/tollgate.v1.Gate/Acquire".len()).unwrap();
    for call in 0..CALLS_MAX + 44 {
        bytes.extend(frame(HEADERS, END_HEADERS, call * 2 + 1, &fields));
    }
    bytes.extend(frame(PING, 0, 0, b"are you?"));
    stream.write_all(&bytes).await.unwrap();
    let (mut advertised, mut refused) = (None, 0);
    loop {
        let (kind, flags, payload) = read_frame(&mut stream).await;
        match kind {
            SETTINGS => {
                let most = payload.chunks(6).find(|setting| setting[..2] == [0, 3]);
                advertised = advertised.or(most.map(|most| most[2..].to_vec()));
            }
            RST_STREAM => {
                assert_eq!(payload, REFUSED_STREAM.to_be_bytes());
                refused += 1;
            }
            PING if flags == ACK => break,
            _ => {}
        }
    }
    assert_eq!(advertised.unwrap(), CALLS_MAX.to_be_bytes());
    assert_eq!(refused, 44);
    assert_eq!(call(&mut connect(&server).await, &[], &ask()).await.unwrap(), "0");
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const REFUSED_STREAM: u32 = 7;

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

async fn read_frame(stream: &mut TcpStream) -> (u8, u8, Vec<u8>) {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut payload).await.unwrap();
    (head[3], head[4], payload)
}
