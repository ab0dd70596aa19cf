//! The server's time, entries from the future, and all entries one after the other.

use std::ops::ControlFlow;

use tollgate::core::{Entry, IdChange};
use tollgate::entries::{EntryStore, PERMIT_KEY_BYTES, Rewrite, Visited, Visitor};
use tollgate::repair::mended;
use tollgate::steps::{SERVER_AHEAD_MAX, from_future};
use tollgate::{BoxFuture, Clock, Error, ErrorKind, Event, Policy, Span, SystemClock, Timestamp};

use crate::answer::{Answer, Status};
use crate::args::first_word;
use crate::entry::{Fields, corrupt};
use crate::gate::{Call, IdPlace, Redis};
use crate::link::slot;
use crate::older::IdsBefore;

/// How many keys a server is asked to look at in one step.
const SCAN_COUNT: u32 = 1_000;

impl Redis {
    fn ours(&self) -> &dyn Clock {
        match &self.options.told_time {
            Some(clock) => &**clock,
            None => &SystemClock,
        }
    }

    /// Fails if the server's clock jumped ahead, or if the entry is from the future. A call that may write rewrites such an
    /// entry as used up; one that only reads leaves it to [`look`](Self::look).
    pub(crate) async fn check_time(
        &self,
        call: &Call<'_>,
        key: &str,
        answer: &Answer,
    ) -> Result<(), Error> {
        let (ours, mut clock) = (self.ours(), answer.now);
        if answer.is_charge() && self.time.is_ahead(clock, ours.boot_time()) {
            // The entry may be from the future although the server's clock is right, which may be unknown yet.
            clock = self.whole(key, &IdPlace::Nowhere).await?.now;
        }
        let is_steady = self.time.check("redis", clock, ours.boot_time())?;
        let at = match answer.status {
            Status::OtherShape => answer.fields()?.at(),
            _ => answer.entry_at(),
        };
        let Some(ahead) = self.ahead_of(at, clock).filter(|_| is_steady) else {
            return Ok(());
        };
        let (policy, subject) = (call.policy, call.subject);
        if call.is_reading() {
            tracing::warn!(
                policy = policy.name(),
                subject,
                ahead = ahead.for_people(),
                "entry from the future is shown as used up"
            );
            return Ok(());
        }
        let mend = |entry: Option<&Entry>, now| mended(entry, now, SERVER_AHEAD_MAX);
        if self.rewrite_key(key, policy.name(), &mend).await? {
            let name = policy.name();
            tracing::warn!(
                policy = name,
                subject,
                ahead = ahead.for_people(),
                "entry from the future is rewritten as used up"
            );
            if let Some(observer) = &self.options.observer {
                observer.observe(&Event::Mended { policy, subject, ahead });
            }
        }
        Err(Error::new(
            ErrorKind::Contended,
            format!(
                "redis: the entry of subject {subject:?} under policy {:?} was {} ahead of the server's clock and is rewritten \
                 as used up; ask again",
                policy.name(),
                ahead.for_people()
            ),
        ))
    }

    /// How far an entry of `at` is ahead of the server's `clock`, if a wrong clock wrote it.
    fn ahead_of(&self, at: Option<Timestamp>, clock: Timestamp) -> Option<Span> {
        // A test that sets the time is no evidence against an entry.
        if self.options.told_time.is_some() {
            return None;
        }
        from_future(at?, clock, self.ours().now())
    }

    /// The entry of `policy` and `subject` as the next write will replace it, if `answer` shows it in the future.
    pub(crate) async fn mended_view(
        &self,
        (policy, subject): (&Policy, &str),
        answer: &Answer,
    ) -> Result<Option<Entry>, Error> {
        let fields = if answer.status == Status::OtherShape {
            // It brought the whole entry.
            answer.fields()?
        } else if self.ahead_of(answer.entry_at(), answer.now).is_some() {
            self.whole(&self.key(policy, subject), &IdPlace::Nowhere).await?.fields()?
        } else {
            return Ok(None);
        };
        let Some(stored) = fields.policy(policy.name())? else { return Ok(None) };
        let entry = fields.entry(&stored)?;
        let future = entry.filter(|entry| self.ahead_of(Some(entry.at()), answer.now).is_some());
        Ok(future.map(|entry| entry.mended(answer.now)))
    }

    /// Replaces the entry under `key` by what `rewrite` makes of it. Returns whether it did.
    async fn rewrite_key(
        &self,
        key: &str,
        policy: &str,
        rewrite: &Rewrite<'_>,
    ) -> Result<bool, Error> {
        for _ in 0..self.tries_max() {
            let answer = self.whole(key, &IdPlace::Nowhere).await?;
            let fields = answer.fields()?;
            let Some(entry) = rewrite(entry_in(&fields, policy)?.as_ref(), answer.now) else {
                return Ok(false);
            };
            let (nowhere, ids) = (IdPlace::Nowhere, IdsBefore::ForgetAll);
            if self.replace(key, &nowhere, &fields, &entry, IdChange::Nothing, ids).await? {
                return Ok(true);
            }
        }
        Err(Error::new(
            ErrorKind::Contended,
            format!(
                "redis: {} others changed {} meanwhile; try again",
                self.tries_max(),
                self.described(key)
            ),
        ))
    }

