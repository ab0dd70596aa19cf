//! The broker over gRPC; calls share one HTTP/2 connection.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use hyper_util::client::legacy::Client as Hyper;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{Ask, Costs, Decision, Error, ErrorKind, Gate, Permit};
use tollgate_protocol::protobuf::tollgate::v1::gate_client::GateClient;
use tollgate_protocol::protobuf::tollgate::v1::{
    self as messages, AcquireRequest, ChargeRequest, CloseUntilRequest, ReleaseRequest,
    RenewRequest, ResetRequest, SettleRequest, StandingRequest,
};
use tollgate_protocol::{json, protobuf};
use tollgate_transport::http::{Connector, Version, causes, connector};
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status};

use crate::convert::{self, policies, whole_seal};
use crate::target::{RESPONSE_BYTES_MAX, Target};

type Calls = GateClient<Hyper<Connector, tonic::body::Body>>;

/// The interval of pings on an idle connection.
const PING_EVERY: Duration = Duration::from_secs(30);

/// The broker over gRPC.
pub struct GrpcGate {
    target: Target,
    calls: Calls,
}

impl GrpcGate {
    pub(crate) fn new(target: Target) -> Self {
        let connector = connector(target.tls.as_ref(), Version::Http2, None);
        let hyper = Hyper::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .http2_only(true)
            .http2_keep_alive_interval(PING_EVERY)
            .build(connector);
        let calls = GateClient::with_origin(hyper, target.address.clone())
            .max_decoding_message_size(RESPONSE_BYTES_MAX);
        Self { target, calls }
    }

    /// Sends `message` by `method`.
    async fn call<M, A, F>(
        &self,
        message: M,
        method: impl FnOnce(Calls, Request<M>) -> F,
    ) -> Result<A, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut request = Request::new(message);
        request.set_timeout(Duration::from(self.target.deadline));
        if let Some(value) = &self.target.authorization
            && let Ok(value) = MetadataValue::try_from(value.as_bytes())
        {
            request.metadata_mut().insert("authorization", value);
        }
        let call = async {
            let answer = method(self.calls.clone(), request).await;
            if answer.as_ref().err().is_none_or(|status| status.source().is_none()) {
                self.target.note_response();
            }
            answer.map(Response::into_inner).map_err(|status| self.error_of(status))
        };
        self.target.with_deadline(call).await
    }

    /// Sends `message` by `method`, which answers whether it changed anything.
    async fn change<M, F>(
        &self,
        message: M,
        method: impl FnOnce(Calls, Request<M>) -> F,
    ) -> Result<Outcome, Error>
    where
        F: Future<Output = Result<Response<messages::ChangedResponse>, Status>>,
    {
        Ok(Outcome::Changed(self.call(message, method).await?.changed))
    }

    async fn acquire(&self, ask: &Ask<'_>) -> Result<Decision, Error> {
        ask.check()?;
        let request = convert::acquire_request(ask);
        let message = AcquireRequest {
            costs: named(&request.costs),
            policy: request.policy,
            subject: request.subject,
            id: request.id,
            id_ttl_ms: request.id_ttl_ms,
            wait_ms: 0,
            behind: request.behind.into_iter().map(|amounts| messages::Costs { amounts }).collect(),
            charges: request.charges.into_iter().map(Into::into).collect(),
            tenant: request.tenant,
        };
        let answer =
            self.call(message, async |mut calls, message| calls.acquire(message).await).await?;
        answer.into_decision(policies(ask))
    }

    async fn charge(&self, ask: &Ask<'_>) -> Result<Permit, Error> {
        ask.check()?;
        let request = convert::acquire_request(ask);
        let message = ChargeRequest {
            costs: named(&request.costs),
            policy: request.policy,
            subject: request.subject,
            id: request.id,
            id_ttl_ms: request.id_ttl_ms,
            charges: request.charges.into_iter().map(Into::into).collect(),
        };
        let answer =
            self.call(message, async |mut calls, message| calls.charge(message).await).await?;
        answer.into_permit(policies(ask))
    }

    /// Converts `status`. The broker's own errors carry their kind; without one, the call did not arrive.
    fn error_of(&self, status: Status) -> Error {
        let kind = status.metadata().get(json::KIND_TRAILER).and_then(|kind| kind.to_str().ok());
        match (status.code(), kind) {
            (Code::Unauthenticated, _) => return self.target.unauthenticated(status.message()),
            (Code::PermissionDenied, Some(json::MISDIRECTED)) => {
                return self.target.misdirected(status.message());
            }
            (Code::PermissionDenied, _) => return self.target.forbidden(status.message()),
            _ => {}
        }
        if let Some(kind) = kind.and_then(json::kind_of) {
            return Error::new(kind, status.message());
        }
        match status.code() {
            Code::Unimplemented => self.target.not_reached(status),
            _ if is_connect(&status) => self.target.not_reached(status),
            Code::InvalidArgument | Code::OutOfRange => {
                Error::new(ErrorKind::Invalid, status.message())
            }
            _ => self.target.lost(status),
        }
    }
}

