//! One upstream: its address and credential, and its connections.
//!
//! A connection is opened before the call is committed to it, so that a permit which has become stale meanwhile is not used, and a
//! connection failure is known to have sent nothing. hyper-util's client does both in one step.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, Uri};
use tollgate::{Clock, Error, ErrorKind, Timestamp};
use tollgate_providers::{Dialect, UsageMap};
use tollgate_transport::http::{ProxyConnector, Version};
use tollgate_transport::tls::{ClientTls, TlsOptions};
use tower::ServiceExt as _;

use crate::bounds::{BUFFER_BYTES_MAX, IDLE_CONNECTION_MAX, IDLE_CONNECTIONS_MAX};
use crate::call_timer::CallTimer;
use crate::config::Limits;
use crate::connect_problem::ConnectProblem;
use crate::estimate::Weights;
use crate::options::Upstream;
use crate::send_state::{RequestBody, SendState};

type Sender = SendRequest<RequestBody>;

/// An upstream that calls are sent to.
pub(crate) struct UpstreamState {
    pub(crate) name: String,
    pub(crate) dialect: Dialect,
    pub(crate) url: String,
    pub(crate) usage: UsageMap,
    pub(crate) weights: Weights,
    pub(crate) inject_usage: bool,
    models: BTreeMap<String, String>,
    /// Scheme and authority.
    origin: Uri,
    host: HeaderValue,
    /// What precedes the path of a call.
    base_path: String,
    key_header: (HeaderName, HeaderValue),
    connector: ProxyConnector,
    tls: Option<ClientTls>,
    idle: Mutex<VecDeque<Idle>>,
}

struct Idle {
    sender: Sender,
    since: Timestamp,
}

/// A call to send.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) method: &'a Method,
    pub(crate) target: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) state: &'a Arc<SendState>,
    pub(crate) use_by: Option<Timestamp>,
}

/// Why there is no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SendFailure {
    /// There was no connection; nothing was sent.
    NotConnected(ConnectProblem),
    /// The permit was to be used earlier; nothing was sent.
    TooLate,
    /// The connection ended before the response began. The upstream may have processed the call.
    Interrupted,
    /// The response did not begin in time. The upstream may process the call.
    TimedOut,
}

/// The head of a response, and its connection.
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    pub(crate) lease: Lease,
}

/// A connection in use. It is reused only if [`keep`](Self::keep) is called after the whole response was read.
pub(crate) struct Lease {
    upstream: Arc<UpstreamState>,
    sender: Sender,
}

impl Lease {
    pub(crate) fn keep(self, now: Timestamp) {
        self.upstream.put(self.sender, now);
    }
}

