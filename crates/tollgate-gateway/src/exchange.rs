//! One attempt after another: admission, the call to the upstream, and what its response means.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderName};
use hyper::http::response::Parts;
use hyper::{HeaderMap, Method, Response, StatusCode, Uri};
use tollgate::Span;
use tollgate::internal::timeout;
use tollgate_providers::{
    CallKind, ErrorCode, ProviderErrorKind, Rewrite, StreamReader, UsageStripper, classify_error,
};

use crate::admission::Waiting;
use crate::bounds::{ATTEMPTS_MAX, ERROR_BODY_WAIT_MAX, ERROR_BYTES_MAX};
use crate::call_timer::CallTimer;
use crate::closing::{Refused, close, observe_headers};
use crate::gateway::Shared;
use crate::headers;
use crate::observe::{Ending, GatewayEvent, RefusalReason};
use crate::open_call::{CallContext, OpenCall};
use crate::refusal::Refusal;
use crate::relay::{During, GatewayBody, Reader, Relay};
use crate::upstream::{Answer, Lease, Outgoing, SendFailure};

/// A call on its way.
pub(crate) struct Exchange<'a> {
    pub(crate) context: &'a Arc<CallContext>,
    pub(crate) method: &'a Method,
    /// The path below the dialect's prefix.
    pub(crate) path: &'a str,
    pub(crate) query: Option<&'a str>,
    /// The headers of the client.
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a Bytes,
    pub(crate) timer: CallTimer,
    pub(crate) waiting: Waiting,
    pub(crate) waited: Span,
    pub(crate) attempts: u32,
}

/// The result of an attempt.
#[allow(clippy::large_enum_variant, reason = "moved once, into the body of the response")]
pub(crate) enum Step {
    /// The call is to be sent again.
    Again,
    Answered(Answered),
}

/// A response of an upstream.
pub(crate) struct Answered {
    head: Parts,
    body: AnsweredBody,
}

#[allow(clippy::large_enum_variant, reason = "moved once, into the body of the response")]
enum AnsweredBody {
    /// It was read already.
    Whole(Bytes),
    Incoming {
        incoming: Incoming,
        lease: Lease,
        reader: Reader,
        stripper: Option<UsageStripper>,
        call: Option<OpenCall>,
    },
}

/// A request for one upstream.
struct Prepared {
    target: Uri,
    headers: HeaderMap,
    body: Bytes,
    is_injected: bool,
}

