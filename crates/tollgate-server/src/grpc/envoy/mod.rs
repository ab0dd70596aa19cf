//! Envoy's rate limit service (`envoy.service.ratelimit.v3`): descriptors in, one status for each out.
//!
//! Descriptors are decided in their order. Once one is over its limit, what the others took is given back before the
//! reply, and those that follow are only looked at: a request that Envoy refuses costs nothing. A store that fails is a
//! status UNAVAILABLE, so that `failure_mode_deny` decides.

mod answer;
mod map;

pub use map::{EnvoyMap, EnvoyRule};

use std::sync::Arc;

use tollgate::core::REQUESTS;
use tollgate::{Ask, Decision, Error, ErrorKind, Gate as _, Permit, Policy};
use tonic::{Request, Response, Status};

use self::answer::{Answers, Found};
use super::guard::caller_of;
use super::status;
use crate::access::Caller;
use crate::app::App;
use crate::bounds::DESCRIPTORS_MAX;
use crate::failures;
use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

/// The one method.
pub(super) struct RateLimits {
    app: Arc<App>,
}

impl RateLimits {
    pub(super) const fn new(app: Arc<App>) -> Self {
        Self { app }
    }
}

#[tonic::async_trait]
impl RateLimitService for RateLimits {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let caller = caller_of(&request)?;
        let (app, request) = (Arc::clone(&self.app), request.into_inner());
        // Envoy leaves after a few milliseconds. What was taken for it is given back all the same.
        let decided = self.app.finish(async move { decide(&app, &caller, &request).await }).await;
        decided.map(Response::new).map_err(|error| status::of(&error))
    }
}

async fn decide(
    app: &App,
    caller: &Caller,
    request: &RateLimitRequest,
) -> Result<RateLimitResponse, Error> {
    check(request)?;
    let map = app.envoy();
    let mut answers = Answers::default();
    let mut taken = Vec::new();
    for descriptor in &request.descriptors {
        let Some(rule) = map.find(&request.domain, &descriptor.entries) else {
            answers.unmatched();
            continue;
        };
        let subject = rule.subject(&descriptor.entries, app.limits());
        let hits = descriptor.hits_addend.unwrap_or_else(|| u64::from(request.hits_addend.max(1)));
        let one = Descriptor { rule, subject: &subject, hits };
        match one.decide(app, caller, answers.is_over()).await {
            Ok((found, permit)) => {
                taken.extend(permit);
                answers.add(&found, rule, app.now());
            }
            Err(error) => {
                give_back(app, &taken).await;
                return Err(error);
            }
        }
    }
    if answers.is_over() {
        give_back(app, &taken).await;
    }
    Ok(answers.response())
}

/// Refuses what could not be meant within the promises, before anything is taken.
fn check(request: &RateLimitRequest) -> Result<(), Error> {
    let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
    let count = request.descriptors.len();
    if count == 0 || DESCRIPTORS_MAX < count {
        return invalid(format!("a request has 1 to {DESCRIPTORS_MAX} descriptors, not {count}"));
    }
    for (place, RateLimitDescriptor { limit, is_negative_hits, .. }) in
        request.descriptors.iter().enumerate()
    {
        if limit.is_some() {
            return invalid(format!(
                "descriptors[{place}].limit: limits are those of the policies, where all brokers see them; remove the \
                 override from the route, or write one for the subject in the policy"
            ));
        }
        if *is_negative_hits {
            return invalid(format!(
                "descriptors[{place}].is_negative_hits: hits are given back by the permit they were taken under, which \
                 Envoy does not have, since time may have given them back already; charge what was used when it is known"
            ));
        }
    }
    Ok(())
}

/// Giving back what fails to be given back is under-issue, which time repairs; the answer stands.
async fn give_back(app: &App, taken: &[Permit]) {
    for permit in taken {
        if let Err(error) = app.gate().release(permit).await {
            failures::log_as(&error, "could not give back");
        }
    }
}

/// One descriptor and what it means.
struct Descriptor<'a> {
    rule: &'a EnvoyRule,
    subject: &'a str,
    hits: u64,
}

impl Descriptor<'_> {
    /// Takes the hits; looks only, if there are none or if the request is refused anyway and has room here.
    async fn decide(
        &self,
        app: &App,
        caller: &Caller,
        is_refused: bool,
    ) -> Result<(Found, Option<Permit>), Error> {
        let policy = app.policy(self.rule.policy())?;
        caller.check_about(policy.name(), self.subject)?;
        if is_refused || self.hits == 0 {
            let standings = app.gate().standing(&policy, self.subject).await?;
            let policy = policy.for_subject(self.subject).clone();
            let found = Found::looked(policy, standings, self.rule.hit_unit(), self.hits);
            // If it is over too, only an ask tells until when.
            if self.hits == 0 || !found.is_over() {
                return Ok((found, None));
            }
        }
        let decision = app.decide_for(caller, &self.ask(&policy)).await?;
        let policy = policy.for_subject(self.subject).clone();
        Ok(match decision {
            Decision::Admitted(permit) => {
                (Found::admitted(policy, permit.limits.clone()), Some(permit))
            }
            Decision::Denied(denial) => (Found::denied(policy, denial), None),
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
