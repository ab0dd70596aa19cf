//! Asks with several charges.
//!
//! Where the entries of all charges are in one slot (on one server always), one script decides: it judges every entry, then
//! charges all of them or none. An entry whose policy changed its numbers is carried over first, alone.
//!
//! # Several slots of a cluster
//! No script reaches several slots, so the charges are made one after the other:
//!
//! 1. Every entry is read and judged. A refusal ends here and writes nothing.
//! 2. The charges after the first are acquired like asks of their own, in the order of their keys.
//! 3. The first charge is acquired, and the ask's id is remembered with it, beside what the other charges got.
//!
//! A refusal or an error in step 2 or 3 releases what was taken, so no subject is ever charged less than what was admitted. The
//! exception is an error in step 3: the charge may have been made, so nothing is released. What a crash or such an error
//! leaves charged comes back as the rules of the limits give it back.
//!
//! The id is remembered wholly or not at all, and only in step 3. A resend of an admitted ask finds it in step 1 and gets
//! the same permit. Two concurrent asks with one id are charged once: the later one finds the id in step 3 and releases what
//! it took. Each charge of step 2 has a short-lived random id of its own, which makes it safe to send again; an id derived from the
//! ask's id would be shared by concurrent resends, and one of them could release what the other one was admitted by.
//!
//! Between step 2 and a release, the charges of an ask that is refused in the end may refuse another ask.
//! [`Redis::refusals_in_doubt`] counts such refusals. A [slot tag](crate::Options::slot_tag) avoids all of this.

use std::sync::atomic::Ordering;

use tollgate::core::{
    Charge, ChargeRecord, ChargeStandings, Entry, Grant, IdChange, JointDecision, JointDenial,
    Known, Operation, Outcome, RefusedLimit, apply, standings,
};
use tollgate::internal::run_parts;
use tollgate::{Ask, Decision, Denial, Error, ErrorKind, Permit, Timestamp};

use crate::args::{self, words};
use crate::entry::{Fields, VERSION, corrupt, others, unknown_version};
use crate::gate::{IdPlace, Redis};
use crate::link::{Repeat, slot};
use crate::operations::{OWN_ID, contended, unexpected};
use crate::options::{CARRIES_MAX, PARTS_TRIES_MAX, WINDOW_TRIES_MAX};
use crate::previous_format::IdsBefore;
use crate::reply::{ChargeReply, Reply, Status};
use crate::script;

/// The most calls of the script for one ask: each charge may have to be carried over, or need other calendar windows.
const CALLS_MAX: usize = 2 * (CARRIES_MAX + WINDOW_TRIES_MAX);

/// One call of the joint script: the first charges of an ask.
struct JointCall<'a> {
    operation: Operation<'a>,
    ask: &'a Ask<'a>,
    parts: Vec<Ask<'a>>,
    /// What the other charges got, in other slots.
    elsewhere: Vec<ChargeRecord>,
    /// The record of the ask's id that the call replaces; empty if there is none.
    replaced: Vec<u8>,
}

impl JointCall<'_> {
    const fn is_forced(&self) -> bool {
        matches!(self.operation, Operation::Charge(_))
    }
}

/// The entries of all charges, as read one after the other.
struct Snapshot {
    entries: Vec<Entry>,
    now: Timestamp,
    /// The record of the ask's id.
    record: Vec<u8>,
}

impl Redis {
    /// Returns how many asks with charges in several slots of a cluster were refused although their entries had room right
    /// after: the charges of another ask, which was refused itself, may have been in the way.
    #[must_use]
    pub fn refusals_in_doubt(&self) -> u64 {
        self.refusals_in_doubt.load(Ordering::Relaxed)
    }

