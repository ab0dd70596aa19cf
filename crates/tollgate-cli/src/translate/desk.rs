//! What a translation works with: the provider, the quota, the jobs and the sinks.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use clap::ValueEnum as _;
use tollgate::edge::environment;
use tollgate::{Clock, Gate, Observer, OnStoreFailure, Policies, Policy, Span, SystemClock};
use tollgate_telemetry::Meters;
use tollgate_translate::job::{EmbeddedJobs, Job, JobStore, Patience, PostgresJobs};
use tollgate_translate::pipeline::{Full, JobSettings, Options, Pipeline, Route, Throttle};
use tollgate_translate::provider::gemini::{self, Gemini};
use tollgate_translate::provider::openai::{self, OpenAi};
use tollgate_translate::provider::{Endpoint, Http, Key, Provider, TIMEOUT_DEFAULT, Transport};
use tollgate_translate_dynamodb::DynamoDbJobs;

use super::outages::{Outages, StoreWatch};
use super::turns::Turns;
use super::{invalid, list};
use crate::KEY_VARIABLE;
use crate::args::{Provided, ProviderKind};
use crate::config::{BrokerConfig, Config, JobsConfig, Secret, StoreConfig};
use crate::failure::Failure;
use crate::open::{self, Opened};
use crate::output::{Reader, legible};
use crate::remote::Server;
use crate::telemetry::{self, Running};

/// The jobs, and how long their calls wait for a database that is away.
pub(super) struct Jobs {
    pub(super) store: Arc<dyn JobStore>,
    pub(super) patience: Patience,
    /// How long they wait once a job runs.
    longest: Span,
}

impl Jobs {
    /// Jobs whose store waits for nothing, or for as long as it finds right.
    fn impatient(store: impl JobStore) -> Self {
        Self { store: Arc::new(store), patience: Patience::default(), longest: Span::ZERO }
    }
}

/// What a command works with.
pub(super) struct Desk<'a> {
    pub(super) jobs: Arc<dyn JobStore>,
    pub(super) patience: Patience,
    pub(super) outages: Outages,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) gate: Arc<dyn Gate>,
    pub(super) reader: Reader,
    /// The flags that a later command needs too, each with a space before it.
    pub(super) again: String,
    provided: &'a Provided,
    config: &'a Config,
    /// Jobs with the same provider and quota stand in the same line.
    lines: Mutex<Vec<(Route, Arc<Line>)>>,
    /// Whether the number of processes that share the store is not configured, so that nobody has a share.
    has_no_share: bool,
    opened: Option<Opened>,
    running: Running,
}

/// A provider, and the quota that it is called within.
pub(super) struct Line {
    pub(super) policy: Policy,
    pub(super) subject: String,
    provider: Arc<dyn Provider>,
    throttle: Arc<Throttle>,
}

impl Line {
    /// How many attempts wait for a permit.
    pub(super) fn waiting(&self) -> usize {
        self.throttle.waiting()
    }

    /// What they wait for.
    pub(super) fn full(&self) -> Option<Full> {
        self.throttle.full()
    }
}