impl Exchange<'_> {
    /// Waits for admission, and sends the call once.
    pub(crate) async fn attempt(&mut self) -> Result<Step, Refusal> {
        let context = self.context;
        let admitted = self.waiting.admit(context, self.headers).await;
        self.waited = self.waiting.waited(&context.shared);
        let mut call = admitted?;
        self.attempts += 1;
        let prepared = self.prepare(call.target)?;
        let is_injected = prepared.is_injected;
        let sent = self.send(prepared, &call).await;
        let Answer { response, lease } = match sent {
            Ok(answer) => answer,
            Err(failure) => return self.failed(call, failure),
        };
        let (head, incoming) = response.into_parts();
        call.responded(head.status.as_u16());
        let status = head.status.as_u16();
        let is_refusal = matches!(status, 429 | 503 | 529);
        if let Some(refusal) = unreadable(&head, &incoming).filter(|_| !is_refusal) {
            call.keep(Ending::UpstreamFailed);
            return Err(refusal);
        }
        if let Some(refusal) = redirect(status) {
            call.refund_tokens();
            return Err(refusal);
        }
        match status {
            429 | 503 | 529 => self.refused(call, head, (incoming, lease)).await,
            200..=299 => {
                call.deployment().succeeded();
                observe_headers(&call, &head.headers);
                Ok(Step::Answered(relay(call, head, (incoming, lease), is_injected)))
            }
            401 | 403 | 404 => {
                call.refund_tokens();
                Ok(Step::Answered(pass(head, (incoming, lease))))
            }
            _ => {
                call.keep(Ending::Refused);
                Ok(Step::Answered(pass(head, (incoming, lease))))
            }
        }
    }

    /// Sends a call that costs nothing, once, to the first upstream that is not paused.
    pub(crate) async fn send_free(&mut self) -> Result<Answered, Refusal> {
        let context = self.context;
        let now = context.shared.app.now();
        let targets = 0..context.route().targets.len();
        let is_open = |target: &usize| context.deployment(*target).paused_until(now).is_none();
        let target = targets.clone().find(is_open).unwrap_or(0);
        let state = Arc::default();
        let Prepared { target: uri, headers, body, .. } = self.prepare(target)?;
        let outgoing = Outgoing {
            method: self.method,
            target: uri,
            headers,
            body,
            state: &state,
            use_by: None,
        };
        let upstream = &context.target(target).upstream;
        let (limits, clock) = (&context.config.limits, context.shared.app.clock());
        let Answer { response, lease } = upstream
            .send(outgoing, limits, clock, &mut self.timer)
            .await
            .map_err(|failure| unanswered(&failure))?;
        let (head, incoming) = response.into_parts();
        match redirect(head.status.as_u16()) {
            Some(refusal) => Err(refusal),
            None => Ok(pass(head, (incoming, lease))),
        }
    }

    /// Makes the request for `target`.
    fn prepare(&self, target: usize) -> Result<Prepared, Refusal> {
        let CallContext { call, facts, .. } = &**self.context;
        let upstream = &self.context.target(target).upstream;
        let model = upstream.model(&facts.model);
        let is_mapped = call.kind() != CallKind::ListModels && model != facts.model;
        let is_injected = upstream.inject_usage
            && call.needs_usage_option()
            && self.context.is_stream()
            && !facts.asks_usage;
        let changes = Rewrite { model: is_mapped.then_some(model), include_usage: is_injected };
        let body = match facts.rewrite(self.body, &changes) {
            std::borrow::Cow::Borrowed(_) => self.body.clone(),
            std::borrow::Cow::Owned(body) => body.into(),
        };
        let mapped = if is_mapped { call.path_with_model(self.path, model) } else { None };
        let path = mapped.as_deref().unwrap_or(self.path);
        let target = upstream
            .target(path, self.query)
            .ok_or_else(|| Refusal::invalid("the path is not one of a URL"))?;
        let mut headers = headers::forwarded(self.headers);
        upstream.authorize(&mut headers);
        Ok(Prepared { target, headers, body, is_injected })
    }

    async fn send(&mut self, prepared: Prepared, call: &OpenCall) -> Result<Answer, SendFailure> {
        let Prepared { target, headers, body, .. } = prepared;
        let outgoing = Outgoing {
            method: self.method,
            target,
            headers,
            body,
            state: &call.state,
            use_by: call.use_by(),
        };
        let (limits, clock) = (&self.context.config.limits, self.context.shared.app.clock());
        let upstream = &self.context.target(call.target).upstream;
        upstream.send(outgoing, limits, clock, &mut self.timer).await
    }

    /// Handles a call without a response.
    fn failed(&mut self, call: OpenCall, failure: SendFailure) -> Result<Step, Refusal> {
        match failure {
            SendFailure::TooLate => {
                call.release();
                self.again(None, Span::ZERO)
            }
            SendFailure::NotConnected(problem) => {
                let deployment = Arc::clone(call.deployment());
                call.release();
                let now = self.context.shared.app.now();
                let is_first = deployment.closed_until(now).is_none();
                let pause = deployment.back_off(None, now);
                deployment.close(now + pause, true);
                deployment.unreachable(problem.to_string());
                if is_first {
                    self.context.shared.observe(&GatewayEvent::Unreachable {
                        upstream: &deployment.upstream,
                        model: &deployment.model,
                        problem: &problem,
                        until: now + pause,
                    });
                }
                self.again(None, pause)
            }
            SendFailure::Interrupted | SendFailure::TimedOut => {
                call.keep(Ending::UpstreamFailed);
                Err(unanswered(&failure))
            }
        }
    }

    /// Handles a provider that did not process the call.
    async fn refused(
        &mut self,
        call: OpenCall,
        head: Parts,
        (incoming, lease): (Incoming, Lease),
    ) -> Result<Step, Refusal> {
        let context = self.context;
        let (shared, target) = (&context.shared, call.target);
        let clock = shared.app.clock();
        let collected = Limited::new(incoming, ERROR_BYTES_MAX).collect();
        let body = timeout(clock, ERROR_BODY_WAIT_MAX, collected).await.and_then(Result::ok);
        let body = body.map(|body| {
            lease.keep(clock.now());
            body.to_bytes()
        });
        let (upstream, status) = (&context.target(target).upstream, head.status);
        let body = body.unwrap_or_default();
        let now = clock.now();
        let error = classify_error(&upstream.url, status, &head.headers, &body, now);
        let is_quota = status == StatusCode::TOO_MANY_REQUESTS;
        let is_final = matches!(
            error.kind,
            ProviderErrorKind::InsufficientQuota | ProviderErrorKind::NotInTier
        );
        let refused = Refused::new(&call, status.as_u16(), error.kind);
        call.refund_tokens();
        if is_quota && is_final {
            let body = AnsweredBody::Whole(body);
            return Ok(Step::Answered(Answered { head, body }));
        }
        let deployment = context.deployment(target);
        deployment.counters.refused.fetch_add(1, Ordering::Relaxed);
        let hint = match error.kind {
            ProviderErrorKind::DailyQuota => Some(upstream.dialect.day_ends(now).since(now)),
            _ => error.retry_after,
        };
        let pause = deployment.back_off(hint, now);
        close(context, refused, pause).await;
        self.again(Some(status.as_u16()), pause)
    }

    /// Lets the call be sent again, unless it was sent often enough.
    fn again(&mut self, status: Option<u16>, pause: Span) -> Result<Step, Refusal> {
        self.waiting.last_status = status;
        if self.attempts < ATTEMPTS_MAX {
            return Ok(Step::Again);
        }
        let code = if status == Some(429) { ErrorCode::RateLimited } else { ErrorCode::Overloaded };
        let text = format!("no upstream served the call in {} attempts", self.attempts);
        Err(Refusal::new(code, RefusalReason::Upstream, text).retry_after(pause))
    }
}

