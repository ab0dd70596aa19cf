//! What callers do: the operations of a gate, with access checks, counting and audit.

use std::borrow::Cow;
use std::collections::BTreeMap;

use tollgate::audit::Outcome;
use tollgate::core::JoinedOutcome;
use tollgate::core::bounds::PERMIT_TTL;
use tollgate::gate::Operation;
use tollgate::gate::Outcome::Changed;
use tollgate::incident::{Incident, Violation};
use tollgate::internal::LogLimit;
use tollgate::policy::Policies;
use tollgate::{
    Ask, Costs, Decision, Error, ErrorKind, Gate, GateExt, Permit, Policy, Span, Standing,
    Timestamp,
};

use super::App;
use crate::access::{Caller, Certificate};
use crate::bounds::WAIT_MAX;
use crate::jwt::is_token;
use crate::keys::{KeyHash, Refused, Scope};
use crate::resp::THROTTLE_POLICY;
use tollgate_protocol::json::{
    AcquireRequest, AskPolicies, ChargeRequest, CloseRequest, SettleRequest, StandingQuery,
    StandingResponse, ViolationRequest,
};
use tollgate_protocol::permit_token::charges_of;

impl App {
    /// Returns the caller with `key` or `certificate`. A refusal counts as a failed authentication.
    pub(crate) fn caller(
        &self,
        key: Option<&str>,
        certificate: Option<&Certificate>,
    ) -> Result<Caller, Refused> {
        if let Some(verified) = self.token_caller(key) {
            return verified.inspect_err(|_| self.unauthenticated(None, None));
        }
        let hash = self.hash(key);
        self.access
            .find(hash.as_ref(), certificate, self.now())
            .inspect_err(|_| self.unauthenticated(hash.as_ref(), certificate))
    }

    /// Returns the caller with a JSON Web Token; `None` if `key` is not one, or none is accepted.
    fn token_caller(&self, key: Option<&str>) -> Option<Result<Caller, Refused>> {
        let (verifier, token) = self.jwt().zip(key.filter(|key| is_token(key)))?;
        let verified = verifier.verify(token, self.now());
        Some(verified.map(Caller::claiming).map_err(Refused::Token))
    }

    /// As [`caller`](Self::caller) where a key is optional: nothing is counted.
    pub(crate) fn identify(
        &self,
        key: Option<&str>,
        certificate: Option<&Certificate>,
    ) -> Result<Caller, Refused> {
        if let Some(verified) = self.token_caller(key) {
            return verified;
        }
        self.access.find(self.hash(key).as_ref(), certificate, self.now())
    }

    /// Returns the hash of `key`; `None` if no key is required.
    fn hash(&self, key: Option<&str>) -> Option<KeyHash> {
        key.filter(|_| self.access.is_guarded()).map(KeyHash::from_key)
    }

    /// Returns the policy called `name`. The error names only policies that the key of `caller` allows.
    pub(crate) fn policy(&self, caller: &Caller, name: &str) -> Result<Policy, Error> {
        let policies = self.policies();
        match policies.get(name) {
            Ok(policy) => match caller.plan() {
                Some(plan) => self.live_policies.claiming(plan, policy),
                None => Ok(policy.clone()),
            },
            Err(_) if name == THROTTLE_POLICY => Err(throttle_policy()),
            Err(_) => {
                let allowed = policies.iter().filter(|policy| caller.may_use(policy.name()));
                Policies::new(allowed.cloned())?.get(name).cloned()
            }
        }
    }

    /// Returns the policies of the charges of `request`. The key of `caller` must allow every charge, and the tenant.
    pub(crate) fn policies_of(
        &self,
        caller: &Caller,
        request: &AcquireRequest,
    ) -> Result<AskPolicies, Error> {
        if let Some(tenant) = &request.tenant {
            caller.check_tenant(tenant)?;
        }
        request.resolve(|name, subject| {
            let policy = self.policy(caller, name)?;
            caller.check_about(policy.name(), subject)?;
            Ok(policy)
        })
    }

