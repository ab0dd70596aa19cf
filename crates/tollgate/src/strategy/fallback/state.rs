//! The state of an outage: whether the store is cut off, and the accounts of subjects that were decided without it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;
use tollgate_core::{Permit, Policy, Span, Standing, Timestamp};

use super::FallbackOptions;
use super::account::Account;
use super::owed::Job;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::internal::steps::Reading;
use crate::strategy::random::RandomSource;

/// Accounts that are over are looked for at most this often.
const SWEEP_EVERY: Span = Span::from_secs(1);

/// The name of the policy, and the subject.
pub(super) type Key = (String, String);

pub(super) fn key_of(policy: &Policy, subject: &str) -> Key {
    (policy.name().to_owned(), subject.to_owned())
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// When the store failed, until everything that was done without it is posted.
    pub(super) began: Option<Reading>,
    /// Whether something is owed, or the store failed.
    pub(super) is_degraded: bool,
    /// Why the store is not asked, if it is not.
    pub(super) cut: Option<Error>,
    /// The time of the next probe.
    pub(super) look_at: Timestamp,
    /// The number of failed probes.
    pub(super) probes: u32,
    /// Whether only the operator can make the store answer.
    pub(super) is_misconfigured: bool,
    /// The policy and subject that failed last, which the next probe reads.
    pub(super) failed: Option<(Policy, String)>,
    pub(super) is_probing: bool,
    /// Whether the recovery task runs.
    pub(super) is_recovering: bool,
    /// In order, so that a run with the same random posts in the same order.
    accounts: BTreeMap<Key, Account>,
    /// The calls in all accounts that the store is still to get.
    kept: usize,
    swept_at: Timestamp,
}

/// The destination of an ask.
#[derive(Debug)]
pub(super) enum Destination {
    /// By the store.
    Store,
    /// Here.
    Local,
    /// By the store, after what the subject owes is posted.
    Post,
}

/// The right to post the debts of a subject.
#[derive(Debug)]
pub(super) enum Claim {
    /// The caller posts.
    Mine,
    /// Another task posts, and notifies when it is done.
    Taken(Arc<Notify>),
    /// Nothing is owed.
    Idle,
}

impl State {
    /// The present instant of the accounts. From where the store failed it follows the boot-time clock: a wall clock that is
    /// set in an outage would give a share twice.
    pub(super) fn now(&self, clock: &dyn Clock) -> Timestamp {
        match self.began {
            Some(began) => began.wall_at(clock.boot_time()),
            None => clock.now(),
        }
    }

    /// Notes that the store failed. Returns whether this is where degradation began.
    pub(super) fn fail(&mut self, error: &Error, clock: &dyn Clock, pause: Span) -> bool {
        let now = clock.now();
        let began = self.began.is_none();
        self.began.get_or_insert_with(|| Reading::take(clock));
        self.is_degraded = true;
        // A full store serves the subjects it has.
        if error.kind() != ErrorKind::Full && self.cut.is_none() {
            self.cut = Some(error.clone());
            self.probes = 0;
            self.look_at = now + pause;
        } else if began {
            self.look_at = now + pause;
        }
        began
    }

    /// Notes whether `error` is for the operator to solve. Returns whether that is new.
    pub(super) fn note_misconfigured(&mut self, error: &Error) -> bool {
        let is_misconfigured = error.kind() == ErrorKind::Misconfigured;
        !std::mem::replace(&mut self.is_misconfigured, is_misconfigured) && is_misconfigured
    }

    pub(super) fn destination(&self, key: &Key) -> Destination {
        if self.cut.is_some() {
            return Destination::Local;
        }
        match self.accounts.get(key) {
            Some(account) if account.owes() => Destination::Post,
            _ => Destination::Store,
        }
    }

    pub(super) fn account(&mut self, key: &Key) -> Option<&mut Account> {
        self.accounts.get_mut(key)
    }

    /// The account of `subject`, which is made if there is none.
    pub(super) fn open_account(
        &mut self,
        policy: &Policy,
        subject: &str,
        clock: &dyn Clock,
        options: &FallbackOptions,
    ) -> Result<&mut Account, Error> {
        let key = key_of(policy, subject);
        if options.subjects_max <= self.accounts.len() && !self.accounts.contains_key(&key) {
            self.sweep(self.now(clock), options);
            if options.subjects_max <= self.accounts.len() {
                return Err(Error::new(
                    ErrorKind::Full,
                    format!(
                        "the store failed, and {} subjects were answered without it already, which is the most; \
                         raise subjects_max, or wait until the store is back",
                        options.subjects_max
                    ),
                ));
            }
        }
        let began = self.began.get_or_insert_with(|| Reading::take(clock)).wall;
        self.is_degraded = true;
        let account =
            self.accounts.entry(key).or_insert_with(|| Account::new(policy, options, began));
        account.refresh(policy, options, began);
        Ok(account)
    }

    fn sweep(&mut self, now: Timestamp, options: &FallbackOptions) {
        if self.swept_at + SWEEP_EVERY <= now {
            self.swept_at = now;
            self.accounts.retain(|_, account| !account.is_over(now, options));
        }
    }

    /// Whether another call can be kept for the store.
    pub(super) fn has_room(&self, kept_max: usize) -> Result<(), Error> {
        if self.kept < kept_max {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "the store failed, and {kept_max} calls wait for it already, which is the most; call again"
            ),
        ))
    }

    /// Runs `change` on the account of `key` and counts the jobs that it made.
    pub(super) fn counted<T>(
        &mut self,
        key: &Key,
        change: impl FnOnce(&mut Account) -> T,
    ) -> Option<T> {
        let account = self.accounts.get_mut(key)?;
        let before = account.owed.jobs();
        let changed = change(account);
        let after = account.owed.jobs();
        self.kept = self.kept.saturating_add(after).saturating_sub(before);
        Some(changed)
    }

    /// The next call for the store that `key` owes, with its policy.
    pub(super) fn next_job(
        &mut self,
        key: &Key,
        now: Timestamp,
        random: &RandomSource,
    ) -> Option<(Policy, Job)> {
        self.counted(key, |account| {
            account.owed.next_job(now, random).map(|job| (account.policy().clone(), job))
        })?
    }

    pub(super) fn done(&mut self, key: &Key, permit: Option<Permit>) {
        self.counted(key, |account| account.owed.done(permit));
    }

    /// Keeps the standings of `key` from before its next call is first sent.
    pub(super) fn note_before(&mut self, key: &Key, found: &Arc<[Standing]>) {
        self.counted(key, |account| account.owed.note_before(found));
    }

    /// Claims the posting of `key`.
    pub(super) fn claim(&mut self, key: &Key) -> Claim {
        let Some(account) = self.accounts.get_mut(key) else { return Claim::Idle };
        match &account.posting {
            Some(posting) => Claim::Taken(Arc::clone(posting)),
            None if account.owes() => {
                account.posting = Some(Arc::default());
                Claim::Mine
            }
            None => Claim::Idle,
        }
    }

    pub(super) fn unclaim(&mut self, key: &Key) {
        if let Some(posting) = self.accounts.get_mut(key).and_then(|it| it.posting.take()) {
            posting.notify_waiters();
        }
    }

    /// Returns the subjects that owe something.
    pub(super) fn owing(&self) -> Vec<Key> {
        let owing = self.accounts.iter().filter(|(_, account)| account.owes());
        owing.map(|(key, _)| key.clone()).collect()
    }

    pub(super) fn owes_anything(&self) -> bool {
        self.accounts.values().any(Account::owes)
    }
}
