//! From a call to a permit: which upstreams may serve it, what it is charged to, and the wait for admission.

use std::sync::Arc;

use hyper::HeaderMap;
use tollgate::core::bounds::NUMBER_MAX;
use tollgate::gate::Alternatives;
use tollgate::policy::Policies;
use tollgate::queue::Ticket;
use tollgate::{Ask, Costs, Decision, Span, Timestamp};
use tollgate_providers::{CallKind, ErrorCode, USD_MICROS};

use crate::estimate::{self, Tokens};
use crate::gateway::Shared;
use crate::headers;
use crate::observe::{GatewayEvent, RefusalReason};
use crate::open_call::{CallContext, OpenCall};
use crate::refusal::Refusal;
use crate::template::Values;

/// The wait of one call, over all its attempts.
#[derive(Debug)]
pub(crate) struct Waiting {
    began: Span,
    deadline: Timestamp,
    ticket: Ticket,
    policies: Arc<Policies>,
    /// The status of the upstream's last refusal.
    pub(crate) last_status: Option<u16>,
}

impl Waiting {
    /// Begins the wait of `context`: until the earliest of what the route allows, what the client asks for, and when the client
    /// would give up before the response.
    pub(crate) fn begin(context: &CallContext, headers: &HeaderMap) -> Result<Self, Refusal> {
        let mut wait = context.route().max_wait;
        if let Some(wanted) = headers::max_wait(headers).map_err(Refusal::invalid)? {
            wait = wait.min(wanted);
        }
        if let Some(timeout) = headers::client_timeout(headers) {
            let deployment = context.deployment(0);
            let usual = deployment.calibrate(|known| known.usual_duration(context.is_stream()));
            let left = timeout.as_micros().saturating_sub(usual.as_micros());
            wait = wait.min(Span::from_micros(left));
        }
        let clock = context.shared.app.clock();
        Ok(Self {
            began: clock.monotonic(),
            deadline: clock.now() + wait,
            ticket: Ticket::default(),
            policies: context.shared.app.policies(),
            last_status: None,
        })
    }

    pub(crate) fn waited(&self, shared: &Shared) -> Span {
        let now = shared.app.clock().monotonic();
        Span::from_micros(now.as_micros().saturating_sub(self.began.as_micros()))
    }

    /// Waits until the call is admitted at one of its upstreams.
    pub(crate) async fn admit(
        &mut self,
        context: &Arc<CallContext>,
        headers: &HeaderMap,
    ) -> Result<OpenCall, Refusal> {
        let app = &context.shared.app;
        let most = context.config.limits.queue_calls_max;
        let entered = context.shared.waiting.enter(self.began, most);
        let _entered = entered.ok_or_else(|| Refusal::full("waiting calls"))?;
        loop {
            if app.is_closing() {
                return Err(Refusal::stopping());
            }
            let open = match open_targets(context, app.now()) {
                Ok(open) => open,
                Err(until) => {
                    self.sleep_until(until, context).await?;
                    continue;
                }
            };
            // Subscribed before they are read, so that no change is missed.
            let mut changes = app.policy_changes();
            let policies = self.policies(context);
            let mut candidates = Vec::with_capacity(open.len());
            let mut asks = Vec::with_capacity(open.len());
            for target in open {
                let (candidate, ask) = Candidate::new(context, target, &policies, headers)?;
                candidates.push(candidate);
                asks.push(ask);
            }
            let alternatives = Alternatives::from_asks(asks, context.route().shared)
                .map_err(|error| Refusal::undecided(&error))?;
            let (deadline, key) = (self.deadline, &context.key.name);
            let decided = app.acquire_any_in_turn(&alternatives, deadline, &mut self.ticket, key);
            let decided = tokio::select! {
                biased;
                decided = decided => decided,
                // The call asks again at the same place, so that a larger limit helps those who wait.
                Ok(()) = changes.changed() => continue,
            };
            let (index, decision) = decided.map_err(|error| Refusal::undecided(&error))?;
            let permit = match decision {
                Decision::Admitted(permit) => permit,
                Decision::Denied(_) if app.is_closing() => return Err(Refusal::stopping()),
                Decision::Denied(denial) => return Err(Refusal::denied(&denial)),
            };
            let Candidate { target, tokens, estimate } = candidates.swap_remove(index);
            let call = OpenCall::new(context, target, permit, tokens, estimate);
            let (waited, deployment) = (self.waited(&context.shared), call.deployment());
            deployment.counters.waited(waited);
            context.shared.observe(&GatewayEvent::Admitted {
                key,
                upstream: &deployment.upstream,
                model: &deployment.model,
                waited,
            });
            return Ok(call);
        }
    }