    /// Decides `request` under its `policies`, waiting for room if it asks to.
    pub(crate) async fn acquire(
        &self,
        policies: &AskPolicies,
        request: &AcquireRequest,
    ) -> Result<Decision, Error> {
        let mut ask = request.ask(policies)?;
        if !request.behind.is_empty() {
            let amounts = |costs: &BTreeMap<String, u64>| {
                let costs = costs.iter().map(|(unit, amount)| (&**unit, *amount));
                policies.first.amounts(&costs.collect())
            };
            ask = ask.behind(request.behind.iter().map(amounts).collect::<Result<_, _>>()?);
        }
        match request.wait_ms {
            None | Some(0) => self.decide(&ask).await,
            Some(wait_ms) => {
                // Boxed, because few asks wait, and all would carry the larger future.
                let decided = Box::pin(self.acquire_within(&ask, wait_ms)).await;
                self.record_decision(&ask, decided.as_ref(), "");
                decided
            }
        }
    }

    /// Decides `ask`, without waiting. The caller's key must allow every charge.
    pub(crate) async fn decide(&self, ask: &Ask<'_>) -> Result<Decision, Error> {
        self.decide_as(ask, |_| {}).await
    }

    /// Decides `ask`; `present` translates the decision into the caller's terms before the audit records it.
    pub(crate) async fn decide_as(
        &self,
        ask: &Ask<'_>,
        present: impl FnOnce(&mut Decision),
    ) -> Result<Decision, Error> {
        let began = self.clock.monotonic();
        let mut decided = self.gate.acquire(ask).await;
        let took = self.clock.monotonic().as_micros().saturating_sub(began.as_micros());
        self.stats.took(Span::from_micros(took));
        if let Ok(decision) = &mut decided {
            present(decision);
        }
        self.record_decision(ask, decided.as_ref(), "");
        decided
    }

    /// Counts a decision, and records it in the audit, with the key `by` if it is not empty.
    pub(super) fn record_decision(
        &self,
        ask: &Ask<'_>,
        decided: Result<&Decision, &Error>,
        by: &str,
    ) {
        self.stats.count(ask, decided);
        if let Ok(decision) = decided {
            self.audit.decided(ask, decision, by, &*self.clock);
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

    /// Decodes a permit token under the policies in force.
    fn open(&self, caller: &Caller, permit: &str) -> Result<Permit, Error> {
        let permit = self.permit_keys().decode(permit, |name| self.policy(caller, name))?;
        for charge in charges_of(&permit) {
            caller.check_about(charge.policy().name(), charge.subject())?;
        }
        Ok(permit)
    }

    /// Settles the charges that `request` names, and then all others; without `actual`, only the named ones.
    pub(crate) async fn settle(
        &self,
        caller: &Caller,
        request: &SettleRequest,
    ) -> Result<bool, Error> {
        let permit = self.open(caller, &request.permit)?;
        let mut is_changed = false;
        for (part, actual) in request.own(&permit)? {
            is_changed |= self.settle_part(&part, actual).await?;
        }
        if request.settles_all() {
            is_changed |= self.settle_whole(&permit, &request.actual).await?;
        }
        Ok(is_changed)
    }

    pub(super) async fn settle_whole(
        &self,
        permit: &Permit,
        actual: &Costs,
    ) -> Result<bool, Error> {
        if !permit.has_several_charges() {
            return self.settle_part(permit, actual).await;
        }
        let is_within = |charge| matches!(self.bounded(charge, actual), Cow::Borrowed(_));
        if charges_of(permit).all(is_within) {
            return self.gate.settle(permit, actual).await;
        }
        // Each charge has a bound of its own.
        let mut outcome = JoinedOutcome::default();
        let (tenant, weight) = permit.tenant();
        for part in (Operation::Settle(permit, actual)).parts()? {
            if let Operation::Settle(permit, actual) = part.operation() {
                let permit = permit.clone().with_tenant(tenant, weight);
                let is_changed = self.settle_part(&permit, actual).await;
                outcome.add(is_changed.map(Changed));
            }
        }
        Ok(outcome.finish()? == Changed(true))
    }

    /// Settles a permit of one charge, within its bound.
    async fn settle_part(&self, permit: &Permit, actual: &Costs) -> Result<bool, Error> {
        let bounded = self.bounded(permit, actual);
        let changed = self.gate.settle(permit, &bounded).await?;
        if let Cow::Owned(charged) = &bounded
            && changed
        {
            log_less(permit, actual, charged, self.clock.now());
        }
        Ok(changed)
    }

    /// Limits `actual` to the estimate of the first charge plus `settle_excess_max`.
    pub(super) fn bounded<'a>(&self, permit: &Permit, actual: &'a Costs) -> Cow<'a, Costs> {
        let mut bounded = Cow::Borrowed(actual);
        let policy = permit.policy().for_subject(permit.subject());
        let estimates = permit.costs();
        for (unit, amount) in actual.iter() {
            let limits = policy.limits().filter(|limit| limit.unit() == unit);
            let Some(limit) = limits.map(|limit| limit.rule().limit()).min() else { continue };
            let excess = limit.saturating_mul(self.options.settle_excess_max);
            let most = estimates.get(unit).unwrap_or(0).saturating_add(excess);
            if most < amount {
                bounded.to_mut().set(unit, most);
            }
        }
        bounded
    }