impl<'a> Desk<'a> {
    /// Opens everything that `provided` and `config` name.
    pub(super) async fn open(
        jobs: Jobs,
        provided: &'a Provided,
        config: &'a Config,
        server: Option<Server>,
        named: Option<&Path>,
        reader: Reader,
    ) -> Result<Self, Failure> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let again = again(provided, server.as_ref(), named);
        let has_no_share = server.is_some() && config.store.away().is_none();
        let store = match server {
            Some(server) => broker(server),
            None => config.store.clone(),
        };
        let running = telemetry::start(&config.telemetry, &clock).await?;
        // Its series are there from the start, so that rates begin at zero.
        let _ = running.telemetry.meters().translation();
        let sinks = Arc::clone(&running.telemetry) as Arc<dyn Observer>;
        let watch = StoreWatch::new(sinks, Arc::clone(&clock));
        let observer = Arc::clone(&watch) as Arc<dyn Observer>;
        // The first turn also says what is wrong with the store, before anything is kept.
        let opened =
            open::for_translation(&store, &config.fallback, Arc::clone(&clock), observer).await?;
        let (gate, opened): (Arc<dyn Gate>, _) = match store {
            StoreConfig::Embedded { .. } => {
                opened.close().await?;
                let fallback = config.fallback.clone();
                (Arc::new(Turns::new(store, fallback, Arc::clone(&clock))), None)
            }
            _ => (opened.gate(), Some(opened)),
        };
        let Jobs { store: jobs, patience, longest } = jobs;
        patience.set(longest);
        let outages = Outages::new(watch.away(), patience.away());
        let lines = Mutex::default();
        Ok(Self {
            jobs,
            patience,
            outages,
            clock,
            gate,
            reader,
            again,
            provided,
            config,
            lines,
            has_no_share,
            opened,
            running,
        })
    }

    /// What is wrong with the flags, said before there is a job. Jobs may name what was not typed.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let (provided, route) = (self.provided, whole(self.provided, Route::default()));
        if provided.policy.is_some() {
            policy(self.config, &route)?;
        }
        let names_key = provided.key_env.is_some() || provided.key_file.is_some();
        if provided.provider.is_some() || names_key || provided.no_key {
            provider(provided, &route, &self.clock)?;
        }
        Ok(())
    }

    /// What the job `id` is worked on with: by the flags, or else as it was made.
    pub(super) async fn line_of(&self, id: &str) -> Result<Arc<Line>, Failure> {
        self.line_for(&list::job(&*self.jobs, id).await?)
    }

    /// The same for a job that was looked up.
    pub(super) fn line_for(&self, job: &Job) -> Result<Arc<Line>, Failure> {
        self.line(JobSettings::of(job)?.route)
    }

    /// The same for a job of whoever may write jobs: the key goes to the provider itself, or where the flags say.
    pub(super) fn trusted_line(&self, job: &Job) -> Result<Arc<Line>, Failure> {
        let route = JobSettings::of(job)?.route;
        match (&route.url, &self.provided.provider_url) {
            (Some(url), None) => Err(invalid(format!(
                "the job names {url}, and the key goes only where this process was told to send it; if it may go there, \
                 add --provider-url {url}"
            ))),
            _ => self.line(route),
        }
    }

    /// What a job that was made with `route` is worked on with.
    pub(super) fn line(&self, route: Route) -> Result<Arc<Line>, Failure> {
        let route = whole(self.provided, route);
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, line)) = lines.iter().find(|(there, _)| *there == route) {
            return Ok(Arc::clone(line));
        }
        let policy = policy(self.config, &route)?;
        if self.has_no_share && policy.on_store_failure() == OnStoreFailure::Fallback {
            return Err(invalid(format!(
                "the policy {:?} falls back on a share, and with --server nothing says of how many; name the broker in the \
                 configuration instead, as in [store] kind = \"broker\" with [fallback] instances = 10",
                policy.name()
            )));
        }
        let provider = provider(self.provided, &route, &self.clock)?;
        let subject = route.subject.clone().unwrap_or_default();
        let mut throttle = Throttle::observed(
            Arc::clone(&self.gate),
            policy.clone(),
            subject.clone(),
            Arc::clone(&self.clock),
            Arc::clone(&self.running.telemetry) as Arc<dyn Observer>,
        );
        if let Some(backoff) = self.config.backoff {
            throttle = throttle.with_backoff(backoff);
        }
        let throttle = Arc::new(throttle);
        let line = Arc::new(Line { policy, subject, provider, throttle });
        lines.push((route, Arc::clone(&line)));
        Ok(line)
    }

    /// A pipeline that waits pauses out, or returns.
    pub(super) fn pipeline(&self, line: &Line, wait_out_pauses: bool) -> Pipeline {
        self.pipeline_with(line, Options { wait_out_pauses, ..Options::default() })
    }

    /// A pipeline with these options, the sinks and the number of chunks at once that was asked for.
    pub(super) fn pipeline_with(&self, line: &Line, options: Options) -> Pipeline {
        let meters = Some(Arc::clone(self.running.telemetry.meters()));
        let parallel = self.provided.workers;
        let options = Options { parallel, meters, ..options };
        Pipeline::new(
            Arc::clone(&line.provider),
            Arc::clone(&line.throttle),
            Arc::clone(&self.jobs),
            Arc::clone(&self.clock),
            options,
        )
    }

    /// The policies of the configuration.
    pub(super) const fn policies(&self) -> &Policies {
        &self.config.policies
    }

    /// What is counted.
    pub(super) fn meters(&self) -> &Arc<Meters> {
        self.running.telemetry.meters()
    }

    /// Lets the sinks write what they have, and goes on. Says whether all of them could.
    pub(super) async fn flush(&self) -> bool {
        self.running.flush().await
    }

    /// Lets the sinks write what they have, and lets go of the store.
    pub(super) async fn close(self) {
        // What is posted to the store at the end is counted, too.
        if let Some(opened) = self.opened
            && let Err(error) = opened.close().await
        {
            warn(&Failure::from(error).problem().detail);
        }
        self.running.drain().await;
    }
}

/// The jobs of the configuration. Until a job runs, a database that is away is waited for briefly.
pub(super) async fn jobs(config: &JobsConfig) -> Result<Jobs, Failure> {
    Ok(match config {
        JobsConfig::Embedded { path } => Jobs::impatient(EmbeddedJobs::open(path)?),
        JobsConfig::Postgres { url, schema, lease, patience: longest } => {
            let store = PostgresJobs::open(&url.read()?, schema).await?.with_lease(*lease);
            let patience = store.patience().clone();
            Jobs { store: Arc::new(store), patience, longest: *longest }
        }
        JobsConfig::DynamoDb { table, place, lease } => {
            Jobs::impatient(DynamoDbJobs::open(table, place).await?.with_lease(*lease))
        }
    })
}

