//! What the command line runs on: `tollgate.toml`, checked whole before anything is opened.
//!
//! The text is read twice: once as a tree that knows where each value stands, once into structures. A mistake in a
//! structure has a path, and the tree turns the path into a line.

mod audit;
mod backoff;
mod blame;
mod broker;
mod envoy;
mod fallback;
mod file;
mod format;
mod keys;
mod place;
mod redis;
mod secret;
mod server;
mod store;
mod strategy;
mod telemetry;
mod translate;

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use tollgate::spec::Step;
use tollgate::{Backoff, Policies};
use tollgate_server::{AuditSettings, EnvoyMap, check_policy_name};

pub(crate) use blame::Blame;
pub(crate) use broker::BrokerConfig;
pub(crate) use fallback::FallbackConfig;
pub(crate) use keys::KeyConfig;
pub(crate) use redis::{RedisConfig, RedisServers};
pub(crate) use secret::Secret;
pub(crate) use server::{Listen, LogFormat, ServerConfig};
pub(crate) use store::{Durability, DynamoDbConfig, PostgresConfig, StoreConfig};
pub(crate) use strategy::StrategyConfig;
pub(crate) use telemetry::TelemetryConfig;
pub(crate) use translate::JobsConfig;

use file::File;
use place::Text;

/// The file that is read when none is named.
pub(crate) const DEFAULT_FILE: &str = "tollgate.toml";

/// What runs when there is no file; it is also the documented example.
const SAMPLE: &str = include_str!("sample.toml");

/// The largest file that is read.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// A checked configuration.
#[derive(Debug)]
pub(crate) struct Config {
    /// The file it came from, or nothing for the built-in sample.
    pub(crate) file: Option<PathBuf>,
    /// Where the broker listens.
    pub(crate) server: ServerConfig,
    /// Where the state is.
    pub(crate) store: StoreConfig,
    /// How often a broker asks it.
    pub(crate) strategy: StrategyConfig,
    /// What happens while the store is away.
    pub(crate) fallback: FallbackConfig,
    /// How commands that wait ask again; nothing means at the promised time.
    pub(crate) backoff: Option<Backoff>,
    /// Who is told what happens.
    pub(crate) telemetry: TelemetryConfig,
    /// Who is let in; with none, everybody.
    pub(crate) keys: Vec<KeyConfig>,
    /// What is written down of decisions.
    pub(crate) audit: AuditSettings,
    /// Where translations are kept.
    pub(crate) jobs: JobsConfig,
    /// Whether `[translate]` is there, so that a broker serves translations.
    pub(crate) serves_translations: bool,
    /// What is enforced.
    pub(crate) policies: Policies,
    /// What Envoy's descriptors mean.
    pub(crate) envoy: EnvoyMap,
}

impl Config {
    /// The configuration in `file`; without one that in `./tollgate.toml`; without that the sample.
    pub(crate) fn load(file: Option<&Path>) -> Result<Self, Blame> {
        match file {
            Some(file) => Self::read(file),
            // A file that is there but out of reach must not be replaced by the sample.
            None => match Path::new(DEFAULT_FILE).try_exists() {
                Ok(false) => Self::parse(None, SAMPLE),
                _ => Self::read(Path::new(DEFAULT_FILE)),
            },
        }
    }

    fn read(file: &Path) -> Result<Self, Blame> {
        let name = file.display().to_string();
        let refused = |error: &io::Error| match error.kind() {
            io::ErrorKind::NotFound => Blame::whole(&name, "there is no such file; check the path"),
            _ => Blame::whole(&name, format!("cannot be read: {error}")),
        };
        // Looked at before it is opened: opening a pipe waits for whoever writes to it, and a device may never end.
        if !fs::metadata(file).map_err(|error| refused(&error))?.is_file() {
            return Err(Blame::whole(&name, "is not a regular file; name the file itself"));
        }
        let bytes = read_up_to(file, FILE_BYTES_MAX + 1).map_err(|error| refused(&error))?;
        if FILE_BYTES_MAX < bytes.len() as u64 {
            return Err(Blame::whole(&name, format!("has more than {FILE_BYTES_MAX} bytes")));
        }
        let source = String::from_utf8(bytes)
            .map_err(|_| Blame::whole(&name, "cannot be read: it is not text in UTF-8"))?;
        Self::parse(Some(file), &source)
    }