    pub(crate) async fn release(&self, caller: &Caller, permit: &str) -> Result<bool, Error> {
        self.gate.release(&self.open(caller, permit)?).await
    }

    pub(crate) async fn renew(&self, caller: &Caller, permit: &str) -> Result<Permit, Error> {
        self.gate.renew(&self.open(caller, permit)?).await
    }

    pub(crate) async fn standing(
        &self,
        caller: &Caller,
        query: &StandingQuery,
    ) -> Result<Vec<Standing>, Error> {
        caller.check_about(&query.policy, &query.subject)?;
        self.gate.standing(&self.policy(caller, &query.policy)?, &query.subject).await
    }

    /// Returns the standing as a response.
    pub(crate) async fn standing_response(
        &self,
        caller: &Caller,
        query: &StandingQuery,
    ) -> Result<StandingResponse, Error> {
        let policy = self.policy(caller, &query.policy)?;
        let standings = self.standing(caller, query).await?;
        Ok(StandingResponse::new(&policy, &query.subject, &standings, self.now()))
    }

    /// Reports that a provider refused an admitted call, and closes the limit for every charge that is meant and has it: for
    /// as long as the provider said if the key has the scope `administer`, otherwise for at most `violation_hint_max`.
    pub(crate) async fn violation(
        &self,
        caller: &Caller,
        request: &ViolationRequest,
    ) -> Result<Incident, Error> {
        request.check_named()?;
        let mut retry_after = request.retry_after()?;
        let (policy, permit);
        let ask = match &request.permit {
            Some(text) => {
                permit = self.open_in_use(caller, text)?;
                let charges = request.charges(&permit)?.into_iter();
                let charges = charges.map(|charge| (charge.policy(), charge.subject()));
                Ask::for_subjects(charges).ok_or_else(no_charge)?
            }
            None => {
                caller.check_about(&request.policy, &request.subject)?;
                policy = self.policy(caller, &request.policy)?;
                Ask::new(&policy, request.subject.as_str())
            }
        };
        if !caller.has(Scope::Administer) {
            if request.permit.is_none() {
                let text = "a violation needs the permit it is about, or a key with the scope administer; add permit";
                return Err(Error::new(ErrorKind::Forbidden, text));
            }
            retry_after = retry_after.min(self.options.violation_hint_max.into());
        }
        let violation = Violation { ask: &ask, limit: request.limit.as_deref(), retry_after };
        let incident = self.report_violation(&violation, caller.name()).await?;
        Ok(if caller.has(Scope::Inspect) { incident } else { without_standing(incident) })
    }