    /// Decides `operation`, an acquire or charge of `ask`, which has several charges.
    pub(crate) async fn decide_jointly(
        &self,
        operation: Operation<'_>,
        ask: &Ask<'_>,
    ) -> Result<Outcome, Error> {
        if self.is_older() {
            return Err(Error::new(
                ErrorKind::Misconfigured,
                format!(
                    "redis: an ask with several charges needs format {VERSION}, and the store writes format {} for \
                     programs of the version before; upgrade them and remove the setting",
                    self.options.format
                ),
            ));
        }
        let slot_of = |charge: &Charge<'_>| slot(&self.key(charge.policy(), charge.subject()));
        let mut slots = ask.charges().map(slot_of);
        let first = slots.next();
        if self.options.cluster && slots.any(|slot| Some(slot) != first) {
            return self.decide_in_parts(operation, ask).await;
        }
        let parts = (0..ask.charges().len()).filter_map(|index| ask.part(index)).collect();
        let call = JointCall { operation, ask, parts, elsewhere: Vec::new(), replaced: Vec::new() };
        let reply = self.call_jointly(&call).await?;
        match reply.status {
            Status::Done => {
                let permit = Permit::joined(permits(&call, &reply)?).with_id(ask.id_text());
                if let Err(error) = self.check_times(&call, &reply).await {
                    drop(run_parts(self, Operation::Release(&permit)).await);
                    return Err(error);
                }
                Ok(admitted(call.is_forced(), permit))
            }
            Status::Same => {
                self.check_times(&call, &reply).await?;
                let decode = |(part, charge): (&Ask<'_>, ChargeReply<'_>)| {
                    charge.entry(part.policy(), reply.now)
                };
                let entries = call.parts.iter().zip(reply.charges()?).map(decode);
                let entries = entries.collect::<Result<Vec<_>, _>>()?;
                let (known, others) = (reply.known()?, others(reply.extra())?);
                decided(&operation, &entries, known, &others, reply.now)?
                    .ok_or_else(|| corrupt("the script denied an ask that the core admits"))
            }
            Status::Contended => Err(contended()),
            _ => Err(unexpected(&reply)),
        }
    }

    /// Runs the joint script. Repeats it after an entry was carried over, and with other calendar windows.
    async fn call_jointly(&self, call: &JointCall<'_>) -> Result<Reply, Error> {
        let JointCall { ask, parts, .. } = call;
        let (script, functions) = script::joint(parts.iter().map(Ask::policy));
        let entries: Vec<String> =
            parts.iter().map(|part| self.key(part.policy(), part.subject())).collect();
        let id = self.place_of(&call.operation);
        let mut keys: Vec<&str> = entries.iter().map(String::as_str).collect();
        keys.extend(id.key());
        let mode = u64::from(call.is_forced()) + 2 * u64::from(ask.is_refundable());
        let (id_ttl, asked) = (ask.id_ttl().as_micros(), ask.digest());
        let elsewhere =
            words(call.elsewhere.iter().flat_map(|got| [got.stamp, got.at.as_micros()]));
        let mut times = vec![self.times(None); parts.len()];
        let repeat = if ask.id_text().is_some() { Repeat::Safe } else { Repeat::Unsafe };
        for _ in 0..CALLS_MAX {
            let limits = |(part, times): (&Ask<'_>, &args::Times)| {
                let policy = part.policy();
                let mode = mode + 4 * u64::from(policy.is_shadow());
                let numbers = [id_ttl, mode, args::digest(policy, VERSION), asked];
                args::limits(policy, part.amounts(), *times, numbers)
            };
            let limits: Vec<Vec<u8>> = parts.iter().zip(&times).map(limits).collect();
            let field = id.field().unwrap_or_default();
            let mut all: Vec<&[u8]> = vec![&functions, field, &elsewhere, &call.replaced];
            for (part, limits) in parts.iter().zip(&limits) {
                all.extend([limits.as_slice(), part.policy().shape_bytes()]);
            }
            let reply = Reply::read(self.link.run(&script, &keys, &all, repeat).await?)?;
            self.learn_clock(reply.now);
            match reply.status {
                Status::OtherWindow => {
                    let at = reply.number().ok_or_else(|| corrupt("it has no time"))?;
                    let times = times.get_mut(reply.index()?);
                    times.ok_or_else(|| unexpected(&reply))?.windows_at =
                        Timestamp::from_micros(at);
                }
                Status::OtherShape => {
                    let part = parts.get(reply.index()?).ok_or_else(|| unexpected(&reply))?;
                    self.carry_over(part).await?;
                }
                Status::Version => {
                    return Err(unknown_version(reply.extra().first().copied().unwrap_or(0)));
                }
                Status::Done => {
                    self.link.replicated(keys[0]).await?;
                    return Ok(reply);
                }
                Status::Same if !reply.extra().is_empty() => {
                    self.link.replicated_before(keys[0]).await?;
                    return Ok(reply);
                }
                _ => return Ok(reply),
            }
        }
        Err(Error::new(
            ErrorKind::Contended,
            format!(
                "redis: {CALLS_MAX} concurrent changes while policies of an ask changed; retry"
            ),
        ))
    }

