//! Gates.

use std::path::Path;

use napi_derive::napi;
use serde_json::Value;
use tollgate_bindings::{AcquireRequest, ChargeRequest, Costs, Gate, Permit, Source, Span};
use tollgate_protocol::json::PolicyDescription;
use tollgate_protocol::rate_limit_fields;

use crate::clock::NativeClock;
use crate::completions::{Completions, JsOutput, Output};
use crate::convert::{
    Result, amount, invalid, js_error, milliseconds, parse, standings_json, to_json,
};

/// A result, or the number of its completion.
pub(crate) type Answer = napi::Either<JsOutput, u32>;

pub(crate) fn answer(started: Result<Output, u32>) -> Answer {
    match started {
        Ok(output) => Answer::A(output.into()),
        Err(id) => Answer::B(id),
    }
}

/// A gate.
#[napi]
pub struct NativeGate {
    gate: Gate,
}

impl NativeGate {
    pub(crate) const fn new(gate: Gate) -> Self {
        Self { gate }
    }
}

impl NativeGate {
    fn decide(&self, completions: &Completions, request: AcquireRequest) -> Result<Answer> {
        match self.gate.try_acquire(&request) {
            Some(Ok(decision)) => return Ok(answer(Ok(Output::Decision(decision)))),
            Some(Err(error)) => return Err(js_error(&error)),
            None => {}
        }
        let work = self.gate.acquire(request);
        let work = Box::pin(async move { work.await.map(Output::Decision) });
        if self.gate.store_kind() == "memory" {
            // An ask that waits is in the queue before the caller goes on.
            return completions.start(work).map(answer);
        }
        Ok(Answer::B(completions.submit(work)))
    }
}

/// Opens a gate from a file if `is_file`, otherwise from the JSON of its sections.
#[napi]
pub fn open_gate(
    completions: &Completions,
    source: String,
    is_file: bool,
    clock: Option<&NativeClock>,
) -> Result<Answer> {
    let source = if is_file {
        Source::from_file(Path::new(&source))
    } else {
        Source::from_values(&parse(&source)?)
    };
    let source = source.map_err(|error| js_error(&error))?;
    let clock = clock.map(|clock| clock.clock.clone());
    let work = async move { Ok(Output::Gate(Gate::open(source, clock).await?)) };
    completions.start(Box::pin(work)).map(answer)
}

/// Reads the policies of a broker, as the JSON of their specifications.
#[napi]
pub fn broker_policies(
    completions: &Completions,
    url: String,
    key: Option<String>,
) -> Result<Answer> {
    let work = async move {
        let policies = tollgate_bindings::broker_policies(&url, key.as_deref()).await?;
        Ok(Output::Json(to_json(&policies)))
    };
    completions.start(Box::pin(work)).map(answer)
}

#[napi]
impl NativeGate {
    /// Decides an ask for one subject, without waiting for room.
    #[napi]
    pub fn acquire_plain(
        &self,
        completions: &Completions,
        policy: String,
        subject: String,
        unit: Option<String>,
        cost: Option<f64>,
    ) -> Result<Answer> {
        let mut costs = Costs::new();
        if let (Some(unit), Some(cost)) = (unit, cost) {
            let cost = amount("cost", cost)?;
            costs.set(unit, cost);
        }
        let request = AcquireRequest { policy, subject, costs, ..AcquireRequest::default() };
        self.decide(completions, request)
    }

    /// Decides an ask, written as JSON, and waits for room if it asks to.
    #[napi]
    pub fn acquire(&self, completions: &Completions, ask: String) -> Result<Answer> {
        self.decide(completions, parse(&ask)?)
    }

    /// Charges an ask, written as JSON, without deciding.
    #[napi]
    pub fn charge(&self, completions: &Completions, ask: String) -> Result<Answer> {
        let work = self.gate.charge(parse::<ChargeRequest>(&ask)?);
        let work = async move { work.await.map(Output::Permit) };
        completions.start(Box::pin(work)).map(answer)
    }

