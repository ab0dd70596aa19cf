//! The calls of a gate, one round trip each.

use std::borrow::Cow;
use std::sync::atomic::Ordering;

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use tollgate::core::{Entry, IdChange, Known};
use tollgate::gate::Operation;
use tollgate::{Ask, Error, Permit, Policy, Span, Timestamp};

use crate::call::{self, Spend};
use crate::gate::Postgres;
use crate::pool::{Parameter, Query};
use crate::reply::Reply;
use crate::row::{Stored, integer, micros};

impl Postgres {
    pub(crate) async fn look(&self, operation: &Operation<'_>) -> Result<Reply, Error> {
        let (policy, subject) = (operation.policy(), operation.subject());
        let answer = self.read(policy.name(), subject, operation.id()).await?;
        self.learn(policy, subject, answer).await
    }

    /// Reads the row of `policy` and `subject`, and the record of `id`.
    pub(crate) async fn read(
        &self,
        policy: &str,
        subject: &str,
        id: Option<&str>,
    ) -> Result<Reply, Error> {
        let (subject, id, now) = (call::stored(subject), id.map(call::stored), self.test_now());
        let (subject, id) = (&*subject, id.as_deref());
        let mut parameters: Vec<Parameter<'_>> =
            vec![(&policy, Type::TEXT), (&subject, Type::TEXT)];
        let query = if self.version.is_old() {
            &self.statements.look_3
        } else {
            parameters.push((&id, Type::TEXT));
            &self.statements.look
        };
        parameters.push((&now, Type::INT8));
        let row = self.pool.ask(query, &parameters).await?;
        Reply::read(&row)
    }

    /// Decides and charges, or only charges.
    pub(crate) async fn spend(&self, ask: &Ask<'_>, decide: bool) -> Result<Reply, Error> {
        let spend = Spend::new(ask, decide, self.now(), self.test_now());
        let numbers = self.batcher.spend(vec![spend]).await?;
        let answer = Reply::from_spend(numbers.first().map_or(&[], |numbers| numbers))?;
        self.learn(ask.policy(), ask.subject(), answer).await
    }

    /// Settles `permit` for `wanted`, and removes `id`.
    pub(crate) async fn settle_as(
        &self,
        permit: &Permit,
        wanted: &[i64],
        id: Option<&str>,
    ) -> Result<Reply, Error> {
        let (policy, charged, grant) = (permit.policy(), permit.charged(), permit.grant());
        let amounts = call::amounts(policy, charged.amounts);
        self.change(
            (policy, permit.subject()),
            &self.statements.settle,
            &amounts,
            &[
                (&wanted, Type::INT8_ARRAY),
                (&integer(grant.stamp), Type::INT8),
                (&micros(grant.at), Type::INT8),
                (&call::window_ends(policy, grant.at), Type::INT8_ARRAY),
                (&charged.same_numbers, Type::BOOL),
                (&id.map(call::stored).as_deref(), Type::TEXT),
            ],
        )
        .await
    }

    pub(crate) async fn renew_slots(&self, permit: &Permit) -> Result<Reply, Error> {
        let amounts = call::amounts(permit.policy(), permit.charged().amounts);
        let stamp = integer(permit.grant().stamp);
        let key = (permit.policy(), permit.subject());
        self.change(key, &self.statements.renew, &amounts, &[(&stamp, Type::INT8)]).await
    }