impl UpstreamState {
    pub(crate) fn new(
        upstream: &Upstream,
        native: impl FnOnce() -> ClientTls,
    ) -> Result<Self, Error> {
        let at = |text: String| {
            Error::new(ErrorKind::Invalid, format!("upstream {:?}: {text}", upstream.name))
        };
        let wrong_url =
            || at(format!("url {:?} is not like {:?}", upstream.url, upstream.dialect.url()));
        let uri: Uri = upstream.url.parse().map_err(|_| wrong_url())?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(wrong_url());
        };
        if !["http", "https"].contains(&scheme) || uri.query().is_some() {
            return Err(wrong_url());
        }
        if authority.as_str().contains('@') {
            return Err(at("url must not hold credentials; give the key apart from it".to_owned()));
        }
        let tls = match &upstream.authority {
            _ if scheme == "http" => None,
            None => Some(native()),
            Some(pem) => {
                let options = TlsOptions::default().authority(pem.clone());
                Some(ClientTls::new(&options).map_err(|error| at(error.to_string()))?)
            }
        };
        let header = upstream.dialect.key_header();
        let value = format!("{}{}", header.prefix, upstream.key.reveal());
        let mut value = HeaderValue::try_from(value)
            .map_err(|_| at("key has characters that a header cannot hold".to_owned()))?;
        value.set_sensitive(true);
        if upstream.key.reveal().is_empty() {
            return Err(at("key is empty; set it, or the variable that holds it".to_owned()));
        }
        if upstream.name.is_empty() {
            return Err(at("name is empty".to_owned()));
        }
        let connector =
            ProxyConnector::from_environment(&upstream.url, tls.as_ref(), Version::Http1, None);
        let connector = connector.map_err(|proxy| {
            at(format!(
                "HTTPS_PROXY names {proxy}, and only proxies that begin with http:// can be used; set it as in \
                 http://proxy.example.com:3128, or list the host in NO_PROXY"
            ))
        })?;
        let host = HeaderValue::try_from(authority.as_str()).map_err(|_| wrong_url())?;
        let origin = Uri::builder().scheme(scheme).authority(authority.clone()).path_and_query("/");
        Ok(Self {
            name: upstream.name.clone(),
            dialect: upstream.dialect,
            url: upstream.url.clone(),
            usage: upstream.usage.clone(),
            weights: Weights::new(upstream.dialect, &upstream.usage),
            inject_usage: upstream.inject_usage,
            models: upstream.models.clone(),
            origin: origin.build().map_err(|_| wrong_url())?,
            host,
            base_path: uri.path().trim_end_matches('/').to_owned(),
            key_header: (HeaderName::from_static(header.name), value),
            connector,
            tls,
            idle: Mutex::default(),
        })
    }

    /// Returns the name of `model` here.
    pub(crate) fn model<'a>(&'a self, model: &'a str) -> &'a str {
        self.models.get(model).map_or(model, String::as_str)
    }

    /// Returns the target of a call to `path` here.
    pub(crate) fn target(&self, path: &str, query: Option<&str>) -> Option<Uri> {
        let target = match query {
            None => [&self.base_path, path].concat(),
            Some(query) => [&self.base_path, path, "?", query].concat(),
        };
        Uri::try_from(target).ok()
    }

    /// Adds the headers that are particular to this upstream.
    pub(crate) fn authorize(&self, headers: &mut HeaderMap) {
        headers.insert(hyper::header::HOST, self.host.clone());
        headers.insert(self.key_header.0.clone(), self.key_header.1.clone());
    }

    /// Sends a call and returns the head of the response.
    pub(crate) async fn send(
        self: &Arc<Self>,
        call: Outgoing<'_>,
        limits: &Limits,
        clock: &dyn Clock,
        timer: &mut CallTimer,
    ) -> Result<Answer, SendFailure> {
        let mut request = Request::new(RequestBody::new(call.body, call.state));
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = call.target;
        *request.headers_mut() = call.headers;
        loop {
            let pooled = self.take(clock.now());
            let is_pooled = pooled.is_some();
            let mut sender = match pooled {
                Some(sender) => sender,
                None => {
                    let within = limits.connect_timeout;
                    let until = clock.monotonic().plus(within);
                    // Boxed, because few calls connect, and all would carry the larger future.
                    let connected = timer.timeout_at(clock, until, Box::pin(self.connect()));
                    connected
                        .await
                        .unwrap_or(Err(ConnectProblem::TimedOut(within)))
                        .map_err(SendFailure::NotConnected)?
                }
            };
            if let Err(error) = sender.ready().await {
                if is_pooled {
                    continue;
                }
                return Err(self.not_connected(&error));
            }
            if call.use_by.is_some_and(|use_by| use_by < clock.now()) {
                self.put(sender, clock.now());
                return Err(SendFailure::TooLate);
            }
            let until = clock.monotonic().plus(limits.first_byte_timeout);
            let response = pin!(sender.try_send_request(request));
            match timer.timeout_at(clock, until, response).await {
                None => return Err(SendFailure::TimedOut),
                Some(Ok(response)) => {
                    if let Some(tls) = &self.tls {
                        tls.note_response();
                    }
                    let lease = Lease { upstream: Arc::clone(self), sender };
                    return Ok(Answer { response, lease });
                }
                Some(Err(mut error)) => {
                    // hyper returns a request that it did not begin to send.
                    match error.take_message() {
                        Some(unsent) if is_pooled => request = unsent,
                        None if call.state.is_sent() => return Err(SendFailure::Interrupted),
                        _ => return Err(self.not_connected(error.error())),
                    }
                }
            }
        }
    }

    async fn connect(&self) -> Result<Sender, ConnectProblem> {
        let tls = self.tls.as_ref();
        let stream = self.connector.clone().oneshot(self.origin.clone()).await;
        let stream = stream.map_err(|error| ConnectProblem::new(&*error, tls))?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(BUFFER_BYTES_MAX);
        let (sender, connection) =
            builder.handshake(stream).await.map_err(|error| ConnectProblem::new(&error, tls))?;
        // It ends when its sender is dropped or the upstream closes it; the reader of a response gets the error.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    /// The failure of a connection that ended before it was used.
    fn not_connected(&self, error: &hyper::Error) -> SendFailure {
        SendFailure::NotConnected(ConnectProblem::new(error, self.tls.as_ref()))
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the connection that was used last.
    fn take(&self, now: Timestamp) -> Option<Sender> {
        let mut idle = self.idle();
        while let Some(Idle { sender, since }) = idle.pop_back() {
            if IDLE_CONNECTION_MAX <= now.since(since) {
                idle.clear();
            } else if !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    fn put(&self, sender: Sender, now: Timestamp) {
        if sender.is_closed() {
            return;
        }
        let mut idle = self.idle();
        let is_old =
            |idle: &Idle| idle.sender.is_closed() || IDLE_CONNECTION_MAX <= now.since(idle.since);
        while idle.front().is_some_and(is_old) || IDLE_CONNECTIONS_MAX <= idle.len() {
            idle.pop_front();
        }
        idle.push_back(Idle { sender, since: now });
    }
}

/// Omits the key.
impl fmt::Debug for UpstreamState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamState")
            .field("name", &self.name)
            .field("dialect", &self.dialect)
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}