    /// Returns the policies in force, or those that the call began with if its route charges one that is gone.
    fn policies(&mut self, context: &CallContext) -> Arc<Policies> {
        let policies = context.shared.app.policies();
        let mut charges = context.route().charges.iter();
        if charges.all(|charge| policies.get(&charge.policy).is_ok()) {
            self.policies = policies;
        }
        Arc::clone(&self.policies)
    }

    /// Sleeps until an upstream is open again, if that is within the deadline.
    async fn sleep_until(&self, until: Timestamp, context: &CallContext) -> Result<(), Refusal> {
        let app = &context.shared.app;
        if self.deadline < until {
            let code = match self.last_status {
                Some(429) => ErrorCode::RateLimited,
                _ => ErrorCode::Overloaded,
            };
            let wait = until.since(app.now());
            let targets = 0..context.route().targets.len();
            let problem = targets.filter_map(|target| context.deployment(target).problem()).next();
            let why = problem.map(|problem| format!(" ({problem})")).unwrap_or_default();
            let text = format!("no upstream can serve the call now{why}; try again in {wait}");
            return Err(Refusal::new(code, RefusalReason::Upstream, text).retry_after(wait));
        }
        tokio::select! {
            () = app.clock().sleep_until(until) => {}
            () = context.shared.closes() => {}
        }
        Ok(())
    }
}

/// Returns the targets that are not paused, or when the first of them is open again. Where the store does not know the upstreams, the
/// first open one serves.
fn open_targets(context: &CallContext, now: Timestamp) -> Result<Vec<usize>, Timestamp> {
    let route = context.route();
    let paused = |target: usize| context.deployment(target).paused_until(now);
    let targets = 0..route.targets.len();
    let most = if route.charges_upstream() { targets.len() } else { 1 };
    let open: Vec<usize> =
        targets.clone().filter(|target| paused(*target).is_none()).take(most).collect();
    if open.is_empty() { Err(targets.filter_map(paused).min().unwrap_or(now)) } else { Ok(open) }
}

/// A call at one upstream.
struct Candidate {
    target: usize,
    tokens: Tokens,
    estimate: Costs,
}

impl Candidate {
    /// Returns the call at `target`, and the ask for it.
    fn new<'a>(
        context: &CallContext,
        target: usize,
        policies: &'a Policies,
        headers: &HeaderMap,
    ) -> Result<(Self, Ask<'a>), Refusal> {
        let CallContext { call, facts, .. } = context;
        let upstream = &context.target(target).upstream;
        let deployment = context.deployment(target);
        let values = Values {
            key: &context.key,
            upstream: &upstream.name,
            model: &deployment.model,
            headers,
        };
        let mut ask: Option<Ask<'a>> = None;
        for charge in &context.route().charges {
            let policy =
                policies.get(&charge.policy).map_err(|error| Refusal::undecided(&error))?;
            let subject = charge
                .subject
                .fill(&values)
                .map_err(|text| Refusal::new(ErrorCode::Forbidden, RefusalReason::Key, text))?;
            ask = Some(match (ask, &charge.costs) {
                (None, None) => Ask::new(policy, subject),
                (None, Some(costs)) => Ask::new_costing(policy, subject, costs),
                (Some(ask), None) => ask.and(policy, subject),
                (Some(ask), Some(costs)) => ask.and_costing(policy, subject, costs),
            });
        }
        let mut ask = ask.ok_or_else(|| Refusal::invalid("the route has no charges"))?;
        // Looking a price up takes longer than an estimate, and most routes limit no money.
        let limits_money =
            ask.charges().any(|charge| charge.policy().units().any(|unit| unit == USD_MICROS));
        let price = if limits_money { context.price(target) } else { None };
        let costs = |tokens| upstream.weights.costs(tokens, price);
        let mut tokens = deployment.calibrate(|known| estimate::tokens(call.kind(), facts, known));
        if call.kind() == CallKind::Generate && facts.output_tokens_declared().is_none() {
            tokens.output = estimate::fit_output(&ask, tokens, costs);
        }
        // A charge with costs of its own does not take those of the call.
        let takes = |ask: &Ask<'_>, unit: &str| {
            let charges = ask.charges().zip(&context.route().charges);
            let mut charges = charges.filter(|(_, charge)| charge.costs.is_none());
            charges.any(|(charge, _)| charge.policy().units().any(|known| known == unit))
        };
        if price.is_none() && takes(&ask, USD_MICROS) {
            return Err(Refusal::invalid(format!(
                "the cost of model {:?} is limited, and it has no price; use a model with one",
                context.shown_model()
            )));
        }
        let estimate = costs(tokens)
            .filter_map(|unit, amount| takes(&ask, unit).then_some(amount.min(NUMBER_MAX)));
        ask = ask.with_costs(&estimate);
        Ok((Self { target, tokens, estimate }, ask))
    }
}
