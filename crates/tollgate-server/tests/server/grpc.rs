//! `tollgate.v1.Gate`, health and reflection over real connections.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Bytes, HttpBody};
use hyper::body::Frame;
use hyper_util::client::legacy::Client as Hyper;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate::{Error, ErrorKind, Span};
use tollgate_protocol::protobuf::tollgate::v1::acquire_response::Decision;
use tollgate_protocol::protobuf::tollgate::v1::gate_client::GateClient;
use tollgate_protocol::protobuf::tollgate::v1::{
    AcquireRequest, Admitted, ChargeRequest, CloseUntilRequest, Denied, ReleaseRequest,
    RenewRequest, ReportViolationRequest, ResetRequest, SettleRequest, StandingRequest,
};
use tollgate_protocol::protobuf::{instant, time};
use tollgate_server::bounds::{BODY_BYTES_MAX, CALL_MAX, CONNECTION_AGE_MAX};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::client::{START, Server};
use crate::shutdown::{Broken, Doors, Held};

pub(crate) type Channel = Hyper<HttpConnector, tonic::body::Body>;

pub(crate) fn channel() -> Channel {
    Hyper::builder(TokioExecutor::new()).http2_only(true).build_http()
}

impl Server {
    pub(crate) fn origin(&self) -> axum::http::Uri {
        format!("http://{}", self.grpc).parse().unwrap()
    }

    pub(crate) fn gate(&self) -> GateClient<Channel> {
        GateClient::with_origin(channel(), self.origin())
    }
}

pub(crate) fn ask(policy: &str, costs: &[(&str, u64)]) -> AcquireRequest {
    AcquireRequest {
        policy: policy.into(),
        subject: "p7".into(),
        costs: costs.iter().map(|(unit, amount)| ((*unit).into(), *amount)).collect(),
        ..AcquireRequest::default()
    }
}

async fn admitted(gate: &mut GateClient<Channel>, ask: AcquireRequest) -> Admitted {
    match gate.acquire(ask).await.unwrap().into_inner().decision.unwrap() {
        Decision::Admitted(admitted) => admitted,
        Decision::Denied(denied) => panic!("{denied:?}"),
    }
}

pub(crate) async fn denied(gate: &mut GateClient<Channel>, ask: AcquireRequest) -> Denied {
    match gate.acquire(ask).await.unwrap().into_inner().decision.unwrap() {
        Decision::Denied(denied) => denied,
        Decision::Admitted(admitted) => panic!("{admitted:?}"),
    }
}

async fn used(gate: &mut GateClient<Channel>) -> Vec<u64> {
    let request = StandingRequest { policy: "gemini".into(), subject: "p7".into() };
    let limits = gate.standing(request).await.unwrap().into_inner().limits;
    limits.iter().map(|limit| limit.used).collect()
}

fn kind(status: &Status) -> &str {
    status.metadata().get("tollgate-kind").map_or("", |kind| kind.to_str().unwrap())
}

