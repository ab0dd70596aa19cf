//! The operations of the gate.

use tollgate::core::{
    Amounts, Change, Entry, Grant, Known, Operation, Outcome, apply, bounds, standings,
};
use tollgate::gate::BoxFuture;
use tollgate::internal::edge::random;
use tollgate::internal::run_parts;
use tollgate::{Ask, Costs, Decision, Error, ErrorKind, Gate, Permit, Policy, Span, Timestamp};

use crate::args::{self, words};
use crate::entry::{VERSION, corrupt};
use crate::gate::{Call, Redis, Unchanged};
use crate::link::Repeat;
use crate::options::OWN_ID_ATTEMPTS;
use crate::reply::{Reply, Status};
use crate::script;

/// The first character of an id that the gate gives to an ask.
pub(crate) const OWN_ID: char = '\0';

impl Gate for Redis {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            match operation {
                Operation::Settle(..) | Operation::Release(_) | Operation::Renew(_)
                    if operation.is_joint() =>
                {
                    run_parts(self, operation).await
                }
                Operation::Acquire(ask) => self.decide(ask, false).await,
                Operation::Charge(ask) => self.decide(ask, true).await,
                Operation::Settle(permit, actual) => self.settle(permit, Some(actual)).await,
                Operation::Release(permit) => self.settle(permit, None).await,
                Operation::Renew(permit) => self.renew(permit).await,
                Operation::Close { policy, subject, limit, until } => {
                    self.close((policy, subject), limit, until).await
                }
                Operation::Standing { .. } => {
                    // Health checks read standings, which a replica would reply too.
                    self.link.check_primary().await?;
                    self.peek(operation).await
                }
                Operation::Reset { policy, subject } => {
                    let call = Call::new(&script::RESET, policy, subject);
                    self.simple(&call, operation).await
                }
            }
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}

