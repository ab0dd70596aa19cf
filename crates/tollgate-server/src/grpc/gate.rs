//! `tollgate.v1.Gate`: each verb of a gate as a method. What changes something goes on though its caller leaves; an ask does
//! not, since nobody would use what it took.

use std::sync::Arc;

use tollgate::{Error, ErrorKind};
use tonic::{Request, Response, Status};

use super::guard::caller_of;
use super::{convert, status};
use crate::access::Caller;
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

    async fn decide(
        &self,
        caller: &Caller,
        request: AcquireRequest,
    ) -> Result<AcquireResponse, Error> {
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
        let decision = self.app.acquire(caller, &policy, &request).await?;
        Ok(convert::decision(&decision, self.app.permit_keys().sealing()))
    }

    async fn finish<T, W>(&self, work: impl FnOnce(Arc<App>) -> W) -> Result<T, Error>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Error>> + Send + 'static,
    {
        self.app.finish(work(Arc::clone(&self.app))).await
    }
}

async fn renew(
    app: Arc<App>,
    caller: Caller,
    request: RenewRequest,
) -> Result<RenewResponse, Error> {
    let permit = app.renew(&caller, &request.permit).await?;
    Ok(RenewResponse {
        permit: token::encode(&permit, app.permit_keys().sealing()),
        use_by: permit.use_by().map(time),
        expires_at: permit.expires_at().map(time),
    })
}

async fn close(app: Arc<App>, caller: Caller, request: CloseUntilRequest) -> Result<bool, Error> {
    let CloseUntilRequest { policy, subject, limit, until } = request;
    let until = until.ok_or_else(|| {
        Error::new(ErrorKind::Invalid, "until is missing; say when the limit opens again")
    })?;
    let until = instant(until)?;
    app.close_until(&caller, &CloseRequest { policy, subject, limit, until }).await
}

async fn report(
    app: Arc<App>,
    caller: Caller,
    request: ReportViolationRequest,
) -> Result<ReportViolationResponse, Error> {
    let ReportViolationRequest { policy, subject, limit, retry_after_ms, permit } = request;
    let request = ViolationRequest { policy, subject, limit, retry_after_ms, permit };
    let incident = app.violation(&caller, &request).await?;
    let closed_until = incident.closed.then(|| time(incident.until));
    Ok(ReportViolationResponse { limit: incident.limit, closed_until })
}

async fn charge(app: Arc<App>, caller: Caller, request: ChargeRequest) -> Result<Admitted, Error> {
    let ChargeRequest { policy, subject, costs, id, id_ttl_ms } = request;
    let costs = convert::costs(costs);
    let request = wire::ChargeRequest { policy, subject, costs, id, id_ttl_ms };
    Ok(convert::admitted(&app.charge(&caller, &request).await?, app.permit_keys().sealing()))
}

async fn reset(app: Arc<App>, caller: Caller, request: ResetRequest) -> Result<bool, Error> {
    let ResetRequest { policy, subject } = request;
    app.reset(&caller, &StandingQuery { policy, subject }).await
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
        let caller = caller_of(&request)?;
        answer(self.decide(&caller, request.into_inner()).await)
    }

    async fn settle(
        &self,
        request: Request<SettleRequest>,
    ) -> Result<Response<ChangedResponse>, Status> {
        let caller = caller_of(&request)?;
        let SettleRequest { permit, actual } = request.into_inner();
        let actual = convert::costs(actual);
        changed(self.finish(|app| async move { app.settle(&caller, &permit, &actual).await }).await)
    }

    async fn release(
        &self,
        request: Request<ReleaseRequest>,
    ) -> Result<Response<ChangedResponse>, Status> {
        let caller = caller_of(&request)?;
        let ReleaseRequest { permit } = request.into_inner();
        changed(self.finish(|app| async move { app.release(&caller, &permit).await }).await)
    }

    async fn renew(
        &self,
        request: Request<RenewRequest>,
    ) -> Result<Response<RenewResponse>, Status> {
        let caller = caller_of(&request)?;
        answer(self.finish(|app| renew(app, caller, request.into_inner())).await)
    }

    async fn standing(
        &self,
        request: Request<StandingRequest>,
    ) -> Result<Response<StandingResponse>, Status> {
        let caller = caller_of(&request)?;
        let StandingRequest { policy, subject } = request.into_inner();
        let standings = self.app.standing(&caller, &StandingQuery { policy, subject }).await;
        answer(standings.map(|limits| StandingResponse { limits: convert::standings(&limits) }))
    }

    async fn report_violation(
        &self,
        request: Request<ReportViolationRequest>,
    ) -> Result<Response<ReportViolationResponse>, Status> {
        let caller = caller_of(&request)?;
        answer(self.finish(|app| report(app, caller, request.into_inner())).await)
    }

    async fn charge(&self, request: Request<ChargeRequest>) -> Result<Response<Admitted>, Status> {
        let caller = caller_of(&request)?;
        answer(self.finish(|app| charge(app, caller, request.into_inner())).await)
    }

    async fn close_until(
        &self,
        request: Request<CloseUntilRequest>,
    ) -> Result<Response<ChangedResponse>, Status> {
        let caller = caller_of(&request)?;
        changed(self.finish(|app| close(app, caller, request.into_inner())).await)
    }

    async fn reset(
        &self,
        request: Request<ResetRequest>,
    ) -> Result<Response<ChangedResponse>, Status> {
        let caller = caller_of(&request)?;
        changed(self.finish(|app| reset(app, caller, request.into_inner())).await)
    }
}
