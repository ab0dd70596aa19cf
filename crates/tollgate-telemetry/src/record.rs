//! Owned copies of events, for sinks in the background.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tollgate::core::Wait;
use tollgate::incident::{DifferentLimit, Incident};
use tollgate::observe::Event;
use tollgate::{Span, Standing, Timestamp};

/// A copy of an event.
#[derive(Clone, Debug)]
pub struct Record {
    /// When it was observed.
    pub at: Timestamp,
    /// Shared by all events of one permit; unique for other events.
    pub correlation_id: String,
    /// The id of the ask, if it has one.
    pub ask_id: Option<String>,
    /// The policy, if there is one.
    pub policy: Option<String>,
    /// The subject, if there is one.
    pub subject: Option<String>,
    /// The duration, if it was measured.
    pub took: Option<Span>,
    /// How much it matters.
    pub severity: Severity,
    /// What happened.
    pub kind: RecordKind,
}

/// What a [`Record`] is about, with its details.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RecordKind {
    /// An ask was admitted.
    Admitted {
        /// The charge, as in `requests=1 tokens=3750`.
        costs: String,
        /// Whether it was decided without the store.
        degraded: bool,
        /// Whether only shadow mode let it through.
        shadow_denied: bool,
    },
    /// An ask was denied.
    Denied {
        /// The limit that binds.
        limit: String,
        /// When it would be admitted; `None` if never.
        reset_at: Option<Timestamp>,
        /// The standing of the subject on that limit.
        standing: Option<Standing>,
        /// The times of the subject's last admitted asks, oldest first.
        recent: Vec<Timestamp>,
        /// Whether it was decided without the store.
        degraded: bool,
    },
    /// A permit was settled, released or renewed, an ask was charged, or an entry was forgotten.
    Done {
        /// The name of the event.
        name: &'static str,
    },
    /// A limit was closed.
    Closed {
        /// The limit.
        limit: String,
        /// Until when.
        until: Timestamp,
    },
    /// A gate could not decide.
    Failed {
        /// The error.
        error: String,
    },
    /// The store is unavailable; decisions are made without it.
    DegradedBegan {
        /// The last failure.
        error: String,
    },
    /// The store does not serve this program until the operator changes something.
    Misconfigured {
        /// The error, with its remedy.
        error: String,
    },
    /// A provider reports another limit than the policy has.
    LimitDiffers(Box<DifferentLimit>),
    /// The store is available again.
    DegradedEnded {
        /// The duration of the outage.
        lasted: Span,
    },
    /// An entry from the future was rewritten as used up at the present.
    Mended {
        /// How far its time was ahead.
        ahead: Span,
    },
    /// A provider refused an admitted call.
    Violated(Box<Incident>),
}

impl RecordKind {
    /// Returns the name of the event in logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Admitted { .. } => "admitted",
            Self::Denied { .. } => "denied",
            Self::Done { name } => name,
            Self::Closed { .. } => "closed",
            Self::Failed { .. } => "failed",
            Self::DegradedBegan { .. } => "degraded_began",
            Self::Misconfigured { .. } => "misconfigured",
            Self::LimitDiffers(_) => "limit_differs",
            Self::DegradedEnded { .. } => "degraded_ended",
            Self::Mended { .. } => "mended",
            Self::Violated(_) => "violated",
        }
    }
}

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Normal operation.
    Info,
    /// An ask was refused.
    Warn,
    /// Needs attention.
    Error,
}

impl Severity {
    /// Returns the severity of `event`; `None` if it is only counted.
    #[must_use]
    pub const fn for_event(event: &Event<'_>) -> Option<Self> {
        match event {
            Event::Admitted { .. }
            | Event::Settled { .. }
            | Event::Released { .. }
            | Event::Renewed { .. }
            | Event::Charged { .. }
            | Event::Reset { .. } => Some(Self::Info),
            Event::Denied { .. } | Event::Closed { .. } | Event::DegradedEnded { .. } => {
                Some(Self::Warn)
            }
            Event::Failed { .. }
            | Event::DegradedBegan { .. }
            | Event::Misconfigured { .. }
            | Event::LimitDiffers(_)
            | Event::Repaired { .. }
            | Event::Violated { .. } => Some(Self::Error),
            _ => None,
        }
    }

