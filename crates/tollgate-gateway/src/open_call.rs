//! A call with a permit, from its admission to its settlement.
//!
//! Every call ends exactly once: released if nothing was sent, otherwise settled to what is known of its usage. A call that is dropped
//! at any point, because its client disconnected, ends by the same rules.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::AbortHandle;
use tollgate::core::bounds::{NUMBER_MAX, PERMIT_TTL};
use tollgate::{Costs, Error, ErrorKind, Permit, Policy, Span, Timestamp};
use tollgate_providers::{
    Call, CallKind, PaidTokens, Price, RequestFacts, StreamReader, USD_MICROS, UsageFields,
};
use tollgate_server::App;

use crate::bounds::SHOWN_CHARS_MAX;
use crate::config::{Config, RouteState, Target};
use crate::deployment::Deployment;
use crate::estimate::{Tokens, reported};
use crate::gateway::Shared;
use crate::observe::{Ending, GatewayEvent};
use crate::options::GatewayKey;
use crate::send_state::SendState;

/// What is known about a call before it is admitted.
#[derive(Debug)]
pub(crate) struct CallContext {
    pub(crate) shared: Arc<Shared>,
    pub(crate) config: Arc<Config>,
    pub(crate) key: Arc<GatewayKey>,
    pub(crate) call: Call,
    pub(crate) facts: RequestFacts,
    /// The index of the route.
    pub(crate) route: usize,
    /// The index of the model's pattern in the route.
    pub(crate) pattern: usize,
}

impl CallContext {
    pub(crate) fn route(&self) -> &RouteState {
        &self.config.routes[self.route]
    }

    pub(crate) fn target(&self, index: usize) -> &Target {
        &self.route().targets[index]
    }

    pub(crate) fn deployment(&self, target: usize) -> &Arc<Deployment> {
        &self.target(target).deployments[self.pattern]
    }

    /// Returns the price of the model at a target.
    pub(crate) fn price(&self, target: usize) -> Option<Price> {
        let model = self.target(target).upstream.model(&self.facts.model);
        self.config.prices.price_for(model)
    }

    /// Returns the beginning of the model's name, which the caller chose.
    pub(crate) fn shown_model(&self) -> &str {
        shown(&self.facts.model)
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.call.stream().unwrap_or(self.facts.stream)
    }
}

/// Returns the beginning of a text that a caller chose.
pub(crate) fn shown(text: &str) -> &str {
    text.char_indices().nth(SHOWN_CHARS_MAX).map_or(text, |(end, _)| &text[..end])
}

/// An admitted call.
#[derive(Debug)]
pub(crate) struct OpenCall {
    pub(crate) context: Arc<CallContext>,
    pub(crate) target: usize,
    /// `None` after the end.
    permit: Option<Arc<Mutex<Permit>>>,
    renewal: Option<AbortHandle>,
    pub(crate) state: Arc<SendState>,
    tokens: Tokens,
    /// The costs of the ask, in units that a charge has.
    estimate: Costs,
    /// The monotonic time at which it was admitted.
    began: Span,
    status: Option<u16>,
    first_byte: Option<Span>,
}

impl OpenCall {
    pub(crate) fn new(
        context: &Arc<CallContext>,
        target: usize,
        permit: Permit,
        tokens: Tokens,
        estimate: Costs,
    ) -> Self {
        let began = context.shared.app.clock().monotonic();
        context.shared.in_flight.fetch_add(1, Ordering::Relaxed);
        context.deployment(target).counters.in_flight.fetch_add(1, Ordering::Relaxed);
        let expires_at = permit.expires_at();
        let permit = Arc::new(Mutex::new(permit));
        let renewal = expires_at.map(|expires_at| {
            let renewed = renew(Arc::clone(&context.shared), Arc::clone(&permit), expires_at);
            tokio::spawn(renewed).abort_handle()
        });
        Self {
            context: Arc::clone(context),
            target,
            permit: Some(permit),
            renewal,
            state: Arc::default(),
            tokens,
            estimate,
            began,
            status: None,
            first_byte: None,
        }
    }

    pub(crate) fn deployment(&self) -> &Arc<Deployment> {
        self.context.deployment(self.target)
    }

    /// Returns the amount of `unit` that was asked for.
    pub(crate) fn asked(&self, unit: &str) -> u64 {
        self.estimate.get(unit).unwrap_or(1)
    }

    /// Returns the policy and subject of the last charge that names the upstream.
    pub(crate) fn charge_of_upstream(&self) -> Option<(Policy, String)> {
        if !self.context.route().charges_upstream() {
            return None;
        }
        let permit = self.permit.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        permit.charges().last().map(|part| (part.policy().clone(), part.subject().to_owned()))
    }

