//! The process of `tollgate envoy-ratelimit`, and its clients.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use hyper_util::client::legacy::Client as Hyper;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tollgate_protocol::protobuf::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_protocol::protobuf::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
};
use tollgate_testkit::servers::{Port, eventually, free_ports};
use tonic::Status;

use crate::folder::Folder;
use crate::running::lines_of;

/// The longest wait for a line of the log.
const LINE_WAIT: Duration = Duration::from_secs(60);

/// The process, and its ports.
pub(super) struct Service {
    child: Child,
    out: BufReader<ChildStdout>,
    err: Receiver<String>,
    ports: Vec<Port>,
}

impl Service {
    /// Starts the service in `folder` with further variables, and waits until it prints its addresses.
    pub(super) fn start(folder: &Folder, more: &[(&str, &str)]) -> Self {
        let ports = free_ports(4).expect("free ports");
        let port = |index: usize| ports[index].number().to_string();
        let mut command = folder.command("envoy-ratelimit");
        command
            .env("HOST", "127.0.0.1")
            .env("GRPC_HOST", "127.0.0.1")
            .env("DEBUG_HOST", "127.0.0.1")
            .env("PORT", port(0))
            .env("GRPC_PORT", port(1))
            .env("DEBUG_PORT", port(2))
            .env("USE_PROMETHEUS", "true")
            .env("PROMETHEUS_ADDR", format!("127.0.0.1:{}", port(3)))
            .env("RUNTIME_ROOT", folder.path())
            .env("BACKEND_TYPE", "memory")
            .envs(more.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        let err = lines_of(child.stderr.take().expect("it is piped"));
        let mut service = Self { child, out, err, ports };
        let line = service.line();
        let is_up = line == "rate limit service\n";
        if !is_up {
            drop(service.child.kill());
        }
        assert!(is_up, "{line}{}", service.err.iter().collect::<String>());
        service
    }

    pub(super) fn http(&self) -> u16 {
        self.ports[0].number()
    }

    pub(super) fn grpc(&self) -> u16 {
        self.ports[1].number()
    }

    pub(super) fn debug(&self) -> u16 {
        self.ports[2].number()
    }

    /// Asks for the client by `POST /json`.
    pub(super) fn json(&self, client: &str) -> (u16, Value) {
        let entry = format!("{{\"key\":\"client\",\"value\":\"{client}\"}}");
        let body = format!("{{\"domain\":\"shop\",\"descriptors\":[{{\"entries\":[{entry}]}}]}}");
        let (status, text) = call(self.http(), "POST", "/json", &body);
        (status, serde_json::from_str(&text).expect(&text))
    }

    pub(super) fn health(&self) -> u16 {
        call(self.http(), "GET", "/healthcheck", "").0
    }

    pub(super) fn limits(&self) -> String {
        call(self.debug(), "GET", "/rlconfig", "").1
    }

    pub(super) fn metrics(&self) -> String {
        call(self.ports[3].number(), "GET", "/metrics", "").1
    }

    /// Waits until `page` has `wanted`.
    pub(super) fn until(&self, page: impl Fn(&Self) -> String, wanted: &str) {
        let found = eventually(|| page(self).contains(wanted).then_some(()));
        assert!(found.is_some(), "{wanted} is not in {}", page(self));
    }

    /// The next line that it prints.
    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("it prints text");
        line
    }

    /// Reads its log up to a line with `text`, and returns what was read.
    pub(super) fn log_until(&self, text: &str) -> String {
        let mut log = String::new();
        while !log.contains(text) {
            let line = self.err.recv_timeout(LINE_WAIT);
            assert!(line.is_ok(), "{text}: {log}");
            log += &line.unwrap_or_default();
        }
        log
    }

    /// Sends the signal, waits for the end, and returns the exit status, and what else it printed.
    pub(super) fn end(mut self, signal: &str) -> (Option<i32>, String) {
        self.signal(signal);
        let status = self.child.wait().expect("it ends");
        let mut out = String::new();
        self.out.read_to_string(&mut out).expect("it prints text");
        (status.code(), out)
    }

    pub(super) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill runs").success());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Sends a request over a connection of its own, and returns the status and the body.
pub(super) fn call(port: u16, method: &str, path: &str, body: &str) -> (u16, String) {
    let (status, _, body) = call_with(port, &format!("{method} {path} HTTP/1.1"), "", body);
    (status, body)
}

/// The same with further fields, each of which ends its line; also returns the head of the answer, in lower case.
pub(super) fn call_with(port: u16, line: &str, fields: &str, body: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let length = body.len();
    let head = format!(
        "{line}\r\nhost: localhost\r\nconnection: close\r\n{fields}content-length: {length}"
    );
    write!(stream, "{head}\r\n\r\n{body}").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    (status, head.to_ascii_lowercase(), body.to_owned())
}

pub(super) fn descriptor<const N: usize>(entries: [(&str, &str); N]) -> RateLimitDescriptor {
    let entry = |(key, value): (&str, &str)| Entry { key: key.into(), value: value.into() };
    RateLimitDescriptor { entries: entries.map(entry).into(), ..RateLimitDescriptor::default() }
}

/// A client of Envoy's rate limit service over gRPC.
pub(super) struct RateLimitClient {
    runtime: Runtime,
    calls: RateLimitServiceClient<Hyper<HttpConnector, tonic::body::Body>>,
}

impl RateLimitClient {
    pub(super) fn new(port: u16) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let hyper = Hyper::builder(TokioExecutor::new()).http2_only(true).build_http();
        let origin = format!("http://127.0.0.1:{port}").parse().expect("a URL");
        Self { runtime, calls: RateLimitServiceClient::with_origin(hyper, origin) }
    }

    /// Asks for `descriptors` in the domain of the tests.
    pub(super) fn ask(
        &self,
        descriptors: Vec<RateLimitDescriptor>,
    ) -> Result<RateLimitResponse, Status> {
        let request = RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 0 };
        let mut calls = self.calls.clone();
        let answer = self.runtime.block_on(calls.should_rate_limit(request))?;
        Ok(answer.into_inner())
    }
}