    /// Returns the level in logs.
    #[must_use]
    pub const fn level(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

impl Record {
    /// Copies `event`, observed at `at`; `recent` are the subject's last admitted asks. `None` for events that are only
    /// counted.
    #[must_use]
    pub fn from_event(event: &Event<'_>, at: Timestamp, recent: Vec<Timestamp>) -> Option<Self> {
        let mut record = Self {
            at,
            correlation_id: String::new(),
            ask_id: None,
            policy: None,
            subject: None,
            took: None,
            severity: Severity::for_event(event)?,
            kind: RecordKind::Done { name: "" },
        };
        let (policy, subject) = about(event);
        record.policy = policy.map(str::to_owned);
        record.subject = subject.map(str::to_owned);
        let mut permit_of = None;
        record.kind = match event {
            Event::Admitted { ask, permit, took } => {
                permit_of = Some(*permit);
                record.ask_id = ask.id_text().map(str::to_owned);
                record.took = Some(*took);
                let costs = ask.costs();
                let costs: Vec<String> =
                    costs.iter().map(|(unit, amount)| format!("{unit}={amount}")).collect();
                RecordKind::Admitted {
                    costs: costs.join(" "),
                    degraded: permit.degraded,
                    shadow_denied: permit.shadow_denied.is_some(),
                }
            }
            Event::Denied { ask, denial, took } => {
                record.ask_id = ask.id_text().map(str::to_owned);
                record.took = Some(*took);
                RecordKind::Denied {
                    limit: denial.limit.to_string(),
                    reset_at: match denial.bound() {
                        Wait::Until(until) => Some(until),
                        Wait::Never => None,
                    },
                    standing: denial.limits.iter().find(|it| it.name == denial.limit).cloned(),
                    recent,
                    degraded: denial.degraded,
                }
            }
            Event::Settled { permit, .. } => {
                permit_of = Some(*permit);
                RecordKind::Done { name: "settled" }
            }
            Event::Released { permit, .. } => {
                permit_of = Some(*permit);
                RecordKind::Done { name: "released" }
            }
            Event::Renewed { permit } => {
                permit_of = Some(*permit);
                RecordKind::Done { name: "renewed" }
            }
            Event::Charged { .. } => RecordKind::Done { name: "charged" },
            Event::Reset { .. } => RecordKind::Done { name: "reset" },
            Event::Closed { limit, until, .. } => {
                RecordKind::Closed { limit: (*limit).to_owned(), until: *until }
            }
            Event::Failed { error, took, .. } => {
                record.took = Some(*took);
                RecordKind::Failed { error: error.to_string() }
            }
            Event::DegradedBegan { error } => {
                RecordKind::DegradedBegan { error: error.to_string() }
            }
            Event::Misconfigured { error } => {
                RecordKind::Misconfigured { error: error.to_string() }
            }
            Event::LimitDiffers(limit) => RecordKind::LimitDiffers(Box::new((*limit).clone())),
            Event::DegradedEnded { lasted } => RecordKind::DegradedEnded { lasted: *lasted },
            Event::Repaired { ahead, .. } => RecordKind::Mended { ahead: *ahead },
            Event::Violated { incident, .. } => RecordKind::Violated(Box::new((*incident).clone())),
            _ => return None,
        };
        record.correlation_id = match (&record.kind, permit_of) {
            (RecordKind::Violated(incident), _) => incident.id.clone(),
            // The time and the stamp of its charge identify a permit.
            (_, Some(permit)) if permit.is_charged() => {
                let grant = permit.grant();
                format!("{:x}-{:x}", grant.at.as_micros(), grant.stamp)
            }
            _ => format!("{:x}-e{:x}", at.as_micros(), EVENTS.fetch_add(1, Relaxed)),
        };
        Some(record)
    }
}

/// Distinguishes events of the same microsecond.
static EVENTS: AtomicU64 = AtomicU64::new(0);

/// Returns the policy and the subject of `event`.
fn about<'a>(event: &'a Event<'_>) -> (Option<&'a str>, Option<&'a str>) {
    let (policy, subject) = match event {
        Event::Admitted { ask, .. } | Event::Denied { ask, .. } | Event::Charged { ask } => {
            (ask.policy(), Some(ask.subject()))
        }
        Event::Settled { permit, .. }
        | Event::Released { permit, .. }
        | Event::Renewed { permit } => (permit.policy(), Some(permit.subject())),
        Event::Reset { policy, subject }
        | Event::Failed { policy, subject, .. }
        | Event::Repaired { policy, subject, .. } => (*policy, Some(*subject)),
        Event::Violated { policy, incident } => (*policy, Some(incident.subject.as_str())),
        Event::LimitDiffers(limit) => return (Some(&limit.policy), None),
        Event::Tried { policy, .. } | Event::Unposted { policy, .. } => (*policy, None),
        _ => return (None, None),
    };
    (Some(policy.name()), subject)
}