    pub(crate) fn use_by(&self) -> Option<Timestamp> {
        let permit = self.permit.as_ref()?;
        permit.lock().unwrap_or_else(PoisonError::into_inner).use_by()
    }

    fn took(&self) -> Span {
        let now = self.context.shared.app.clock().monotonic();
        Span::from_micros(now.as_micros().saturating_sub(self.began.as_micros()))
    }

    /// Records the head of the response.
    pub(crate) fn responded(&mut self, status: u16) {
        let (after, deployment) = (self.took(), self.deployment());
        deployment.counters.first_byte(after);
        let (upstream, model) = (&*deployment.upstream, &*deployment.model);
        self.context.shared.observe(&GatewayEvent::FirstByte { upstream, model, after });
        self.status = Some(status);
        self.first_byte = Some(after);
    }

    /// Ends a call that was not sent.
    pub(crate) fn release(mut self) {
        self.end_unsent();
    }

    /// Ends a call whose charge is kept: the provider may have processed it.
    pub(crate) fn keep(mut self, ending: Ending) {
        self.settle(ending, Costs::new());
    }

    /// Ends a call that the provider refused: the request counts, its tokens do not.
    pub(crate) fn refund_tokens(mut self) {
        let zero = self.estimate.filter_map(|_, _| Some(0));
        self.settle(Ending::Refused, zero);
    }

    /// Ends a call whose response is complete.
    pub(crate) fn complete(mut self, usage: Option<&UsageFields>, reader: Option<&StreamReader>) {
        let Some(usage) = usage else {
            let at_least = reader.map_or_else(Costs::new, |reader| self.streamed(reader, false));
            return self.settle(Ending::Complete, at_least);
        };
        self.deployment().responded_whole();
        self.learn(usage, reader);
        let actual = self.actual(usage);
        self.settle(Ending::Complete, actual);
    }

    /// Ends a call whose response broke off: at least what was streamed is charged.
    pub(crate) fn broken(mut self, ending: Ending, reader: Option<&StreamReader>) {
        let deployment = self.deployment();
        if ending == Ending::UpstreamFailed && deployment.broke_off() {
            let (upstream, model) = (&*deployment.upstream, &*deployment.model);
            tracing::warn!(
                upstream,
                model,
                "a response broke off or was not readable; its estimate stays charged, as for others until one is whole"
            );
        }
        let actual = match reader {
            Some(reader) if ending == Ending::ClientGone => {
                // Reasoning is charged and not streamed.
                self.streamed(reader, !self.context.facts.may_hide_output)
            }
            Some(reader) => self.streamed(reader, false),
            None => Costs::new(),
        };
        self.settle(ending, actual);
    }

    /// Returns the costs that `usage` reports, in units that were asked for; the others keep their estimate.
    fn actual(&self, usage: &UsageFields) -> Costs {
        let upstream = &self.context.target(self.target).upstream;
        let costs = reported(upstream.dialect, &upstream.usage, usage, self.price());
        self.asked_units(&costs)
    }

    fn asked_units(&self, costs: &Costs) -> Costs {
        self.estimate.filter_map(|unit, _| Some(costs.get(unit)?.min(NUMBER_MAX)))
    }

    /// Returns the price of the model, if money was asked for.
    fn price(&self) -> Option<Price> {
        self.estimate.get(USD_MICROS).and_then(|_| self.context.price(self.target))
    }

    /// Returns the costs of input and streamed output. Unless `may_be_less`, no unit is below its estimate.
    fn streamed(&self, reader: &StreamReader, may_be_less: bool) -> Costs {
        let upstream = &self.context.target(self.target).upstream;
        let price = self.price();
        let output = self.deployment().calibrate(|known| known.output(reader.output_tokens()));
        let costs = match reader.usage() {
            None => upstream.weights.costs(Tokens { output, ..self.tokens }, price),
            Some(usage) => {
                // The input is exact; the output may be that of the beginning.
                let paid = PaidTokens::from_usage(upstream.dialect, &usage);
                let unreported = Tokens { input: 0, output: output.saturating_sub(paid.output) };
                let more = upstream.weights.costs(unreported, price);
                let exact = reported(upstream.dialect, &upstream.usage, &usage, price);
                exact.filter_map(|unit, amount| {
                    Some(amount.saturating_add(more.get(unit).unwrap_or(0)))
                })
            }
        };
        let costs = self.asked_units(&costs);
        if may_be_less {
            return costs;
        }
        costs.filter_map(|unit, amount| Some(amount.max(self.estimate.get(unit).unwrap_or(0))))
    }

