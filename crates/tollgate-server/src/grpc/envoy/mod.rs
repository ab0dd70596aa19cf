//! Envoy's rate limit service (`envoy.service.ratelimit.v3`): a list of descriptors in, one status for each out.
//!
//! Descriptors are decided in order. Once one is over its limit, the permits of the others are released before the reply,
//! and later descriptors are only read: a request that Envoy refuses costs nothing. A store failure is UNAVAILABLE, so
//! that `failure_mode_deny` decides.

mod response;
mod rules;

pub use rules::{EnvoyMap, EnvoyRule};

use std::sync::Arc;

use tollgate::core::REQUESTS;
use tollgate::{Ask, Decision, Error, ErrorKind, GateExt as _, Permit, Policy};
use tollgate_protocol::protobuf::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
};
use tonic::{Request, Response, Status};

use self::response::{DescriptorOutcome, ResponseBuilder};
use super::authorize::caller_of;
use super::status;
use crate::access::Caller;
use crate::app::App;
use crate::bounds::DESCRIPTORS_MAX;
use crate::error_log;

/// Handles the method of the service.
pub(super) struct RateLimitHandler {
    app: Arc<App>,
}

impl RateLimitHandler {
    pub(super) const fn new(app: Arc<App>) -> Self {
        Self { app }
    }
}

#[tonic::async_trait]
impl RateLimitService for RateLimitHandler {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let caller = caller_of(&request)?;
        let (app, request) = (Arc::clone(&self.app), request.into_inner());
        // Envoy disconnects after a few milliseconds; permits are released all the same.
        let decided =
            self.app.run_to_completion(async move { decide(&app, &caller, &request).await }).await;
        decided.map(Response::new).map_err(|error| status::from_error(&error))
    }
}

async fn decide(
    app: &App,
    caller: &Caller,
    request: &RateLimitRequest,
) -> Result<RateLimitResponse, Error> {
    check(request)?;
    let map = app.envoy();
    let mut response = ResponseBuilder::default();
    let mut permits = Vec::new();
    for descriptor in &request.descriptors {
        let Some(rule) = map.find(&request.domain, &descriptor.entries) else {
            response.add_unmatched();
            continue;
        };
        let subject = rule.subject(&descriptor.entries, app.options());
        let hits = descriptor.hits_addend.unwrap_or_else(|| u64::from(request.hits_addend.max(1)));
        let one = Descriptor { rule, subject: &subject, hits };
        match one.decide(app, caller, response.is_over()).await {
            Ok((outcome, permit)) => {
                permits.extend(permit);
                response.add(&outcome, rule, app.now());
            }
            Err(error) => {
                release_all(app, &permits).await;
                return Err(error);
            }
        }
    }
    if response.is_over() {
        release_all(app, &permits).await;
    }
    Ok(response.build())
}

/// Refuses a request that no policy can honour, before anything is charged.
fn check(request: &RateLimitRequest) -> Result<(), Error> {
    let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
    let count = request.descriptors.len();
    if count == 0 || DESCRIPTORS_MAX < count {
        return invalid(format!("a request has 1 to {DESCRIPTORS_MAX} descriptors, not {count}"));
    }
    for (index, RateLimitDescriptor { limit, is_negative_hits, .. }) in
        request.descriptors.iter().enumerate()
    {
        if limit.is_some() {
            return invalid(format!(
                "descriptors[{index}].limit: limits are those of the policies, where all brokers see them; remove the \
                 override from the route, or write one for the subject in the policy"
            ));
        }
        if *is_negative_hits {
            return invalid(format!(
                "descriptors[{index}].is_negative_hits: hits are returned with the permit they were charged under, which \
                 Envoy does not have, since time may have returned them already; charge the actual cost when it is known"
            ));
        }
    }
    Ok(())
}

/// Releases `permits`. A failure is only logged: it issues too little, which time corrects.
async fn release_all(app: &App, permits: &[Permit]) {
    for permit in permits {
        if let Err(error) = app.gate().release(permit).await {
            error_log::log_as(&error, "could not release");
        }
    }
}

/// A descriptor with its policy and subject.
struct Descriptor<'a> {
    rule: &'a EnvoyRule,
    subject: &'a str,
    hits: u64,
}

impl Descriptor<'_> {
    /// Charges the hits. Only reads the standing if there are no hits, or if the request is refused anyway and has room here.
    async fn decide(
        &self,
        app: &App,
        caller: &Caller,
        is_refused: bool,
    ) -> Result<(DescriptorOutcome, Option<Permit>), Error> {
        let policy = app.policy(caller, self.rule.policy())?;
        caller.check_about(policy.name(), self.subject)?;
        if is_refused || self.hits == 0 {
            let standings = app.gate().standing(&policy, self.subject).await?;
            let policy = policy.for_subject(self.subject).clone();
            let outcome =
                DescriptorOutcome::read(policy, standings, self.rule.hit_unit(), self.hits);
            // If it is over, too, only an ask returns the wait.
            if self.hits == 0 || !outcome.is_over() {
                return Ok((outcome, None));
            }
        }
        let decision = app.decide_for(caller, &self.ask(&policy)).await?;
        let policy = policy.for_subject(self.subject).clone();
        Ok(match decision {
            Decision::Admitted(permit) => {
                (DescriptorOutcome::admitted(policy, permit.limits.clone()), Some(permit))
            }
            Decision::Denied(denial) => (DescriptorOutcome::denied(policy, denial), None),
        })
    }

    fn ask<'a>(&'a self, policy: &'a Policy) -> Ask<'a> {
        let ask = Ask::new(policy, self.subject).cost(self.rule.hit_unit(), self.hits);
        // Hits of another unit are the cost of a request that was counted, or not, by another descriptor.
        match self.rule.hit_unit() {
            REQUESTS => ask,
            _ if policy.units().any(|unit| unit == REQUESTS) => ask.cost(REQUESTS, 0),
            _ => ask,
        }
    }
}
