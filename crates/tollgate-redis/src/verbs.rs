//! The verbs of the gate.

use tollgate::core::{
    Amounts, Change, Entry, Grant, Known, Operation, Outcome, apply, bounds, standings,
};
use tollgate::edge::random;
use tollgate::{
    Ask, BoxFuture, Costs, Decision, Error, ErrorKind, Gate, Permit, Policy, Span, Standing,
    Timestamp,
};

use crate::answer::{Answer, Status};
use crate::args::{self, words};
use crate::entry::{VERSION, corrupt};
use crate::gate::{Call, Redis, Unchanged};
use crate::link::Repeat;
use crate::options::OWN_ID_ATTEMPTS;
use crate::script;

impl Gate for Redis {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        Box::pin(async move {
            match self.decide(ask, false).await? {
                Outcome::Decided(decision) => Ok(decision),
                other => Err(corrupt(&format!("the core answered another question: {other:?}"))),
            }
        })
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.give_back(permit, Some(actual)))
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.give_back(permit, None))
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(self.prolong(permit))
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(async move { permit_of(self.decide(ask, true).await?) })
    }

    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.close(ask, limit, until))
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        Box::pin(async move {
            let policy = policy.for_subject(subject);
            // Probes ask for standings, and a replica would answer them.
            self.link.check_primary().await?;
            match self.look(Operation::Standing { policy, subject }).await? {
                Outcome::Stands(standings) => Ok(standings),
                other => Err(corrupt(&format!("the core answered another question: {other:?}"))),
            }
        })
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            Ask::new(policy, subject).check()?;
            let policy = policy.for_subject(subject);
            let call = Call::new(&script::RESET, policy, subject);
            self.simple(&call, Operation::Reset { policy, subject }).await
        })
    }
}

