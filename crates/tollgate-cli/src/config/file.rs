//! The file as it is written: one structure per table, nothing resolved yet.

use serde::Deserialize;
use tollgate::spec::PolicySpec;

use super::envoy::EnvoyTable;

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
    pub(super) fallback: Option<FallbackTable>,
    #[serde(default)]
    pub(super) policy: Vec<PolicySpec>,
    #[serde(default)]
    pub(super) envoy: Vec<EnvoyTable>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServerTable {
    pub(super) http: Option<String>,
    pub(super) grpc: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoreTable {
    pub(super) kind: Option<String>,
    pub(super) path: Option<String>,
    pub(super) durability: Option<String>,
    pub(super) url: Option<String>,
    pub(super) url_env: Option<String>,
    pub(super) url_file: Option<String>,
    pub(super) schema: Option<String>,
    pub(super) transaction_pooling: Option<bool>,
    pub(super) authority_file: Option<String>,
    pub(super) table: Option<String>,
    pub(super) region: Option<String>,
    pub(super) endpoint: Option<String>,
    pub(super) cluster: Option<bool>,
    pub(super) prefix: Option<String>,
    pub(super) wait_replicas: Option<u32>,
    pub(super) attempt_timeout: Option<String>,
}

impl StoreTable {
    /// The keys that are given, apart from `kind`.
    pub(super) fn given(&self) -> Vec<&'static str> {
        let keys = [
            ("path", self.path.is_some()),
            ("durability", self.durability.is_some()),
            ("url", self.url.is_some()),
            ("url_env", self.url_env.is_some()),
            ("url_file", self.url_file.is_some()),
            ("schema", self.schema.is_some()),
            ("transaction_pooling", self.transaction_pooling.is_some()),
            ("authority_file", self.authority_file.is_some()),
            ("table", self.table.is_some()),
            ("region", self.region.is_some()),
            ("endpoint", self.endpoint.is_some()),
            ("cluster", self.cluster.is_some()),
            ("prefix", self.prefix.is_some()),
            ("wait_replicas", self.wait_replicas.is_some()),
            ("attempt_timeout", self.attempt_timeout.is_some()),
        ];
        keys.into_iter().filter(|(_, is_given)| *is_given).map(|(key, _)| key).collect()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StrategyTable {
    pub(super) kind: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FallbackTable {
    pub(super) instances: Option<u64>,
    pub(super) probe_min: Option<String>,
    pub(super) probe_max: Option<String>,
}

/// Keys that a later version has, so that whoever reads of them is told rather than puzzled.
pub(super) const LATER: [(&str, &str); 1] = [("server", "resp")];