    /// Policy and subject of the entry under `key`; nothing if it is another key.
    fn entry_of<'a>(&self, key: &'a str) -> Option<(&'a str, &'a str)> {
        let rest = key.strip_prefix(&*self.options.prefix)?;
        rest.strip_prefix(":{")?.strip_suffix('}')?.split_once('/')
    }

    /// What `key` is, in the words of its policy and subject.
    pub(crate) fn described(&self, key: &str) -> String {
        match self.entry_of(key) {
            Some((policy, subject)) => {
                format!("the entry of subject {subject:?} under policy {policy:?}")
            }
            None => format!("{key:?}"),
        }
    }

    /// The time of the entry under `key`.
    async fn at_of(&self, key: &str) -> Result<Option<Timestamp>, Error> {
        let mut command = redis::cmd("HGET");
        command.arg(key).arg("e");
        let entry: Option<Vec<u8>> = self.link.at_slot(command, slot(key), "read").await?;
        let at = entry.and_then(|entry| first_word(entry.get(1..)?).map(|(at, _)| at));
        Ok(at.map(Timestamp::from_micros))
    }
}

/// The entry in `fields`, in the numbers it was written with.
fn entry_in(fields: &Fields, policy: &str) -> Result<Option<Entry>, Error> {
    fields.policy(policy)?.map_or(Ok(None), |policy| fields.entry(&policy))
}

impl EntryStore for Redis {
    /// The time of the server that has the key of permits.
    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        Box::pin(async move { Ok(self.whole(&self.shared_key(), &IdPlace::Nowhere).await?.now) })
    }

    fn visit<'a>(
        &'a self,
        ahead_min: Option<Span>,
        visitor: &'a mut Visitor<'a>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let pattern = format!("{}:{{*}}", glob(&self.options.prefix));
            for node in self.link.slot_of_each_node().await? {
                let mut cursor: u64 = 0;
                loop {
                    let mut command = redis::cmd("SCAN");
                    command.arg(cursor).arg("MATCH").arg(&pattern);
                    command.arg("COUNT").arg(SCAN_COUNT).arg("TYPE").arg("hash");
                    let keys: Vec<Vec<u8>>;
                    (cursor, keys) = self.link.at_slot(command, node, "list keys").await?;
                    for key in keys.into_iter().filter_map(|key| String::from_utf8(key).ok()) {
                        let Some((policy, subject)) = self.entry_of(&key) else { continue };
                        if ahead_min.is_some() {
                            let Some(at) = self.at_of(&key).await? else { continue };
                            // Each node has a clock of its own; asking it is only worth it for what looks wrong.
                            if at.since(self.ours().now()) <= Span::ZERO {
                                continue;
                            }
                        }
                        let answer = self.whole(&key, &IdPlace::Nowhere).await?;
                        let now = answer.now;
                        let entry = answer.fields().and_then(|fields| entry_in(&fields, policy));
                        let Some(entry) = entry.transpose() else { continue };
                        if let (Some(ahead), Ok(entry)) = (ahead_min, &entry)
                            && entry.at().since(now) <= ahead
                        {
                            continue;
                        }
                        let (policy, subject) = (policy.to_owned(), subject.to_owned());
                        let visited = Visited { policy, subject, entry, now };
                        if visitor(visited)? == ControlFlow::Break(()) {
                            return Ok(());
                        }
                    }
                    if cursor == 0 {
                        break;
                    }
                }
            }
            Ok(())
        })
    }

    fn rewrite<'a>(
        &'a self,
        policy: &'a str,
        subject: &'a str,
        rewrite: &'a Rewrite<'a>,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(
            async move { self.rewrite_key(&self.key_of(policy, subject), policy, rewrite).await },
        )
    }

    fn permit_key(&self) -> BoxFuture<'_, Result<Option<[u8; PERMIT_KEY_BYTES]>, Error>> {
        Box::pin(async move {
            let key = self.shared_key();
            let mut command = redis::cmd("HGET");
            command.arg(&key).arg("key");
            let found: Option<Vec<u8>> = self.link.at_slot(command, slot(&key), "read").await?;
            let read = |found: Vec<u8>| {
                found.try_into().map_err(|_| corrupt("the key of permits is unreadable"))
            };
            found.map(read).transpose()
        })
    }

    fn adopt_permit_key(&self, key: [u8; PERMIT_KEY_BYTES]) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move { Ok(Self::permit_key(self, key).await? == key) })
    }
}

/// `text` as a pattern that matches only itself.
fn glob(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for letter in text.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '^' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}
