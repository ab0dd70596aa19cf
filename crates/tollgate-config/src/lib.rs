#![doc = include_str!("../README.md")]

mod backoff;
mod broker;
mod diagnostic;
mod document;
mod fallback;
mod format;
pub mod open;
mod redis;
mod secret;
#[cfg(feature = "telemetry")]
pub mod sinks;
mod store;
mod strategy;
#[cfg(feature = "telemetry")]
mod telemetry;

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;
use tollgate::internal::Step;
use tollgate::policy::{OnStoreFailure, Policies};
use tollgate::retry::Backoff;
use tollgate::spec::{PlanSpec, PolicySpec, with_plans};
use tollgate::{Error, ErrorKind, Policy};

pub use backoff::{JITTER_MAX, PAUSE_RANGE, with_jitter};
pub use broker::BrokerConfig;
pub use diagnostic::Diagnostic;
pub use document::Document;
pub use fallback::FallbackConfig;
pub use redis::{RedisConfig, RedisServers, SentinelConfig};
pub use secret::Secret;
pub use store::{Durability, DynamoDbConfig, PATH_DEFAULT, PostgresConfig, StoreConfig};
pub use strategy::StrategyConfig;
#[cfg(feature = "telemetry")]
pub use telemetry::{CloudWatchConfig, EmfConfig, OtlpConfig, SnsConfig, TelemetryConfig};

/// The file that is read if none is named.
pub const DEFAULT_FILE: &str = "tollgate.toml";

/// The configuration without a file, which is also the documented example.
const SAMPLE: &str = include_str!("sample.toml");

/// The largest file that is read.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The whole file. Sections of one program alone are read with [`Document::section`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "server")]
    _server: Option<IgnoredAny>,
    #[serde(default)]
    store: store::StoreTable,
    #[serde(default)]
    strategy: strategy::StrategyTable,
    fallback: Option<fallback::FallbackTable>,
    backoff: Option<backoff::BackoffTable>,
    #[cfg(feature = "telemetry")]
    #[serde(default)]
    telemetry: telemetry::TelemetryTable,
    #[cfg(not(feature = "telemetry"))]
    #[serde(rename = "telemetry")]
    _telemetry: Option<IgnoredAny>,
    #[serde(rename = "key")]
    _key: Option<IgnoredAny>,
    #[serde(rename = "jwt")]
    _jwt: Option<IgnoredAny>,
    #[serde(rename = "audit")]
    _audit: Option<IgnoredAny>,
    #[serde(rename = "translate")]
    _translate: Option<IgnoredAny>,
    #[serde(default)]
    policy: Vec<PolicySpec>,
    #[serde(default)]
    plan: Vec<PlanSpec>,
    #[serde(rename = "envoy")]
    _envoy: Option<IgnoredAny>,
    #[serde(rename = "gateway")]
    _gateway: Option<IgnoredAny>,
    #[serde(rename = "upstream")]
    _upstream: Option<IgnoredAny>,
    #[serde(rename = "route")]
    _route: Option<IgnoredAny>,
    #[serde(rename = "prices")]
    _prices: Option<IgnoredAny>,
}

/// A checked configuration: everything that a gate is opened with.
#[derive(Debug)]
pub struct Config {
    /// The file, for sections that this crate does not know.
    pub document: Document,
    /// Where the state is kept.
    pub store: StoreConfig,
    /// How often a broker asks the store.
    pub strategy: StrategyConfig,
    /// What happens while the store is unavailable.
    pub fallback: FallbackConfig,
    /// The back-off of commands that wait; `None` means at the promised time.
    pub backoff: Option<Backoff>,
    /// The sinks of metrics and incidents.
    #[cfg(feature = "telemetry")]
    pub telemetry: TelemetryConfig,
    /// The policies, at least one, with the plans.
    pub policies: Policies,
    /// The plans, as written.
    pub plans: Vec<PlanSpec>,
}

