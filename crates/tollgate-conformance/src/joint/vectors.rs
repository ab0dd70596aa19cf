//! Golden vectors with several parties: scenarios with every expected result, in `vectors/joint`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tollgate_core::{Costs, Timestamp};

use super::{
    JointAction, JointAsk, JointModel, JointPlayer, JointReply, JointSubject, Party, Refused,
};
use crate::script::Run;
use crate::vectors::{self, ExpectedStanding, PolicyForm, Vector, kind_name};

/// One scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JointVector {
    /// Its name, that of the file.
    pub name: String,
    /// What it shows.
    pub why: String,
    /// Those that asks may charge.
    pub parties: Vec<PartyForm>,
    /// The steps.
    pub steps: Vec<StepForm>,
}

/// A party.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartyForm {
    /// The subject.
    pub subject: String,
    /// The policy.
    pub policy: PolicyForm,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepForm {
    /// When, in microseconds.
    pub at_us: u64,
    /// A policy that replaces that of the party of its name before the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyForm>,
    /// What is done.
    #[serde(flatten)]
    pub action: ActionForm,
    /// What must be answered.
    pub expect: Answer,
    /// The standings of every party afterwards.
    pub standings: Vec<Vec<ExpectedStanding>>,
}

type Amounts = BTreeMap<String, u64>;

/// An action. `permit` is the index of the step that gave the permit, `charge` an index in the ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum ActionForm {
    /// [`JointAction::Acquire`].
    Acquire(AskForm),
    /// [`JointAction::Charge`].
    Charge(AskForm),
    /// [`JointAction::Settle`].
    Settle {
        /// The step that gave the permit.
        permit: usize,
        /// The actual cost.
        actual: Amounts,
    },
    /// [`JointAction::SettlePart`].
    SettlePart {
        /// The step that gave the permit.
        permit: usize,
        /// The charge.
        charge: usize,
        /// The actual cost.
        actual: Amounts,
    },
    /// [`JointAction::Release`].
    Release {
        /// The step that gave the permit.
        permit: usize,
    },
    /// [`JointAction::Renew`].
    Renew {
        /// The step that gave the permit.
        permit: usize,
    },
    /// [`JointAction::Close`].
    Close {
        /// The party.
        party: usize,
        /// The limit.
        limit: String,
        /// Until when.
        until_us: u64,
    },
    /// [`JointAction::Reset`].
    Reset {
        /// The party.
        party: usize,
    },
}

/// An ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskForm {
    /// The parties, in the order of the ask.
    pub parties: Vec<usize>,
    /// Costs of every charge that has none of its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub costs: Amounts,
    /// Costs of single charges, by their index in the ask.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own_costs: Vec<(usize, Amounts)>,
    /// An idempotency id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// What must be answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// A new permit.
    Permitted {
        /// What each charge got.
        charges: Vec<PartForm>,
    },
    /// The permit of an earlier step.
    Repeated {
        /// That step.
        permit: usize,
    },
    /// A denial. The binding limit comes first in `binding`.
    Denied {
        /// The binding limit.
        binding: RefusedForm,
        /// Every limit that refuses.
        refused: Vec<RefusedForm>,
    },
    /// Something changed, or not.
    Changed {
        /// Whether it did.
        changed: bool,
    },
    /// Slots were renewed.
    Renewed {
        /// When they expire.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_at_us: Option<u64>,
    },
    /// An error.
    Error {
        /// Its kind.
        kind: String,
    },
    /// What no store may answer.
    Unexpected {
        /// What it was.
        text: String,
    },
}

/// The part of a permit for one charge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartForm {
    /// When it was charged.
    pub charged_at_us: u64,
    /// When its slots expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_us: Option<u64>,
    /// The limit in shadow mode that would have refused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow_denied: Option<String>,
}

/// A limit that refuses one charge. No `until_us` means never.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedForm {
    /// The charge.
    pub charge: usize,
    /// The limit.
    pub limit: String,
    /// Until when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_us: Option<u64>,
}

impl JointVector {
    /// Where the vectors are.
    pub fn folder() -> PathBuf {
        Vector::folder().join("joint")
    }

    /// Returns the parties.
    ///
    /// # Errors
    /// A policy that cannot be built.
    pub fn parties(&self) -> Result<Vec<Party>, String> {
        let party = |form: &PartyForm| {
            Ok(Party { policy: form.policy.policy()?, subject: form.subject.clone() })
        };
        self.parties.iter().map(party).collect()
    }
}

/// Reads the vector `name`, in which underscores may replace hyphens.
///
/// # Errors
/// A file that cannot be read or is not a vector of that name.
pub fn load(name: &str) -> Result<JointVector, String> {
    vectors::read(&JointVector::folder(), name, |vector: &JointVector| &vector.name)
}

/// Reads every vector, ordered by name.
///
/// # Errors
/// As [`load`].
pub fn load_all() -> Result<Vec<JointVector>, String> {
    vectors::read_all(&JointVector::folder(), load)
}

/// Runs `vector` on a store, one step after the other, each at its own time.
///
/// # Errors
/// The first step with another result than expected.
pub fn run(vector: &JointVector, run: &mut Run<'_>) -> Result<(), String> {
    compare(vector, &mut JointPlayer::new(&vector.parties()?, run))
}

