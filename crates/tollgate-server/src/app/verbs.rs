//! What callers do: the verbs of a gate, for every protocol.

use std::collections::BTreeMap;

use tollgate::incident::{Incident, Violation, report_violation};
use tollgate::{Ask, Costs, Decision, Error, ErrorKind, Gate, Permit, Policy, Span, Standing};

use super::{App, Watching};
use crate::bounds::WAIT_MAX;
use crate::wire::{
    AcquireRequest, ChargeRequest, CloseRequest, StandingQuery, StandingResponse, ViolationRequest,
};

impl App {
    /// Decides `request` under `policy`, waiting for room if it says so, and counts the answer.
    pub(crate) async fn acquire(
        &self,
        policy: &Policy,
        request: &AcquireRequest,
    ) -> Result<Decision, Error> {
        let mut ask = request.ask(policy);
        if !request.behind.is_empty() {
            let of = |costs: &BTreeMap<String, u64>| {
                policy.amounts(&costs.iter().map(|(unit, amount)| (&**unit, *amount)).collect())
            };
            ask = ask.behind(request.behind.iter().map(of).collect::<Result<_, _>>()?);
        }
        match request.wait_ms {
            None | Some(0) => self.decide(&ask).await,
            Some(wait_ms) => {
                // Few wait, and everybody would carry the room for it.
                let decided = Box::pin(self.acquire_within(&ask, wait_ms)).await;
                self.note(&ask, decided.as_ref());
                decided
            }
        }
    }

    /// Decides `ask` now, and counts the answer.
    pub(crate) async fn decide(&self, ask: &Ask<'_>) -> Result<Decision, Error> {
        self.decide_as(ask, |_| {}).await
    }

    /// The same, where `present` expresses the decision in the terms of the caller before the audit records it.
    pub(crate) async fn decide_as(
        &self,
        ask: &Ask<'_>,
        present: impl FnOnce(&mut Decision),
    ) -> Result<Decision, Error> {
        let began = self.clock.monotonic();
        let mut decided = match self.gate.acquire_at_once(ask) {
            Some(decided) => decided,
            None => self.gate.acquire(ask).await,
        };
        let took = self.clock.monotonic().as_micros().saturating_sub(began.as_micros());
        self.stats.took(Span::from_micros(took));
        if let Ok(decision) = &mut decided {
            present(decision);
        }
        self.note(ask, decided.as_ref());
        decided
    }

    /// Counts an answer, and writes it down if it is one for the audit.
    fn note(&self, ask: &Ask<'_>, answer: Result<&Decision, &Error>) {
        self.stats.count(ask.policy(), answer);
        if let Ok(decision) = answer {
            self.audit.decided(ask, decision, &*self.clock);
        }
    }

    pub(crate) fn gate(&self) -> &impl Gate {
        &self.gate
    }

    async fn acquire_within(&self, ask: &Ask<'_>, wait_ms: u64) -> Result<Decision, Error> {
        let wait = Span::from_millis(wait_ms);
        if WAIT_MAX < wait {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("wait_ms {wait_ms} must be at most {}", WAIT_MAX.as_millis_ceil()),
            ));
        }
        self.gate.acquire_within(ask, self.clock.now() + wait).await
    }

    /// Opens a sealed permit under the policies in force.
    pub(crate) fn open(&self, permit: &str) -> Result<Permit, Error> {
        self.permit_keys().decode(permit, |name| self.policy(name))
    }

    pub(crate) async fn settle(&self, permit: &str, actual: &Costs) -> Result<bool, Error> {
        self.gate.settle(&self.open(permit)?, actual).await
    }

    pub(crate) async fn release(&self, permit: &str) -> Result<bool, Error> {
        self.gate.release(&self.open(permit)?).await
    }

    pub(crate) async fn renew(&self, permit: &str) -> Result<Permit, Error> {
        self.gate.renew(&self.open(permit)?).await
    }

    pub(crate) async fn standing(&self, query: &StandingQuery) -> Result<Vec<Standing>, Error> {
        self.gate.standing(&self.policy(&query.policy)?, &query.subject).await
    }

    /// The same as it is written to a wire.
    pub(crate) async fn standing_response(
        &self,
        query: &StandingQuery,
    ) -> Result<StandingResponse, Error> {
        let (policy, standings) = (self.policy(&query.policy)?, self.standing(query).await?);
        Ok(StandingResponse::of(&policy, &query.subject, &standings, self.now()))
    }

    /// Writes down that a provider refused what was admitted, and closes the limit.
    pub(crate) async fn violation(&self, request: &ViolationRequest) -> Result<Incident, Error> {
        let policy = self.policy(&request.policy)?;
        let ask = Ask::new(&policy, request.subject.as_str());
        let retry_after = request.retry_after()?;
        let violation = Violation { ask: &ask, limit: request.limit.as_deref(), retry_after };
        let Watching { recorder, observer } = &self.watching;
        let (gate, clock) = (&self.gate, &*self.clock);
        let incident = report_violation(gate, recorder, &**observer, clock, &violation).await?;
        self.audit.violated(&ask, &incident.limit, violation.retry_after, clock.now());
        Ok(incident)
    }

    pub(crate) async fn reset(&self, query: &StandingQuery) -> Result<bool, Error> {
        self.reset_under(&self.policy(&query.policy)?, &query.subject).await
    }

    /// Forgets what `subject` used under `policy`. Returns whether there was anything.
    pub(crate) async fn reset_under(&self, policy: &Policy, subject: &str) -> Result<bool, Error> {
        let changed = self.gate.reset(policy, subject).await?;
        tracing::info!(policy = policy.name(), subject, changed, "reset");
        Ok(changed)
    }

    /// Charges without deciding.
    pub(crate) async fn charge(&self, request: &ChargeRequest) -> Result<Permit, Error> {
        let policy = self.policy(&request.policy)?;
        self.gate.charge(&request.charge(&policy)).await
    }

    pub(crate) async fn close_until(&self, request: &CloseRequest) -> Result<bool, Error> {
        let policy = self.policy(&request.policy)?;
        let ask = Ask::new(&policy, request.subject.as_str());
        self.gate.close_until(&ask, &request.limit, request.until).await
    }
}
