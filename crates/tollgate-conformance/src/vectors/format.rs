//! The vectors as JSON.
#![allow(missing_docs, reason = "the fields are those of the core")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// One scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vector {
    pub name: String,
    /// What it shows, and the requirement or decision behind it.
    pub why: String,
    pub policy: PolicyForm,
    pub steps: Vec<Step>,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyForm {
    pub name: String,
    #[serde(default, skip_serializing_if = "is_default")]
    pub shadow: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub block_ttl_us: u64,
    pub limits: Vec<LimitForm>,
}

/// A limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitForm {
    pub name: String,
    pub unit: String,
    #[serde(flatten)]
    pub rule: RuleForm,
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
    pub at_us: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub policy: Option<PolicyForm>,
    #[serde(flatten)]
    pub operation: Operation,
    pub expect: Expected,
    pub standings: Vec<ExpectedStanding>,
}

/// An operation. `permit` is the index of the step that gave the permit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
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

/// The expected standing on one limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedStanding {
    pub name: String,
    pub limit: u64,
    pub used: u64,
    pub remaining: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub reset_at_us: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub full_at_us: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub refilled_at_us: Option<u64>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Vector {
    pub fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors")
    }
}

/// Reads the vector `name`, in which underscores may replace hyphens.
pub fn load(name: &str) -> Result<Vector, String> {
    read(&Vector::folder(), name, |vector: &Vector| &vector.name)
}

/// Reads every vector, ordered by name.
pub fn load_all() -> Result<Vec<Vector>, String> {
    read_all(&Vector::folder(), load)
}

/// Reads the file of the vector `name` in `folder`. The name inside must be the same.
pub(crate) fn read<T: DeserializeOwned>(
    folder: &Path,
    name: &str,
    name_in: impl Fn(&T) -> &str,
) -> Result<T, String> {
    let path = folder.join(format!("{}.json", name.replace('_', "-")));
    let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = fs::read_to_string(&path).map_err(|error| wrong(&error))?;
    let vector: T = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
    if path.file_stem().is_none_or(|stem| *stem != *name_in(&vector)) {
        return Err(wrong(&format!("holds the vector {:?}", name_in(&vector))));
    }
    Ok(vector)
}

/// Reads every vector in `folder`, ordered by name.
pub(crate) fn read_all<T>(
    folder: &Path,
    load: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let files = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let names = files
        .flatten()
        .filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".json")?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.iter().map(|name| load(name)).collect()
}
