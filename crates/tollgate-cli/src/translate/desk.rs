//! What a translation works with: the provider, the quota, the jobs and the sinks.

use std::path::Path;
use std::sync::Arc;

use tollgate::edge::environment;
use tollgate::{Clock, Gate, Observer, Policy, SystemClock};
use tollgate_translate::job::{EmbeddedJobs, JobStore, PostgresJobs};
use tollgate_translate::pipeline::{Options, Pipeline, Throttle};
use tollgate_translate::provider::gemini::{self, Gemini};
use tollgate_translate::provider::openai::{self, OpenAi};
use tollgate_translate::provider::{Http, Key, Provider, TIMEOUT_DEFAULT, Transport};

use super::invalid;
use super::turns::Turns;
use crate::KEY_VARIABLE;
use crate::args::{Provided, ProviderKind};
use crate::config::{BrokerConfig, Config, JobsConfig, Secret, StoreConfig};
use crate::failure::Failure;
use crate::open::{self, Opened};
use crate::output::Reader;
use crate::remote::Server;
use crate::telemetry::{self, Running};

/// What a command works with.
pub(super) struct Desk {
    pub(super) jobs: Arc<dyn JobStore>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) gate: Arc<dyn Gate>,
    pub(super) policy: Policy,
    pub(super) subject: String,
    pub(super) reader: Reader,
    /// The flags that a later command needs too, each with a space before it.
    pub(super) again: String,
    provider: Arc<dyn Provider>,
    throttle: Arc<Throttle>,
    workers: usize,
    opened: Option<Opened>,
    running: Running,
}

impl Desk {
    /// Opens everything that `provided` and `config` name.
    pub(super) async fn open(
        provided: &Provided,
        config: &Config,
        server: Option<Server>,
        named: Option<&Path>,
        reader: Reader,
    ) -> Result<Self, Failure> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let policy = policy(config, provided)?;
        let provider = provider(provided, &clock)?;
        let again = again(provided, server.as_ref(), named);
        let store = match server {
            Some(server) => broker(server),
            None => config.store.clone(),
        };
        // The first turn also says what is wrong with the store, before anything is kept.
        let opened = open::for_command(&store, &config.fallback, Arc::clone(&clock)).await?;
        let (gate, opened): (Arc<dyn Gate>, _) = match store {
            StoreConfig::Embedded { .. } => {
                opened.close().await?;
                let fallback = config.fallback.clone();
                (Arc::new(Turns::new(store, fallback, Arc::clone(&clock))), None)
            }
            _ => (opened.gate(), Some(opened)),
        };
        let jobs = jobs(config).await?;
        let running = telemetry::start(&config.telemetry, &clock).await?;
        let observer = Arc::clone(&running.telemetry) as Arc<dyn Observer>;
        let subject = provided.subject.clone();
        let throttle = Throttle::observed(
            Arc::clone(&gate),
            policy.clone(),
            subject.clone(),
            Arc::clone(&clock),
            observer,
        );
        let throttle = Arc::new(throttle);
        let workers = provided.workers;
        Ok(Self {
            jobs,
            clock,
            gate,
            policy,
            subject,
            reader,
            again,
            provider,
            throttle,
            workers,
            opened,
            running,
        })
    }

    /// How many attempts wait for a permit.
    pub(super) fn in_line(&self) -> usize {
        self.throttle.waiting()
    }

    /// A pipeline that waits pauses out, or returns.
    pub(super) fn pipeline(&self, wait_out_pauses: bool) -> Pipeline {
        self.pipeline_with(Options { wait_out_pauses, ..Options::default() })
    }

    /// A pipeline with these options, the sinks and the number of chunks at once that was asked for.
    pub(super) fn pipeline_with(&self, options: Options) -> Pipeline {
        let meters = Some(Arc::clone(self.running.telemetry.meters()));
        let parallel = self.workers;
        let options = Options { parallel, meters, ..options };
        Pipeline::new(
            Arc::clone(&self.provider),
            Arc::clone(&self.throttle),
            Arc::clone(&self.jobs),
            Arc::clone(&self.clock),
            options,
        )
    }

    /// Lets the sinks write what they have, and lets go of the store.
    pub(super) async fn close(self) -> Result<(), Failure> {
        self.running.drain().await;
        if let Some(opened) = self.opened {
            opened.close().await?;
        }
        Ok(())
    }
}

