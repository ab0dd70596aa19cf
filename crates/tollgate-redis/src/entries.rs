//! The server's time, repair of entries from the future, and listing of entries.

use tollgate::clock::SystemClock;
use tollgate::core::{Entry, IdChange};
use tollgate::entries::{EntryPage, EntryStore, PERMIT_KEY_BYTES, Rewrite, Visited};
use tollgate::gate::BoxFuture;
use tollgate::internal::steps::{SERVER_AHEAD_MAX, from_future};
use tollgate::observe::Event;
use tollgate::repair::repaired;
use tollgate::{Clock, Error, ErrorKind, Policy, Span, Timestamp};

use crate::args::first_word;
use crate::entry::{Fields, corrupt};
use crate::gate::{Call, IdPlace, Redis};
use crate::link::slot;
use crate::options::Options;
use crate::previous_format::IdsBefore;
use crate::reply::{Reply, Status};

/// Keys per SCAN step.
const SCAN_COUNT: u32 = 1_000;

impl Redis {
    fn ours(&self) -> &dyn Clock {
        match &self.options.test_clock {
            Some(clock) => &**clock,
            None => &SystemClock,
        }
    }

    /// Fails if the server's clock jumped ahead, or if the entry is from the future. A call that may write rewrites such an
    /// entry as used up; a read leaves it to [`peek`](Self::peek).
    pub(crate) async fn check_time(
        &self,
        call: &Call<'_>,
        key: &str,
        reply: &Reply,
    ) -> Result<(), Error> {
        let (ours, mut clock) = (self.ours(), reply.now);
        if reply.is_charge() && self.time.is_ahead(clock, ours.boot_time()) {
            // The entry may be from the future although the server's clock is right.
            clock = self.whole(key, &IdPlace::Nowhere).await?.now;
        }
        let is_steady = self.is_steady(clock)?;
        let at = match reply.status {
            Status::OtherShape => reply.fields()?.at(),
            _ => reply.entry_at(),
        };
        let Some(ahead) = self.ahead_of(at, clock).filter(|_| is_steady) else {
            return Ok(());
        };
        let (policy, subject) = (call.policy, call.subject);
        if call.is_reading() {
            tracing::warn!(
                policy = policy.name(),
                subject,
                ahead = ahead.humanize(),
                "entry from the future is shown as used up"
            );
            return Ok(());
        }
        Err(self.repair_entry((policy, subject), ahead).await)
    }

    /// Returns whether the server's clock is steady.
    ///
    /// # Errors
    /// If it jumped ahead.
    pub(crate) fn is_steady(&self, clock: Timestamp) -> Result<bool, Error> {
        self.time.check("redis", clock, self.ours().boot_time())
    }

    /// Rewrites an entry that is `ahead` of the server's clock as used up, and returns the error for the caller.
    pub(crate) async fn repair_entry(
        &self,
        (policy, subject): (&Policy, &str),
        ahead: Span,
    ) -> Error {
        let repair = |entry: Option<&Entry>, now| repaired(entry, now, SERVER_AHEAD_MAX);
        match self.rewrite_key(&self.key(policy, subject), policy.name(), &repair).await {
            Err(error) => return error,
            Ok(false) => {}
            Ok(true) => {
                tracing::warn!(
                    policy = policy.name(),
                    subject,
                    ahead = ahead.humanize(),
                    "entry from the future is rewritten as used up"
                );
                if let Some(observer) = &self.options.observer {
                    observer.observe(&Event::Repaired { policy, subject, ahead });
                }
            }
        }
        Error::new(
            ErrorKind::Contended,
            format!(
                "redis: the entry of subject {subject:?} under policy {:?} was {} ahead of the server's clock and is rewritten \
                 as used up; ask again",
                policy.name(),
                ahead.humanize()
            ),
        )
    }

    /// Returns how far `at` is ahead of the server's `clock`, if a wrong clock wrote it.
    pub(crate) fn ahead_of(&self, at: Option<Timestamp>, clock: Timestamp) -> Option<Span> {
        // A test clock is no evidence against an entry.
        if self.options.test_clock.is_some() {
            return None;
        }
        from_future(at?, clock, self.ours().now())
    }

    /// Returns the entry as the next write will replace it, if it is from the future.
    pub(crate) async fn repaired_view(
        &self,
        (policy, subject): (&Policy, &str),
        reply: &Reply,
    ) -> Result<Option<Entry>, Error> {
        let fields = if reply.status == Status::OtherShape {
            // The reply has the whole entry.
            reply.fields()?
        } else if self.ahead_of(reply.entry_at(), reply.now).is_some() {
            self.whole(&self.key(policy, subject), &IdPlace::Nowhere).await?.fields()?
        } else {
            return Ok(None);
        };
        let Some(stored) = fields.policy(policy.name())? else { return Ok(None) };
        let entry = fields.entry(&stored)?;
        let future = entry.filter(|entry| self.ahead_of(Some(entry.at()), reply.now).is_some());
        Ok(future.map(|entry| entry.repaired(reply.now)))
    }

