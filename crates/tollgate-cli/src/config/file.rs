//! The file as it is written: one structure per table, nothing resolved yet.

use std::collections::BTreeMap;

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
    pub(super) backoff: Option<BackoffTable>,
    #[serde(default)]
    pub(super) telemetry: TelemetryTable,
    #[serde(default)]
    pub(super) key: Vec<KeyTable>,
    #[serde(default)]
    pub(super) audit: AuditTable,
    #[serde(default)]
    pub(super) translate: Option<TranslateTable>,
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
    pub(super) resp: Option<String>,
    pub(super) anonymous: Option<bool>,
    pub(super) legacy_fields: Option<bool>,
    pub(super) watch: Option<bool>,
    pub(super) log: Option<String>,
    pub(super) violation_hint_max: Option<String>,
    pub(super) settle_excess_max: Option<u64>,
    pub(super) throttle_subjects_max: Option<u64>,
    pub(super) ipv4_prefix: Option<u8>,
    pub(super) ipv6_prefix: Option<u8>,
    #[serde(default)]
    pub(super) hosts: Vec<String>,
    pub(super) grpc_age_max: Option<String>,
    pub(super) drain_delay: Option<String>,
    pub(super) tls: Option<TlsTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsTable {
    pub(super) certificate: String,
    pub(super) key: String,
    pub(super) client_authority: Option<String>,
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
    pub(super) sentinel: Option<Vec<String>>,
    pub(super) master: Option<String>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) password_env: Option<String>,
    pub(super) password_file: Option<String>,
    pub(super) sentinel_user: Option<String>,
    pub(super) sentinel_password: Option<String>,
    pub(super) sentinel_password_env: Option<String>,
    pub(super) sentinel_password_file: Option<String>,
    pub(super) tls: Option<bool>,
    pub(super) database: Option<u32>,
    pub(super) grpc: Option<String>,
    pub(super) resp: Option<String>,
    pub(super) key: Option<String>,
    pub(super) key_env: Option<String>,
    pub(super) key_file: Option<String>,
    pub(super) certificate_file: Option<String>,
    pub(super) certificate_key_file: Option<String>,
    pub(super) attempt_timeout: Option<String>,
    pub(super) keys_max: Option<u64>,
    pub(super) ids_max: Option<u64>,
    pub(super) format: Option<u64>,
}

impl StoreTable {
    /// The keys that are given, apart from `kind`.
    pub(super) fn given(&self) -> Vec<&'static str> {
        let keys = [
            ("keys_max", self.keys_max.is_some()),
            ("ids_max", self.ids_max.is_some()),
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
            ("sentinel", self.sentinel.is_some()),
            ("master", self.master.is_some()),
            ("user", self.user.is_some()),
            ("password", self.password.is_some()),
            ("password_env", self.password_env.is_some()),
            ("password_file", self.password_file.is_some()),
            ("sentinel_user", self.sentinel_user.is_some()),
            ("sentinel_password", self.sentinel_password.is_some()),
            ("sentinel_password_env", self.sentinel_password_env.is_some()),
            ("sentinel_password_file", self.sentinel_password_file.is_some()),
            ("tls", self.tls.is_some()),
            ("database", self.database.is_some()),
            ("grpc", self.grpc.is_some()),
            ("resp", self.resp.is_some()),
            ("key", self.key.is_some()),
            ("key_env", self.key_env.is_some()),
            ("key_file", self.key_file.is_some()),
            ("certificate_file", self.certificate_file.is_some()),
            ("certificate_key_file", self.certificate_key_file.is_some()),
            ("attempt_timeout", self.attempt_timeout.is_some()),
            ("format", self.format.is_some()),
        ];
        keys.into_iter().filter(|(_, is_given)| *is_given).map(|(key, _)| key).collect()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StrategyTable {
    pub(super) kind: Option<String>,
    pub(super) unposted_max: Option<u64>,
    pub(super) unposted_max_of: Option<BTreeMap<String, u64>>,
    pub(super) post_every: Option<String>,
    pub(super) recheck_after: Option<String>,
    pub(super) skew: Option<String>,
    pub(super) settle_wait: Option<String>,
    pub(super) subjects_max: Option<u64>,
}

impl StrategyTable {
    /// The keys that are given, apart from `kind`.
    pub(super) fn given(&self) -> Vec<&'static str> {
        let keys = [
            ("unposted_max", self.unposted_max.is_some()),
            ("unposted_max_of", self.unposted_max_of.is_some()),
            ("post_every", self.post_every.is_some()),
            ("recheck_after", self.recheck_after.is_some()),
            ("skew", self.skew.is_some()),
            ("settle_wait", self.settle_wait.is_some()),
            ("subjects_max", self.subjects_max.is_some()),
        ];
        keys.into_iter().filter(|(_, is_given)| *is_given).map(|(key, _)| key).collect()
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackoffTable {
    pub(super) base: Option<String>,
    pub(super) max: Option<String>,
    pub(super) jitter: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FallbackTable {
    pub(super) instances: Option<u64>,
    pub(super) start: Option<String>,
    pub(super) probe_min: Option<String>,
    pub(super) probe_max: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TelemetryTable {
    pub(super) prometheus: Option<bool>,
    pub(super) incident_file: Option<String>,
    pub(super) log: Option<String>,
    pub(super) cloudwatch: Option<CloudWatchTable>,
    pub(super) emf: Option<EmfTable>,
    pub(super) sns: Option<SnsTable>,
    pub(super) otlp: Option<OtlpTable>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CloudWatchTable {
    pub(super) namespace: Option<String>,
    pub(super) interval: Option<String>,
    pub(super) region: Option<String>,
    pub(super) endpoint: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EmfTable {
    pub(super) namespace: Option<String>,
    pub(super) interval: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SnsTable {
    pub(super) topic: Option<String>,
    pub(super) region: Option<String>,
    pub(super) endpoint: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OtlpTable {
    pub(super) endpoint: Option<String>,
    pub(super) interval: Option<String>,
    pub(super) traces: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyTable {
    pub(super) name: String,
    pub(super) scopes: Vec<String>,
    pub(super) hash: Option<String>,
    pub(super) hash_env: Option<String>,
    pub(super) hash_file: Option<String>,
    pub(super) expires: Option<String>,
    #[serde(default)]
    pub(super) policies: Vec<String>,
    #[serde(default)]
    pub(super) subjects: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditTable {
    pub(super) record: Option<String>,
    pub(super) entries_max: Option<u64>,
    pub(super) age_max: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TranslateTable {
    pub(super) jobs: Option<String>,
    pub(super) path: Option<String>,
    pub(super) url: Option<String>,
    pub(super) url_env: Option<String>,
    pub(super) url_file: Option<String>,
    pub(super) schema: Option<String>,
    pub(super) table: Option<String>,
    pub(super) region: Option<String>,
    pub(super) endpoint: Option<String>,
    pub(super) lease: Option<String>,
    pub(super) patience: Option<String>,
}
