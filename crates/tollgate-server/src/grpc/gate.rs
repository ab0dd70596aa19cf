//! `tollgate.v1.Gate`: each operation of a gate as a method.
//!
//! Mutating calls run to completion even if the client disconnects. An ask is cancelled instead, since no caller would use its
//! permit.

use std::sync::Arc;

use tollgate::incident::Incident;
use tollgate::{Error, ErrorKind};
use tonic::{Request, Response, Status};

use super::authorize::caller_of;
use super::status;
use crate::access::Caller;
use crate::app::App;
use tollgate_protocol::json::{self, CloseRequest, StandingQuery, ViolationRequest};
use tollgate_protocol::permit_token;
use tollgate_protocol::protobuf::tollgate::v1::gate_server::Gate;
use tollgate_protocol::protobuf::tollgate::v1::{
    AcquireRequest, AcquireResponse, Admitted, ChangedResponse, ChargeRequest, CloseUntilRequest,
    ClosedLimit, ReleaseRequest, RenewRequest, RenewResponse, ReportViolationRequest,
    ReportViolationResponse, ResetRequest, SettleRequest, StandingRequest, StandingResponse,
};
use tollgate_protocol::protobuf::{instant, time};

/// Handles the methods of the service.
pub(super) struct GateHandler {
    app: Arc<App>,
}

impl GateHandler {
    pub(super) const fn new(app: Arc<App>) -> Self {
        Self { app }
    }

    async fn decide(
        &self,
        caller: &Caller,
        request: AcquireRequest,
    ) -> Result<AcquireResponse, Error> {
        let request = json::AcquireRequest {
            policy: request.policy,
            subject: request.subject,
            costs: request.costs.into_iter().collect(),
            id: request.id,
            wait_ms: Some(request.wait_ms),
            id_ttl_ms: request.id_ttl_ms,
            behind: request.behind.into_iter().map(|costs| costs.amounts).collect(),
            charges: request.charges.into_iter().map(Into::into).collect(),
            tenant: request.tenant,
        };
        let policies = self.app.policies_of(caller, &request)?;
        let decision = self.app.acquire(&policies, &request).await?;
        Ok(AcquireResponse::new(&decision, self.app.permit_keys().sealing()))
    }

    async fn finish<T, W>(&self, work: impl FnOnce(Arc<App>) -> W) -> Result<T, Error>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Error>> + Send + 'static,
    {
        self.app.run_to_completion(work(Arc::clone(&self.app))).await
    }
}

fn answer<T>(done: Result<T, Error>) -> Result<Response<T>, Status> {
    done.map(Response::new).map_err(|error| status::from_error(&error))
}

fn changed(done: Result<bool, Error>) -> Result<Response<ChangedResponse>, Status> {
    answer(done.map(|changed| ChangedResponse { changed }))
}

#[tonic::async_trait]
impl Gate for GateHandler {
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
        let SettleRequest { permit, actual, charges } = request.into_inner();
        let charges = charges.into_iter().map(|charge| json::ChargeActual {
            charge: usize::try_from(charge.charge).unwrap_or(usize::MAX),
            actual: charge.actual.into_iter().collect(),
        });
        let (actual, charges) = (actual.into_iter().collect(), charges.collect());
        let request = json::SettleRequest { permit, actual, charges };
        changed(self.finish(|app| async move { app.settle(&caller, &request).await }).await)
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
        let RenewRequest { permit } = request.into_inner();
        let renewed = self.finish(|app| async move { app.renew(&caller, &permit).await }).await;
        answer(renewed.map(|permit| RenewResponse {
            permit: permit_token::encode(&permit, self.app.permit_keys().sealing()),
            use_by: permit.use_by().map(time),
            expires_at: permit.expires_at().map(time),
        }))
    }

    async fn standing(
        &self,
        request: Request<StandingRequest>,
    ) -> Result<Response<StandingResponse>, Status> {
        let caller = caller_of(&request)?;
        let StandingRequest { policy, subject } = request.into_inner();
        let standings = self.app.standing(&caller, &StandingQuery { policy, subject }).await;
        answer(
            standings
                .map(|limits| StandingResponse { limits: limits.iter().map(Into::into).collect() }),
        )
    }

    async fn report_violation(
        &self,
        request: Request<ReportViolationRequest>,
    ) -> Result<Response<ReportViolationResponse>, Status> {
        let caller = caller_of(&request)?;
        let ReportViolationRequest { policy, subject, limit, retry_after_ms, permit } =
            request.into_inner();
        let request = ViolationRequest { policy, subject, limit, retry_after_ms, permit };
        let done = self.finish(|app| async move { app.violation(&caller, &request).await }).await;
        answer(done.map(|incident| {
            let closed_until = |incident: &Incident| incident.closed.then(|| time(incident.until));
            let closed = std::iter::once(&incident).chain(&incident.others);
            let closed = closed.map(|incident| ClosedLimit {
                policy: incident.policy.clone(),
                subject: incident.subject.clone(),
                limit: incident.limit.clone(),
                closed_until: closed_until(incident),
            });
            ReportViolationResponse {
                closed: closed.collect(),
                closed_until: closed_until(&incident),
                limit: incident.limit,
            }
        }))
    }

    async fn charge(&self, request: Request<ChargeRequest>) -> Result<Response<Admitted>, Status> {
        let caller = caller_of(&request)?;
        let ChargeRequest { policy, subject, costs, id, id_ttl_ms, charges } = request.into_inner();
        let costs = costs.into_iter().collect();
        let charges = charges.into_iter().map(Into::into).collect();
        let request = json::ChargeRequest { policy, subject, costs, id, id_ttl_ms, charges };
        let charged = self.finish(|app| async move { app.charge(&caller, request).await }).await;
        answer(charged.map(|permit| Admitted::new(&permit, self.app.permit_keys().sealing())))
    }

    async fn close_until(
        &self,
        request: Request<CloseUntilRequest>,
    ) -> Result<Response<ChangedResponse>, Status> {
        let caller = caller_of(&request)?;
        let CloseUntilRequest { policy, subject, limit, until } = request.into_inner();
        let missing =
            || Error::new(ErrorKind::Invalid, "until is missing; set when the limit opens again");
        let until = until.ok_or_else(missing).and_then(instant);
        changed(
            self.finish(|app| async move {
                app.close_until(&caller, &CloseRequest { policy, subject, limit, until: until? })
                    .await
            })
            .await,
        )
    }

    async fn reset(
        &self,
        request: Request<ResetRequest>,
    ) -> Result<Response<ChangedResponse>, Status> {
        let caller = caller_of(&request)?;
        let ResetRequest { policy, subject } = request.into_inner();
        let query = StandingQuery { policy, subject };
        changed(self.finish(|app| async move { app.reset(&caller, &query).await }).await)
    }
}