/// Returns the error for a response that no API sends: a page, as from a proxy in between, or a success without a body.
fn unreadable(head: &Parts, incoming: &Incoming) -> Option<Refusal> {
    let status = head.status.as_u16();
    let text = if is_header(&head.headers, CONTENT_TYPE, "text/html") {
        format!("the upstream answered {status} with a page instead of JSON; check its url")
    } else if head.status.is_success() && incoming.is_end_stream() {
        format!("the upstream answered {status} without a body")
    } else {
        return None;
    };
    Some(Refusal::new(ErrorCode::BadGateway, RefusalReason::Upstream, text))
}

/// Returns the error for a redirect, which no API sends. A client would follow it with its key of the gateway.
fn redirect(status: u16) -> Option<Refusal> {
    matches!(status, 100..=199 | 300..=399).then(|| {
        let text = format!("the upstream answered {status}, a redirect; check its url");
        Refusal::new(ErrorCode::BadGateway, RefusalReason::Upstream, text)
    })
}

/// Returns whether the value of a header starts with `expected`, in any case.
fn is_header(headers: &HeaderMap, name: HeaderName, expected: &str) -> bool {
    let value = headers.get(name).map_or(&b""[..], |value| value.as_bytes());
    let start = value.get(..expected.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(expected.as_bytes()))
}

fn unanswered(failure: &SendFailure) -> Refusal {
    let (code, text) = match failure {
        SendFailure::NotConnected(problem) => {
            (ErrorCode::BadGateway, format!("the upstream cannot be used: {problem}"))
        }
        SendFailure::TooLate => {
            (ErrorCode::BadGateway, "the upstream cannot be reached in time".to_owned())
        }
        SendFailure::Interrupted => (
            ErrorCode::BadGateway,
            "the upstream closed the connection without a response".to_owned(),
        ),
        SendFailure::TimedOut => {
            (ErrorCode::Timeout, "the upstream did not respond in time".to_owned())
        }
    };
    Refusal::new(code, RefusalReason::Upstream, text)
}

/// Passes a response on whose call has ended.
fn pass(head: Parts, (incoming, lease): (Incoming, Lease)) -> Answered {
    let (reader, stripper, call) = (Reader::Nothing, None, None);
    Answered { head, body: AnsweredBody::Incoming { incoming, lease, reader, stripper, call } }
}

/// Passes a response on and reads its usage.
fn relay(
    call: OpenCall,
    mut head: Parts,
    (incoming, lease): (Incoming, Lease),
    is_injected: bool,
) -> Answered {
    let is = |name, expected: &str| is_header(&head.headers, name, expected);
    let is_events = is(CONTENT_TYPE, "text/event-stream");
    let is_encoded =
        head.headers.contains_key(CONTENT_ENCODING) && !is(CONTENT_ENCODING, "identity");
    // Gemini streams a JSON array unless it is asked for events; the others answer with events or not at all.
    let is_stream = is_events || call.context.call.stream() == Some(true);
    let reader = if is_encoded {
        Reader::Nothing
    } else if is_stream {
        Reader::Stream(Box::new(StreamReader::new(&call.context.call)))
    } else {
        Reader::Whole(Vec::new(), 0)
    };
    let stripper = (is_injected && is_events && !is_encoded).then(UsageStripper::new);
    if stripper.is_some() {
        head.headers.remove(CONTENT_LENGTH);
    }
    let call = Some(call);
    Answered { head, body: AnsweredBody::Incoming { incoming, lease, reader, stripper, call } }
}

impl Answered {
    /// Makes the response to the client.
    pub(crate) fn into_response(
        self,
        shared: &Arc<Shared>,
        during: During,
    ) -> Response<GatewayBody> {
        let Self { mut head, body } = self;
        headers::backward(&mut head.headers);
        let body = match body {
            AnsweredBody::Whole(bytes) => {
                head.headers.remove(CONTENT_LENGTH);
                GatewayBody::Own(Some(bytes))
            }
            AnsweredBody::Incoming { incoming, lease, reader, stripper, call } => {
                let read = (reader, stripper);
                let relay = Relay::new(shared, (incoming, lease), read, call, during);
                GatewayBody::Relay(Box::new(relay))
            }
        };
        let mut response = Response::new(body);
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        response
    }
}