/// A denial is an answer; every verb does what it does over HTTP.
#[tokio::test]
async fn the_verbs_over_grpc() {
    let server = Server::start().await;
    let mut gate = server.gate();
    let first = admitted(&mut gate, ask("gemini", &[("tokens", 3_750)])).await;
    assert_eq!(used(&mut gate).await, [1, 3_750, 1]);
    let settle = |permit: &str| SettleRequest {
        permit: permit.to_owned(),
        actual: [("tokens".to_owned(), 3_000)].into(),
        charges: Vec::new(),
    };
    assert!(gate.settle(settle(&first.permit)).await.unwrap().into_inner().changed);
    assert!(!gate.settle(settle(&first.permit)).await.unwrap().into_inner().changed);
    assert_eq!(used(&mut gate).await, [1, 3_000, 1]);

    let second = admitted(&mut gate, ask("gemini", &[])).await;
    let release = ReleaseRequest { permit: second.permit };
    assert!(gate.release(release).await.unwrap().into_inner().changed);
    for _ in 0..4 {
        admitted(&mut gate, ask("gemini", &[])).await;
    }
    let denial = denied(&mut gate, ask("gemini", &[])).await;
    assert_eq!((&*denial.limit, denial.retry_after_ms), ("rpm", Some(60_000)));
    let reset_at = instant(denial.reset_at.unwrap()).unwrap();
    assert_eq!(reset_at, START + Span::from_mins(1));
    assert!(denial.detail.contains("ask again in 1m"), "{}", denial.detail);
    let never = denied(&mut gate, ask("gemini", &[("tokens", 250_001)])).await;
    assert_eq!((never.reset_at, never.retry_after_ms), (None, None));

    let slot = admitted(&mut gate, ask("jobs", &[])).await;
    server.clock.advance(Span::from_secs(40));
    let renewed = gate.renew(RenewRequest { permit: slot.permit }).await.unwrap().into_inner();
    let expires_at = instant(renewed.expires_at.unwrap()).unwrap();
    assert_eq!(expires_at, START + Span::from_secs(100));

    let reset = ResetRequest { policy: "gemini".into(), subject: "p7".into() };
    assert!(gate.reset(reset).await.unwrap().into_inner().changed);
    assert_eq!(used(&mut gate).await, [0, 0, 0]);
    let charge = ChargeRequest {
        policy: "gemini".into(),
        subject: "p7".into(),
        costs: [("requests".to_owned(), 7)].into(),
        id: Some("arrears".into()),
        id_ttl_ms: None,
        charges: Vec::new(),
    };
    let charged = gate.charge(charge.clone()).await.unwrap().into_inner();
    assert_eq!(gate.charge(charge).await.unwrap().into_inner().permit, charged.permit);
    assert_eq!(used(&mut gate).await, [7, 0, 7]);
}

/// What a provider refuses closes the limit that it named, or the one with the least left.
#[tokio::test]
async fn a_violation_closes_a_limit() {
    let server = Server::start().await;
    let mut gate = server.gate();
    admitted(&mut gate, ask("gemini", &[("tokens", 240_000)])).await;
    let report = |limit: Option<&str>, retry_after_ms| ReportViolationRequest {
        policy: "gemini".into(),
        subject: "p7".into(),
        limit: limit.map(str::to_owned),
        retry_after_ms,
        permit: None,
    };
    let closed = gate.report_violation(report(None, 90_000)).await.unwrap().into_inner();
    assert_eq!(closed.limit, "tpm");
    let denial = denied(&mut gate, ask("gemini", &[("tokens", 1)])).await;
    assert_eq!((&*denial.limit, denial.retry_after_ms), ("tpm", Some(90_000)));
    let closed = gate.report_violation(report(Some("rpd"), 1_000)).await.unwrap().into_inner();
    assert_eq!(closed.limit, "rpd");
    for wrong in [report(None, 0), report(Some("rpx"), 1)] {
        let status = gate.report_violation(wrong).await.unwrap_err();
        assert_eq!((status.code(), kind(&status)), (Code::InvalidArgument, "invalid"));
    }
    let until = Some(time(START + Span::from_mins(5)));
    let close = |until| CloseUntilRequest {
        policy: "gemini".into(),
        subject: "p7".into(),
        limit: "rpm".into(),
        until,
    };
    assert!(gate.close_until(close(until)).await.unwrap().into_inner().changed);
    assert_eq!(gate.close_until(close(None)).await.unwrap_err().code(), Code::InvalidArgument);
}