/// The jobs of the configuration.
pub(super) async fn jobs(config: &Config) -> Result<Arc<dyn JobStore>, Failure> {
    Ok(match &config.jobs {
        JobsConfig::Embedded { path } => Arc::new(EmbeddedJobs::open(path)?),
        JobsConfig::Postgres { url, schema, lease } => {
            Arc::new(PostgresJobs::open(&url.read()?, schema).await?.with_lease(*lease))
        }
    })
}

/// The policy that calls are counted by.
pub(super) fn policy(config: &Config, provided: &Provided) -> Result<Policy, Failure> {
    let policy = config.policies.get(&provided.policy).map_err(|error| {
        let given = Failure::from(error);
        invalid(format!("{}; name one with --policy", given.problem().detail))
    })?;
    if let Some(unit) = policy.units().find(|unit| !["requests", "tokens"].contains(unit)) {
        return Err(invalid(format!(
            "the policy {:?} counts {unit:?}, and a translation has only requests and tokens; name another with --policy",
            provided.policy
        )));
    }
    tollgate::Ask::new(policy, provided.subject.as_str()).check().map_err(tollgate::Error::from)?;
    Ok(policy.clone())
}

fn provider(provided: &Provided, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Provider>, Failure> {
    let (url, variables): (_, &[&str]) = match provided.provider {
        ProviderKind::Gemini => (gemini::BASE_URL, &gemini::KEY_VARIABLES),
        ProviderKind::Openai => (openai::BASE_URL, &openai::KEY_VARIABLES),
    };
    let key = match (&provided.key_env, &provided.key_file) {
        (Some(name), _) => Key::from_environment(&[name])?,
        (None, Some(file)) => Key::from_file(file)?,
        (None, None) => Key::from_environment(variables)?,
    };
    let url = provided.provider_url.as_deref().unwrap_or(url);
    let transport = Arc::new(Http::new()?) as Arc<dyn Transport>;
    let clock = Arc::clone(clock);
    Ok(match provided.provider {
        ProviderKind::Gemini => Arc::new(Gemini::new(url, key, transport, clock, TIMEOUT_DEFAULT)?),
        ProviderKind::Openai => Arc::new(OpenAi::new(url, key, transport, clock, TIMEOUT_DEFAULT)?),
    })
}

/// The broker at `server` as the store.
fn broker(server: Server) -> StoreConfig {
    let key = environment(KEY_VARIABLE).map(|_| Secret::Environment(KEY_VARIABLE.to_owned()));
    StoreConfig::Broker(Box::new(BrokerConfig {
        url: Some(server.url.as_str().to_owned()),
        grpc: None,
        resp: None,
        key,
        authority: server.authority,
        identity: None,
    }))
}

/// The flags that differ from what they are without being typed.
pub(super) fn again(provided: &Provided, server: Option<&Server>, named: Option<&Path>) -> String {
    let file = |path: &Path| path.display().to_string();
    let openai = (provided.provider == ProviderKind::Openai).then(|| "openai".to_owned());
    let other = |value: &str, usual: &str| (value != usual).then(|| value.to_owned());
    let flags = [
        ("--config", named.map(file)),
        ("--server", server.map(|server| server.url.as_str().to_owned())),
        ("--authority", server.and_then(|server| server.authority.as_deref()).map(file)),
        ("--provider", openai),
        ("--provider-url", provided.provider_url.clone()),
        ("--key-env", provided.key_env.clone()),
        ("--key-file", provided.key_file.as_deref().map(file)),
        ("--policy", other(&provided.policy, "gemini-free")),
        ("--subject", other(&provided.subject, "project")),
        ("--workers", other(&provided.workers.to_string(), "10")),
    ];
    let given = flags.into_iter().filter_map(|(flag, value)| Some((flag, value?)));
    given.map(|(flag, value)| format!(" {flag} {}", quoted(&value))).collect()
}

/// `value` as a shell reads it as one word.
fn quoted(value: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=@%+,".contains(c);
    if value.chars().all(is_plain) {
        value.to_owned()
    } else {
        format!("'{}'", value.replace('\'', "'\\''"))
    }
}
