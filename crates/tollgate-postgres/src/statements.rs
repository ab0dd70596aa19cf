//! The statements of a gate, with the parameters of each; one call is one round trip.

use std::sync::atomic::Ordering;

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use tollgate::core::{Entry, IdChange, Known};
use tollgate::{Ask, Error, Operation, Permit, Policy, Span, Timestamp};

use crate::answer::Answer;
use crate::call::{self, Spend};
use crate::gate::Postgres;
use crate::pool::{Parameter, Question};
use crate::row::{Stored, integer, micros};

impl Postgres {
    pub(crate) async fn look(&self, operation: &Operation<'_>) -> Result<Answer, Error> {
        let (policy, subject) = (operation.policy(), operation.subject());
        let answer = self.read(policy.name(), subject, operation.id()).await?;
        self.learn(policy, subject, answer).await
    }

    /// Reads the row of `policy` and `subject`, and what is known of `id`.
    pub(crate) async fn read(
        &self,
        policy: &str,
        subject: &str,
        id: Option<&str>,
    ) -> Result<Answer, Error> {
        let (subject, id, now) = (call::stored(subject), id.map(call::stored), self.test_now());
        let (subject, id) = (&*subject, id.as_deref());
        let mut parameters: Vec<Parameter<'_>> =
            vec![(&policy, Type::TEXT), (&subject, Type::TEXT)];
        let question = if self.version.is_old() {
            &self.questions.look_3
        } else {
            parameters.push((&id, Type::TEXT));
            &self.questions.look
        };
        parameters.push((&now, Type::INT8));
        let row = self.pool.ask(question, &parameters).await?;
        Answer::read(&row)
    }

    /// Decides and charges, or only charges.
    pub(crate) async fn spend(&self, ask: &Ask<'_>, decide: bool) -> Result<Answer, Error> {
        let spend = Spend::new(ask, decide, self.now(), self.test_now());
        let numbers = self.together.spend(spend).await?;
        let answer = Answer::of_spend(&numbers)?;
        self.learn(ask.policy(), ask.subject(), answer).await
    }

    /// Settles `permit` for `wanted`, and forgets `id`.
    pub(crate) async fn settle_as(
        &self,
        permit: &Permit,
        wanted: &[i64],
        id: Option<&str>,
    ) -> Result<Answer, Error> {
        let (policy, subject) = (permit.policy(), call::stored(permit.subject()));
        let (charged, grant) = (permit.charged(), permit.grant());
        let row = self
            .ask_on(
                (policy.name(), &subject),
                &self.questions.settle,
                &[
                    (&policy.name(), Type::TEXT),
                    (&&*subject, Type::TEXT),
                    (&policy.shape_bytes(), Type::BYTEA),
                    (&call::numbers(policy, self.now()), Type::INT8_ARRAY),
                    (&call::amounts(policy, charged.amounts), Type::INT8_ARRAY),
                    (&wanted, Type::INT8_ARRAY),
                    (&integer(grant.stamp), Type::INT8),
                    (&micros(grant.at), Type::INT8),
                    (&call::window_ends(policy, grant.at), Type::INT8_ARRAY),
                    (&charged.same_numbers, Type::BOOL),
                    (&id.map(call::stored).as_deref(), Type::TEXT),
                    (&self.test_now(), Type::INT8),
                    (&self.lock_timeout, Type::TEXT),
                ],
            )
            .await?;
        self.learn(policy, permit.subject(), Answer::read(&row)?).await
    }

    pub(crate) async fn renew_slots(&self, permit: &Permit) -> Result<Answer, Error> {
        let (policy, subject) = (permit.policy(), call::stored(permit.subject()));
        let row = self
            .ask_on(
                (policy.name(), &subject),
                &self.questions.renew,
                &[
                    (&policy.name(), Type::TEXT),
                    (&&*subject, Type::TEXT),
                    (&policy.shape_bytes(), Type::BYTEA),
                    (&call::numbers(policy, self.now()), Type::INT8_ARRAY),
                    (&call::amounts(policy, permit.charged().amounts), Type::INT8_ARRAY),
                    (&integer(permit.grant().stamp), Type::INT8),
                    (&self.test_now(), Type::INT8),
                    (&self.lock_timeout, Type::TEXT),
                ],
            )
            .await?;
        self.learn(policy, permit.subject(), Answer::read(&row)?).await
    }