impl Redis {
    async fn decide(&self, ask: &Ask<'_>, force: bool) -> Result<Outcome, Error> {
        ask.check()?;
        if self.options.cluster && ask.id_text().is_none() {
            // The client of a cluster sends what it has no answer to again, so each ask has an id there.
            let id = format!("\0{:08x}{:08x}{:08x}", random(), random(), random());
            let ttl = Span::from_micros(self.options.attempt_timeout.as_micros() * OWN_ID_ATTEMPTS);
            let outcome = Box::pin(self.decide(&ask.clone().id_for(id, ttl), force)).await?;
            return Ok(without_id(outcome));
        }
        let operation = if force { Operation::Charge(ask) } else { Operation::Acquire(ask) };
        if self.is_older() {
            return self.change_whole(operation).await;
        }
        let (policy, amounts) = (ask.policy(), ask.amounts());
        if force && ask.arrears().is_some() {
            // The script charges by unit, so the core works out the entry. Where others change it too fast, charging by
            // unit errs on the strict side.
            let key = self.key(policy, ask.subject());
            let whole = self.whole(&key, &self.place_of(&operation)).await?;
            match self.carried(operation, whole).await {
                Err(error) if error.kind() == ErrorKind::Contended => {}
                answer => return answer,
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
            // There is room for everybody in front too, so it asks as if it stood alone.
            return Box::pin(self.decide(&ask.clone().behind(Vec::new()), false)).await;
        }
        let mut costs = policy.places().zip(policy.effective());
        if !force && costs.any(|(place, most)| most < amounts.at(place)) {
            return self.look(operation).await;
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
        let answer = self.call(&call).await?;
        match answer.status {
            Status::Done => {
                let (entry, charge) = answer.charged(policy)?;
                let limits = standings(&entry, answer.now);
                let mut grant = Grant::of(charge, policy, amounts);
                if force {
                    grant.expires_at = None;
                }
                let permit = Permit::of(ask, grant, limits);
                Ok(if force {
                    Outcome::Permitted(permit)
                } else {
                    Outcome::Decided(Decision::Admitted(permit))
                })
            }
            Status::Same => {
                let mut entry = answer.entry(policy)?;
                let applied = apply(&operation, &mut entry, answer.known()?, answer.now)?;
                if applied.change != Change::Nothing {
                    return Err(corrupt("the script refused what the core admits"));
                }
                Ok(applied.outcome)
            }
            Status::OtherShape => self.carried(operation, answer).await,
            Status::Contended => Err(Error::new(
                ErrorKind::Contended,
                format!(
                    "more than {} permits of this subject wait to be settled; settle or release them, or ask again later",
                    bounds::SETTLED_RUNS_MAX_SHARED
                ),
            )),
            _ => Err(odd(&answer)),
        }
    }

    /// Reads the entry and answers from it, writing nothing.
    async fn look(&self, operation: Operation<'_>) -> Result<Outcome, Error> {
        let (policy, subject) = (operation.policy(), operation.subject());
        let call =
            Call { unchanged: Unchanged::Reading, ..Call::new(&script::STANDING, policy, subject) };
        let answer = self.call(&call).await?;
        if let Some(mut entry) = self.mended_view((policy, subject), &answer).await? {
            return Ok(apply(&operation, &mut entry, Known::New, answer.now)?.outcome);
        }
        match answer.status {
            Status::Same => {
                let mut entry = answer.entry(policy)?;
                Ok(apply(&operation, &mut entry, Known::New, answer.now)?.outcome)
            }
            Status::OtherShape => self.carried(operation, answer).await,
            _ => Err(odd(&answer)),
        }
    }

    async fn give_back(&self, permit: &Permit, actual: Option<&Costs>) -> Result<bool, Error> {
        let operation = match actual {
            Some(actual) => Operation::Settle(permit, actual),
            None => Operation::Release(permit),
        };
        let (policy, charged) = (permit.policy(), permit.charged());
        // Whatever is wrong with the costs is wrong on any entry, and a permit of the shadow mode changes none.
        let mut fresh = Entry::fresh(policy, permit.grant().at);
        let applied = apply(&operation, &mut fresh, Known::New, permit.grant().at)?;
        if applied.change == Change::Nothing {
            return flag(applied.outcome);
        }
        if self.is_older() {
            return flag(self.change_whole(operation).await?);
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
            list: Some(words(policy.places().map(|place| wanted.at(place)))),
            ..Call::new(&script::SETTLE, policy, permit.subject())
        };
        let answer = self.call(&call).await?;
        match answer.status {
            Status::Done => Ok(true),
            Status::Same => Ok(false),
            Status::Expired => Err(Error::new(
                ErrorKind::Expired,
                format!(
                    "the permit of {} is too old to be settled (at most {}); what was charged stays charged",
                    permit.grant().at,
                    bounds::PERMIT_TTL
                ),
            )),
            Status::OtherShape => flag(self.carried(operation, answer).await?),
            _ => Err(odd(&answer)),
        }
    }

    async fn prolong(&self, permit: &Permit) -> Result<Permit, Error> {
        let grant = *permit.grant();
        if grant.expires_at.is_none() {
            return Ok(permit.clone());
        }
        if self.is_older() {
            return permit_of(self.change_whole(Operation::Renew(permit)).await?);
        }
        let call = Call {
            amounts: *permit.charged().amounts,
            numbers: [grant.stamp, 0, 0, 0],
            ..Call::new(&script::RENEW, permit.policy(), permit.subject())
        };
        let answer = self.call(&call).await?;
        match (answer.status, answer.number()) {
            (Status::Done, Some(expires)) => {
                let expires_at = Some(Timestamp::from_micros(expires));
                Ok(permit.clone().with_grant(Grant { expires_at, ..grant }))
            }
            (Status::Expired, _) => Err(Error::new(
                ErrorKind::Expired,
                "the permit holds no slot any more; acquire a new one",
            )),
            (Status::OtherShape, _) => {
                permit_of(self.carried(Operation::Renew(permit), answer).await?)
            }
            _ => Err(odd(&answer)),
        }
    }

    async fn close(&self, ask: &Ask<'_>, limit: &str, until: Timestamp) -> Result<bool, Error> {
        let (policy, subject) = (ask.policy(), ask.subject());
        let operation = Operation::Close { policy, subject, limit, until };
        // A limit that is not there is missing on any entry.
        let mut fresh = Entry::fresh(policy, Timestamp::EPOCH);
        apply(&operation, &mut fresh, Known::New, Timestamp::EPOCH)?;
        let place = policy.limits().position(|known| known.name() == limit).unwrap_or(0);
        let call = Call {
            numbers: [place as u64 + 1, until.as_micros(), 0, 0],
            ..Call::new(&script::CLOSE, policy, subject)
        };
        self.simple(&call, operation).await
    }

    async fn simple(&self, call: &Call<'_>, operation: Operation<'_>) -> Result<bool, Error> {
        if self.is_older() {
            return flag(self.change_whole(operation).await?);
        }
        let answer = self.call(call).await?;
        match answer.status {
            Status::Done => Ok(true),
            Status::Same => Ok(false),
            Status::OtherShape => flag(self.carried(operation, answer).await?),
            _ => Err(odd(&answer)),
        }
    }
}

fn odd(answer: &Answer) -> Error {
    corrupt(&format!("a script answered another question: {:?}", answer.status))
}

/// The outcome for an ask without an id.
fn without_id(outcome: Outcome) -> Outcome {
    let plain = |permit: Permit| permit.with_id(None::<&str>);
    match outcome {
        Outcome::Decided(Decision::Admitted(permit)) => {
            Outcome::Decided(Decision::Admitted(plain(permit)))
        }
        Outcome::Permitted(permit) => Outcome::Permitted(plain(permit)),
        other => other,
    }
}

fn flag(outcome: Outcome) -> Result<bool, Error> {
    match outcome {
        Outcome::Settled(done) | Outcome::Done(done) => Ok(done),
        other => Err(corrupt(&format!("the core answered another question: {other:?}"))),
    }
}

fn permit_of(outcome: Outcome) -> Result<Permit, Error> {
    match outcome {
        Outcome::Permitted(permit) => Ok(permit),
        other => Err(corrupt(&format!("the core answered another question: {other:?}"))),
    }
}
