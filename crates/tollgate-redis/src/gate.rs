//! The gate: each operation is one call of one script.
//!
//! A script decides what to write, and returns the state it decided on; the core derives the outcome from it. If the numbers
//! of a policy changed since the entry was written, the script returns the whole entry, the core carries it over and
//! decides, and the result replaces the entry by compare-and-swap.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use tollgate::clock::SystemClock;
use tollgate::core::{
    Amounts, Change, Entry, IdChange, Known, Operation, Outcome, apply, apply_older, bounds,
    standings,
};
use tollgate::internal::steps::ServerTime;
use tollgate::{Clock, Error, ErrorKind, Policy, Timestamp};

use crate::args::{self, Times};
use crate::entry::{Fields, corrupt, record, unknown_version};
use crate::link::{Link, Repeat};
use crate::options::{Options, WINDOW_TRIES_MAX};
use crate::previous_format::{EntryLocks, IdsBefore};
use crate::reply::{Reply, Status};
use crate::script::{self, Script};

/// A gate whose state is in Redis, for any number of concurrent tasks and programs.
#[derive(Debug)]
pub struct Redis {
    pub(crate) link: Link,
    pub(crate) options: Options,
    /// The server's clock minus ours at its last reply, in microseconds.
    ahead: AtomicI64,
    /// The server's time, learned from replies.
    pub(crate) time: ServerTime,
    /// The mark of the server's data; 0 before the first check.
    pub(crate) mark: AtomicU64,
    pub(crate) locks: EntryLocks,
    pub(crate) refusals_in_doubt: AtomicU64,
}

impl Redis {
    /// Connects to the servers that `options` name.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a wrong url, [`Misconfigured`](ErrorKind::Misconfigured) for a wrong user,
    /// password, certificate or master, [`Unavailable`](ErrorKind::Unavailable) if the server does not reply in time.
    pub async fn open(options: Options) -> Result<Self, Error> {
        let link = Link::connect(&options).await?;
        link.ping().await?;
        Ok(Self {
            link,
            options,
            ahead: AtomicI64::new(0),
            time: ServerTime::new(),
            mark: AtomicU64::new(0),
            locks: EntryLocks::default(),
            refusals_in_doubt: AtomicU64::new(0),
        })
    }

    /// Returns the key of a policy's entry for a subject. Other programs must not write it.
    #[must_use]
    pub fn key(&self, policy: &Policy, subject: &str) -> String {
        self.key_of(policy.name(), subject)
    }

    pub(crate) fn key_of(&self, policy: &str, subject: &str) -> String {
        // A name has no slash, so no two pairs share a key; the text in the first braces selects the slot of a cluster.
        format!("{}:{}{{{policy}/{subject}}}", self.options.prefix, self.options.slot_tag)
    }

    /// Returns where the id of an ask is stored.
    fn place_of_id(&self, policy: &Policy, subject: &str, id: Option<&str>) -> IdPlace {
        match id {
            None => IdPlace::Nowhere,
            Some(id) if self.options.cluster => IdPlace::Field(format!("k{id}")),
            // The length of the subject keeps pairs of a subject and an id distinct.
            Some(id) => IdPlace::Key(format!(
                "{}:id{}:{}{{{}/{subject}}}{id}",
                self.options.prefix,
                subject.len(),
                self.options.slot_tag,
                policy.name()
            )),
        }
    }

    pub(crate) fn times(&self, given_at: Option<Timestamp>) -> Times {
        let test = self.options.test_clock.as_ref().map(|clock| clock.now());
        let ahead = self.ahead.load(Ordering::Relaxed);
        let guessed = || SystemClock.now().as_micros().saturating_add_signed(ahead);
        let windows_at = test.unwrap_or_else(|| Timestamp::from_micros(guessed()));
        Times { test, windows_at, given_at }
    }

    pub(crate) fn learn_clock(&self, now: Timestamp) {
        if self.options.test_clock.is_none() {
            let (theirs, ours) = (now.as_micros(), SystemClock.now().as_micros());
            self.ahead.store(theirs.cast_signed() - ours.cast_signed(), Ordering::Relaxed);
        }
    }