    /// Closes the limit at `place` until `until`.
    pub(crate) async fn close(
        &self,
        (policy, subject): (&Policy, &str),
        place: usize,
        until: Timestamp,
    ) -> Result<Answer, Error> {
        let stored = call::stored(subject);
        let row = self
            .ask_on(
                (policy.name(), &stored),
                &self.questions.close,
                &[
                    (&policy.name(), Type::TEXT),
                    (&&*stored, Type::TEXT),
                    (&policy.shape_bytes(), Type::BYTEA),
                    (&call::numbers(policy, self.now()), Type::INT8_ARRAY),
                    (&call::no_amounts(policy), Type::INT8_ARRAY),
                    (&i64::try_from(place).unwrap_or(i64::MAX), Type::INT8),
                    (&micros(until), Type::INT8),
                    (&self.test_now(), Type::INT8),
                    (&self.lock_timeout, Type::TEXT),
                ],
            )
            .await?;
        self.learn(policy, subject, Answer::read(&row)?).await
    }

    /// Forgets the row.
    pub(crate) async fn forget(&self, policy: &Policy, subject: &str) -> Result<Answer, Error> {
        let stored = call::stored(subject);
        let row = self
            .ask_on(
                (policy.name(), &stored),
                &self.questions.reset,
                &[
                    (&policy.name(), Type::TEXT),
                    (&&*stored, Type::TEXT),
                    (&policy.shape_bytes(), Type::BYTEA),
                    (&call::numbers(policy, self.now()), Type::INT8_ARRAY),
                    (&call::no_amounts(policy), Type::INT8_ARRAY),
                    (&self.test_now(), Type::INT8),
                    (&self.lock_timeout, Type::TEXT),
                ],
            )
            .await?;
        self.learn(policy, subject, Answer::read(&row)?).await
    }

    /// Writes `entry` in place of what `seen` says, and carries out the change of the operation's id with it; false if
    /// the row is another by now.
    pub(crate) async fn swap(
        &self,
        (policy, subject): (&str, &str),
        entry: &Entry,
        (operation, change): (Option<&Operation<'_>>, IdChange),
        seen: Answer,
    ) -> Result<bool, Error> {
        if seen.ids.is_some() {
            return Box::pin(self.swap_3((policy, subject), entry, seen)).await;
        }
        let subject = call::stored(subject);
        let new = Stored::of(entry);
        let revision = seen.stored.map(|stored| stored.revision);
        let id = operation.and_then(Operation::id).filter(|_| change != IdChange::Nothing);
        let id = id.map(call::stored);
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
        let row = self
            .ask_on(
                (policy, &subject),
                &self.questions.swap,
                &[
                    (&policy, Type::TEXT),
                    (&&*subject, Type::TEXT),
                    (&revision, Type::INT8),
                    (&new.shape, Type::BYTEA),
                    (&new.at, Type::INT8),
                    (&new.next_stamp, Type::INT8),
                    (&new.states, Type::INT8_ARRAY),
                    (&new.settled, Type::INT8_ARRAY),
                    (&new.settled_floor, Type::INT8),
                    (&new.closed, Type::INT8_ARRAY),
                    (&new.changed, Type::INT8_ARRAY),
                    (&new.absent_at, Type::INT8),
                    (&id.as_deref(), Type::TEXT),
                    (&known, Type::INT8),
                    (&given, Type::INT8_ARRAY),
                    (&self.lock_timeout, Type::TEXT),
                ],
            )
            .await?;
        Ok(row.get(0))
    }

    /// Asks `question`, which may wait for the lock of `row`.
    pub(crate) async fn ask_on(
        &self,
        row: (&str, &str),
        question: &Question,
        parameters: &[Parameter<'_>],
    ) -> Result<Row, Error> {
        self.pool
            .in_time(async {
                let _turn = self.turns.take(row).await;
                self.pool.ask(question, parameters).await
            })
            .await
    }

    /// The time to decide by, if the test has one.
    pub(crate) fn test_now(&self) -> Option<i64> {
        let clock = self.pool.options().decides_by.as_ref()?;
        Some(micros(clock.now()))
    }

    /// Where the deciding clock stands, as far as we know.
    fn now(&self) -> Timestamp {
        let options = self.pool.options();
        if let Some(clock) = &options.decides_by {
            return clock.now();
        }
        let ahead = self.ahead.load(Ordering::Relaxed);
        let span = Span::from_micros(ahead.unsigned_abs());
        let local = options.timer.now();
        if ahead < 0 { local - span } else { local + span }
    }
}