    /// Learns from a complete response.
    fn learn(&self, usage: &UsageFields, reader: Option<&StreamReader>) {
        let CallContext { call, facts, .. } = &*self.context;
        let paid = PaidTokens::from_usage(call.dialect(), usage);
        let input = paid.input.saturating_add(paid.cached_input).saturating_add(paid.cache_write);
        self.deployment().counters.tokens(input, paid.output);
        let (took, first_byte) = (self.took(), self.first_byte);
        self.deployment().calibrate(|known| {
            if facts.is_text_only() {
                known.saw_input(facts.text_tokens, input);
            }
            if call.kind() != CallKind::Generate {
                return;
            }
            known.saw_output(paid.output);
            match (reader, first_byte) {
                (Some(reader), Some(first_byte)) => {
                    if !facts.may_hide_output {
                        known.saw_streamed(reader.output_tokens(), paid.output);
                    }
                    known.saw_duration(true, first_byte);
                }
                _ => known.saw_duration(false, took),
            }
        });
    }

    fn settle(&mut self, ending: Ending, actual: Costs) {
        let Some(permit) = self.take() else { return };
        let deployment = self.deployment();
        deployment.counters.calls.fetch_add(1, Ordering::Relaxed);
        self.context.shared.observe(&GatewayEvent::Finished {
            key: &self.context.key.name,
            upstream: &deployment.upstream,
            model: &deployment.model,
            status: self.status,
            ending,
            actual: &actual,
            took: self.took(),
        });
        let app = Arc::clone(&self.context.shared.app);
        self.context.shared.app.finish_in_background(Box::pin(async move {
            if let Err(error) = settle_at_any_age(&app, &permit, &actual).await {
                tracing::warn!(%error, "a call could not be settled; its estimate stays charged");
            }
        }));
    }

    fn end_unsent(&mut self) {
        let Some(permit) = self.take() else { return };
        let app = Arc::clone(&self.context.shared.app);
        self.context.shared.app.finish_in_background(Box::pin(async move {
            if let Err(error) = app.release_permit(&permit).await {
                tracing::warn!(%error, "a permit could not be released; it stays charged");
            }
        }));
    }

    /// Takes the permit, and stops counting and renewing it.
    fn take(&mut self) -> Option<Permit> {
        let permit = self.permit.take()?;
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
        self.context.shared.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.deployment().counters.in_flight.fetch_sub(1, Ordering::Relaxed);
        // Only a renewal shares it.
        Some(match Arc::try_unwrap(permit) {
            Ok(permit) => permit.into_inner().unwrap_or_else(PoisonError::into_inner),
            Err(shared) => shared.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        })
    }
}

/// Settles `permit`. Stores forget a permit after [`PERMIT_TTL`]: nothing can be given back for a call that took longer, but what it
/// cost beyond its estimate is charged.
async fn settle_at_any_age(app: &App, permit: &Permit, actual: &Costs) -> Result<(), Error> {
    // Settling an old permit with slots frees them, and succeeds without a look at the costs.
    let holds_slots = permit.expires_at().is_some();
    let is_old = permit.grant().at + PERMIT_TTL <= app.now();
    match app.settle_permit(permit, actual).await {
        Ok(_) if !(is_old && holds_slots) => return Ok(()),
        Err(error) if error.kind() != ErrorKind::Expired => return Err(error),
        Ok(_) | Err(_) => {}
    }
    let is_charged = app.charge_excess(permit, actual).await?;
    let (policy, subject) = (permit.policy().name(), permit.subject());
    tracing::warn!(
        policy,
        subject,
        is_charged,
        "a call took longer than {PERMIT_TTL}: its estimate stays charged, and what it cost beyond it was added"
    );
    Ok(())
}

/// The client disconnected before the response began.
impl Drop for OpenCall {
    fn drop(&mut self) {
        if self.permit.is_none() {
            return;
        }
        if self.state.give_up() {
            return self.end_unsent();
        }
        let CallContext { call, facts, .. } = &*self.context;
        let actual = if self.context.is_stream() && !facts.may_hide_output {
            self.streamed(&StreamReader::new(call), true)
        } else {
            // The output of a plain call is not seen before its end.
            Costs::new()
        };
        self.settle(Ending::ClientGone, actual);
    }
}

/// Renews the slots of `permit` each time half of their time is left.
async fn renew(shared: Arc<Shared>, permit: Arc<Mutex<Permit>>, mut expires_at: Timestamp) {
    let clock = shared.app.clock();
    loop {
        let now = clock.now();
        let left = expires_at.since(now);
        if left.is_zero() {
            return;
        }
        clock.sleep_until(now + Span::from_micros(left.as_micros() / 2)).await;
        let held = permit.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match shared.app.renew_permit(&held).await {
            Ok(renewed) => {
                expires_at = renewed.expires_at().unwrap_or(expires_at);
                *permit.lock().unwrap_or_else(PoisonError::into_inner) = renewed;
            }
            Err(error) => tracing::warn!(%error, "the slots of a call could not be renewed"),
        }
    }
}
