//! The vectors as JSON.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One story.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vector {
    /// The name, which is also that of its file.
    pub name: String,
    /// What it shows, and which requirement or decision it comes from.
    pub why: String,
    /// The policy at the beginning.
    pub policy: PolicyForm,
    /// What happens, in order.
    pub steps: Vec<Step>,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyForm {
    /// Its name.
    pub name: String,
    /// Whether a would-be denial admits all the same.
    #[serde(default, skip_serializing_if = "is_default")]
    pub shadow: bool,
    /// How long a block taken in advance may be spent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub block_ttl_us: u64,
    /// Its limits.
    pub limits: Vec<LimitForm>,
}

/// A limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitForm {
    /// Its name.
    pub name: String,
    /// What it counts.
    pub unit: String,
    /// Its rule, with the numbers.
    #[serde(flatten)]
    pub rule: RuleForm,
    /// Units that are never issued.
    #[serde(default, skip_serializing_if = "is_default")]
    pub headroom: u64,
    /// Percent that are never issued, rounded up; instead of `headroom`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub headroom_percent: u8,
    /// How long after its admission a call may reach the provider.
    #[serde(default, skip_serializing_if = "is_default")]
    pub margin_us: u64,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the fields are those of the rules of the core")]
pub enum RuleForm {
    TokenBucket {
        capacity: u64,
        refill: u64,
        period_us: u64,
        mode: String,
    },
    RollingWindow {
        limit: u64,
        window_us: u64,
        #[serde(default, skip_serializing_if = "is_default")]
        resolution: Option<u32>,
    },
    CalendarWindow {
        limit: u64,
        period: String,
        time_zone: String,
    },
    Concurrency {
        limit: u64,
        ttl_us: u64,
    },
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The time on the deciding clock.
    pub at_us: u64,
    /// The policy from this step on, if it changes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub policy: Option<PolicyForm>,
    /// What is done.
    #[serde(flatten)]
    pub operation: Operation,
    /// What must be answered.
    pub expect: Expected,
    /// Where the subject must stand afterwards, at the same time.
    pub standings: Vec<Stand>,
}

/// What is done in a step. `permit` is the place of the step that gave the permit, counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the operations are those of the core")]
pub enum Operation {
    Acquire {
        costs: BTreeMap<String, u64>,
        #[serde(default, skip_serializing_if = "is_default")]
        id: Option<String>,
    },
    Charge {
        costs: BTreeMap<String, u64>,
        #[serde(default, skip_serializing_if = "is_default")]
        id: Option<String>,
    },
    Settle {
        permit: usize,
        actual: BTreeMap<String, u64>,
    },
    Release {
        permit: usize,
    },
    Renew {
        permit: usize,
    },
    Close {
        limit: String,
        until_us: u64,
    },
    Standing,
    Reset,
}

/// What must be answered. No `until_us` in a denial means never; `use_by_us` and `expires_at_us` are there where a limit
/// has a margin or slots were taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the answers are those of the script")]
pub enum Expected {
    Admitted {
        charged_at_us: u64,
        #[serde(default, skip_serializing_if = "is_default")]
        use_by_us: Option<u64>,
        #[serde(default, skip_serializing_if = "is_default")]
        expires_at_us: Option<u64>,
    },
    Repeated {
        permit: usize,
    },
    Denied {
        limit: String,
        #[serde(default, skip_serializing_if = "is_default")]
        until_us: Option<u64>,
    },
    ShadowDenied {
        limit: String,
        #[serde(default, skip_serializing_if = "is_default")]
        until_us: Option<u64>,
    },
    Charged {
        charged_at_us: u64,
    },
    Settled {
        done: bool,
    },
    Renewed {
        #[serde(default, skip_serializing_if = "is_default")]
        expires_at_us: Option<u64>,
    },
    Done {
        done: bool,
    },
    Seen,
    Error {
        kind: String,
    },
    Odd {
        text: String,
    },
}

/// Where the subject must stand on one limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stand {
    /// The name of the limit.
    pub name: String,
    /// The limit, as configured.
    pub limit: u64,
    /// What is used.
    pub used: u64,
    /// What could be asked for.
    pub remaining: u64,
    /// When `remaining` next grows.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reset_at_us: Option<u64>,
    /// When nothing is used any more.
    #[serde(default, skip_serializing_if = "is_default")]
    pub full_at_us: Option<u64>,
    /// When a bucket was last refilled.
    #[serde(default, skip_serializing_if = "is_default")]
    pub refilled_at_us: Option<u64>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Vector {
    /// The folder in which the vectors are kept.
    #[must_use]
    pub fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors")
    }
}

/// Every vector, by name.
///
/// # Errors
/// The file that cannot be read, and why.
pub fn load_all() -> Result<Vec<Vector>, String> {
    let folder = Vector::folder();
    let wrong = |what: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", what.display());
    let mut vectors = Vec::new();
    for file in fs::read_dir(&folder).map_err(|error| wrong(&folder, &error))? {
        let path = file.map_err(|error| wrong(&folder, &error))?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(|error| wrong(&path, &error))?;
        let vector: Vector = serde_json::from_str(&text).map_err(|error| wrong(&path, &error))?;
        if path.file_stem().is_none_or(|stem| *stem != *vector.name) {
            return Err(wrong(&path, &format!("holds the vector {:?}", vector.name)));
        }
        vectors.push(vector);
    }
    vectors.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(vectors)
}
