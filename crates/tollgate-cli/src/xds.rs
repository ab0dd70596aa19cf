//! The client of a management server that sends the limits of envoyproxy/ratelimit: the aggregated discovery service of xDS,
//! state of the world.
//!
//! Each response holds all limits. It is put in force and acknowledged, or refused as a whole with the reason, and then the
//! limits stay as they are. They also stay while the server is away.
//!
//! A new stream does not name the version in force. A management server that counts versions from its start would take an
//! old "1" for its new one, and send nothing.

use std::convert::Infallible;
use std::error::Error as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper_util::client::legacy::Client as Hyper;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tollgate::internal::{edge, timeout};
use tollgate::retry::{ErrorClass, Pause, Retry};
use tollgate::{Clock, Span};
use tollgate_protocol::protobuf::envoy::config::core::v3::Node;
use tollgate_protocol::protobuf::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use tollgate_protocol::protobuf::envoy::service::discovery::v3::{
    DiscoveryRequest, DiscoveryResponse,
};
use tollgate_protocol::protobuf::google::rpc;
use tollgate_protocol::protobuf::json_struct;
use tollgate_ratelimit_config::TYPE_URL;
use tollgate_transport::http::{Version, connector, root_cause};
use tollgate_transport::tls::{ClientTls, Fault};
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};

use crate::config::XdsConfig;

/// How long a connection may take to open.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// How long a stream may take to open. A server without limits for the node stays silent, so this is not an error in itself.
const OPEN_MAX: Span = Span::from_mins(10);

/// The interval of pings. A server by gRPC for Go closes connections that ping more often than every five minutes.
const PING_EVERY: Duration = Duration::from_secs(330);

/// How often a warning says that there are no limits yet.
const REMIND_EVERY: Span = Span::from_secs(30);

/// The longest reason of a refusal, in characters.
const REASON_CHARS_MAX: usize = 1_000;

/// Limits that the management server sent.
pub(crate) struct Push {
    pub(crate) response: DiscoveryResponse,
    reply: oneshot::Sender<Result<(), String>>,
}

impl Push {
    /// Acknowledges the limits, or refuses them with a reason.
    pub(crate) fn answer(self, answer: Result<(), String>) {
        drop(self.reply.send(answer));
    }
}

/// The client.
pub(crate) struct XdsClient {
    config: XdsConfig,
    clock: Arc<dyn Clock>,
    pushes: mpsc::Sender<Push>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The version in force.
    version: Option<String>,
    /// Whether the last stream ended, and no other one has opened.
    is_away: bool,
}

/// How a stream ended.
#[derive(Debug)]
struct Ended {
    cause: String,
    /// Whether the server sent anything.
    has_response: bool,
}

impl XdsClient {
    /// Creates a client that hands what it receives to the receiver of `pushes`.
    pub(crate) fn new(
        config: XdsConfig,
        clock: Arc<dyn Clock>,
        pushes: mpsc::Sender<Push>,
    ) -> Self {
        Self { config, clock, pushes, state: Mutex::default() }
    }

    /// Follows the server. Never returns.
    pub(crate) async fn run(&self) {
        tokio::join!(self.follow(), self.remind());
    }

