//! What the callers know: every ask with its answer, at true time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::ErrorKind;
use tollgate_core::{Costs, Span, Timestamp};

/// One ask of one caller.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) machine: u64,
    pub(super) subject: String,
    pub(super) costs: Costs,
    pub(super) began: Timestamp,
    /// Whether the caller asked again, so that a first request may still arrive after the answer.
    pub(super) resent: bool,
    pub(super) ended: Ended,
}

/// How an ask ended, as far as its caller knows.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ended {
    /// Not yet, or never.
    Open,
    Admitted(Spending),
    Denied {
        at: Timestamp,
    },
    Failed {
        at: Timestamp,
        kind: ErrorKind,
    },
}

/// What an admitted ask spent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Spending {
    /// True time of the answer.
    pub(super) at: Timestamp,
    /// When it was charged, by the permit.
    pub(super) charged_at: Timestamp,
    /// The number under which it was charged.
    pub(super) stamp: u64,
    pub(super) degraded: bool,
    /// The actual cost, once it was settled or released (then nothing), and at which true time.
    pub(super) actual: Option<(Costs, Timestamp)>,
}

/// Everything that callers saw.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<Vec<Asked>>);

impl Ledger {
    /// Records an ask, and returns its number.
    pub(super) fn open(&self, asked: Asked) -> usize {
        let mut all = self.all();
        all.push(asked);
        all.len() - 1
    }

    /// Writes down that ask `number` is sent again.
    pub(super) fn resend(&self, number: usize) {
        self.all()[number].resent = true;
    }

    /// Writes down how ask `number` ended.
    pub(super) fn close(&self, number: usize, ended: Ended) {
        self.all()[number].ended = ended;
    }

    /// Writes down what ask `number` really cost.
    pub(super) fn settle(&self, number: usize, actual: Costs, at: Timestamp) {
        if let Ended::Admitted(spending) = &mut self.all()[number].ended {
            spending.actual = Some((actual, at));
        }
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.all().clone()
    }

    fn all(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asked {
    /// Whether it was admitted without the store.
    pub(super) fn is_degraded(&self) -> bool {
        matches!(&self.ended, Ended::Admitted(spending) if spending.degraded)
    }

    /// How long the caller waited for its answer, if it got one.
    pub(super) fn waited(&self) -> Option<Span> {
        let at = match &self.ended {
            Ended::Open => return None,
            Ended::Admitted(spending) => spending.at,
            Ended::Denied { at } | Ended::Failed { at, .. } => *at,
        };
        Some(at.since(self.began))
    }
}