impl Redis {
    /// Gives `ask` a short-lived id of its own, so that it can be sent again.
    pub(crate) fn with_own_id<'a>(&self, ask: Ask<'a>) -> Ask<'a> {
        let id = format!("{OWN_ID}{:08x}{:08x}{:08x}", random(), random(), random());
        let ttl = Span::from_micros(self.options.attempt_timeout.as_micros() * OWN_ID_ATTEMPTS);
        ask.id_for(id, ttl)
    }

    pub(crate) async fn decide(&self, ask: &Ask<'_>, force: bool) -> Result<Outcome, Error> {
        ask.check()?;
        if self.options.cluster && ask.id_text().is_none() {
            // The cluster client repeats calls without a reply, so each ask needs an id.
            let outcome = Box::pin(self.decide(&self.with_own_id(ask.clone()), force)).await?;
            return Ok(outcome.without_id());
        }
        let operation = if force { Operation::Charge(ask) } else { Operation::Acquire(ask) };
        if ask.has_several_charges() {
            return Box::pin(self.decide_jointly(operation, ask)).await;
        }
        if self.is_older() {
            return self.change_whole(operation).await;
        }
        let (policy, amounts) = (ask.policy(), ask.amounts());
        if force && ask.arrears().is_some() {
            // The script charges by unit, so the core computes the entry. Under contention, charging by unit errs on the
            // strict side.
            let key = self.key(policy, ask.subject());
            let whole = self.whole(&key, &self.place_of(&operation)).await?;
            match self.carried(operation, whole).await {
                Err(error) if error.kind() == ErrorKind::Contended => {}
                reply => return reply,
            }
        }
        if !force && !ask.in_front().is_empty() {
            let key = self.key(policy, ask.subject());
            let whole = self.whole(&key, &self.place_of(&operation)).await?;
            let fields = whole.fields()?;
            let stored = fields.entry(policy)?;
            let mut entry = stored.unwrap_or_else(|| Entry::fresh(policy, whole.now));
            let applied = apply(&operation, &mut entry, fields.known()?, whole.now)?;
            if applied.change == Change::Nothing {
                return Ok(applied.outcome);
            }
            // There is room for everyone in front too, so it is decided like any other ask.
            return Box::pin(self.decide(&ask.clone().behind(Vec::new()), false)).await;
        }
        let mut costs = policy.unit_indexes().zip(policy.effective());
        if !force && costs.any(|(place, most)| most < amounts.at(place)) {
            return self.peek(operation).await;
        }
        let script = script::acquire(policy);
        let mode = u64::from(force) + 2 * u64::from(ask.is_refundable());
        let (id, id_ttl) = (ask.id_text(), ask.id_ttl().as_micros());
        let asked = if id.is_some() { ask.digest() } else { 0 };
        let call = Call {
            amounts: *amounts,
            id,
            repeat: if id.is_some() { Repeat::Safe } else { Repeat::Unsafe },
            unchanged: Unchanged::Decision,
            numbers: [id_ttl, mode, args::digest(policy, VERSION), asked],
            ..Call::new(&script, policy, ask.subject())
        };
        let reply = self.call(&call).await?;
        match reply.status {
            Status::Done => {
                let (entry, charge) = reply.charged(policy)?;
                let limits = standings(&entry, reply.now);
                let mut grant = Grant::new(charge, policy, amounts);
                if force {
                    grant.expires_at = None;
                }
                let permit = Permit::for_ask(ask, grant, limits);
                Ok(if force {
                    Outcome::Permitted(permit)
                } else {
                    Outcome::Decided(Decision::Admitted(permit))
                })
            }
            Status::Same => {
                let mut entry = reply.entry(policy)?;
                let applied = apply(&operation, &mut entry, reply.known()?, reply.now)?;
                if applied.change != Change::Nothing {
                    return Err(corrupt("the script denied an ask that the core admits"));
                }
                Ok(applied.outcome)
            }
            Status::OtherShape => self.carried(operation, reply).await,
            Status::Contended => Err(contended()),
            _ => Err(unexpected(&reply)),
        }
    }

    /// Decides on the entry without writing.
    async fn peek(&self, operation: Operation<'_>) -> Result<Outcome, Error> {
        let (policy, subject) = (operation.policy(), operation.subject());
        let call =
            Call { unchanged: Unchanged::Reading, ..Call::new(&script::STANDING, policy, subject) };
        let reply = self.call(&call).await?;
        if let Some(mut entry) = self.repaired_view((policy, subject), &reply).await? {
            return Ok(apply(&operation, &mut entry, Known::New, reply.now)?.outcome);
        }
        match reply.status {
            Status::Same => {
                let mut entry = reply.entry(policy)?;
                Ok(apply(&operation, &mut entry, Known::New, reply.now)?.outcome)
            }
            Status::OtherShape => self.carried(operation, reply).await,
            _ => Err(unexpected(&reply)),
        }
    }

    pub(crate) async fn settle(
        &self,
        permit: &Permit,
        actual: Option<&Costs>,
    ) -> Result<Outcome, Error> {
        let operation = match actual {
            Some(actual) => Operation::Settle(permit, actual),
            None => Operation::Release(permit),
        };
        let (policy, charged) = (permit.policy(), permit.charged());
        // Invalid costs are invalid on any entry, and a permit of a shadow policy changes none.
        let mut fresh = Entry::fresh(policy, permit.grant().at);
        let applied = apply(&operation, &mut fresh, Known::New, permit.grant().at)?;
        // The first charge of an ask may be in shadow mode, and the id is its own.
        let forgets_id = actual.is_none() && permit.grant().stamp == 0 && permit.id().is_some();
        if applied.change == Change::Nothing && !forgets_id {
            return Ok(applied.outcome);
        }
        if self.is_older() {
            return self.change_whole(operation).await;
        }
        let wanted = match actual {
            Some(actual) => {
                let mut costs = policy.costs(charged.amounts);
                actual.iter().for_each(|(unit, amount)| costs.set(unit, amount));
                policy.amounts(&costs)?
            }
            None => Amounts::default(),
        };
        let grant = permit.grant();
        let flags = [u64::from(charged.same_numbers), u64::from(actual.is_none())];
        let call = Call {
            amounts: *charged.amounts,
            given_at: Some(grant.at),
            id: operation.id(),
            numbers: [grant.at.as_micros(), grant.stamp, flags[0], flags[1]],
            list: Some(words(policy.unit_indexes().map(|place| wanted.at(place)))),
            ..Call::new(&script::SETTLE, policy, permit.subject())
        };
        let reply = self.call(&call).await?;
        match reply.status {
            Status::Done => Ok(Outcome::Changed(true)),
            Status::Same => Ok(Outcome::Changed(false)),
            Status::Expired => Err(Error::new(
                ErrorKind::Expired,
                format!(
                    "the permit of {} is too old to be settled (at most {}); what was charged stays charged",
                    permit.grant().at,
                    bounds::PERMIT_TTL
                ),
            )),
            Status::OtherShape => self.carried(operation, reply).await,
            _ => Err(unexpected(&reply)),
        }
    }

    async fn renew(&self, permit: &Permit) -> Result<Outcome, Error> {
        let grant = *permit.grant();
        if grant.expires_at.is_none() {
            return Ok(Outcome::Permitted(permit.clone()));
        }
        if self.is_older() {
            return self.change_whole(Operation::Renew(permit)).await;
        }
        let call = Call {
            amounts: *permit.charged().amounts,
            numbers: [grant.stamp, 0, 0, 0],
            ..Call::new(&script::RENEW, permit.policy(), permit.subject())
        };
        let reply = self.call(&call).await?;
        match (reply.status, reply.number()) {
            (Status::Done, Some(expires)) => {
                let expires_at = Some(Timestamp::from_micros(expires));
                let renewed = permit.clone().with_grant(Grant { expires_at, ..grant });
                Ok(Outcome::Permitted(renewed))
            }
            (Status::Expired, _) => Err(Error::new(
                ErrorKind::Expired,
                "the permit holds no slot any more; acquire a new one",
            )),
            (Status::OtherShape, _) => self.carried(Operation::Renew(permit), reply).await,
            _ => Err(unexpected(&reply)),
        }
    }

    async fn close(
        &self,
        (policy, subject): (&Policy, &str),
        limit: &str,
        until: Timestamp,
    ) -> Result<Outcome, Error> {
        let operation = Operation::Close { policy, subject, limit, until };
        // An unknown limit is unknown on any entry.
        let mut fresh = Entry::fresh(policy, Timestamp::EPOCH);
        apply(&operation, &mut fresh, Known::New, Timestamp::EPOCH)?;
        let place = policy.limits().position(|known| known.name() == limit).unwrap_or(0);
        let call = Call {
            numbers: [place as u64 + 1, until.as_micros(), 0, 0],
            ..Call::new(&script::CLOSE, policy, subject)
        };
        self.simple(&call, operation).await
    }

    async fn simple(&self, call: &Call<'_>, operation: Operation<'_>) -> Result<Outcome, Error> {
        if self.is_older() {
            return self.change_whole(operation).await;
        }
        let reply = self.call(call).await?;
        match reply.status {
            Status::Done => Ok(Outcome::Changed(true)),
            Status::Same => Ok(Outcome::Changed(false)),
            Status::OtherShape => self.carried(operation, reply).await,
            _ => Err(unexpected(&reply)),
        }
    }
}

/// The error for a subject with too many permits in flight.
pub(crate) fn contended() -> Error {
    Error::new(
        ErrorKind::Contended,
        format!(
            "more than {} permits of this subject are not settled; settle or release them, or retry later",
            bounds::SETTLED_RUNS_MAX_SHARED
        ),
    )
}

pub(crate) fn unexpected(reply: &Reply) -> Error {
    corrupt(&format!("a script answered another question: {:?}", reply.status))
}