    /// Returns the JSON of where a subject is.
    #[napi]
    pub fn standing(
        &self,
        completions: &Completions,
        policy: String,
        subject: String,
    ) -> Result<Answer> {
        let gate = self.gate.clone();
        let work = async move {
            let standings = gate.standing(policy, subject).await?;
            Ok(Output::Json(standings_json(&standings, gate.now())))
        };
        completions.start(Box::pin(work)).map(answer)
    }

    /// Deletes what is counted for a subject.
    #[napi]
    pub fn reset(
        &self,
        completions: &Completions,
        policy: String,
        subject: String,
    ) -> Result<Answer> {
        let work = self.gate.reset(policy, subject);
        let work = async move { work.await.map(Output::Changed) };
        completions.start(Box::pin(work)).map(answer)
    }

    /// Reports that a provider refused a call of a subject.
    #[napi]
    pub fn violation(
        &self,
        completions: &Completions,
        policy: String,
        subject: String,
        limit: Option<String>,
        retry_after_ms: f64,
    ) -> Result<Answer> {
        let retry_after = Span::from_millis(amount("retryAfterMs", retry_after_ms)?);
        let work = self.gate.violation(policy, subject, limit, retry_after);
        let work = async move { work.await.map(|_| Output::Changed(true)) };
        completions.start(Box::pin(work)).map(answer)
    }

    /// Returns the permit of a token.
    #[napi]
    pub fn permit(&self, completions: &Completions, token: String) -> Result<Answer> {
        let work = self.gate.permit(token);
        let work = async move { work.await.map(Output::Permit) };
        completions.start(Box::pin(work)).map(answer)
    }

    /// Closes the gate.
    #[napi]
    pub fn close(&self, completions: &Completions) -> Result<Answer> {
        let work = self.gate.close();
        let work = async move { work.await.map(|()| Output::Changed(true)) };
        completions.start(Box::pin(work)).map(answer)
    }

    /// Returns the JSON of a policy as it is in force for a subject.
    #[napi]
    pub fn policy(&self, name: String, subject: String) -> Result<String> {
        let policy = self.gate.policy(&name, &subject).map_err(|error| js_error(&error))?;
        Ok(to_json(&PolicyDescription::from(&policy)))
    }

    /// Returns the JSON of all policies.
    #[napi]
    pub fn policies(&self) -> String {
        to_json(&self.gate.policies())
    }

    /// Returns the field `RateLimit-Policy` of a policy as it is in force for a subject.
    #[napi]
    pub fn rate_limit_policy(&self, name: String, subject: String) -> Result<String> {
        let policy = self.gate.policy(&name, &subject).map_err(|error| js_error(&error))?;
        field(rate_limit_fields::rate_limit_policy(&policy))
    }

    /// Returns the time of the gate's clock.
    #[napi]
    pub fn now(&self) -> f64 {
        milliseconds(self.gate.now())
    }

    /// Returns the kind of the store.
    #[napi]
    pub fn store_kind(&self) -> &'static str {
        self.gate.store_kind()
    }

    /// Returns whether decisions are made without the store.
    #[napi]
    pub fn is_degraded(&self) -> bool {
        self.gate.is_degraded()
    }

    /// Returns how many asks wait.
    #[napi]
    pub fn waiting(&self) -> u32 {
        u32::try_from(self.gate.waiting()).unwrap_or(u32::MAX)
    }
}

/// Returns a header field, which has only visible characters.
pub(crate) fn field(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| invalid("a header field is not text"))
}

/// Returns the units that the charges of a permit count, with what was charged, as JSON; the first charge first.
pub(crate) fn costs_json(permit: &Permit) -> String {
    let costs: Vec<Value> = permit
        .costs()
        .map(|costs| {
            costs.iter().map(|(unit, amount)| (unit.to_owned(), Value::from(amount))).collect()
        })
        .collect();
    to_json(&costs)
}