impl Config {
    /// Returns the check of policies that are not in the file: whether the store keeps them, and a broker without the store has
    /// a share of them.
    pub fn policy_check(&self) -> impl Fn(&Policy) -> Result<(), Error> + Send + Sync + use<> {
        let (store, shares) = (self.store.clone(), self.fallback.clone());
        move |policy| {
            let invalid = |text: String| {
                Error::new(ErrorKind::Invalid, format!("policy {:?}: {text}", policy.name()))
            };
            store.check_policy(policy).map_err(|(_, message)| invalid(message))?;
            if policy.on_store_failure() == OnStoreFailure::Fallback {
                if !shares.has_shares {
                    return Err(invalid(fallback::without_shares(store.kind())));
                }
                policy
                    .share(shares.settings.instances)
                    .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
            }
            Ok(())
        }
    }

    /// Reads `file`; without one `./tollgate.toml`; without that the built-in sample.
    pub fn load(file: Option<&Path>) -> Result<Self, Diagnostic> {
        match file {
            Some(file) => Self::read(file),
            // A file that exists but cannot be read must not be replaced by the sample.
            None => match Path::new(DEFAULT_FILE).try_exists() {
                Ok(false) => Self::parse(None, SAMPLE),
                _ => Self::read(Path::new(DEFAULT_FILE)),
            },
        }
    }

    fn read(file: &Path) -> Result<Self, Diagnostic> {
        let name = file.display().to_string();
        let error = |message: String| Diagnostic::whole(&name, message);
        let unreadable = |cause: io::Error| match cause.kind() {
            io::ErrorKind::NotFound => error("there is no such file; check the path".to_owned()),
            _ => error(format!("cannot be read: {cause}")),
        };
        // Checked before it is opened: opening a pipe blocks, and a device may never end.
        if !fs::metadata(file).map_err(unreadable)?.is_file() {
            return Err(error("is not a regular file; name the file itself".to_owned()));
        }
        let mut bytes = Vec::new();
        fs::File::open(file)
            .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
            .map_err(unreadable)?;
        if FILE_BYTES_MAX < bytes.len() as u64 {
            return Err(error(format!("has more than {FILE_BYTES_MAX} bytes")));
        }
        let source = String::from_utf8(bytes)
            .map_err(|_| error("cannot be read: it is not text in UTF-8".to_owned()))?;
        Self::parse(Some(file), &source)
    }

    /// Checks `source`, the contents of `file`, without opening anything.
    ///
    /// # Errors
    /// If a section that this crate knows is wrong, or there is a section that no program knows.
    pub fn parse(file: Option<&Path>, source: &str) -> Result<Self, Diagnostic> {
        let document = Document::parse(file, source)?;
        document.check_lists(&["policy", "plan", "key", "upstream", "route"])?;
        let file: File = document.deserialize()?;
        let attempt_timeout = fallback::attempt_timeout(&document, &file.store)?;
        let store = StoreConfig::resolve(&document, &file.store)?;
        #[cfg(feature = "telemetry")]
        let telemetry = TelemetryConfig::resolve(&document, &file.telemetry)?;
        let policies = resolve_policies(&document, &file.policy)?;
        let policies = resolve_plans(&document, &policies, &file.plan)?;
        check_store_takes(&document, &store, &policies)?;
        let fallback = file.fallback.as_ref();
        Ok(Self {
            fallback: FallbackConfig::resolve(
                &document,
                fallback,
                attempt_timeout,
                &store,
                &policies,
            )?,
            backoff: backoff::resolve(&document, file.backoff.as_ref())?,
            strategy: StrategyConfig::resolve(&document, &file.strategy, &store, &policies)?,
            document,
            store,
            #[cfg(feature = "telemetry")]
            telemetry,
            policies,
            plans: file.plan,
        })
    }
}

