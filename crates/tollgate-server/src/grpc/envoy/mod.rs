//! Envoy's rate limit service (`envoy.service.ratelimit.v3`): a list of descriptors in, one status for each out.
//!
//! All descriptors of a request are one ask, decided together: a request that Envoy refuses costs nothing. The hits of
//! descriptors with the same policy and subject are summed. A store failure is UNAVAILABLE, so that `failure_mode_deny`
//! decides.

mod limit_stats;
mod pages;
mod ratelimit;
mod response;
mod rules;
mod unmatched;

pub use limit_stats::LimitStats;
pub use pages::RateLimitPages;
pub(crate) use pages::service;
pub use ratelimit::{RateLimitOptions, RateLimits};
pub use rules::{EnvoyAnswer, EnvoyMap, EnvoyRule};
pub(crate) use unmatched::Unmatched;

use std::sync::Arc;

use tollgate::core::REQUESTS;
use tollgate::core::bounds::CHARGES_MAX;
use tollgate::{Ask, Costs, Decision, Error, ErrorKind, GateExt as _, Permit, Policy};
use tollgate_protocol::permit_token::charges_of;
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
        // Envoy stops waiting after a few milliseconds, and by default lets the request through, so it is counted.
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
    if let Some(limits) = map.limits()
        && limits.config().has_domain(&request.domain)
    {
        return ratelimit::decide(app, caller, limits, request).await;
    }
    map.check_loaded(&request.domain).inspect_err(|_| app.limit_stats().failed(false))?;
    let mut charges: Vec<DescriptorCharge> = Vec::new();
    let mut matched = Vec::with_capacity(request.descriptors.len());
    for descriptor in &request.descriptors {
        let found = map.find(&request.domain, &descriptor.entries);
        let answer = match found {
            Some(rule) => rule.answer(),
            None => Some(map.answer_unmatched()),
        };
        if found.is_none() {
            let has_domain = map.has_domain(&request.domain);
            app.unmatched().record(&request.domain, has_domain, &descriptor.entries, app.now());
        }
        let (Some(rule), None) = (found, answer) else {
            matched.push(Err(answer.unwrap_or_default()));
            continue;
        };
        let subject = rule.subject(&descriptor.entries, app.options());
        let policy = app.policy(caller, rule.policy())?;
        caller.check_about(policy.name(), &subject)?;
        let hits = descriptor.hits_addend.unwrap_or_else(|| u64::from(request.hits_addend.max(1)));
        let is_same = |charge: &DescriptorCharge| {
            charge.policy.name() == policy.name() && charge.subject == subject
        };
        let index = charges.iter().position(is_same).unwrap_or_else(|| {
            charges.push(DescriptorCharge { policy, subject, hits: Costs::new() });
            charges.len() - 1
        });
        charges[index].add(rule.hit_unit(), hits);
        matched.push(Ok((index, rule)));
    }
    let is_denied = matched.iter().any(|answer| matches!(answer, Err(EnvoyAnswer::Deny)));
    let outcomes = decide_charges(app, &charges, is_denied).await?;
    let mut response = ResponseBuilder::default();
    for descriptor in matched {
        match descriptor {
            Ok((index, rule)) => response.add(&outcomes[index], rule, app.now()),
            Err(answer) => response.add_answer(answer),
        }
    }
    Ok(response.build())
}

/// Decides the charges with hits as one ask, unless the request is denied already or one without hits is over. Returns an
/// outcome for each charge.
async fn decide_charges(
    app: &App,
    charges: &[DescriptorCharge],
    is_denied: bool,
) -> Result<Vec<DescriptorOutcome>, Error> {
    let mut outcomes: Vec<Option<DescriptorOutcome>> = Vec::with_capacity(charges.len());
    for charge in charges {
        outcomes.push(if charge.has_hits() { None } else { Some(charge.read(app).await?) });
    }
    if is_denied || outcomes.iter().flatten().any(DescriptorOutcome::is_over) {
        // The request is refused, so nothing is charged.
        for (outcome, charge) in outcomes.iter_mut().zip(charges) {
            if outcome.is_none() {
                *outcome = Some(charge.read(app).await?);
            }
        }
    } else {
        let asked: Vec<&DescriptorCharge> =
            charges.iter().filter(|charge| charge.has_hits()).collect();
        let mut decided = decide_together(app, &asked).await?.into_iter();
        for outcome in outcomes.iter_mut().filter(|outcome| outcome.is_none()) {
            *outcome = decided.next();
        }
    }
    Ok(outcomes.into_iter().flatten().collect())
}

/// Decides `charges` as one ask: all are charged, or none.
async fn decide_together(
    app: &App,
    charges: &[&DescriptorCharge],
) -> Result<Vec<DescriptorOutcome>, Error> {
    if CHARGES_MAX < charges.len() {
        let text = format!(
            "the descriptors have {} policies and subjects, and at most {CHARGES_MAX} are decided together; send fewer \
             descriptors, or map several to one policy and subject",
            charges.len()
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let [first, more @ ..] = charges else { return Ok(Vec::new()) };
    let ask = if more.is_empty() {
        Ask::new(&first.policy, &*first.subject).with_costs(&first.costs())
    } else {
        let ask = Ask::new_costing(&first.policy, &*first.subject, &first.costs());
        more.iter().fold(ask, |ask, charge| {
            ask.and_costing(&charge.policy, &*charge.subject, &charge.costs())
        })
    };
    let policy_of = |charge: &DescriptorCharge| charge.policy.for_subject(&charge.subject).clone();
    Ok(match app.decide(&ask).await? {
        Decision::Admitted(permit) => {
            let outcome = |(charge, permit): (&&DescriptorCharge, &Permit)| {
                DescriptorOutcome::admitted(policy_of(charge), permit.limits.clone())
                    .shadow_denied(permit.shadow_denied.is_some())
            };
            charges.iter().zip(charges_of(&permit)).map(outcome).collect()
        }
        Decision::Denied(denial) => {
            let outcome = |(index, charge): (usize, &&DescriptorCharge)| {
                DescriptorOutcome::denied(policy_of(charge), index, &denial)
            };
            charges.iter().enumerate().map(outcome).collect()
        }
    })
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

/// The hits of all descriptors with one policy and subject.
struct DescriptorCharge {
    policy: Policy,
    subject: String,
    /// The hits by unit.
    hits: Costs,
}

impl DescriptorCharge {
    fn add(&mut self, unit: &str, hits: u64) {
        self.hits.set(unit, self.hits.get(unit).unwrap_or(0).saturating_add(hits));
    }

    fn has_hits(&self) -> bool {
        self.hits.iter().any(|(_, hits)| 0 < hits)
    }

    /// Hits of another unit are the cost of a request that was counted, or not, by another descriptor.
    fn costs(&self) -> Costs {
        let counts_requests = self.policy.units().any(|unit| unit == REQUESTS);
        match self.hits.get(REQUESTS) {
            None if counts_requests => self.hits.clone().with(REQUESTS, 0),
            _ => self.hits.clone(),
        }
    }

    /// Reads the standing only.
    async fn read(&self, app: &App) -> Result<DescriptorOutcome, Error> {
        let standings = app.gate().standing(&self.policy, &self.subject).await?;
        let policy = self.policy.for_subject(&self.subject).clone();
        Ok(DescriptorOutcome::read(policy, standings, &self.hits))
    }
}