/// A line on standard error for what is no failure.
pub(super) fn warn(text: &str) {
    use std::io::Write as _;
    // Work goes on where nobody reads.
    drop(writeln!(std::io::stderr(), "warning: {}", legible(text)));
}

/// The flags that were typed, as a route.
pub(super) fn typed(provided: &Provided) -> Route {
    let name = |kind: ProviderKind| kind.to_possible_value().map(|it| it.get_name().to_owned());
    Route {
        provider: provided.provider.and_then(name),
        url: provided.provider_url.clone(),
        policy: provided.policy.clone(),
        subject: provided.subject.clone(),
    }
}

/// What was typed, or else what `route` says, or else what is usual.
pub(super) fn whole(provided: &Provided, route: Route) -> Route {
    let usual = Route {
        provider: Some("gemini".to_owned()),
        url: None,
        policy: Some("gemini-free".to_owned()),
        subject: Some("project".to_owned()),
    };
    typed(provided).or(route).or(usual)
}

/// The policy that calls are counted by.
pub(super) fn policy(config: &Config, route: &Route) -> Result<Policy, Failure> {
    let name = route.policy.as_deref().unwrap_or_default();
    let policy = config.policies.get(name).map_err(|error| {
        let given = Failure::from(error);
        invalid(format!("{}; name one with --policy", given.problem().detail))
    })?;
    check_counts(policy, route.subject.as_deref().unwrap_or_default())?;
    Ok(policy.clone())
}

/// Whether calls of a translation can be counted for `subject` under `policy`.
pub(super) fn check_counts(policy: &Policy, subject: &str) -> Result<(), Failure> {
    let name = policy.name();
    if let Some(unit) = policy.units().find(|unit| !["requests", "tokens"].contains(unit)) {
        return Err(invalid(format!(
            "the policy {name:?} counts {unit:?}, and a translation has only requests and tokens; name another policy"
        )));
    }
    Ok(tollgate::Ask::new(policy, subject).check().map_err(tollgate::Error::from)?)
}

/// Whose interface the provider of `route` speaks.
pub(super) fn kind(route: &Route) -> Result<ProviderKind, Failure> {
    let name = route.provider.as_deref().unwrap_or_default();
    ProviderKind::from_str(name, false).map_err(|_| {
        invalid(format!("this program knows no provider {name:?}; name another with --provider"))
    })
}

/// The provider of `route`, with its key.
pub(super) fn provider(
    provided: &Provided,
    route: &Route,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Provider>, Failure> {
    let kind = kind(route)?;
    let (url, variables): (_, &[&str]) = match kind {
        ProviderKind::Gemini => (gemini::BASE_URL, &gemini::KEY_VARIABLES),
        ProviderKind::Openai => (openai::BASE_URL, &openai::KEY_VARIABLES),
    };
    let key = match (&provided.key_env, &provided.key_file) {
        _ if provided.no_key => None,
        (Some(name), _) => Some(Key::from_environment(&[name])?),
        (None, Some(file)) => Some(Key::from_file(file)?),
        (None, None) => Some(Key::from_environment(variables)?),
    };
    let url = route.url.as_deref().unwrap_or(url);
    let transport = Arc::new(Http::for_url(url)?) as Arc<dyn Transport>;
    let url = if provided.plain_http { Endpoint::unencrypted(url) } else { url.into() };
    let clock = Arc::clone(clock);
    Ok(match kind {
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

/// The flags that were typed, as they are typed again.
pub(super) fn again(provided: &Provided, server: Option<&Server>, named: Option<&Path>) -> String {
    let file = |path: &Path| path.display().to_string();
    let typed = typed(provided);
    let other = |value: &str, usual: &str| (value != usual).then(|| value.to_owned());
    let flags = [
        ("--config", named.map(file)),
        ("--server", server.map(|server| server.url.as_str().to_owned())),
        ("--authority", server.and_then(|server| server.authority.as_deref()).map(file)),
        ("--provider", typed.provider),
        ("--provider-url", typed.url),
        ("--key-env", provided.key_env.clone()),
        ("--key-file", provided.key_file.as_deref().map(file)),
        ("--policy", typed.policy),
        ("--subject", typed.subject),
        ("--workers", other(&provided.workers.to_string(), "10")),
    ];
    let given = flags.into_iter().filter_map(|(flag, value)| Some((flag, value?)));
    let switches = [("--plain-http", provided.plain_http), ("--no-key", provided.no_key)];
    let switches = switches.into_iter().filter(|(_, is_on)| *is_on);
    given
        .map(|(flag, value)| format!(" {flag} {}", quoted(&value)))
        .chain(switches.map(|(flag, _)| format!(" {flag}")))
        .collect()
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
