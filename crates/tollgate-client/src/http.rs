//! The broker over HTTP: the operations of a gate as calls of its JSON API.

use std::fmt;

use hyper::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{Decision, Error, ErrorKind, Gate, Policy};
use tollgate_protocol::json::{
    self, Admitted, Changed, ChargeRequest, CloseRequest, Denied, PermitRequest, Renewed,
    StandingResponse,
};
use tollgate_transport::http::SendError;

use crate::api::{ApiClient, ApiError, ApiResponse, percent_encode};
use crate::convert::{self, policies, unexpected, whole_seal};
use crate::target::Target;

/// The broker over HTTP.
pub struct HttpGate {
    api: ApiClient,
}

impl HttpGate {
    pub(crate) fn new(target: Target) -> Self {
        Self { api: ApiClient::for_target(target) }
    }

    async fn post<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A, Error> {
        self.read(&self.send(Method::POST, path, Some(body)).await?)
    }

    /// Posts `body` to `path`, which answers whether it changed anything.
    async fn change(&self, path: &str, body: &impl Serialize) -> Result<Outcome, Error> {
        Ok(Outcome::Changed(self.post::<Changed>(path, body).await?.changed))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<ApiResponse, Error> {
        let target = self.api.target();
        let sent = self.api.send(method, path, body, target.deadline).await;
        sent.map_err(|error| match error {
            ApiError::TimedOut(_) => target.timed_out(),
            ApiError::Tls(fault) => target.tls_fault(fault),
            ApiError::Send(error @ SendError::NotConnected(_)) => target.not_reached(error),
            ApiError::Send(error) => target.lost(error),
            ApiError::Unsendable(reason) => {
                Error::new(ErrorKind::Invalid, format!("the request cannot be sent: {reason}"))
            }
        })
    }

    async fn named(
        &self,
        method: Method,
        policy: &Policy,
        subject: &str,
    ) -> Result<ApiResponse, Error> {
        let (policy, subject) = (percent_encode(policy.name()), percent_encode(subject));
        let path = format!("/v1/standing?policy={policy}&subject={subject}");
        self.send(method, &path, None::<&()>).await
    }

    fn read<A: DeserializeOwned>(&self, response: &ApiResponse) -> Result<A, Error> {
        let (target, error) = (self.api.target(), || error_in(response));
        match response.status {
            401 => Err(target.unauthenticated(&error().to_string())),
            403 => Err(target.forbidden(&error().to_string())),
            421 => Err(target.misdirected(&error().to_string())),
            400.. => Err(error()),
            _ => parse(response),
        }
    }
}

fn parse<A: DeserializeOwned>(response: &ApiResponse) -> Result<A, Error> {
    response.parse().map_err(|error| unexpected("the response does not parse").caused_by(error))
}

/// Returns the problem of `response` as an error. A response without a problem document is not a broker's.
fn error_in(response: &ApiResponse) -> Error {
    let kind = match response.status {
        400..=499 => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    match response.problem() {
        Some(problem) => Error::new(json::kind_of(&problem.kind).unwrap_or(kind), problem.detail),
        None => Error::new(kind, format!("the broker responded with status {}", response.status)),
    }
}

impl fmt::Debug for HttpGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpGate").field("api", &self.api).finish()
    }
}

impl Gate for HttpGate {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            match operation {
                Operation::Acquire(ask) => {
                    ask.check()?;
                    let request = convert::acquire_request(ask);
                    let answer = self.send(Method::POST, "/v1/acquire", Some(&request)).await?;
                    if answer.status == 429 {
                        let denial = parse::<Denied>(&answer)?.try_into()?;
                        return Ok(Outcome::Decided(Decision::Denied(denial)));
                    }
                    let permit = self.read::<Admitted>(&answer)?.into_permit(policies(ask))?;
                    Ok(Outcome::Decided(Decision::Admitted(permit)))
                }
                Operation::Charge(ask) => {
                    ask.check()?;
                    let body = ChargeRequest::from(convert::acquire_request(ask));
                    let admitted = self.post::<Admitted>("/v1/charge", &body).await?;
                    admitted.into_permit(policies(ask)).map(Outcome::Permitted)
                }
                Operation::Settle(permit, actual) => {
                    self.change("/v1/settle", &convert::settle_request(permit, actual)?).await
                }
                Operation::Release(permit) => {
                    let permit = whole_seal(permit)?.to_owned();
                    self.change("/v1/release", &PermitRequest { permit }).await
                }
                Operation::Renew(permit) => {
                    let body = PermitRequest { permit: whole_seal(permit)?.to_owned() };
                    let renewed = self.post::<Renewed>("/v1/renew", &body).await?;
                    convert::renewed(permit, &renewed.permit).map(Outcome::Permitted)
                }
                Operation::Close { policy, subject, limit, until } => {
                    let body = CloseRequest {
                        policy: policy.name().to_owned(),
                        subject: subject.to_owned(),
                        limit: limit.to_owned(),
                        until,
                    };
                    self.change("/v1/close", &body).await
                }
                Operation::Standing { policy, subject } => {
                    let answer = self.named(Method::GET, policy, subject).await?;
                    let limits = self.read::<StandingResponse>(&answer)?.limits;
                    Ok(Outcome::Standings(limits.into_iter().map(Into::into).collect()))
                }
                Operation::Reset { policy, subject } => {
                    let answer = self.named(Method::DELETE, policy, subject).await?;
                    Ok(Outcome::Changed(self.read::<Changed>(&answer)?.changed))
                }
            }
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
