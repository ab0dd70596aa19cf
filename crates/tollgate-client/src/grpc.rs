//! The broker over gRPC: every call is a stream of one connection.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use hyper_util::client::legacy::Client as Hyper;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tollgate::{
    Ask, BoxFuture, Costs, Decision, Error, ErrorKind, Gate, Permit, Policy, Standing, Timestamp,
};
use tollgate_server::proto::tollgate::v1::gate_client::GateClient;
use tollgate_server::proto::tollgate::v1::{
    self as messages, AcquireRequest, ChargeRequest, CloseUntilRequest, ReleaseRequest,
    RenewRequest, ResetRequest, SettleRequest, StandingRequest,
};
use tollgate_server::{proto, wire};
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status};

use crate::call::{ANSWER_BYTES_MAX, Caller, Connector, seal_of};
use crate::convert;

type Calls = GateClient<Hyper<Connector, tonic::body::Body>>;

/// How often a connection that says nothing is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(30);

/// The broker over gRPC.
pub struct GrpcGate {
    caller: Caller,
    calls: Calls,
}

impl GrpcGate {
    pub(crate) fn new(caller: Caller) -> Result<Self, Error> {
        let hyper = Hyper::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .http2_only(true)
            .http2_keep_alive_interval(PING_EVERY)
            .build(caller.connector(true)?);
        let calls = GateClient::with_origin(hyper, caller.address.clone())
            .max_decoding_message_size(ANSWER_BYTES_MAX);
        Ok(Self { caller, calls })
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
        request.set_timeout(Duration::from(self.caller.deadline));
        if let Some(value) = &self.caller.authorization
            && let Ok(value) = MetadataValue::try_from(value.as_bytes())
        {
            request.metadata_mut().insert("authorization", value);
        }
        let call = async {
            let answer = method(self.calls.clone(), request).await;
            if answer.as_ref().err().is_none_or(|status| status.source().is_none()) {
                self.caller.answered();
            }
            answer.map(Response::into_inner).map_err(|status| self.error_of(status))
        };
        self.caller.within(call).await
    }

    /// What `status` means: the broker's own trouble says its kind; without one, the call did not get there.
    fn error_of(&self, status: Status) -> Error {
        let kind = status.metadata().get(wire::KIND_TRAILER).and_then(|kind| kind.to_str().ok());
        match (status.code(), kind) {
            (Code::Unauthenticated, _) => return self.caller.unauthenticated(status.message()),
            (Code::PermissionDenied, Some(wire::MISDIRECTED)) => {
                return self.caller.misdirected(status.message());
            }
            (Code::PermissionDenied, _) => return self.caller.forbidden(status.message()),
            _ => {}
        }
        if let Some(kind) = kind.and_then(wire::kind_of) {
            return Error::new(kind, status.message());
        }
        match status.code() {
            Code::Unimplemented => self.caller.not_reached(status),
            _ if is_connect(&status) => self.caller.not_reached(status),
            Code::InvalidArgument | Code::OutOfRange => {
                Error::new(ErrorKind::Invalid, status.message())
            }
            _ => self.caller.lost(status),
        }
    }
}

/// Whether there was no connection, so that nothing was sent.
fn is_connect(status: &Status) -> bool {
    let mut cause: Option<&(dyn StdError + 'static)> = status.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>() {
            return error.is_connect();
        }
        cause = error.source();
    }
    false
}

/// The costs of all units, so that none falls back to its default at the broker.
pub(crate) fn named(costs: &Costs) -> BTreeMap<String, u64> {
    costs.iter().map(|(unit, amount)| (unit.to_owned(), amount)).collect()
}

pub(crate) fn id_ttl_ms(ask: &Ask<'_>) -> Option<u64> {
    ask.id_text().map(|_| ask.id_ttl().as_millis_ceil())
}

impl fmt::Debug for GrpcGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcGate").field("caller", &self.caller).finish_non_exhaustive()
    }
}

impl Gate for GrpcGate {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        Box::pin(async move {
            ask.check()?;
            let in_front = ask.in_front().iter();
            let message = AcquireRequest {
                policy: ask.policy().name().to_owned(),
                subject: ask.subject().to_owned(),
                costs: named(&ask.costs()),
                id: ask.id_text().map(str::to_owned),
                id_ttl_ms: id_ttl_ms(ask),
                wait_ms: 0,
                behind: in_front
                    .map(|amounts| messages::Costs { amounts: named(&ask.policy().costs(amounts)) })
                    .collect(),
            };
            let answer =
                self.call(message, async |mut calls, message| calls.acquire(message).await).await?;
            convert::decision(answer, ask)
        })
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let message =
                SettleRequest { permit: seal_of(permit)?.to_owned(), actual: named(actual) };
            let done =
                self.call(message, async |mut calls, message| calls.settle(message).await).await?;
            Ok(done.changed)
        })
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let message = ReleaseRequest { permit: seal_of(permit)?.to_owned() };
            let done =
                self.call(message, async |mut calls, message| calls.release(message).await).await?;
            Ok(done.changed)
        })
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(async move {
            let message = RenewRequest { permit: seal_of(permit)?.to_owned() };
            let renewed =
                self.call(message, async |mut calls, message| calls.renew(message).await).await?;
            convert::renewed(permit, &renewed.permit)
        })
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(async move {
            ask.check()?;
            let message = ChargeRequest {
                policy: ask.policy().name().to_owned(),
                subject: ask.subject().to_owned(),
                costs: named(&ask.costs()),
                id: ask.id_text().map(str::to_owned),
                id_ttl_ms: id_ttl_ms(ask),
            };
            let answer =
                self.call(message, async |mut calls, message| calls.charge(message).await).await?;
            convert::permit_of(answer, ask.policy())
        })
    }

    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let message = CloseUntilRequest {
                policy: ask.policy().name().to_owned(),
                subject: ask.subject().to_owned(),
                limit: limit.to_owned(),
                until: Some(proto::time(until)),
            };
            let done = self
                .call(message, async |mut calls, message| calls.close_until(message).await)
                .await?;
            Ok(done.changed)
        })
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        Box::pin(async move {
            let (policy, subject) = (policy.name().to_owned(), subject.to_owned());
            let message = StandingRequest { policy, subject };
            let answer = self
                .call(message, async |mut calls, message| calls.standing(message).await)
                .await?;
            convert::standings(answer.limits)
        })
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let (policy, subject) = (policy.name().to_owned(), subject.to_owned());
            let message = ResetRequest { policy, subject };
            let done =
                self.call(message, async |mut calls, message| calls.reset(message).await).await?;
            Ok(done.changed)
        })
    }
}
