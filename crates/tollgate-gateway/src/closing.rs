//! A provider that refuses calls, or says that it would: the model is closed at that upstream.
//!
//! Where a charge of the route names the upstream, its limit is closed in the store: calls wait for it in the queue, with all other
//! gateways of the store, and are told an honest time. Otherwise this process leaves the upstream alone.

use std::sync::Arc;

use hyper::HeaderMap;
use tollgate::incident::{RETRY_AFTER_MAX, Violation};
use tollgate::{Ask, Policy, Span};
use tollgate_providers::{
    INPUT_TOKENS, OUTPUT_TOKENS, ProviderErrorKind, TOKENS, header_standings,
};

use crate::config::REQUESTS;
use crate::observe::GatewayEvent;
use crate::open_call::{CallContext, OpenCall};

/// A refusal, and the charge that it concerns.
pub(crate) struct Refused {
    target: usize,
    status: u16,
    units: &'static [&'static str],
    /// The policy and subject of the charge that names the upstream.
    charge: Option<(Policy, String)>,
}

impl Refused {
    pub(crate) fn new(call: &OpenCall, status: u16, kind: ProviderErrorKind) -> Self {
        let units: &[&str] = match kind {
            ProviderErrorKind::MinuteQuota | ProviderErrorKind::DailyQuota => &[REQUESTS],
            ProviderErrorKind::TokenQuota => &[TOKENS, INPUT_TOKENS, OUTPUT_TOKENS],
            _ => &[],
        };
        // An overload is no limit of the policy.
        let charge = if status == 429 { call.charge_of_upstream() } else { None };
        Self { target: call.target, status, units, charge }
    }

    fn limit<'a>(&self, policy: &'a Policy) -> Option<&'a str> {
        let limit = |unit: &&str| policy.limits().find(|limit| limit.unit() == *unit);
        self.units.iter().find_map(limit).map(tollgate::Limit::name)
    }
}

/// Closes the model at the upstream that refused for `pause`. The first refusal of an open one is an incident.
pub(crate) async fn close(context: &Arc<CallContext>, refused: Refused, pause: Span) {
    let app = &context.shared.app;
    let deployment = context.deployment(refused.target);
    let pause = pause.min(RETRY_AFTER_MAX);
    let now = app.now();
    let until = now + pause;
    let is_first = deployment.closed_until(now).is_none();
    let mut is_local = true;
    if let Some((policy, subject)) = &refused.charge {
        let ask = Ask::new(policy, subject.as_str());
        let limit = refused.limit(policy);
        let closed = if is_first {
            // Closed here before the store, so that calls which are refused meanwhile raise no incident of their own.
            deployment.close(until, false);
            let violation = Violation { ask: &ask, limit, retry_after: pause };
            app.report_violation(&violation, &context.key.name)
                .await
                .map(|incident| incident.closed)
        } else {
            let first = policy.limits().next().map(tollgate::Limit::name);
            let limit = limit.or(first).unwrap_or_default();
            app.close_limit(&ask, limit, until).await.map(|_| true)
        };
        is_local = !closed.unwrap_or(false);
    }
    deployment.close(until, is_local);
    context.shared.observe(&GatewayEvent::Closed {
        upstream: &deployment.upstream,
        model: &deployment.model,
        status: refused.status,
        until,
    });
}

/// Reads what the provider says about its limits: a limit with nothing left is closed until it has room for a call like this one, and a
/// limit that differs from the policy is reported.
pub(crate) fn observe_headers(call: &OpenCall, headers: &HeaderMap) {
    let context = &call.context;
    let app = &context.shared.app;
    let now = app.now();
    let standings = header_standings(context.call.dialect(), headers, now);
    if standings.is_empty() {
        return;
    }
    let Some((policy, subject)) = call.charge_of_upstream() else { return };
    let deployment = call.deployment();
    for standing in standings {
        let unit = standing.unit;
        let mut limits = policy.limits().filter(|limit| limit.unit() == unit).peekable();
        let Some(first) = limits.peek().copied() else { continue };
        let Some(theirs) = standing.limit else { continue };
        if limits.all(|limit| limit.rule().limit() != theirs) && deployment.is_news(unit, theirs) {
            context.shared.observe(&GatewayEvent::LimitDiffers {
                upstream: &deployment.upstream,
                model: &deployment.model,
                policy: policy.name(),
                unit,
                ours: first.rule().limit(),
                theirs,
            });
        }
        if let (Some(0), Some(resets_in)) = (standing.remaining, standing.resets_in) {
            // The reset is that of the whole limit, which refills all the time.
            let part = u128::from(resets_in.as_micros()) * u128::from(call.asked(unit));
            let part = part.div_ceil(u128::from(theirs.max(1)));
            let wait = Span::from_micros(u64::try_from(part).unwrap_or(u64::MAX)).min(resets_in);
            let until = now + wait;
            if wait.is_zero() || deployment.closed_until(now).is_some_and(|closed| until <= closed)
            {
                continue;
            }
            let (app, deployment) = (Arc::clone(app), Arc::clone(deployment));
            let (policy, subject) = (policy.clone(), subject.clone());
            let name = first.name().to_owned();
            context.shared.app.finish_in_background(Box::pin(async move {
                let ask = Ask::new(&policy, subject.as_str());
                let is_local = app.close_limit(&ask, &name, until).await.is_err();
                deployment.close(until, is_local);
            }));
        }
    }
}
