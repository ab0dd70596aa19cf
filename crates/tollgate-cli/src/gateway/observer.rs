//! The events of the gateway as metrics, log lines and incidents.

use std::sync::Arc;

use tollgate::incident::DifferentLimit;
use tollgate::observe::{Event, Observer as _};
use tollgate_gateway::{Ending, GatewayEvent, GatewayObserver};
use tollgate_telemetry::{GatewayCall, GatewayOutcome, Telemetry};

/// The statuses by which a provider refuses a call for its own limits or load.
const REFUSALS: [u16; 3] = [429, 503, 529];

/// Counts events of the gateway, and reports incidents.
#[derive(Debug)]
pub(super) struct TelemetryObserver {
    telemetry: Arc<Telemetry>,
}

impl TelemetryObserver {
    pub(super) const fn new(telemetry: Arc<Telemetry>) -> Self {
        Self { telemetry }
    }
}

impl GatewayObserver for TelemetryObserver {
    fn observe(&self, event: &GatewayEvent<'_>) {
        let meters = self.telemetry.meters().gateway();
        match *event {
            GatewayEvent::Refused { model, reason, .. } => meters.refused(model, reason.name()),
            GatewayEvent::Admitted { upstream, model, waited, .. } => {
                meters.waited(GatewayCall { upstream, model }, waited);
            }
            GatewayEvent::FirstByte { upstream, model, after } => {
                meters.first_byte(GatewayCall { upstream, model }, after);
            }
            GatewayEvent::Finished { upstream, model, status, ending, actual, .. } => {
                let call = GatewayCall { upstream, model };
                meters.ended(call, outcome(ending, status));
                for (unit, amount) in actual.iter() {
                    meters.settled(call, unit, amount);
                }
            }
            GatewayEvent::Closed { upstream, model, status, until } => {
                if REFUSALS.contains(&status) {
                    meters.provider_refused(GatewayCall { upstream, model });
                }
                tracing::info!(upstream, model, status, %until, "no calls until then");
            }
            GatewayEvent::Unreachable { upstream, model, problem, until } => {
                let advice = problem.advice();
                tracing::warn!(upstream, model, %problem, advice, %until, "an upstream cannot be used");
            }
            GatewayEvent::LimitDiffers { upstream, model, policy, unit, ours, theirs } => {
                tracing::warn!(
                    upstream,
                    model,
                    policy,
                    unit,
                    ours,
                    theirs,
                    "the provider reports another limit than the policy has; change the policy, or the account"
                );
                self.telemetry.observe(&Event::LimitDiffers(&DifferentLimit {
                    upstream: upstream.to_owned(),
                    model: model.to_owned(),
                    policy: policy.to_owned(),
                    unit: unit.to_owned(),
                    ours,
                    theirs,
                }));
            }
            _ => {}
        }
    }
}

fn outcome(ending: Ending, status: Option<u16>) -> GatewayOutcome {
    match ending {
        Ending::Complete => GatewayOutcome::Answered,
        Ending::ClientGone => GatewayOutcome::Aborted,
        // The response had begun.
        Ending::UpstreamFailed if status.is_some() => GatewayOutcome::Aborted,
        Ending::Refused if status.is_some_and(|status| REFUSALS.contains(&status)) => {
            GatewayOutcome::Refused
        }
        _ => GatewayOutcome::Failed,
    }
}