/// Returns whether there was no connection, so that nothing was sent.
fn is_connect(status: &Status) -> bool {
    causes(status)
        .find_map(|cause| cause.downcast_ref::<hyper_util::client::legacy::Error>())
        .is_some_and(hyper_util::client::legacy::Error::is_connect)
}

/// Returns the costs of all units, so that none gets its default at the broker.
pub(crate) fn named(costs: &Costs) -> BTreeMap<String, u64> {
    costs.iter().map(|(unit, amount)| (unit.to_owned(), amount)).collect()
}

pub(crate) fn id_ttl_ms(ask: &Ask<'_>) -> Option<u64> {
    ask.id_text().map(|_| ask.id_ttl().as_millis_ceil())
}

impl fmt::Debug for GrpcGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcGate").field("target", &self.target).finish_non_exhaustive()
    }
}

impl Gate for GrpcGate {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            match operation {
                Operation::Acquire(ask) => self.acquire(ask).await.map(Outcome::Decided),
                Operation::Charge(ask) => self.charge(ask).await.map(Outcome::Permitted),
                Operation::Settle(permit, actual) => {
                    let request = convert::settle_request(permit, actual)?;
                    let charges = request.charges.iter().map(|charge| messages::ChargeActual {
                        charge: u32::try_from(charge.charge).unwrap_or(u32::MAX),
                        actual: named(&charge.actual),
                    });
                    let message = SettleRequest {
                        charges: charges.collect(),
                        actual: named(&request.actual),
                        permit: request.permit,
                    };
                    self.change(message, async |mut calls, message| calls.settle(message).await)
                        .await
                }
                Operation::Release(permit) => {
                    let message = ReleaseRequest { permit: whole_seal(permit)?.to_owned() };
                    self.change(message, async |mut calls, message| calls.release(message).await)
                        .await
                }
                Operation::Renew(permit) => {
                    let message = RenewRequest { permit: whole_seal(permit)?.to_owned() };
                    let renewed = self
                        .call(message, async |mut calls, message| calls.renew(message).await)
                        .await?;
                    convert::renewed(permit, &renewed.permit).map(Outcome::Permitted)
                }
                Operation::Close { policy, subject, limit, until } => {
                    let message = CloseUntilRequest {
                        policy: policy.name().to_owned(),
                        subject: subject.to_owned(),
                        limit: limit.to_owned(),
                        until: Some(protobuf::time(until)),
                    };
                    self.change(message, async |mut calls, message| {
                        calls.close_until(message).await
                    })
                    .await
                }
                Operation::Standing { policy, subject } => {
                    let (policy, subject) = (policy.name().to_owned(), subject.to_owned());
                    let message = StandingRequest { policy, subject };
                    let answer = self
                        .call(message, async |mut calls, message| calls.standing(message).await)
                        .await?;
                    protobuf::standings(answer.limits).map(Outcome::Standings)
                }
                Operation::Reset { policy, subject } => {
                    let (policy, subject) = (policy.name().to_owned(), subject.to_owned());
                    let message = ResetRequest { policy, subject };
                    self.change(message, async |mut calls, message| calls.reset(message).await)
                        .await
                }
            }
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