    /// Runs a script, and repeats it with other calendar windows while the server's clock is in another window.
    pub(crate) async fn call(&self, call: &Call<'_>) -> Result<Reply, Error> {
        let (key, shape) = (self.key(call.policy, call.subject), call.policy.shape_bytes());
        let id = self.place_of_id(call.policy, call.subject, call.id);
        let mut times = self.times(call.given_at);
        for _ in 0..WINDOW_TRIES_MAX {
            let args = args::limits(call.policy, &call.amounts, times, call.numbers);
            let mut all: Vec<&[u8]> = vec![&args, shape];
            all.extend(call.list.as_deref());
            all.extend(id.field());
            let reply = self.link.run(call.script, &id.keys(&key), &all, call.repeat).await?;
            let reply = Reply::read(reply)?;
            self.check_time(call, &key, &reply).await?;
            self.learn_clock(reply.now);
            match reply.status {
                Status::OtherWindow => {
                    let at = reply.number().ok_or_else(|| corrupt("it has no time"))?;
                    times.windows_at = Timestamp::from_micros(at);
                }
                Status::Version => {
                    return Err(unknown_version(reply.extra().first().copied().unwrap_or(0)));
                }
                _ => {
                    match reply.status {
                        Status::Done => self.link.replicated(&key).await?,
                        Status::Same if call.is_repeat(&reply) => {
                            self.link.replicated_before(&key).await?;
                        }
                        _ => {}
                    }
                    return Ok(reply);
                }
            }
        }
        Err(Error::new(
            ErrorKind::Contended,
            "redis: the server's clock jumped between calendar windows; retry",
        ))
    }

    /// Decides `operation` in the core on the whole entry, and replaces the entry by compare-and-swap.
    pub(crate) async fn carried(
        &self,
        operation: Operation<'_>,
        first: Reply,
    ) -> Result<Outcome, Error> {
        let (policy, subject) = (operation.policy(), operation.subject());
        let (key, id) = (self.key(policy, subject), self.place_of(&operation));
        let ids = match operation {
            Operation::Release(permit) => IdsBefore::Forget(permit.grant().stamp),
            Operation::Reset { .. } => IdsBefore::ForgetAll,
            _ => IdsBefore::Stay,
        };
        let mut reply = first;
        for _ in 0..self.tries_max() {
            let fields = reply.fields()?;
            let older = self.writes_older(&fields);
            let policy = if older { policy.with_exact_logs() } else { policy };
            let apply = if older { apply_older } else { apply };
            let stored = fields.entry(policy)?;
            let mut entry = stored.unwrap_or_else(|| Entry::fresh(policy, reply.now));
            let known = fields.known()?;
            let known =
                if self.is_older() { known.unless_settled(&operation, &entry) } else { known };
            let applied = apply(&operation, &mut entry, known, reply.now)?;
            if applied.change == Change::Nothing {
                let decides = matches!(
                    operation,
                    Operation::Acquire(_) | Operation::Charge(_) | Operation::Standing { .. }
                );
                // Any other operation was carried out before.
                if !decides || matches!(known, Known::Before(_)) {
                    self.link.replicated_before(&key).await?;
                }
                return Ok(applied.outcome);
            }
            if self.replace(&key, &id, &fields, &entry, applied.id, ids).await? {
                return Ok(applied.outcome);
            }
            reply = self.whole(&key, &id).await?;
        }
        Err(Error::new(
            ErrorKind::Contended,
            format!(
                "redis: {} concurrent changes of {} while its policy or its format changed; retry",
                self.tries_max(),
                self.described(&key)
            ),
        ))
    }

    /// Reads the whole entry, and the record of one id.
    pub(crate) async fn whole(&self, key: &str, id: &IdPlace) -> Result<Reply, Error> {
        let args = args::bare(self.times(None), [0; 4]);
        let all = [&args, b"".as_slice(), b"", id.field().unwrap_or_default()];
        let reply = self.link.run(&script::WHOLE, &id.keys(key), &all, Repeat::Safe).await?;
        Reply::read(reply)
    }

    pub(crate) fn place_of(&self, operation: &Operation<'_>) -> IdPlace {
        self.place_of_id(operation.policy(), operation.subject(), operation.id())
    }

    /// Writes `entry` and the changes of its ids if the stored entry is still `old`. Returns whether it did.
    pub(crate) async fn replace(
        &self,
        key: &str,
        id: &IdPlace,
        old: &Fields,
        entry: &Entry,
        change: IdChange,
        ids: IdsBefore,
    ) -> Result<bool, Error> {
        let times = self.times(None);
        let (remembered, value, act) = match &change {
            IdChange::Nothing => (Timestamp::EPOCH, Vec::new(), 0),
            IdChange::Remember(given) => (given.expires_at, record(given), 1),
            IdChange::Forget => (Timestamp::EPOCH, Vec::new(), 2),
        };
        // The field of an id lives no longer than the entry.
        let stays = if id.field().is_some() { remembered } else { Timestamp::EPOCH };
        let [goes, id_goes] = if times.test.is_some() {
            [0; 2]
        } else {
            // The next write sets the exact expiry.
            let goes = self.stays_until(entry).max(old.stays()).max(stays);
            [goes, remembered].map(|end| end.as_micros().div_ceil(1_000))
        };
        let forgotten = match ids {
            IdsBefore::Stay => 0,
            IdsBefore::Forget(stamp) => stamp,
            IdsBefore::ForgetAll => bounds::NUMBER_MAX,
        };
        let args = args::bare(times, [goes, id_goes, act, forgotten]);
        let new = Fields::from_entry(entry, old, self.version_after(old), ids, (stays, goes));
        let field = id.field().unwrap_or_default();
        let mut all: Vec<&[u8]> = vec![&args, b"", old.hot(), field, &value];
        for (name, value) in new.iter() {
            all.extend([name.as_slice(), value.as_slice()]);
        }
        let reply = self.link.run(&script::REPLACE, &id.keys(key), &all, Repeat::Unsafe).await?;
        let done = Reply::read(reply)?.status == Status::Done;
        if done {
            self.link.replicated(key).await?;
        }
        Ok(done)
    }