    /// Closes the limit at `place` until `until`.
    pub(crate) async fn close(
        &self,
        key: (&Policy, &str),
        place: usize,
        until: Timestamp,
    ) -> Result<Reply, Error> {
        let (place, until) = (i64::try_from(place).unwrap_or(i64::MAX), micros(until));
        let parameters: [Parameter<'_>; 2] = [(&place, Type::INT8), (&until, Type::INT8)];
        self.change(key, &self.statements.close, &call::no_amounts(key.0), &parameters).await
    }

    /// Removes the row.
    pub(crate) async fn forget(&self, policy: &Policy, subject: &str) -> Result<Reply, Error> {
        let none = call::no_amounts(policy);
        self.change((policy, subject), &self.statements.reset, &none, &[]).await
    }

    /// Calls a function that changes one row, with the parameters that all of them have around `parameters`.
    async fn change(
        &self,
        (policy, subject): (&Policy, &str),
        query: &Query,
        amounts: &[i64],
        parameters: &[Parameter<'_>],
    ) -> Result<Reply, Error> {
        let (stored, now) = (call::stored(subject), self.test_now());
        let (name, shape) = (policy.name(), policy.shape_bytes());
        let (text, numbers) = (&*stored, call::numbers(policy, self.now()));
        let mut all: Vec<Parameter<'_>> = vec![
            (&name, Type::TEXT),
            (&text, Type::TEXT),
            (&shape, Type::BYTEA),
            (&numbers, Type::INT8_ARRAY),
            (&amounts, Type::INT8_ARRAY),
        ];
        all.extend_from_slice(parameters);
        all.push((&now, Type::INT8));
        all.push((&self.lock_timeout, Type::TEXT));
        let row = self.run_on((name, text), query, &all).await?;
        self.learn(policy, subject, Reply::read(&row)?).await
    }

    /// Replaces the row in `seen` by `entry`, with the change of the operation's id, by compare-and-swap. Returns whether it
    /// did.
    pub(crate) async fn swap(
        &self,
        (policy, subject): (&str, &str),
        entry: &Entry,
        (operation, change): (Option<&Operation<'_>>, IdChange),
        seen: Reply,
    ) -> Result<bool, Error> {
        if seen.ids.is_some() {
            return Box::pin(self.swap_3((policy, subject), entry, seen)).await;
        }
        let subject = call::stored(subject);
        let revision = seen.stored.map(|stored| stored.revision);
        let id = operation.and_then(Operation::id).filter(|_| change != IdChange::Nothing);
        let known = match (operation, seen.known) {
            (Some(Operation::Release(permit)), _) => Some(integer(permit.grant().stamp)),
            (_, Known::Before(given)) => Some(integer(given.charge.stamp)),
            _ => None,
        };
        let given = match change {
            IdChange::Remember(given) => Some(vec![
                micros(given.charge.at),
                integer(given.charge.stamp),
                integer(given.digest),
                micros(given.expires_at),
            ]),
            _ => None,
        };
        let key = (policy, &*subject);
        let swap = Swap {
            id: id.map(call::stored),
            known,
            given,
            ..Swap::new(key, revision, entry, &self.lock_timeout)
        };
        let row = self.run_on(key, &self.statements.swap, &swap.parameters()).await?;
        Ok(row.get(0))
    }

    /// Runs `query`, which may wait for the lock of `row`.
    pub(crate) async fn run_on(
        &self,
        row: (&str, &str),
        query: &Query,
        parameters: &[Parameter<'_>],
    ) -> Result<Row, Error> {
        self.pool
            .in_time(async {
                let _turn = self.turns.take(row).await;
                self.pool.ask(query, parameters).await
            })
            .await
    }

    /// Returns the time of the test clock.
    pub(crate) fn test_now(&self) -> Option<i64> {
        let clock = self.pool.options().test_clock.as_ref()?;
        Some(micros(clock.now()))
    }

    /// Returns the estimated time of the deciding clock.
    pub(crate) fn now(&self) -> Timestamp {
        let options = self.pool.options();
        if let Some(clock) = &options.test_clock {
            return clock.now();
        }
        let ahead = self.ahead.load(Ordering::Relaxed);
        let span = Span::from_micros(ahead.unsigned_abs());
        let local = options.timer.now();
        if ahead < 0 { local - span } else { local + span }
    }
}

/// The arguments of the function `swap`.
pub(crate) struct Swap<'a> {
    key: (&'a str, &'a str),
    /// `None` without a row.
    revision: Option<i64>,
    new: Stored,
    id: Option<Cow<'a, str>>,
    known: Option<i64>,
    given: Option<Vec<i64>>,
    lock_timeout: &'a Option<String>,
}

impl<'a> Swap<'a> {
    /// Replaces the row by `entry`, without an id.
    pub(crate) fn new(
        key: (&'a str, &'a str),
        revision: Option<i64>,
        entry: &Entry,
        lock_timeout: &'a Option<String>,
    ) -> Self {
        let new = Stored::from_entry(entry);
        Self { key, revision, new, id: None, known: None, given: None, lock_timeout }
    }

    pub(crate) fn parameters(&self) -> [Parameter<'_>; 16] {
        let Self { key, revision, new, id, known, given, lock_timeout } = self;
        [
            (&key.0, Type::TEXT),
            (&key.1, Type::TEXT),
            (revision, Type::INT8),
            (&new.shape, Type::BYTEA),
            (&new.at, Type::INT8),
            (&new.next_stamp, Type::INT8),
            (&new.states, Type::INT8_ARRAY),
            (&new.settled, Type::INT8_ARRAY),
            (&new.settled_floor, Type::INT8),
            (&new.closed, Type::INT8_ARRAY),
            (&new.changed, Type::INT8_ARRAY),
            (&new.absent_at, Type::INT8),
            (id, Type::TEXT),
            (known, Type::INT8),
            (given, Type::INT8_ARRAY),
            (*lock_timeout, Type::TEXT),
        ]
    }
}