/// Errors have a code for any client and a kind for our own.
#[tokio::test]
async fn errors_have_a_code_and_a_kind() {
    let server = Server::start().await;
    let mut gate = server.gate();
    let status = gate.acquire(ask("gemeni", &[])).await.unwrap_err();
    assert_eq!((status.code(), kind(&status)), (Code::NotFound, "unknown-policy"));
    assert!(status.message().contains("did you mean gemini?"), "{}", status.message());
    let status = gate.acquire(ask("gemini", &[("bytes", 1)])).await.unwrap_err();
    assert_eq!((status.code(), kind(&status)), (Code::InvalidArgument, "invalid"));
    let status = gate.release(ReleaseRequest { permit: "x".into() }).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let with_id = |costs| AcquireRequest { id: Some("i".into()), ..ask("gemini", costs) };
    admitted(&mut gate, with_id(&[])).await;
    let status = gate.acquire(with_id(&[("tokens", 1)])).await.unwrap_err();
    assert_eq!((status.code(), kind(&status)), (Code::AlreadyExists, "conflict"));
    let waits = AcquireRequest { wait_ms: 3_600_000, ..ask("gemini", &[]) };
    assert_eq!(gate.acquire(waits).await.unwrap_err().code(), Code::InvalidArgument);
    for (error, code) in [
        (ErrorKind::Unavailable, Code::Unavailable),
        (ErrorKind::Throttled, Code::Unavailable),
        (ErrorKind::Full, Code::Unavailable),
        (ErrorKind::Contended, Code::ResourceExhausted),
        (ErrorKind::Corrupt, Code::DataLoss),
        (ErrorKind::Expired, Code::FailedPrecondition),
    ] {
        let broken = Server::around(|_| Arc::new(Broken(Error::new(error, "no")))).await;
        assert_eq!(broken.gate().acquire(ask("gemini", &[])).await.unwrap_err().code(), code);
    }
}

/// A call that takes longer than its caller waits ends then, on the server's clock.
#[tokio::test]
async fn a_deadline_ends_a_call_that_waits() {
    let server = Server::start().await;
    let mut gate = server.gate();
    admitted(&mut gate, ask("jobs", &[])).await;
    let mut request = Request::new(AcquireRequest { wait_ms: 50_000, ..ask("jobs", &[]) });
    request.metadata_mut().insert("grpc-timeout", "500m".parse().unwrap());
    let call = tokio::spawn(async move { gate.acquire(request).await });
    while server.clock.next_alarm() != Some(START + Span::from_millis(500)) {
        tokio::task::yield_now().await;
    }
    server.clock.advance(Span::from_millis(500));
    assert_eq!(call.await.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
    // The queue is empty, so the next ask gets the slot once it is free.
    server.clock.advance(Span::from_millis(59_500));
    admitted(&mut server.gate(), ask("jobs", &[])).await;
}

/// A message that never arrives.
struct Never;

impl HttpBody for Never {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Pending
    }
}