    /// Fails if the server's clock jumped ahead, or if an entry of the reply is from the future.
    async fn check_times(&self, call: &JointCall<'_>, reply: &Reply) -> Result<(), Error> {
        if !self.is_steady(reply.now)? {
            return Ok(());
        }
        for (part, charge) in call.parts.iter().zip(reply.charges()?) {
            self.check_entry(part, charge.at(), reply.now).await?;
        }
        Ok(())
    }

    /// Rewrites the entry of `part` as used up if it is from the future, and fails then.
    async fn check_entry(
        &self,
        part: &Ask<'_>,
        at: Option<Timestamp>,
        clock: Timestamp,
    ) -> Result<(), Error> {
        match self.ahead_of(at, clock) {
            Some(ahead) => Err(self.repair_entry((part.policy(), part.subject()), ahead).await),
            None => Ok(()),
        }
    }

    /// Reads the whole entry of `part` and the record of an id.
    async fn read_part(&self, part: &Ask<'_>, id: &IdPlace) -> Result<(Fields, Timestamp), Error> {
        let reply = self.whole(&self.key(part.policy(), part.subject()), id).await?;
        let fields = reply.fields()?;
        if self.is_steady(reply.now)? {
            self.check_entry(part, fields.at(), reply.now).await?;
        }
        Ok((fields, reply.now))
    }

    /// Rewrites the entry of `part` in the numbers of its policy, unless another program changes it meanwhile.
    async fn carry_over(&self, part: &Ask<'_>) -> Result<(), Error> {
        let policy = part.policy();
        let (fields, _) = self.read_part(part, &IdPlace::Nowhere).await?;
        let Some(mut entry) = fields.entry(policy)? else { return Ok(()) };
        if !entry.policy().has_shape_of(policy) {
            entry = entry.carried_to(policy);
        }
        let (key, nowhere) = (self.key(policy, part.subject()), IdPlace::Nowhere);
        let (change, ids) = (IdChange::Nothing, IdsBefore::Stay);
        self.replace(&key, &nowhere, &fields, &entry, change, ids).await.map(drop)
    }

    /// Decides an ask whose charges are in several slots.
    async fn decide_in_parts(
        &self,
        operation: Operation<'_>,
        ask: &Ask<'_>,
    ) -> Result<Outcome, Error> {
        // Concurrent asks of this program with one id wait for the first of them, instead of taking charges beside it.
        let _lock = match ask.id_text().filter(|id| !id.starts_with(OWN_ID)) {
            Some(id) => self.locks.take(id, self.options.attempt_timeout).await,
            None => None,
        };
        let mut tries = 0;
        loop {
            let Snapshot { entries, now, record } = self.snapshot(&operation, ask).await?;
            let (known, others) = (crate::entry::known(&record)?, others(&record)?);
            if let Some(outcome) = decided(&operation, &entries, known, &others, now)? {
                if matches!(known, Known::Before(_)) {
                    self.link.replicated_before(&self.key(ask.policy(), ask.subject())).await?;
                }
                return Ok(outcome);
            }
            let (index, denial) = match self.take_in_parts(operation, ask, record).await? {
                Taken::Admitted(permit) => {
                    let is_forced = matches!(operation, Operation::Charge(_));
                    return Ok(admitted(is_forced, *permit));
                }
                // The next look finds the id.
                Taken::Known => {
                    tries += 1;
                    if tries < PARTS_TRIES_MAX {
                        continue;
                    }
                    return Err(Error::new(
                        ErrorKind::Contended,
                        "redis: concurrent asks with one id over several slots; retry",
                    ));
                }
                Taken::Refused(index, denial) => (index, *denial),
            };
            tries += 1;
            if PARTS_TRIES_MAX <= tries {
                self.refusals_in_doubt.fetch_add(1, Ordering::Relaxed);
                let denial = joint_denial(ask, index, denial, &entries, now);
                return Ok(Outcome::Decided(Decision::Denied(denial)));
            }
        }
    }

