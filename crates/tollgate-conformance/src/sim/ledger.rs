//! What the callers know: every ask with its answer, at true time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::ErrorKind;
use tollgate_core::{Costs, Span, Timestamp};

/// The name of a policy, and a subject.
pub(super) type Key = (String, String);

/// One ask of one caller.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) machine: u64,
    /// What it charges to whom, in the order of the ask.
    pub(super) charges: Vec<(Key, Costs)>,
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
    /// With what each charge spent.
    Admitted {
        at: Timestamp,
        charges: Vec<Spending>,
    },
    Denied {
        at: Timestamp,
    },
    Failed {
        at: Timestamp,
        kind: ErrorKind,
    },
}

/// What a charge of an admitted ask spent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Spending {
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

    /// Writes down what a charge of ask `number` really cost.
    pub(super) fn settle(&self, number: usize, charge: usize, actual: Costs, at: Timestamp) {
        if let Ended::Admitted { charges, .. } = &mut self.all()[number].ended
            && let Some(spending) = charges.get_mut(charge)
        {
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
    /// The costs of its charge of `key`, and what that spent if the ask was admitted.
    pub(super) fn charge_of(&self, key: &Key) -> Option<(&Costs, Option<&Spending>)> {
        let index = self.charges.iter().position(|(charged, _)| charged == key)?;
        let spending = match &self.ended {
            Ended::Admitted { charges, .. } => charges.get(index),
            _ => None,
        };
        Some((&self.charges[index].1, spending))
    }

    /// Whether it was admitted without the store.
    pub(super) fn is_degraded(&self) -> bool {
        let degraded = |spending: &Spending| spending.degraded;
        matches!(&self.ended, Ended::Admitted { charges, .. } if charges.iter().any(degraded))
    }

    /// How long the caller waited for its answer, if it got one.
    pub(super) fn waited(&self) -> Option<Span> {
        let at = match &self.ended {
            Ended::Open => return None,
            Ended::Admitted { at, .. } | Ended::Denied { at } | Ended::Failed { at, .. } => *at,
        };
        Some(at.since(self.began))
    }
}
