//! The server's time, and entries from the future.

use tollgate::core::{Entry, IdChange};
use tollgate::repair::{FutureEntry, LISTED_MAX, Repair};
use tollgate::steps::{SERVER_AHEAD_MAX, from_future};
use tollgate::{BoxFuture, Clock, Error, ErrorKind, Event, Policy, Span, SystemClock, Timestamp};

use crate::answer::{Answer, Status};
use crate::args::first_word;
use crate::gate::{Call, IdPlace, Redis};
use crate::link::slot;
use crate::options::CARRIES_MAX;

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
        let Some(ahead) = self.ahead_of(answer.entry_at(), clock).filter(|_| is_steady) else {
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
        if let Some(ahead) = self.mend_key(key, policy.name(), SERVER_AHEAD_MAX).await? {
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

    /// Rewrites the entry under `key` as used up if it is more than `ahead_max` ahead, and says how far it was.
    async fn mend_key(
        &self,
        key: &str,
        policy: &str,
        ahead_max: Span,
    ) -> Result<Option<Span>, Error> {
        for _ in 0..CARRIES_MAX {
            let answer = self.whole(key, &IdPlace::Nowhere).await?;
            let fields = answer.fields()?;
            let Some(policy) = fields.policy(policy)? else { return Ok(None) };
            let Some(entry) = fields.entry(&policy)? else { return Ok(None) };
            let ahead = entry.at().since(answer.now);
            if ahead <= ahead_max {
                return Ok(None);
            }
            let (mended, nowhere) = (entry.mended(answer.now), IdPlace::Nowhere);
            if self.replace(key, &nowhere, &fields, &mended, IdChange::Nothing).await? {
                return Ok(Some(ahead));
            }
        }
        Err(Error::new(
            ErrorKind::Contended,
            format!(
                "redis: {CARRIES_MAX} others changed {} meanwhile; try again",
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

impl Repair for Redis {
    fn list_future(&self, ahead_max: Span) -> BoxFuture<'_, Result<Vec<FutureEntry>, Error>> {
        Box::pin(async move {
            let mut found = Vec::new();
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
                        let Some(at) = self.at_of(&key).await? else { continue };
                        // Each node has a clock of its own; asking it is only worth it for what looks wrong.
                        if at.since(self.ours().now()) <= Span::ZERO {
                            continue;
                        }
                        let ahead = at.since(self.whole(&key, &IdPlace::Nowhere).await?.now);
                        if ahead_max < ahead && found.len() < LISTED_MAX {
                            let (policy, subject) = (policy.to_owned(), subject.to_owned());
                            found.push(FutureEntry { policy, subject, at, ahead });
                        }
                    }
                    if cursor == 0 || LISTED_MAX <= found.len() {
                        break;
                    }
                }
            }
            // A scan may show a key twice.
            found.sort_by(|one, other| {
                (&one.policy, &one.subject).cmp(&(&other.policy, &other.subject))
            });
            found.dedup();
            Ok(found)
        })
    }

    fn mend<'a>(
        &'a self,
        entry: &'a FutureEntry,
        ahead_max: Span,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let FutureEntry { policy, subject, .. } = entry;
            let key = self.key_of(policy, subject);
            Ok(self.mend_key(&key, policy, ahead_max).await?.is_some())
        })
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