    /// Replaces the entry under `key` by the result of `rewrite`. Returns whether it did.
    async fn rewrite_key(
        &self,
        key: &str,
        policy: &str,
        rewrite: &Rewrite<'_>,
    ) -> Result<bool, Error> {
        for _ in 0..self.tries_max() {
            let reply = self.whole(key, &IdPlace::Nowhere).await?;
            let fields = reply.fields()?;
            let Some(entry) = rewrite(entry_in(&fields, policy)?.as_ref(), reply.now) else {
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
                "redis: {} concurrent changes of {}; retry",
                self.tries_max(),
                self.described(key)
            ),
        ))
    }

    /// Parses policy and subject from the key of an entry.
    fn entry_of<'a>(&self, key: &'a str) -> Option<(&'a str, &'a str)> {
        let rest = key.strip_prefix(&*self.options.prefix)?.strip_prefix(':')?;
        let rest = rest.strip_prefix(&*self.options.slot_tag)?;
        let names = rest.strip_prefix('{')?.strip_suffix('}')?.split_once('/');
        // The keys of a store with a slot tag have a brace there.
        names.filter(|(policy, _)| !policy.contains('}'))
    }

    /// Describes `key` by its policy and subject.
    pub(crate) fn described(&self, key: &str) -> String {
        match self.entry_of(key) {
            Some((policy, subject)) => {
                format!("the entry of subject {subject:?} under policy {policy:?}")
            }
            None => format!("{key:?}"),
        }
    }

    /// Reads the entry under `key`, if it is more than `ahead_min` ahead.
    async fn visited(&self, key: &str, ahead_min: Option<Span>) -> Result<Option<Visited>, Error> {
        let Some((policy, subject)) = self.entry_of(key) else { return Ok(None) };
        if ahead_min.is_some() {
            // Each node has its own clock, which is read only for suspicious entries.
            let at = self.at_of(key).await?;
            if at.is_none_or(|at| at.since(self.ours().now()).is_zero()) {
                return Ok(None);
            }
        }
        let reply = match self.whole(key, &IdPlace::Nowhere).await {
            // The key of another program, in place of an entry.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let (policy, subject) = (policy.to_owned(), subject.to_owned());
                let now = self.ours().now();
                return Ok(Some(Visited { policy, subject, entry: Err(error), now }));
            }
            reply => reply?,
        };
        let now = reply.now;
        let entry = reply.fields().and_then(|fields| entry_in(&fields, policy)).transpose();
        let is_ahead = |entry: &Result<Entry, Error>| match (ahead_min, entry) {
            (Some(ahead), Ok(entry)) => ahead < entry.at().since(now),
            _ => true,
        };
        let (policy, subject) = (policy.to_owned(), subject.to_owned());
        Ok(entry.filter(is_ahead).map(|entry| Visited { policy, subject, entry, now }))
    }

    /// Reads the time of the entry under `key`.
    async fn at_of(&self, key: &str) -> Result<Option<Timestamp>, Error> {
        let mut command = redis::cmd("HGET");
        command.arg(key).arg("e");
        let entry: Option<Vec<u8>> = self.link.at_slot(command, slot(key), "read").await?;
        let at = entry.and_then(|entry| first_word(entry.get(1..)?).map(|(at, _)| at));
        Ok(at.map(Timestamp::from_micros))
    }
}

/// Returns the entry in `fields`, in the numbers it was written with.
fn entry_in(fields: &Fields, policy: &str) -> Result<Option<Entry>, Error> {
    fields.policy(policy)?.map_or(Ok(None), |policy| fields.entry(&policy))
}

impl EntryStore for Redis {
    /// Returns the time of the server with the key of permits.
    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        Box::pin(async move { Ok(self.whole(&self.shared_key(), &IdPlace::Nowhere).await?.now) })
    }

    fn page<'a>(
        &'a self,
        cursor: &'a [u8],
        ahead_min: Option<Span>,
    ) -> BoxFuture<'a, Result<EntryPage, Error>> {
        Box::pin(async move {
            // The cursor has that of SCAN, and a slot of each remaining node.
            let cursor = std::str::from_utf8(cursor).unwrap_or_default();
            let mut numbers = cursor.split(' ').map_while(|number| number.parse::<u64>().ok());
            let (scan, nodes): (u64, Vec<u16>) = match numbers.next() {
                Some(scan) => (scan, numbers.filter_map(|slot| slot.try_into().ok()).collect()),
                None => (0, self.link.slot_of_each_node().await?),
            };
            let Some((node, others)) = nodes.split_first() else { return Ok(EntryPage::default()) };
            let mut command = redis::cmd("SCAN");
            let Options { prefix, slot_tag, .. } = &self.options;
            command.arg(scan).arg("MATCH").arg(format!("{}:{}{{*}}", glob(prefix), glob(slot_tag)));
            command.arg("COUNT").arg(SCAN_COUNT);
            if ahead_min.is_some() {
                command.arg("TYPE").arg("hash");
            }
            let (scan, keys): (u64, Vec<Vec<u8>>) =
                self.link.at_slot(command, *node, "list keys").await?;
            let mut page = EntryPage::default();
            for key in keys.into_iter().filter_map(|key| String::from_utf8(key).ok()) {
                page.entries.extend(self.visited(&key, ahead_min).await?);
            }
            let left = if scan == 0 { others } else { nodes.as_slice() };
            if !left.is_empty() {
                let slots = left.iter().map(|slot| format!(" {slot}"));
                page.next = Some(format!("{scan}{}", slots.collect::<String>()).into_bytes());
            }
            Ok(page)
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

/// Escapes `text` for a glob pattern.
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
