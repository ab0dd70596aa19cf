//! The audit: records of decisions and administrative actions, and the trait of logs that keep them.
//!
//! A log is written in batches outside of decisions, and is bounded in entries and in age.
//! So a decision neither waits for its record nor fails with it, and a record may be lost. [`MemoryLog`] ends with the process;
//! durable stores have logs of their own.

mod charge;
mod memory;

use std::fmt::{self, Debug};
use std::str::FromStr;
use std::sync::Arc;

use tollgate_core::{Ask, Decision, Denial, Permit, Span, Timestamp};

use crate::error::{Error, ErrorKind};
use crate::gate::BoxFuture;

pub use charge::RecordedCharge;
pub use memory::MemoryLog;

/// The most records on one page.
pub const PAGE_MAX: usize = 1_000;

/// The default number of entries that a log keeps.
pub const ENTRIES_MAX_DEFAULT: usize = 100_000;

/// The default age at which a log drops entries.
pub const AGE_MAX_DEFAULT: Span = Span::from_hours(30 * 24);

/// The outcome of an ask, or an administrative action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It went through.
    Admitted,
    /// It did not go through.
    Denied,
    /// It went through only because its policy is in shadow mode.
    ShadowDenied,
    /// It had gone through, and the provider refused it.
    Violated,
    /// An operator had a subject forgotten.
    Reset,
    /// An operator gave a subject other numbers.
    Overridden,
    /// An operator gave a subject the numbers of the configuration again.
    Restored,
    /// An operator put a subject on a plan, which the record has in place of a policy.
    Assigned,
    /// An operator gave a subject the plan of the configuration again.
    Unassigned,
    /// An operator made a policy, or changed one that was made so.
    Defined,
    /// An operator removed a policy that was made by one.
    Removed,
    /// A limit was closed until a time.
    Closed,
    /// A cost was charged without a decision.
    Charged,
    /// The configuration was read again.
    Reloaded,
    /// A caller had no key, or a wrong one.
    Unauthenticated,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 15] = [
        Self::Admitted,
        Self::Denied,
        Self::ShadowDenied,
        Self::Violated,
        Self::Reset,
        Self::Overridden,
        Self::Restored,
        Self::Assigned,
        Self::Unassigned,
        Self::Defined,
        Self::Removed,
        Self::Closed,
        Self::Charged,
        Self::Reloaded,
        Self::Unauthenticated,
    ];

    /// Its name for programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Denied => "denied",
            Self::ShadowDenied => "shadow_denied",
            Self::Violated => "violated",
            Self::Reset => "reset",
            Self::Overridden => "overridden",
            Self::Restored => "restored",
            Self::Assigned => "assigned",
            Self::Unassigned => "unassigned",
            Self::Defined => "defined",
            Self::Removed => "removed",
            Self::Closed => "closed",
            Self::Charged => "charged",
            Self::Reloaded => "reloaded",
            Self::Unauthenticated => "unauthenticated",
        }
    }

    /// Returns whether a limit was reached.
    #[must_use]
    pub const fn is_limited(self) -> bool {
        matches!(self, Self::Denied | Self::ShadowDenied)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Outcome {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|outcome| outcome.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::new(ErrorKind::Invalid, format!("unknown outcome {text:?}; use one of {names}"))
        })
    }
}

/// The binding limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The name of the limit.
    pub limit: Arc<str>,
    /// Its unit.
    pub unit: Arc<str>,
    /// How much of the unit was asked for.
    pub asked: u64,
    /// How long to wait; `None` if waiting does not help.
    pub retry_after: Option<Span>,
}

impl From<&Denial> for Binding {
    fn from(denial: &Denial) -> Self {
        Self {
            limit: Arc::clone(&denial.limit),
            unit: Arc::clone(&denial.unit),
            asked: denial.asked,
            retry_after: denial.retry_after(),
        }
    }
}

/// A record of a decision or an administrative action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number in the log, which the log assigns; later records have larger ones.
    pub number: u64,
    /// When it was decided.
    pub at: Timestamp,
    /// The name of the policy; of several charges, that of the one that binds, or of the first.
    pub policy: Arc<str>,
    /// The subject of the same charge.
    pub subject: Arc<str>,
    /// How it ended.
    pub outcome: Outcome,
    /// The binding limit, if one was.
    pub binding: Option<Binding>,
    /// Whether it was decided without the store.
    pub degraded: bool,
    /// The name of the API key that did it; nothing for decisions, and on a server without keys.
    pub by: Option<Arc<str>>,
    /// Every charge, in the order of the ask, if it had several.
    pub charges: Vec<RecordedCharge>,
}

impl Record {
    /// Returns the record of an administrative action at `at` under the API key `by`.
    #[must_use]
    pub fn action(outcome: Outcome, policy: &str, subject: &str, by: &str, at: Timestamp) -> Self {
        Self {
            number: 0,
            at,
            policy: policy.into(),
            subject: subject.into(),
            outcome,
            binding: None,
            degraded: false,
            by: (!by.is_empty()).then(|| by.into()),
            charges: Vec::new(),
        }
    }