    /// Checks `source`, the contents of `file`. Nothing is opened.
    pub(crate) fn parse(file: Option<&Path>, source: &str) -> Result<Self, Blame> {
        let name =
            file.map_or_else(|| "built-in sample".to_owned(), |file| file.display().to_string());
        let text = Text::parse(&name, source)?;
        let File {
            server,
            store,
            strategy,
            fallback,
            backoff,
            telemetry,
            key,
            audit,
            translate,
            policy,
            envoy,
        } = text.structure()?;
        let folder = file.and_then(Path::parent).unwrap_or(Path::new(""));
        let server = ServerConfig::resolve(&text, &server, folder)?;
        if server.anonymous && !key.is_empty() {
            let what =
                "anonymous = true lets everybody in, but there are keys; keep one of the two";
            return Err(text.blame(&["server", "anonymous"], what));
        }
        let timeout = fallback::attempt_timeout(&text, &store)?;
        let store = StoreConfig::resolve(&text, &store, folder)?;
        let telemetry = TelemetryConfig::resolve(&text, &telemetry, folder)?;
        let policies = resolve_policies(&text, &policy)?;
        let keys = KeyConfig::resolve_all(&text, &key, folder, &policies)?;
        check_store_takes(&text, &store, &policies)?;
        let envoy = envoy::resolve(&text, &envoy, &policies)?;
        let fallback =
            FallbackConfig::resolve(&text, fallback.as_ref(), timeout, &store, &policies)?;
        let backoff = backoff::resolve(&text, backoff.as_ref())?;
        let strategy = StrategyConfig::resolve(&text, &strategy, &store, &policies)?;
        let audit = audit::resolve(&text, &audit)?;
        let serves_translations = translate.is_some();
        let jobs = JobsConfig::resolve(&text, &translate.unwrap_or_default(), &store, folder)?;
        let file = file.map(Path::to_owned);
        Ok(Self {
            file,
            server,
            store,
            strategy,
            fallback,
            backoff,
            telemetry,
            keys,
            audit,
            jobs,
            serves_translations,
            policies,
            envoy,
        })
    }
}

fn read_up_to(file: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(file)?.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn resolve_policies(
    text: &Text<'_>,
    specs: &[tollgate::spec::PolicySpec],
) -> Result<Policies, Blame> {
    if specs.is_empty() {
        return Err(Blame::whole(
            text.file(),
            "has no policy; add one, as in [[policy]] with name = \"api\" and limits = [{ name = \"burst\", \
             unit = \"requests\", rule = \"token-bucket\", capacity = 20, refill = \"10/s\" }]",
        ));
    }
    let mut policies = Vec::with_capacity(specs.len());
    for (index, spec) in specs.iter().enumerate() {
        if specs[..index].iter().any(|other| other.name == spec.name) {
            let what = format!("two policies are called {:?}; give each its own name", spec.name);
            return Err(text.blame_policy(index, &[Step::Field("name")], what));
        }
        check_policy_name(&spec.name)
            .map_err(|error| text.blame_policy(index, &[Step::Field("name")], error.to_string()))?;
        let policy = spec.resolve();
        policies.push(
            policy.map_err(|fault| text.blame_policy(index, fault.path(), fault.to_string()))?,
        );
    }
    Policies::new(policies).map_err(|error| Blame::whole(text.file(), error.to_string()))
}

/// Reports a policy that the configured store cannot keep.
fn check_store_takes(
    text: &Text<'_>,
    store: &StoreConfig,
    policies: &Policies,
) -> Result<(), Blame> {
    let is_memory = matches!(store, StoreConfig::Memory { .. });
    if let Some(index) = policies.iter().position(|policy| policy.subjects_max().is_some())
        && !is_memory
    {
        let what =
            "subjects_max holds in the store kind = \"memory\" only; remove it, or use that store";
        return Err(text.blame_policy(index, &[Step::Field("subjects_max")], what.to_owned()));
    }
    if !matches!(store, StoreConfig::DynamoDb(_)) {
        return Ok(());
    }
    for (index, policy) in policies.iter().enumerate() {
        for policy in std::iter::once(policy).chain(policy.overrides().map(|(_, other)| other)) {
            tollgate_dynamodb::DynamoDb::check(policy).map_err(|error| {
                text.blame_policy(index, &[Step::Field("name")], error.to_string())
            })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sample is the documentation of the defaults: a file that says nothing but policies means the same.
    #[test]
    fn the_sample_writes_out_the_defaults() {
        let sample = Config::parse(None, SAMPLE).unwrap();
        let policies = &SAMPLE[SAMPLE.find("[[policy]]").unwrap()..];
        let bare = Config::parse(None, policies).unwrap();
        assert_eq!(sample.server, bare.server);
        assert_eq!(sample.store, bare.store);
        assert_eq!(sample.telemetry, bare.telemetry);
        assert_eq!(sample.audit, bare.audit);
        assert_eq!(sample.jobs, bare.jobs);
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

    #[test]
    fn a_path_is_relative_to_the_file() {
        let config = Config::parse(Some(Path::new("etc/t.toml")), SAMPLE).unwrap();
        let StoreConfig::Embedded { path, .. } = config.store else { panic!("not embedded") };
        assert_eq!(path, Path::new("etc/tollgate-data"));
    }
}