    /// Reads the entries of all charges and the record of the ask's id.
    async fn snapshot(&self, operation: &Operation<'_>, ask: &Ask<'_>) -> Result<Snapshot, Error> {
        let mut all = Snapshot { entries: Vec::new(), now: Timestamp::EPOCH, record: Vec::new() };
        for part in (0..ask.charges().len()).filter_map(|index| ask.part(index)) {
            let is_first = all.entries.is_empty();
            let id = if is_first { self.place_of(operation) } else { IdPlace::Nowhere };
            let (fields, now) = self.read_part(&part, &id).await?;
            if is_first {
                all.record = fields.get("k").unwrap_or_default().to_vec();
            }
            let entry = fields.entry(part.policy())?;
            all.entries.push(entry.unwrap_or_else(|| Entry::fresh(part.policy(), now)));
            // Every node has a clock of its own.
            all.now = all.now.max(now);
        }
        Ok(all)
    }

    /// Acquires the charges after the first in the order of their keys, then the first. `replaced` is the record of the ask's id,
    /// if it is not valid any more.
    async fn take_in_parts(
        &self,
        operation: Operation<'_>,
        ask: &Ask<'_>,
        replaced: Vec<u8>,
    ) -> Result<Taken, Error> {
        let is_forced = matches!(operation, Operation::Charge(_));
        let mut parts: Vec<(usize, Ask<'_>)> =
            (1..ask.charges().len()).filter_map(|index| Some((index, ask.part(index)?))).collect();
        parts.sort_by_key(|(_, part)| self.key(part.policy(), part.subject()));
        let mut taken: Vec<(usize, Permit)> = Vec::new();
        for (index, part) in parts {
            let part = self.with_own_id(part);
            match Box::pin(self.decide(&part, is_forced)).await {
                Ok(Outcome::Decided(Decision::Admitted(permit)) | Outcome::Permitted(permit)) => {
                    taken.push((index, permit));
                }
                Ok(Outcome::Decided(Decision::Denied(denial))) => {
                    self.give_back(&taken).await;
                    return Ok(Taken::Refused(index, Box::new(denial)));
                }
                Ok(_) => return Err(corrupt("a charge got another outcome")),
                Err(error) => {
                    self.give_back(&taken).await;
                    // The charge may have been made. Under its id it is found, or made again, and released.
                    if let Ok(outcome) = Box::pin(self.decide(&part, is_forced)).await
                        && let Outcome::Decided(Decision::Admitted(permit))
                        | Outcome::Permitted(permit) = outcome
                    {
                        self.give_back(&[(index, permit)]).await;
                    }
                    return Err(error);
                }
            }
        }
        taken.sort_by_key(|(index, _)| *index);
        let record = |(_, permit): &(usize, Permit)| {
            let grant = permit.grant();
            ChargeRecord { at: grant.at, stamp: grant.stamp }
        };
        let elsewhere = taken.iter().map(record).collect();
        let parts = ask.part(0).into_iter().collect();
        let call = JointCall { operation, ask, parts, elsewhere, replaced };
        let reply = self.call_jointly(&call).await?;
        self.check_times(&call, &reply).await?;
        if reply.status == Status::Done {
            let mut permits = permits(&call, &reply)?;
            for (index, permit) in taken {
                let permit = permit.with_id(None::<&str>);
                let has_own = ask.has_own_costs(index) && permit.is_charged();
                permits.push(if has_own { permit.with_own_costs() } else { permit });
            }
            let permit = Permit::joined(permits).with_id(ask.id_text());
            return Ok(Taken::Admitted(Box::new(permit)));
        }
        self.give_back(&taken).await;
        match reply.status {
            Status::Same if !reply.extra().is_empty() => Ok(Taken::Known),
            Status::Same => {
                let part = ask.part(0).unwrap_or_else(|| ask.clone());
                let charge = reply.charges()?.into_iter().next();
                let charge = charge.ok_or_else(|| unexpected(&reply))?;
                let mut entry = charge.entry(part.policy(), reply.now)?;
                match apply(&Operation::Acquire(&part), &mut entry, Known::New, reply.now)?.outcome
                {
                    Outcome::Decided(Decision::Denied(denial)) => {
                        Ok(Taken::Refused(0, Box::new(denial)))
                    }
                    _ => Err(corrupt("the script denied an ask that the core admits")),
                }
            }
            Status::Contended => Err(contended()),
            _ => Err(unexpected(&reply)),
        }
    }

    /// Releases charges of an ask that is not admitted, as far as the servers reply. What cannot be released stays charged.
    async fn give_back(&self, taken: &[(usize, Permit)]) {
        for (_, permit) in taken {
            if let Err(error) = self.settle(permit, None).await {
                tracing::warn!(
                    policy = permit.policy().name(),
                    subject = permit.subject(),
                    %error,
                    "redis: a charge of an ask over several slots was not released"
                );
            }
        }
    }
}

/// The result of taking charges one after the other.
enum Taken {
    Admitted(Box<Permit>),
    /// An ask with the same id was faster. Everything was released.
    Known,
    /// The charge at an index was refused. Everything was released.
    Refused(usize, Box<Denial>),
}

fn admitted(is_forced: bool, permit: Permit) -> Outcome {
    if is_forced {
        Outcome::Permitted(permit)
    } else {
        Outcome::Decided(Decision::Admitted(permit))
    }
}

/// Returns the permits of the charges that the script made.
fn permits(call: &JointCall<'_>, reply: &Reply) -> Result<Vec<Permit>, Error> {
    let permit = |((index, part), charge): ((usize, &Ask<'_>), ChargeReply<'_>)| {
        let policy = part.policy();
        if !charge.was_charged {
            let mut entry = charge.entry(policy, reply.now)?;
            let operation = Operation::Acquire(part);
            return match apply(&operation, &mut entry, Known::New, reply.now)?.outcome {
                Outcome::Decided(Decision::Admitted(permit)) if !permit.is_charged() => Ok(permit),
                _ => Err(corrupt("the script left out a charge that the core admits")),
            };
        }
        let (entry, record) = charge.charged(policy)?;
        let mut grant = Grant::new(record, policy, part.amounts());
        if call.is_forced() {
            grant.expires_at = None;
        }
        let permit = Permit::for_ask(part, grant, standings(&entry, reply.now));
        Ok(if call.ask.has_own_costs(index) { permit.with_own_costs() } else { permit })
    };
    call.parts.iter().enumerate().zip(reply.charges()?).map(permit).collect()
}

/// Decides `operation` on `entries` in the core; `None` if they are to be charged.
fn decided(
    operation: &Operation<'_>,
    entries: &[Entry],
    known: Known,
    others: &[ChargeRecord],
    now: Timestamp,
) -> Result<Option<Outcome>, Error> {
    let mut decision = JointDecision::new(operation, known, others, now)?;
    entries.iter().try_for_each(|entry| decision.judge(entry))?;
    if decision.conclude()? {
        return Ok(None);
    }
    entries.iter().for_each(|entry| decision.complete(&mut entry.clone()));
    Ok(Some(decision.finish().outcome))
}

/// Completes the denial of the charge at `index` by the standings of all charges.
fn joint_denial(
    ask: &Ask<'_>,
    index: usize,
    denial: Denial,
    entries: &[Entry],
    now: Timestamp,
) -> Denial {
    let refused = ask.charges().nth(index).map(|charge| RefusedLimit {
        charge: index,
        policy: charge.policy().name().into(),
        subject: charge.subject().into(),
        limit: denial.limit.clone(),
        unit: denial.unit.clone(),
        wait: denial.bound(),
    });
    let charges = ask.charges().zip(entries).map(|(charge, entry)| ChargeStandings {
        policy: charge.policy().name().into(),
        subject: charge.subject().into(),
        limits: standings(entry, now),
    });
    let joint = JointDenial { refused: refused.into_iter().collect(), charges: charges.collect() };
    Denial { joint: Some(Box::new(joint)), ..denial }
}