    /// Returns the record of `decision` on `ask`, made at `at`. Of several charges it is about the one that binds, or about the
    /// first if none does.
    #[must_use]
    pub fn for_decision(ask: &Ask<'_>, decision: &Decision, at: Timestamp) -> Self {
        let (outcome, (index, binding), degraded) = match decision {
            Decision::Denied(denial) => {
                let index = charge::binding_index(ask, denial);
                (Outcome::Denied, (index, Some(denial.into())), denial.degraded)
            }
            Decision::Admitted(permit) => {
                let degraded = parts(permit).any(|part| part.degraded);
                let mut shadows = parts(permit).enumerate();
                let shadow = shadows.find_map(|(index, part)| {
                    Some((index, Some(part.shadow_denied.as_deref()?.into())))
                });
                match shadow {
                    Some(binding) => (Outcome::ShadowDenied, binding, degraded),
                    None => (Outcome::Admitted, (0, None), degraded),
                }
            }
        };
        let charge = ask.charges().nth(index).or_else(|| ask.charges().next());
        let (policy, subject) = charge
            .map_or_else(Default::default, |it| (it.policy().name().into(), it.subject().into()));
        let charges = RecordedCharge::for_decision(ask, decision);
        Self { number: 0, at, policy, subject, outcome, binding, degraded, by: None, charges }
    }

    /// Adds every charge of `ask`, if it has several.
    #[must_use]
    pub fn with_charges(self, ask: &Ask<'_>) -> Self {
        Self { charges: RecordedCharge::for_ask(ask), ..self }
    }

    /// Returns the policies and subjects that it is about, that of the record itself first.
    pub fn about(&self) -> impl Iterator<Item = (&str, &str)> {
        let own = (&*self.policy, &*self.subject);
        let charges = self.charges.iter().map(|charge| (&*charge.policy, &*charge.subject));
        std::iter::once(own).chain(charges.filter(move |charge| *charge != own))
    }

    /// Returns the policies and subjects that refused, or would have in shadow mode.
    pub fn limited(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        let refused = |charge: &&RecordedCharge| !charge.refused.is_empty();
        let has_charges = self.charges.iter().any(|charge| refused(&charge));
        let own =
            (self.outcome.is_limited() && !has_charges).then_some((&self.policy, &self.subject));
        let charges = self.charges.iter().filter(|_| self.outcome.is_limited()).filter(refused);
        own.into_iter().chain(charges.map(|charge| (&charge.policy, &charge.subject)))
    }
}

/// The permits of the charges, of which the first is `permit` itself.
fn parts(permit: &Permit) -> impl Iterator<Item = &Permit> {
    std::iter::once(permit).chain(permit.more())
}

/// A filter of records, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Selects records about a policy.
    pub policy: Option<String>,
    /// Selects records about a subject; with a policy, about its charge under that policy.
    pub subject: Option<String>,
    /// Selects records from this time on.
    pub since: Option<Timestamp>,
    /// Selects an outcome.
    pub outcome: Option<Outcome>,
    /// Selects decisions without the store.
    pub degraded: bool,
    /// Selects records before this number: where the previous page ended.
    pub before: Option<u64>,
    /// At most so many, up to [`PAGE_MAX`].
    pub limit: usize,
}

impl Default for Query {
    fn default() -> Self {
        Self {
            policy: None,
            subject: None,
            since: None,
            outcome: None,
            degraded: false,
            before: None,
            limit: PAGE_MAX,
        }
    }
}

impl Query {
    /// Returns whether `record` is selected.
    #[must_use]
    pub fn matches(&self, record: &Record) -> bool {
        let is_about = |(policy, subject): (&str, &str)| {
            self.policy.as_deref().is_none_or(|wanted| wanted == policy)
                && self.subject.as_deref().is_none_or(|wanted| wanted == subject)
        };
        record.about().any(is_about)
            && self.since.is_none_or(|since| since <= record.at)
            && self.outcome.is_none_or(|outcome| outcome == record.outcome)
            && (!self.degraded || record.degraded)
            && self.before.is_none_or(|before| record.number < before)
    }

    /// Makes a page of `records`, of which there may be one more than the page holds.
    #[must_use]
    pub fn page(&self, mut records: Vec<Record>) -> Page {
        let limit = self.rows();
        let has_more = limit < records.len();
        records.truncate(limit);
        let next = records.last().filter(|_| has_more).map(|record| record.number);
        Page { records, next }
    }

    /// Returns the number of records on a page.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.limit.clamp(1, PAGE_MAX)
    }
}

/// Some records, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The records.
    pub records: Vec<Record>,
    /// The [`Query::before`] of the next page; `None` on the last one.
    pub next: Option<u64>,
}

/// The retention of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// At most so many entries; a log may hold a little more until it is trimmed.
    pub entries_max: usize,
    /// None older than this.
    pub age_max: Span,
}

impl Default for Retention {
    fn default() -> Self {
        Self { entries_max: ENTRIES_MAX_DEFAULT, age_max: AGE_MAX_DEFAULT }
    }
}

/// Keeps records. A failed write is an error of the log, never of a decision.
pub trait AuditLog: Debug + Send + Sync + 'static {
    /// Writes `records` in their order, all or none. Their numbers are the log's to give.
    fn append<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), Error>>;

    /// Returns the records that `query` selects.
    fn find<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page, Error>>;

    /// Deletes the records beyond `keep` at `now`, oldest first. Returns how many.
    fn trim(&self, keep: Retention, now: Timestamp) -> BoxFuture<'_, Result<u64, Error>>;
}