/// A slow client holds its call for a bounded time and delays no other client.
#[tokio::test]
async fn a_message_that_never_arrives_ends_its_call() {
    let server = Server::start().await;
    let channel = channel();
    let request =
        axum::http::Request::post(format!("http://{}/tollgate.v1.Gate/Acquire", server.grpc))
            .header("content-type", "application/grpc")
            .body(tonic::body::Body::new(Never))
            .unwrap();
    let call = tokio::spawn(channel.request(request));
    while server.clock.next_alarm() != Some(START + CALL_MAX) {
        tokio::task::yield_now().await;
    }
    let mut gate = GateClient::with_origin(channel, server.origin());
    admitted(&mut gate, ask("gemini", &[])).await;
    server.clock.advance(CALL_MAX);
    let answer = call.await.unwrap().unwrap();
    let status = Status::from_header_map(answer.headers()).unwrap();
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

/// Bytes that are no message are the caller's mistake, and say so.
#[tokio::test]
async fn bytes_that_are_no_message_are_an_invalid_argument() {
    let server = Server::start().await;
    let junk = Bytes::from_static(b"\0\0\0\0\x03\xff\xff\xff");
    for path in ["/tollgate.v1.Gate/Acquire", "/grpc.health.v1.Health/Check"] {
        let request = axum::http::Request::post(format!("http://{}{path}", server.grpc))
            .header("content-type", "application/grpc")
            .body(tonic::body::Body::new(axum::body::Body::from(junk.clone())))
            .unwrap();
        let answer = channel().request(request).await.unwrap();
        let status = Status::from_header_map(answer.headers()).unwrap();
        assert_eq!(status.code(), Code::InvalidArgument, "{path}: {}", status.message());
        assert!(status.message().starts_with("failed to decode"), "{}", status.message());
    }
}

#[tokio::test]
async fn what_is_too_large_or_unknown_is_refused() {
    let server = Server::start().await;
    let mut gate = server.gate();
    let large = AcquireRequest { subject: "s".repeat(BODY_BYTES_MAX), ..ask("gemini", &[]) };
    assert_eq!(gate.acquire(large).await.unwrap_err().code(), Code::OutOfRange);
    let mut health = HealthClient::with_origin(channel(), server.origin());
    let service = "nobody".to_owned();
    let status = health.check(HealthCheckRequest { service }).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    // A client of HTTP/1.1 gets an HTTP/2 error, and the server goes on.
    let mut stream = TcpStream::connect(server.grpc).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok();
    admitted(&mut gate, ask("gemini", &[])).await;
}

/// A call in flight is finished when the server stops.
#[tokio::test]
async fn a_call_in_flight_is_finished() {
    let held = Arc::new(Doors::default());
    let server = Server::around(|gate| Arc::new(Held { gate, doors: Arc::clone(&held) })).await;
    let mut gate = server.gate();
    let call = tokio::spawn(async move { admitted(&mut gate, ask("jobs", &[])).await });
    held.entered.notified().await;
    let stopping = server.stop();
    while TcpStream::connect(stopping.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    held.open.add_permits(1);
    assert!(!call.await.unwrap().permit.is_empty());
    assert_eq!(stopping.done.await.unwrap().cut, 0);
}

macro_rules! services_by_reflection {
    ($server:expr, $version:ident) => {{
        use tonic_reflection::pb::$version::ServerReflectionRequest;
        use tonic_reflection::pb::$version::server_reflection_client::ServerReflectionClient;
        use tonic_reflection::pb::$version::server_reflection_request::MessageRequest;
        use tonic_reflection::pb::$version::server_reflection_response::MessageResponse;

        let mut client = ServerReflectionClient::with_origin(channel(), $server.origin());
        let list = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let requests = tonic::codegen::tokio_stream::iter([list]);
        let mut answers = client.server_reflection_info(requests).await.unwrap().into_inner();
        match answers.message().await.unwrap().unwrap().message_response.unwrap() {
            MessageResponse::ListServicesResponse(list) => {
                list.service.into_iter().map(|service| service.name).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        }
    }};
}

#[tokio::test]
async fn reflection_lists_every_service_under_both_names() {
    let server = Server::start().await;
    for names in [services_by_reflection!(server, v1), services_by_reflection!(server, v1alpha)] {
        for name in [
            "tollgate.v1.Gate",
            "envoy.service.ratelimit.v3.RateLimitService",
            "grpc.health.v1.Health",
        ] {
            assert!(names.iter().any(|known| known == name), "{name} in {names:?}");
        }
    }
}

/// A connection that is as old as it may be ends, and its client opens another.
#[tokio::test]
async fn a_connection_ends_at_its_age() {
    let server = Server::start().await;
    let stream = tokio::net::TcpStream::connect(server.grpc).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = axum::http::Request::post(format!("http://{}/nothing", server.grpc))
        .body(http_body_util::Empty::<axum::body::Bytes>::new())
        .unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
    crate::client::pass(&server.clock, CONNECTION_AGE_MAX.plus(CONNECTION_AGE_MAX)).await;
    connection.await.unwrap().unwrap();
}
