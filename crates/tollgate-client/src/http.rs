//! The broker over HTTP: the same calls in JSON, on a pool of connections.

use std::fmt;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::{Method, Request};
use hyper_util::client::legacy::Client as Hyper;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tollgate::{
    Ask, BoxFuture, Costs, Decision, Error, ErrorKind, Gate, Permit, Policy, Standing, Timestamp,
};
use tollgate_server::wire::{
    self, AcquireRequest, Admitted, Changed, ChargeRequest, CloseRequest, Denied, PermitRequest,
    Problem, Renewed, SettleRequest, StandingResponse,
};

use crate::call::{ANSWER_BYTES_MAX, Caller, Connector, seal_of};
use crate::convert::{self, json, odd};
use crate::grpc::{id_ttl_ms, named};

/// How long a connection is kept that nothing goes over: less than the 75 s after which the broker closes it, so that
/// no request crosses with that.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// The broker over HTTP.
pub struct HttpGate {
    caller: Caller,
    hyper: Hyper<Connector, Full<Bytes>>,
}

/// What came back.
struct Answer {
    status: u16,
    body: Bytes,
}

impl HttpGate {
    pub(crate) fn new(caller: Caller) -> Result<Self, Error> {
        let mut builder = Hyper::builder(TokioExecutor::new());
        let hyper = builder
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .build(caller.connector(false)?);
        Ok(Self { caller, hyper })
    }

    async fn post<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A, Error> {
        self.read(&self.send(Method::POST, path, body).await?)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Answer, Error> {
        let body = serde_json::to_vec(body).map_err(|error| unsendable(&error))?;
        self.exchange(method, path, body.into()).await
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, Error> {
        let address = self.caller.address.to_string();
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", address.trim_end_matches('/')))
            .header(CONTENT_TYPE, "application/json");
        if let Some(value) = &self.caller.authorization {
            request = request.header(AUTHORIZATION, value);
        }
        let request = request.body(Full::new(body)).map_err(|error| unsendable(&error))?;
        let call = async {
            let response = self.hyper.request(request).await.map_err(|error| {
                if error.is_connect() {
                    self.caller.not_reached(error)
                } else {
                    self.caller.lost(error)
                }
            })?;
            self.caller.answered();
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| {
                let text =
                    format!("lost the answer of the broker at {}: {error}", self.caller.address);
                Error::new(ErrorKind::Unavailable, text)
            })?;
            Ok(Answer { status, body: body.to_bytes() })
        };
        self.caller.within(call).await
    }

    async fn named(&self, method: Method, policy: &Policy, subject: &str) -> Result<Answer, Error> {
        let query = format!("policy={}&subject={}", escaped(policy.name()), escaped(subject));
        self.exchange(method, &format!("/v1/standing?{query}"), Bytes::new()).await
    }

    fn read<A: DeserializeOwned>(&self, answer: &Answer) -> Result<A, Error> {
        match answer.status {
            401 => Err(self.caller.unauthenticated(&answer.error().to_string())),
            403 => Err(self.caller.forbidden(&answer.error().to_string())),
            421 => Err(self.caller.misdirected(&answer.error().to_string())),
            400.. => Err(answer.error()),
            _ => answer.parse(),
        }
    }
}

impl Answer {
    fn parse<A: DeserializeOwned>(&self) -> Result<A, Error> {
        serde_json::from_slice(&self.body)
            .map_err(|error| odd("the broker's answer does not parse").caused_by(error))
    }

    /// The problem document; without one, whatever answered is no broker.
    fn error(&self) -> Error {
        let kind = match self.status {
            400..=499 => ErrorKind::Invalid,
            _ => ErrorKind::Unavailable,
        };
        match serde_json::from_slice::<Problem>(&self.body) {
            Ok(problem) => Error::new(wire::kind_of(&problem.kind).unwrap_or(kind), problem.detail),
            Err(_) => Error::new(kind, format!("the broker answered with status {}", self.status)),
        }
    }
}

fn unsendable(why: &impl fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("the request cannot be sent: {why}"))
}

/// `text` for a query.
fn escaped(text: &str) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    let one = |byte: u8| match Some(byte).filter(is_plain) {
        Some(byte) => char::from(byte).to_string(),
        None => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

fn request_of(ask: &Ask<'_>) -> AcquireRequest {
    AcquireRequest {
        policy: ask.policy().name().to_owned(),
        subject: ask.subject().to_owned(),
        costs: ask.costs(),
        id: ask.id_text().map(str::to_owned),
        id_ttl_ms: id_ttl_ms(ask),
        wait_ms: None,
        behind: ask.in_front().iter().map(|amounts| named(&ask.policy().costs(amounts))).collect(),
    }
}

impl fmt::Debug for HttpGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpGate").field("caller", &self.caller).finish_non_exhaustive()
    }
}

impl Gate for HttpGate {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        Box::pin(async move {
            ask.check()?;
            let answer = self.send(Method::POST, "/v1/acquire", &request_of(ask)).await?;
            if answer.status == 429 {
                return json::denial(answer.parse::<Denied>()?).map(Decision::Denied);
            }
            json::permit_of(self.read::<Admitted>(&answer)?, ask.policy()).map(Decision::Admitted)
        })
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let body =
                SettleRequest { permit: seal_of(permit)?.to_owned(), actual: actual.clone() };
            Ok(self.post::<Changed>("/v1/settle", &body).await?.changed)
        })
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let body = PermitRequest { permit: seal_of(permit)?.to_owned() };
            Ok(self.post::<Changed>("/v1/release", &body).await?.changed)
        })
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(async move {
            let body = PermitRequest { permit: seal_of(permit)?.to_owned() };
            let renewed = self.post::<Renewed>("/v1/renew", &body).await?;
            convert::renewed(permit, &renewed.permit)
        })
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(async move {
            ask.check()?;
            let AcquireRequest { policy, subject, costs, id, id_ttl_ms, .. } = request_of(ask);
            let body = ChargeRequest { policy, subject, costs, id, id_ttl_ms };
            json::permit_of(self.post::<Admitted>("/v1/charge", &body).await?, ask.policy())
        })
    }

    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let body = CloseRequest {
                policy: ask.policy().name().to_owned(),
                subject: ask.subject().to_owned(),
                limit: limit.to_owned(),
                until,
            };
            Ok(self.post::<Changed>("/v1/close", &body).await?.changed)
        })
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        Box::pin(async move {
            let answer = self.named(Method::GET, policy, subject).await?;
            Ok(json::standings(self.read::<StandingResponse>(&answer)?.limits))
        })
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let answer = self.named(Method::DELETE, policy, subject).await?;
            Ok(self.read::<Changed>(&answer)?.changed)
        })
    }
}