/// Runs `vector` on the reference model.
///
/// # Errors
/// As [`run`].
pub fn run_model(vector: &JointVector) -> Result<(), String> {
    compare(vector, &mut JointModel::new(&vector.parties()?))
}

/// An answer and the standings after it.
type StepResult = (Answer, Vec<Vec<ExpectedStanding>>);

fn results(
    vector: &JointVector,
    subject: &mut dyn JointSubject,
) -> Result<Vec<StepResult>, String> {
    // The step that gave each permit.
    let mut givers: Vec<usize> = Vec::new();
    let mut all = Vec::new();
    for (index, step) in vector.steps.iter().enumerate() {
        if let Some(form) = &step.policy {
            let party = vector.parties.iter().position(|party| party.policy.name == form.name);
            let party = party.ok_or_else(|| format!("no party has a policy {:?}", form.name))?;
            subject.change(party, &form.policy()?);
        }
        let now = Timestamp::from_micros(step.at_us);
        let reply = subject.play(now, &action(step, &givers)?);
        if let JointReply::Permitted { .. } = reply {
            givers.push(index);
        }
        let standings = subject.standings(now)?;
        let standings = standings
            .iter()
            .map(|party| party.iter().map(ExpectedStanding::from_standing).collect())
            .collect();
        all.push((answer(reply, &givers), standings));
    }
    Ok(all)
}

fn compare(vector: &JointVector, subject: &mut dyn JointSubject) -> Result<(), String> {
    let results = results(vector, subject)?;
    for (index, (step, got)) in vector.steps.iter().zip(results).enumerate() {
        let expected = (step.expect.clone(), step.standings.clone());
        if expected != got {
            let json = |result: &StepResult| serde_json::to_string(result).unwrap_or_default();
            return Err(format!(
                "vector {:?}, step {index}:\n  expected {}\n  got      {}",
                vector.name,
                json(&expected),
                json(&got),
            ));
        }
    }
    Ok(())
}

fn action(step: &StepForm, givers: &[usize]) -> Result<JointAction, String> {
    let permit = |giver: &usize| {
        let found = givers.iter().position(|index| index == giver);
        found.ok_or_else(|| format!("step {giver} gave no permit"))
    };
    let costs = |amounts: &Amounts| -> Costs {
        amounts.iter().map(|(unit, amount)| (unit.as_str(), *amount)).collect()
    };
    let ask = |form: &AskForm| JointAsk {
        parties: form.parties.clone(),
        costs: costs(&form.costs),
        own_costs: form.own_costs.iter().map(|(charge, own)| (*charge, costs(own))).collect(),
        id: form.id.clone(),
    };
    Ok(match &step.action {
        ActionForm::Acquire(form) => JointAction::Acquire(ask(form)),
        ActionForm::Charge(form) => JointAction::Charge(ask(form)),
        ActionForm::Settle { permit: giver, actual } => {
            JointAction::Settle { permit: permit(giver)?, actual: costs(actual) }
        }
        ActionForm::SettlePart { permit: giver, charge, actual } => JointAction::SettlePart {
            permit: permit(giver)?,
            charge: *charge,
            actual: costs(actual),
        },
        ActionForm::Release { permit: giver } => JointAction::Release { permit: permit(giver)? },
        ActionForm::Renew { permit: giver } => JointAction::Renew { permit: permit(giver)? },
        ActionForm::Close { party, limit, until_us } => JointAction::Close {
            party: *party,
            limit: limit.clone(),
            until: Timestamp::from_micros(*until_us),
        },
        ActionForm::Reset { party } => JointAction::Reset { party: *party },
    })
}

fn answer(reply: JointReply, givers: &[usize]) -> Answer {
    let micros = |at: Option<Timestamp>| at.map(Timestamp::as_micros);
    let refused = |refused: Refused| RefusedForm {
        charge: refused.charge,
        limit: refused.by.limit,
        until_us: micros(refused.by.until),
    };
    match reply {
        JointReply::Permitted { charges, .. } => {
            let part = |part: super::PartSummary| PartForm {
                charged_at_us: part.at.as_micros(),
                expires_at_us: micros(part.expires_at),
                shadow_denied: part.shadow_denied.map(|denied| denied.limit),
            };
            Answer::Permitted { charges: charges.into_iter().map(part).collect() }
        }
        JointReply::Repeated(permit) => Answer::Repeated { permit: givers[permit] },
        JointReply::Denied { binding, refused: all } => Answer::Denied {
            binding: refused(binding),
            refused: all.into_iter().map(refused).collect(),
        },
        JointReply::Changed(changed) => Answer::Changed { changed },
        JointReply::Renewed(expires_at) => Answer::Renewed { expires_at_us: micros(expires_at) },
        JointReply::Failed(kind) => Answer::Error { kind: kind_name(kind).to_owned() },
        JointReply::Unexpected(text) => Answer::Unexpected { text },
    }
}

/// Fills in the expectations of `vector` from the results of a store.
///
/// # Errors
/// A step that names a permit that was never given.
pub fn fill(mut vector: JointVector, run: &mut Run<'_>) -> Result<JointVector, String> {
    let results = results(&vector, &mut JointPlayer::new(&vector.parties()?, run))?;
    for (step, (expect, standings)) in vector.steps.iter_mut().zip(results) {
        (step.expect, step.standings) = (expect, standings);
    }
    Ok(vector)
}