    /// Decodes a permit token of a call that may be running still.
    fn open_in_use(&self, caller: &Caller, permit: &str) -> Result<Permit, Error> {
        let permit = self.open(caller, permit)?;
        if permit.grant().at + PERMIT_TTL < self.now() {
            let text = format!(
                "the permit is older than {PERMIT_TTL}; report a violation while it is in use"
            );
            return Err(Error::new(ErrorKind::Expired, text));
        }
        Ok(permit)
    }

    pub(crate) async fn reset(
        &self,
        caller: &Caller,
        query: &StandingQuery,
    ) -> Result<bool, Error> {
        self.reset_under(caller, &self.policy(caller, &query.policy)?, &query.subject).await
    }

    /// Resets `subject` under `policy`. Returns whether there was anything to reset.
    pub(crate) async fn reset_under(
        &self,
        caller: &Caller,
        policy: &Policy,
        subject: &str,
    ) -> Result<bool, Error> {
        caller.check_about(policy.name(), subject)?;
        let changed = self.gate.reset(policy, subject).await?;
        self.record_action(caller, Outcome::Reset, policy.name(), subject);
        Ok(changed)
    }

    /// Charges without deciding.
    pub(crate) async fn charge(
        &self,
        caller: &Caller,
        request: ChargeRequest,
    ) -> Result<Permit, Error> {
        let request = AcquireRequest::from(request);
        let policies = self.policies_of(caller, &request)?;
        let ask = request.charge(&policies)?;
        let permit = self.gate.charge(&ask).await?;
        self.record_action_on(caller, Outcome::Charged, &ask);
        Ok(permit)
    }

    pub(crate) async fn close_until(
        &self,
        caller: &Caller,
        request: &CloseRequest,
    ) -> Result<bool, Error> {
        caller.check_about(&request.policy, &request.subject)?;
        let policy = self.policy(caller, &request.policy)?;
        let ask = Ask::new(&policy, request.subject.as_str());
        let changed = self.gate.close_until(&ask, &request.limit, request.until).await?;
        self.record_action(caller, Outcome::Closed, &request.policy, &request.subject);
        Ok(changed)
    }
}

/// Removes the standings, for a caller without the scope `inspect`.
fn without_standing(incident: Incident) -> Incident {
    let others = incident.others.into_iter().map(without_standing).collect();
    Incident { limits: Vec::new(), acquisitions: Vec::new(), in_flight: 0, others, ..incident }
}

#[cold]
fn no_charge() -> Error {
    Error::new(ErrorKind::Invalid, "the permit has no charge")
}

#[cold]
fn throttle_policy() -> Error {
    let text = format!(
        "{THROTTLE_POLICY:?} cannot be used as a policy: each call of CL.THROTTLE carries its own numbers; \
         CL.THROTTLE with a quantity of 0 shows the standing of a key, and DEL deletes it"
    );
    Error::new(ErrorKind::UnknownPolicy, text)
}

/// Logs that `permit` was settled for `charged` instead of `actual`. Every caller can cause it, so the lines are limited.
fn log_less(permit: &Permit, actual: &Costs, charged: &Costs, now: Timestamp) {
    static LIMIT: LogLimit = LogLimit::new();
    let Some(suppressed) = LIMIT.pass(now) else { return };
    let (policy, subject) = (permit.policy().name(), permit.subject());
    for (unit, amount) in actual.iter() {
        let most = charged.get(unit).unwrap_or(amount);
        if most < amount {
            tracing::warn!(
                policy,
                subject,
                unit,
                amount,
                most,
                suppressed,
                "settled for less: settle_excess_max"
            );
        }
    }
}