fn resolve_policies(document: &Document, specs: &[PolicySpec]) -> Result<Policies, Diagnostic> {
    // The limits of envoyproxy/ratelimit are policies, too.
    let is_limits = |key: &String| matches!(key.as_str(), "ratelimit_config" | "xds");
    let has_limits = document.keys("envoy").iter().any(is_limits);
    if specs.is_empty() && !has_limits {
        return Err(document.whole_error(
            "has no policy; add one, as in [[policy]] with name = \"api\" and limits = [{ name = \"burst\", \
             unit = \"requests\", rule = \"token-bucket\", capacity = 20, refill = \"10/s\" }]",
        ));
    }
    let mut policies = Vec::with_capacity(specs.len());
    for (index, spec) in specs.iter().enumerate() {
        let error =
            |path: &[Step], message: String| document.element_error("policy", index, path, message);
        if specs[..index].iter().any(|other| other.name == spec.name) {
            let message =
                format!("two policies are called {:?}; give each its own name", spec.name);
            return Err(error(&[Step::Field("name")], message));
        }
        let policy = spec.resolve();
        policies.push(policy.map_err(|fault| error(fault.path(), fault.to_string()))?);
    }
    Policies::new(policies).map_err(|error| document.whole_error(error.to_string()))
}

fn resolve_plans(
    document: &Document,
    policies: &Policies,
    plans: &[PlanSpec],
) -> Result<Policies, Diagnostic> {
    with_plans(policies, plans).map_err(|(index, fault)| {
        document.element_error("plan", index, fault.path(), fault.to_string())
    })
}

/// Returns an error for a policy that the configured store cannot keep.
fn check_store_takes(
    document: &Document,
    store: &StoreConfig,
    policies: &Policies,
) -> Result<(), Diagnostic> {
    for (index, policy) in policies.iter().enumerate() {
        store.check_policy(policy).map_err(|(field, message)| {
            document.element_error("policy", index, &[Step::Field(field)], message)
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sample documents the defaults: a file with policies alone means the same.
    #[test]
    fn the_sample_writes_out_the_defaults() {
        let sample = Config::parse(None, SAMPLE).unwrap();
        let policies = &SAMPLE[SAMPLE.find("[[policy]]").unwrap()..];
        let bare = Config::parse(None, policies).unwrap();
        assert_eq!(sample.store, bare.store);
        assert_eq!(sample.telemetry, bare.telemetry);
        let names: Vec<&str> = sample.policies.iter().map(tollgate::Policy::name).collect();
        assert_eq!(names, ["gemini-free", "api", "video-requests"]);
    }

    #[test]
    fn a_grid_that_the_store_cannot_keep_is_refused() {
        let source = |kind: &str, slots: u32| {
            format!(
                "[store]\nkind = \"{kind}\"\n[[policy]]\nname = \"fine\"\nlimits = [{{ name = \"rpm\", unit = \"requests\", \
                 rule = \"rolling-window\", limit = 500, window = \"1m\", resolution = {slots} }}]\n"
            )
        };
        let error = Config::parse(None, &source("dynamodb", 100)).unwrap_err().to_string();
        assert!(error.contains("100 slots") && error.contains("at most 64"), "{error}");
        assert!(Config::parse(None, &source("dynamodb", 64)).is_ok());
        assert!(Config::parse(None, &source("memory", 100)).is_ok());
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_slot_tag_is_checked() {
        let policies = &SAMPLE[SAMPLE.find("[[policy]]").unwrap()..];
        let parse = |tag: &str| {
            let store = "kind = \"redis\"\nurl = \"redis://x/\"\ncluster = true";
            Config::parse(None, &format!("[store]\n{store}\nslot_tag = \"{tag}\"\n{policies}"))
        };
        let StoreConfig::Redis(redis) = parse("tenant-a").unwrap().store else {
            panic!("not redis")
        };
        assert_eq!(redis.slot_tag.as_deref(), Some("tenant-a"));
        for tag in ["", "{tenant-a}", &"a".repeat(65)] {
            let error = parse(tag).unwrap_err().to_string();
            assert!(error.contains("1 to 64 bytes without braces"), "{error}");
        }
    }

    #[test]
    fn a_path_is_relative_to_the_file() {
        let config = Config::parse(Some(Path::new("etc/t.toml")), SAMPLE).unwrap();
        let StoreConfig::Embedded { path, .. } = config.store else { panic!("not embedded") };
        assert_eq!(path, Path::new("etc/tollgate-data"));
    }
}