    /// Returns a time from which on the entry equals an absent one.
    fn stays_until(&self, entry: &Entry) -> Timestamp {
        let standings = standings(entry, entry.at());
        let full = standings.iter().filter_map(|standing| standing.full_at);
        let parts = entry.parts();
        let closed = parts.closed.iter().map(|(_, until)| *until);
        let settled = parts.settled.runs.iter().map(|run| run.2 + bounds::PERMIT_TTL);
        let changed = parts.changed.map(|(_, at)| at + bounds::PERMIT_TTL);
        // The late part of a calendar counts in the next window, and slots and windows may end after the limit is full.
        let borders = entry.policy().windows_at(entry.at()).flatten().map(|[_, next]| next.end);
        let stamps = [Timestamp::from_micros(parts.next_stamp)];
        let all = full.chain(closed).chain(settled).chain(borders).chain(stamps).chain(changed);
        all.max().unwrap_or(entry.at())
    }
}

/// Where an id is stored: in a key of its own, or on a cluster in a field of its entry.
#[derive(Debug)]
pub(crate) enum IdPlace {
    Nowhere,
    Key(String),
    Field(String),
}

impl IdPlace {
    pub(crate) fn field(&self) -> Option<&[u8]> {
        match self {
            Self::Field(field) => Some(field.as_bytes()),
            Self::Nowhere | Self::Key(_) => None,
        }
    }

    /// Returns the key of the id, if it has one.
    pub(crate) fn key(&self) -> Option<&str> {
        match self {
            Self::Key(id) => Some(id.as_str()),
            Self::Nowhere | Self::Field(_) => None,
        }
    }

    /// Returns the keys of a script on the entry `key`.
    fn keys<'a>(&'a self, key: &'a str) -> Vec<&'a str> {
        std::iter::once(key).chain(self.key()).collect()
    }
}

/// The meaning of a call that changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unchanged {
    /// It never changes anything.
    Reading,
    /// It was denied, or its id is known.
    Decision,
    /// It was carried out before.
    Repeat,
}

/// One call of a script.
pub(crate) struct Call<'a> {
    pub(crate) script: &'a Script,
    pub(crate) policy: &'a Policy,
    pub(crate) subject: &'a str,
    pub(crate) amounts: Amounts,
    /// The time of the permit to settle.
    pub(crate) given_at: Option<Timestamp>,
    /// The id that the call may store, recognise or remove.
    pub(crate) id: Option<&'a str>,
    pub(crate) repeat: Repeat,
    /// The meaning of a call that changes nothing.
    pub(crate) unchanged: Unchanged,
    /// Four numbers of the script, and for some scripts one more per limit.
    pub(crate) numbers: [u64; 4],
    pub(crate) list: Option<Vec<u8>>,
}

impl<'a> Call<'a> {
    /// Whether the call never writes.
    pub(crate) fn is_reading(&self) -> bool {
        std::ptr::eq(self.script, &*script::STANDING)
    }

    /// Creates a repeatable call without costs or further arguments.
    pub(crate) fn new(script: &'a Script, policy: &'a Policy, subject: &'a str) -> Self {
        Self {
            script,
            policy,
            subject,
            amounts: Amounts::default(),
            given_at: None,
            id: None,
            repeat: Repeat::Safe,
            unchanged: Unchanged::Repeat,
            numbers: [0; 4],
            list: None,
        }
    }

    /// Whether an earlier call made the change, given a reply without one.
    fn is_repeat(&self, reply: &Reply) -> bool {
        match self.unchanged {
            Unchanged::Reading => false,
            Unchanged::Decision => matches!(reply.known(), Ok(Known::Before(_))),
            Unchanged::Repeat => true,
        }
    }
}
