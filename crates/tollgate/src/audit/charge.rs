//! The charges of a record, and their stored form.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tollgate_core::{Ask, Charge, Costs, Decision, Denial};

use super::parts;

/// One charge of an ask with several. Logs store it as it serializes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct RecordedCharge {
    /// The name of the policy.
    pub policy: Arc<str>,
    /// The subject.
    pub subject: Arc<str>,
    /// The cost in each unit, without those that are zero.
    pub costs: Costs,
    /// The names of the limits that refused it, or would have in shadow mode.
    pub refused: Vec<Arc<str>>,
}

impl RecordedCharge {
    /// Returns every charge of `ask`; none if it has only one.
    pub(super) fn for_ask(ask: &Ask<'_>) -> Vec<Self> {
        if !ask.has_several_charges() {
            return Vec::new();
        }
        ask.charges().map(Self::from).collect()
    }

    /// Returns every charge of `ask`, with the limits that refused it; none if it has only one.
    pub(super) fn for_decision(ask: &Ask<'_>, decision: &Decision) -> Vec<Self> {
        let mut charges = Self::for_ask(ask);
        if charges.is_empty() {
            return charges;
        }
        let mut refuse = |index: usize, limit: &Arc<str>| {
            if let Some(charge) = charges.get_mut(index) {
                charge.refused.push(Arc::clone(limit));
            }
        };
        match decision {
            Decision::Denied(denial) => match &denial.joint {
                Some(joint) => {
                    joint.refused.iter().for_each(|it| refuse(it.charge, &it.limit));
                }
                None => refuse(binding_index(ask, denial), &denial.limit),
            },
            Decision::Admitted(permit) => {
                for (index, part) in parts(permit).enumerate() {
                    if let Some(denial) = &part.shadow_denied {
                        refuse(index, &denial.limit);
                    }
                }
            }
        }
        charges
    }
}

/// Returns the index of the charge that binds. An ask that is denied because others wait in front of it has only the policy of
/// the limit that they wait for.
pub(super) fn binding_index(ask: &Ask<'_>, denial: &Denial) -> usize {
    let of_policy = || ask.charges().position(|it| it.policy().name() == &*denial.policy);
    denial.binding_charge().or_else(of_policy).unwrap_or(0)
}

impl From<&Charge<'_>> for RecordedCharge {
    fn from(charge: &Charge<'_>) -> Self {
        let costs = charge.policy().costs(charge.amounts());
        Self {
            policy: charge.policy().name().into(),
            subject: charge.subject().into(),
            costs: costs.iter().filter(|(_, amount)| *amount != 0).collect(),
            refused: Vec::new(),
        }
    }
}

/// The stored form.
#[derive(Serialize, Deserialize)]
struct Stored {
    policy: String,
    subject: String,
    #[serde(default)]
    costs: BTreeMap<String, u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    refused: Vec<String>,
}

impl From<Stored> for RecordedCharge {
    fn from(stored: Stored) -> Self {
        Self {
            policy: stored.policy.into(),
            subject: stored.subject.into(),
            costs: stored.costs.into_iter().collect(),
            refused: stored.refused.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<RecordedCharge> for Stored {
    fn from(charge: RecordedCharge) -> Self {
        Self {
            policy: charge.policy.to_string(),
            subject: charge.subject.to_string(),
            costs: charge.costs.iter().map(|(unit, n)| (unit.to_owned(), n)).collect(),
            refused: charge.refused.iter().map(ToString::to_string).collect(),
        }
    }
}
