//! Permits.

use napi_derive::napi;
use serde_json::json;
use tollgate_bindings::{ChargeActual, Costs, Permit, Span};
use tollgate_protocol::json::LimitStanding;
use tollgate_protocol::rate_limit_fields;

use crate::completions::{Completions, Output};
use crate::convert::{Result, amount, js_error, milliseconds, parse, to_json};
use crate::gate::{Answer, answer, costs_json, field};

/// A permit.
#[napi]
pub struct NativePermit {
    permit: Permit,
}

impl NativePermit {
    pub(crate) const fn new(permit: Permit) -> Self {
        Self { permit }
    }
}

/// What a call really cost.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Actual {
    #[serde(default)]
    actual: std::collections::BTreeMap<String, u64>,
    #[serde(default)]
    charges: Vec<ChargeActual>,
}

#[napi]
impl NativePermit {
    /// Replaces the estimate by the actual costs, written as JSON.
    #[napi]
    pub fn settle(&self, completions: &Completions, actual: Option<String>) -> Result<Answer> {
        let (actual, charges) = match actual {
            None => (Costs::new(), Vec::new()),
            Some(json) => {
                let Actual { actual, charges } = parse(&json)?;
                let actual: Costs = actual.into_iter().collect();
                self.permit.check_units(&actual).map_err(|error| js_error(&error))?;
                (actual, charges)
            }
        };
        let work = self.permit.settle(actual, charges);
        let work = async move { work.await.map(Output::Changed) };
        completions.start(Box::pin(work)).map(answer)
    }

    /// Checks actual costs that are recorded to be settled later.
    #[napi]
    pub fn check(&self, actual: String) -> Result<()> {
        let Actual { actual, .. } = parse(&actual)?;
        let actual: Costs = actual.into_iter().collect();
        self.permit.check_units(&actual).map_err(|error| js_error(&error))
    }

    /// Gives everything back.
    #[napi]
    pub fn release(&self, completions: &Completions) -> Result<Answer> {
        let work = self.permit.release();
        let work = async move { work.await.map(Output::Changed) };
        completions.start(Box::pin(work)).map(answer)
    }

    /// Extends the slots.
    #[napi]
    pub fn renew(&self, completions: &Completions) -> Result<Answer> {
        let work = self.permit.renew();
        let work = async move { work.await.map(Output::Permit) };
        completions.start(Box::pin(work)).map(answer)
    }

    /// Reports that the provider refused the call.
    #[napi]
    pub fn violation(
        &self,
        completions: &Completions,
        limit: Option<String>,
        retry_after_ms: f64,
    ) -> Result<Answer> {
        let retry_after = Span::from_millis(amount("retryAfterMs", retry_after_ms)?);
        let work = self.permit.violation(limit, retry_after);
        let work = async move { work.await.map(|_| Output::Changed(true)) };
        completions.start(Box::pin(work)).map(answer)
    }

    /// Returns the permit as text.
    #[napi]
    pub fn token(&self) -> Result<String> {
        self.permit.token().map_err(|error| js_error(&error))
    }

    /// Returns the JSON of the charges and where their subjects are.
    #[napi]
    pub fn charges(&self) -> String {
        let at = self.permit.decided_at();
        let charges = self.permit.charges().zip(self.permit.limits());
        let charges: Vec<serde_json::Value> = charges
            .map(|((policy, subject), limits)| {
                json!({ "policy": policy, "subject": subject, "limits": LimitStanding::all(limits, at) })
            })
            .collect();
        to_json(&charges)
    }

    /// Returns the JSON of what was charged, by charge.
    #[napi]
    pub fn costs(&self) -> String {
        costs_json(&self.permit)
    }

    /// Returns the field `RateLimit` of the first charge.
    #[napi]
    pub fn rate_limit(&self) -> Result<String> {
        let standings = self.permit.limits().next().unwrap_or_default();
        field(rate_limit_fields::rate_limit(standings, self.permit.decided_at(), None))
    }

    /// Returns when it was decided.
    #[napi]
    pub fn decided_at_ms(&self) -> f64 {
        milliseconds(self.permit.decided_at())
    }

    /// Returns the time by which the call should reach the provider.
    #[napi]
    pub fn use_by_ms(&self) -> Option<f64> {
        self.permit.use_by().map(milliseconds)
    }

    /// Returns when the slots expire.
    #[napi]
    pub fn expires_at_ms(&self) -> Option<f64> {
        self.permit.expires_at().map(milliseconds)
    }

    /// Returns whether ending the call without an actual cost changes anything at the store.
    #[napi]
    pub fn holds_slots(&self) -> bool {
        self.permit.holds_slots()
    }

    /// Returns whether it was decided without the store.
    #[napi]
    pub fn is_degraded(&self) -> bool {
        self.permit.is_degraded()
    }

    /// Returns whether a policy in shadow mode let it through.
    #[napi]
    pub fn is_shadow_denied(&self) -> bool {
        self.permit.is_shadow_denied()
    }
}
