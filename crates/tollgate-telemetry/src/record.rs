//! Events that outlive the moment: what a sink in the background needs of them, owned.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tollgate::incident::Incident;
use tollgate::{Event, Span, Standing, Timestamp, Wait};

/// What happened, and when.
#[derive(Clone, Debug)]
pub struct Record {
    /// When it was observed.
    pub at: Timestamp,
    /// The same for everything that happens to one permit; of its own for everything else.
    pub correlation_id: String,
    /// The id that the caller gave the ask, if any.
    pub ask_id: Option<String>,
    /// The name of the policy, where there is one.
    pub policy: Option<String>,
    /// For whom, where there is somebody.
    pub subject: Option<String>,
    /// How long it took, where that was measured.
    pub took: Option<Span>,
    /// What it was.
    pub what: What,
}

/// What a [`Record`] is about.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum What {
    /// An ask went through.
    Admitted {
        /// What was charged, as in `requests=1 tokens=3750`.
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
        /// From when it would go through; nothing if never.
        reset_at: Option<Timestamp>,
        /// Where the subject stands on that limit.
        standing: Option<Standing>,
        /// When the subject's last admitted asks were, oldest first.
        recent: Vec<Timestamp>,
        /// Whether it was decided without the store.
        degraded: bool,
    },
    /// A permit was settled, released or renewed, an ask was charged, or an entry was forgotten.
    Done {
        /// Which of them, in one word.
        word: &'static str,
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
        /// Why not.
        error: String,
    },
    /// Decisions are made without the store from now on.
    DegradedBegan {
        /// The last failure.
        error: String,
    },
    /// The store does not serve this program until the operator changes something.
    Misconfigured {
        /// What is wrong, and what would be right.
        error: String,
    },
    /// The store answers again.
    DegradedEnded {
        /// How long decisions were made without it.
        lasted: Span,
    },
    /// An entry from the future was rewritten as used up at the present.
    Mended {
        /// How far its time was ahead.
        ahead: Span,
    },
    /// A provider refused what was admitted.
    Violated(Box<Incident>),
}

impl What {
    /// One word for it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Admitted { .. } => "admitted",
            Self::Denied { .. } => "denied",
            Self::Done { word } => word,
            Self::Closed { .. } => "closed",
            Self::Failed { .. } => "failed",
            Self::DegradedBegan { .. } => "degraded_began",
            Self::Misconfigured { .. } => "misconfigured",
            Self::DegradedEnded { .. } => "degraded_ended",
            Self::Mended { .. } => "mended",
            Self::Violated(_) => "violated",
        }
    }
}

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Usual work.
    Info,
    /// Somebody was refused.
    Warn,
    /// Somebody should look.
    Error,
}

impl Severity {
    /// How much `event` matters; nothing if it is no event for a log.
    #[must_use]
    pub const fn of(event: &Event<'_>) -> Option<Self> {
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
            | Event::Mended { .. }
            | Event::Violated { .. } => Some(Self::Error),
            _ => None,
        }
    }

    /// The word in a log.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

impl Record {
    /// How much it matters.
    #[must_use]
    pub const fn severity(&self) -> Severity {
        match self.what {
            What::Admitted { .. } | What::Done { .. } => Severity::Info,
            What::Denied { .. } | What::Closed { .. } | What::DegradedEnded { .. } => {
                Severity::Warn
            }
            What::Failed { .. }
            | What::DegradedBegan { .. }
            | What::Misconfigured { .. }
            | What::Mended { .. }
            | What::Violated(_) => Severity::Error,
        }
    }

    /// `event` as it was observed at `at`; `recent` are the subject's last admitted asks. Nothing for events that only
    /// meters count.
    #[must_use]
    pub fn of(event: &Event<'_>, at: Timestamp, recent: Vec<Timestamp>) -> Option<Self> {
        let mut record = Self {
            at,
            correlation_id: String::new(),
            ask_id: None,
            policy: None,
            subject: None,
            took: None,
            what: What::Done { word: "" },
        };
        let (policy, subject) = about(event);
        record.policy = policy.map(str::to_owned);
        record.subject = subject.map(str::to_owned);
        let mut permit_of = None;
        record.what = match event {
            Event::Admitted { ask, permit, took } => {
                permit_of = Some(*permit);
                record.ask_id = ask.id_text().map(str::to_owned);
                record.took = Some(*took);
                let costs = ask.costs();
                let costs: Vec<String> =
                    costs.iter().map(|(unit, amount)| format!("{unit}={amount}")).collect();
                What::Admitted {
                    costs: costs.join(" "),
                    degraded: permit.degraded,
                    shadow_denied: permit.shadow_denied.is_some(),
                }
            }
            Event::Denied { ask, denial, took } => {
                record.ask_id = ask.id_text().map(str::to_owned);
                record.took = Some(*took);
                What::Denied {
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
                What::Done { word: "settled" }
            }
            Event::Released { permit, .. } => {
                permit_of = Some(*permit);
                What::Done { word: "released" }
            }
            Event::Renewed { permit } => {
                permit_of = Some(*permit);
                What::Done { word: "renewed" }
            }
            Event::Charged { .. } => What::Done { word: "charged" },
            Event::Reset { .. } => What::Done { word: "reset" },
            Event::Closed { limit, until, .. } => {
                What::Closed { limit: (*limit).to_owned(), until: *until }
            }
            Event::Failed { error, took, .. } => {
                record.took = Some(*took);
                What::Failed { error: error.to_string() }
            }
            Event::DegradedBegan { error } => What::DegradedBegan { error: error.to_string() },
            Event::Misconfigured { error } => What::Misconfigured { error: error.to_string() },
            Event::DegradedEnded { lasted } => What::DegradedEnded { lasted: *lasted },
            Event::Mended { ahead, .. } => What::Mended { ahead: *ahead },
            Event::Violated { incident, .. } => What::Violated(Box::new((*incident).clone())),
            _ => return None,
        };
        record.correlation_id = match (&record.what, permit_of) {
            (What::Violated(incident), _) => incident.id.clone(),
            // A permit is told apart by when it was charged and under which number.
            (_, Some(permit)) if permit.is_charged() => {
                let grant = permit.grant();
                format!("{:x}-{:x}", grant.at.as_micros(), grant.stamp)
            }
            _ => format!("{:x}-e{:x}", at.as_micros(), EVENTS.fetch_add(1, Relaxed)),
        };
        Some(record)
    }
}

/// Tells events apart that happen in the same microsecond.
static EVENTS: AtomicU64 = AtomicU64::new(0);

/// The policy and the subject of `event`.
fn about<'a>(event: &'a Event<'_>) -> (Option<&'a str>, Option<&'a str>) {
    let (policy, subject) = match event {
        Event::Admitted { ask, .. }
        | Event::Denied { ask, .. }
        | Event::Charged { ask }
        | Event::Closed { ask, .. } => (ask.policy(), Some(ask.subject())),
        Event::Settled { permit, .. }
        | Event::Released { permit, .. }
        | Event::Renewed { permit } => (permit.policy(), Some(permit.subject())),
        Event::Reset { policy, subject }
        | Event::Failed { policy, subject, .. }
        | Event::Mended { policy, subject, .. } => (*policy, Some(*subject)),
        Event::Violated { policy, incident } => (*policy, Some(incident.subject.as_str())),
        Event::Tried { policy, .. } | Event::Unposted { policy, .. } => (*policy, None),
        _ => return (None, None),
    };
    (Some(policy.name()), subject)
}
