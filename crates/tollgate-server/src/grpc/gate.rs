//! `tollgate.v1.Gate`: each verb of a gate as a method.

use std::sync::Arc;

use tollgate::{Error, ErrorKind, Standing};
use tonic::{Request, Response, Status};

use super::{convert, status};
use crate::app::App;
use crate::proto::tollgate::v1::gate_server::Gate;
use crate::proto::tollgate::v1::{
    AcquireRequest, AcquireResponse, Admitted, ChangedResponse, ChargeRequest, CloseUntilRequest,
    ReleaseRequest, RenewRequest, RenewResponse, ReportViolationRequest, ReportViolationResponse,
    ResetRequest, SettleRequest, StandingRequest, StandingResponse,
};
use crate::proto::{instant, time};
use crate::token;
use crate::wire::{self, CloseRequest, StandingQuery, ViolationRequest};

/// The methods.
pub(super) struct GateCalls {
    app: Arc<App>,
}

impl GateCalls {
    pub(super) const fn new(app: Arc<App>) -> Self {
        Self { app }
    }

    async fn decide(&self, request: AcquireRequest) -> Result<AcquireResponse, Error> {
        let request = wire::AcquireRequest {
            policy: request.policy,
            subject: request.subject,
            costs: convert::costs(request.costs),
            id: request.id,
            wait_ms: Some(request.wait_ms),
            id_ttl_ms: request.id_ttl_ms,
            behind: request.behind.into_iter().map(|costs| costs.amounts).collect(),
        };
        let policy = self.app.policy(&request.policy)?;
        let decision = self.app.acquire(&policy, &request).await?;
        Ok(convert::decision(&decision, self.app.key()))
    }

    async fn renew_permit(&self, permit: &str) -> Result<RenewResponse, Error> {
        let permit = self.app.renew(permit).await?;
        Ok(RenewResponse {
            permit: token::encode(&permit, self.app.key()),
            use_by: permit.use_by().map(time),
            expires_at: permit.expires_at().map(time),
        })
    }

    async fn close(&self, request: CloseUntilRequest) -> Result<bool, Error> {
        let CloseUntilRequest { policy, subject, limit, until } = request;
        let until = until.ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "until is missing; say when the limit opens again")
        })?;
        let until = instant(until)?;
        self.app.close_until(&CloseRequest { policy, subject, limit, until }).await
    }

    /// Closes the limit that the provider named, or the one that has the least left: it is the likeliest.
    async fn report(
        &self,
        request: ReportViolationRequest,
    ) -> Result<ReportViolationResponse, Error> {
        let ReportViolationRequest { policy, subject, limit, retry_after_ms } = request;
        if retry_after_ms == 0 {
            let text = "retry_after_ms is missing; say how long the provider asked to wait";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let query = StandingQuery { policy, subject };
        // A refusal is written down even if the store does not say where the subject stands.
        let limit = match limit {
            None => self.app.standing(&query).await.ok().as_deref().and_then(tightest),
            named => named,
        };
        let StandingQuery { policy, subject } = query;
        let report = ViolationRequest { policy, subject, limit, retry_after_ms };
        let incident = self.app.violation(&report).await?;
        let closed_until = incident.closed.then(|| time(incident.until));
        Ok(ReportViolationResponse { limit: incident.limit, closed_until })
    }
}

/// The name of the limit with the smallest part left; the first of several.
fn tightest(standings: &[Standing]) -> Option<String> {
    let part = |standing: &&Standing| {
        u128::from(standing.remaining) * u128::from(u64::MAX) / u128::from(standing.limit.max(1))
    };
    standings.iter().min_by_key(part).map(|standing| standing.name.to_string())
}

fn answer<T>(done: Result<T, Error>) -> Result<Response<T>, Status> {
    done.map(Response::new).map_err(|error| status::of(&error))
}

fn changed(done: Result<bool, Error>) -> Result<Response<ChangedResponse>, Status> {
    answer(done.map(|changed| ChangedResponse { changed }))
}

#[tonic::async_trait]
impl Gate for GateCalls {
    async fn acquire(
        &self,
        request: Request<AcquireRequest>,
    ) -> Result<Response<AcquireResponse>, Status> {
        answer(self.decide(request.into_inner()).await)
    }

    async fn settle(
        &self,
        request: Request<SettleRequest>,
    ) -> Result<Response<ChangedResponse>, Status> {
        let SettleRequest { permit, actual } = request.into_inner();
        changed(self.app.settle(&permit, &convert::costs(actual)).await)
    }

    async fn release(
        &self,
        request: Request<ReleaseRequest>,
    ) -> Result<Response<ChangedResponse>, Status> {
        changed(self.app.release(&request.into_inner().permit).await)
    }

    async fn renew(
        &self,
        request: Request<RenewRequest>,
    ) -> Result<Response<RenewResponse>, Status> {
        answer(self.renew_permit(&request.into_inner().permit).await)
    }

    async fn standing(
        &self,
        request: Request<StandingRequest>,
    ) -> Result<Response<StandingResponse>, Status> {
        let StandingRequest { policy, subject } = request.into_inner();
        let standings = self.app.standing(&StandingQuery { policy, subject }).await;
        answer(standings.map(|limits| StandingResponse { limits: convert::standings(&limits) }))
    }

    async fn report_violation(
        &self,
        request: Request<ReportViolationRequest>,
    ) -> Result<Response<ReportViolationResponse>, Status> {
        answer(self.report(request.into_inner()).await)
    }

    async fn charge(&self, request: Request<ChargeRequest>) -> Result<Response<Admitted>, Status> {
        let ChargeRequest { policy, subject, costs, id, id_ttl_ms } = request.into_inner();
        let costs = convert::costs(costs);
        let request = wire::AcquireRequest {
            policy,
            subject,
            costs,
            id,
            id_ttl_ms,
            ..wire::AcquireRequest::default()
        };
        let permit = self.app.charge(&request).await;
        answer(permit.map(|permit| convert::admitted(&permit, self.app.key())))
    }

    async fn close_until(
        &self,
        request: Request<CloseUntilRequest>,
    ) -> Result<Response<ChangedResponse>, Status> {
        changed(self.close(request.into_inner()).await)
    }

    async fn reset(
        &self,
        request: Request<ResetRequest>,
    ) -> Result<Response<ChangedResponse>, Status> {
        let ResetRequest { policy, subject } = request.into_inner();
        let query = StandingQuery { policy, subject };
        let done = self.app.reset(&query).await;
        if let Ok(changed) = done {
            tracing::info!(policy = query.policy, subject = query.subject, changed, "reset");
        }
        changed(done)
    }
}