    async fn follow(&self) {
        let retry = Retry::unlimited(self.config.backoff);
        loop {
            // A server that sent limits worked, and the delays start again.
            let classify = |ended: &Ended| {
                if ended.has_response { ErrorClass::Fatal } else { ErrorClass::Retryable }
            };
            let pause = |Pause { until, error, .. }: Pause<'_, Ended>| {
                self.log_away(error, until.since(self.clock.now()));
                self.clock.sleep_until(until)
            };
            let session = |_| self.session();
            let Err(ended) = retry.run_with_pause(&*self.clock, session, classify, pause).await;
            let delay = self.config.backoff.delay(0, edge::random());
            self.log_away(&ended.last, delay);
            self.clock.sleep_until(self.clock.now() + delay).await;
        }
    }

    /// Warns while there are no limits.
    async fn remind(&self) {
        loop {
            self.clock.sleep_until(self.clock.now() + REMIND_EVERY).await;
            if self.with(|state| state.version.is_some()) {
                return;
            }
            let (server, node) = (self.server(), &*self.config.node);
            tracing::warn!(
                server,
                node,
                "there are no limits yet; requests are answered with an error until the management server sends some"
            );
        }
    }

    /// Opens a stream and answers each response, until it ends.
    async fn session(&self) -> Result<Infallible, Ended> {
        let early = |cause: String| Ended { cause, has_response: false };
        let tls = self.config.client_tls().map_err(|error| early(error.to_string()))?;
        let hyper = Hyper::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .http2_only(true)
            .http2_keep_alive_interval(PING_EVERY)
            .build(connector(tls.as_ref(), Version::Http2, Some(CONNECT_MAX)));
        let mut calls =
            AggregatedDiscoveryServiceClient::with_origin(hyper, self.config.server.clone())
                .max_decoding_message_size(self.config.message_bytes_max);
        let (requests, outgoing) = mpsc::channel(1);
        drop(requests.try_send(DiscoveryRequest { version_info: String::new(), ..self.request() }));
        let mut call = Request::new(ReceiverStream::new(outgoing));
        for (name, value) in self.config.headers().map_err(early)? {
            call.metadata_mut().insert(name, value);
        }
        let opening = calls.stream_aggregated_resources(call);
        let mut responses = match timeout(&*self.clock, OPEN_MAX, opening).await {
            Some(Ok(response)) => response.into_inner(),
            Some(Err(status)) => return Err(early(cause_of(&status, tls.as_ref()))),
            None => return Err(early(format!("it sent nothing within {OPEN_MAX}"))),
        };
        if let Some(tls) = &tls {
            tls.note_response();
        }
        if self.with(|state| std::mem::take(&mut state.is_away)) {
            tracing::warn!(server = self.server(), "the management server is back");
        }
        let mut has_response = false;
        loop {
            let cause = match responses.message().await {
                Ok(Some(response)) => {
                    has_response = true;
                    // If the stream is over, the next read has the cause.
                    drop(requests.send(self.take(response).await).await);
                    continue;
                }
                Ok(None) => "it closed the stream".to_owned(),
                Err(status) => cause_of(&status, tls.as_ref()),
            };
            return Err(Ended { cause, has_response });
        }
    }

    /// Hands `response` over, and returns the acknowledgement or the refusal.
    async fn take(&self, response: DiscoveryResponse) -> DiscoveryRequest {
        let (nonce, version) = (response.nonce.clone(), response.version_info.clone());
        let (reply, answer) = oneshot::channel();
        drop(self.pushes.send(Push { response, reply }).await);
        let answer = answer.await.unwrap_or_else(|_| Err("the service is stopping".to_owned()));
        let error_detail = match answer {
            Ok(()) => {
                self.with(|state| state.version = Some(version));
                None
            }
            Err(reason) => Some(rpc::Status {
                code: Code::InvalidArgument.into(),
                message: reason.chars().take(REASON_CHARS_MAX).collect(),
                details: Vec::new(),
            }),
        };
        DiscoveryRequest { response_nonce: nonce, error_detail, ..self.request() }
    }

    /// Returns a request with the version in force.
    fn request(&self) -> DiscoveryRequest {
        let XdsConfig { node, metadata, .. } = &self.config;
        let text = |(key, value): (&String, &String)| (key.clone(), Value::from(value.as_str()));
        DiscoveryRequest {
            version_info: self.with(|state| state.version.clone()).unwrap_or_default(),
            node: Some(Node {
                id: node.clone(),
                metadata: Some(json_struct(&metadata.iter().map(text).collect())),
                user_agent_name: "tollgate".to_owned(),
                user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
                ..Node::default()
            }),
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryRequest::default()
        }
    }

    fn log_away(&self, Ended { cause, .. }: &Ended, delay: Span) {
        let has_limits = self.with(|state| {
            state.is_away = true;
            state.version.is_some()
        });
        let kept = if has_limits { "the limits stay in force" } else { "there are no limits yet" };
        let (server, retry_ms) = (self.server(), delay.as_millis_ceil());
        tracing::warn!(server, retry_ms, "the management server is away, {kept}: {cause}");
    }

    fn server(&self) -> &str {
        self.config.server.authority().map_or("", |authority| authority.as_str())
    }

    fn with<T>(&self, read: impl FnOnce(&mut State) -> T) -> T {
        read(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns why a call failed, and what the operator can do.
fn cause_of(status: &Status, tls: Option<&ClientTls>) -> String {
    if let Some(fault) = tls.and_then(|tls| tls.fault(status)) {
        return tls_cause(fault);
    }
    match (status.code(), status.source()) {
        (Code::OutOfRange, _) => format!(
            "{}; raise XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES (message_bytes_max in [envoy.xds])",
            status.message()
        ),
        (_, Some(_)) => root_cause(status).to_string(),
        (code, None) => format!("{code:?}: {}", status.message()),
    }
}

fn tls_cause(fault: Fault) -> String {
    match fault {
        Fault::Expired => "its certificate has expired".to_owned(),
        Fault::NotYetValid => "its certificate is not valid yet; is a clock wrong?".to_owned(),
        Fault::WrongHost => "its certificate is for another host; set CONFIG_GRPC_XDS_SERVER_TLS_SAN (server_name in \
                             [envoy.xds]) to a name that the certificate has"
            .to_owned(),
        Fault::Untrusted(reason) => format!(
            "its certificate is not issued by a trusted authority ({reason}); set CONFIG_GRPC_XDS_SERVER_TLS_CACERT (authority \
             in [envoy.xds])"
        ),
        Fault::NotTls => "it does not speak TLS; leave CONFIG_GRPC_XDS_SERVER_USE_TLS out (tls in [envoy.xds])".to_owned(),
        Fault::Rejected(alert) => {
            let alert = alert.map(|alert| format!(" ({alert})")).unwrap_or_default();
            format!(
                "it requires a valid client certificate{alert}; set CONFIG_GRPC_XDS_CLIENT_TLS_CERT and _KEY (certificate and \
                 key in [envoy.xds])"
            )
        }
    }
}
