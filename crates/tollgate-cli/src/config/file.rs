//! The file as it is written: one structure per table, nothing resolved yet.

use serde::Deserialize;
use tollgate::spec::PolicySpec;

/// All of `tollgate.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    pub(super) server: ServerTable,
    #[serde(default)]
    pub(super) store: StoreTable,
    #[serde(default)]
    pub(super) strategy: StrategyTable,
    #[serde(default)]
    pub(super) policy: Vec<PolicySpec>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServerTable {
    pub(super) http: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoreTable {
    pub(super) kind: Option<String>,
    pub(super) path: Option<String>,
    pub(super) durability: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StrategyTable {
    pub(super) kind: Option<String>,
}

/// Keys that a later version has, so that whoever reads of them is told rather than puzzled.
pub(super) const LATER: [(&str, &str); 2] = [("server", "grpc"), ("server", "resp")];
