//! The resources of a command: providers, the quota, the job store and the telemetry sinks.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use clap::ValueEnum as _;
use tollgate::clock::SystemClock;
use tollgate::observe::Observer;
use tollgate::policy::{OnStoreFailure, Policies};
use tollgate::{Clock, Gate, Policy, Span};
use tollgate_config::open::{self, Opened, SHUTDOWN_MAX};
use tollgate_config::sinks::{self, Running};
use tollgate_config::{BrokerConfig, Config, StoreConfig};
use tollgate_providers::Dialect;
use tollgate_telemetry::Meters;
use tollgate_terminal::Failure;
use tollgate_terminal::output::{OutputFormat, escape_lines};

use super::args::{ProviderArgs, ProviderKind};
use super::config::JobsConfig;
use super::outages::{Outages, StoreWatch};
use super::reopening_gate::ReopeningGate;
use super::{Environment, invalid};
use crate::job::{DynamoDbJobs, EmbeddedJobs, Job, JobStore, OutageMonitor, PostgresJobs};
use crate::pipeline::{ExhaustedLimit, JobOptions, Options, Pipeline, Route, Throttle};
use crate::provider::anthropic::Anthropic;
use crate::provider::gemini::Gemini;
use crate::provider::openai::{self, OpenAi};
use crate::provider::{
    ApiKey, Endpoint, Http, Provider, ProviderClient, TIMEOUT_DEFAULT, Transport,
};

/// The job store.
pub(super) struct Jobs {
    pub(super) store: Arc<dyn JobStore>,
    /// How long its calls wait during an outage of its server.
    pub(super) outages: OutageMonitor,
    /// How long they wait once a job runs.
    max_wait: Span,
}

impl Jobs {
    /// A store that does not report outages.
    fn local(store: impl JobStore) -> Self {
        Self { store: Arc::new(store), outages: OutageMonitor::default(), max_wait: Span::ZERO }
    }
}

/// The resources of a command.
pub(super) struct Context<'a> {
    pub(super) jobs: Arc<dyn JobStore>,
    pub(super) job_outages: OutageMonitor,
    pub(super) outages: Outages,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) gate: Arc<dyn Gate>,
    pub(super) format: OutputFormat,
    /// The flags to repeat in a later command, each with a space before it.
    pub(super) again: String,
    args: &'a ProviderArgs,
    config: Config,
    /// Jobs with the same provider and quota share a queue.
    upstreams: Mutex<Vec<(Route, Arc<Upstream>)>>,
    /// Whether the number of processes on the store is unknown, so that no process has a share.
    has_no_share: bool,
    opened: Option<Opened>,
    running: Running,
}

/// A provider, and the quota of its calls.
pub(super) struct Upstream {
    pub(super) policy: Policy,
    pub(super) subject: String,
    provider: Arc<dyn Provider>,
    throttle: Arc<Throttle>,
}

impl Upstream {
    /// Returns the number of attempts that wait for a permit.
    pub(super) fn waiting(&self) -> usize {
        self.throttle.waiting()
    }

    /// Returns the limit that they wait for.
    pub(super) fn exhausted(&self) -> Option<ExhaustedLimit> {
        self.throttle.exhausted()
    }
}

impl<'a> Context<'a> {
    /// Opens the gate and the sinks.
    pub(super) async fn open(
        jobs: Jobs,
        args: &'a ProviderArgs,
        env: Environment<'_>,
    ) -> Result<Self, Failure> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let Environment { config, broker, config_file, format, .. } = env;
        let again = again(args, broker.as_ref(), config_file);
        let has_no_share = broker.is_some() && config.store.remote_kind().is_none();
        let store = match broker {
            Some(broker) => StoreConfig::Broker(Box::new(broker)),
            None => config.store.clone(),
        };
        let running = sinks::start(&config.telemetry, &clock).await?;
        // Creates the series, so that rates begin at zero.
        let _ = running.telemetry.meters().translation();
        let sinks = Arc::clone(&running.telemetry) as Arc<dyn Observer>;
        let watch = StoreWatch::new(sinks, Arc::clone(&clock));
        let observer = Arc::clone(&watch) as Arc<dyn Observer>;
        // Also reports errors of the store before a job is created.
        let opened =
            open::for_worker(&store, &config.fallback, Arc::clone(&clock), observer).await?;
        let (gate, opened): (Arc<dyn Gate>, _) = match store {
            StoreConfig::Embedded { .. } => {
                opened.shutdown(clock.now() + SHUTDOWN_MAX).await?;
                let fallback = config.fallback.clone();
                (Arc::new(ReopeningGate::new(store, fallback, Arc::clone(&clock))), None)
            }
            _ => (opened.gate(), Some(opened)),
        };
        let Jobs { store: jobs, outages: job_outages, max_wait } = jobs;
        job_outages.set_max_wait(max_wait);
        Ok(Self {
            jobs,
            outages: Outages::new(watch.outage(), job_outages.outage()),
            job_outages,
            clock,
            gate,
            format,
            again,
            args,
            config,
            upstreams: Mutex::default(),
            has_no_share,
            opened,
            running,
        })
    }

    /// Validates the flags of a worker before it has a job. Jobs complete missing flags.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let (args, route) = (self.args, complete(self.args, Route::default()));
        if args.policy.is_some() {
            policy(&self.config, &route)?;
        }
        let has_key = args.key_env.is_some() || args.key_file.is_some() || args.no_key;
        if args.provider.is_some() || has_key {
            provider(args, &route, &self.clock)?;
        }
        Ok(())
    }

    /// Returns the upstream of a job: by the flags, or else as the job was created.
    pub(super) fn upstream_for(&self, job: &Job) -> Result<Arc<Upstream>, Failure> {
        self.upstream(JobOptions::from_job(job)?.route)
    }

    /// Like [`upstream_for`](Self::upstream_for) for jobs of other users: sends the key only to the provider itself, or to the URL of the
    /// flags.
    pub(super) fn trusted_upstream(&self, job: &Job) -> Result<Arc<Upstream>, Failure> {
        let route = JobOptions::from_job(job)?.route;
        match (&route.url, &self.args.provider_url) {
            (Some(url), None) => Err(invalid(format!(
                "the job names {url}, and the key is sent only to a URL that this process was given; if it may go there, \
                 add --provider-url {url}"
            ))),
            _ => self.upstream(route),
        }
    }

    /// Returns the upstream of a job with `route`.
    pub(super) fn upstream(&self, route: Route) -> Result<Arc<Upstream>, Failure> {
        let route = complete(self.args, route);
        let mut upstreams = self.upstreams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, upstream)) = upstreams.iter().find(|(known, _)| *known == route) {
            return Ok(Arc::clone(upstream));
        }
        let policy = policy(&self.config, &route)?;
        if self.has_no_share && policy.on_store_failure() == OnStoreFailure::Fallback {
            return Err(invalid(format!(
                "the policy {:?} falls back on a share, and with --server nothing says of how many; name the broker in the \
                 configuration instead, as in [store] kind = \"broker\" with [fallback] instances = 10",
                policy.name()
            )));
        }
        let provider = provider(self.args, &route, &self.clock)?;
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
        let upstream = Arc::new(Upstream { policy, subject, provider, throttle });
        upstreams.push((route, Arc::clone(&upstream)));
        Ok(upstream)
    }

    /// Returns a pipeline that waits out pauses, or returns.
    pub(super) fn pipeline(&self, upstream: &Upstream, wait_out_pauses: bool) -> Pipeline {
        self.pipeline_with(upstream, Options { wait_out_pauses, ..Options::default() })
    }

    /// Returns a pipeline with these options, the metrics and `--workers`.
    pub(super) fn pipeline_with(&self, upstream: &Upstream, options: Options) -> Pipeline {
        let meters = Some(Arc::clone(self.meters()));
        Pipeline::new(
            Arc::clone(&upstream.provider),
            Arc::clone(&upstream.throttle),
            Arc::clone(&self.jobs),
            Arc::clone(&self.clock),
            Options { parallel: self.args.workers, meters, ..options },
        )
    }

    /// Returns the policies of the configuration.
    pub(super) const fn policies(&self) -> &Policies {
        &self.config.policies
    }

    /// Returns the metrics.
    pub(super) fn meters(&self) -> &Arc<Meters> {
        self.running.telemetry.meters()
    }

    /// Flushes the sinks. Returns whether all succeeded.
    pub(super) async fn flush(&self) -> bool {
        self.running.flush().await
    }

    /// Shuts down the store and then the sinks.
    pub(super) async fn shutdown(self) {
        // The last posts to the store are counted, too.
        if let Some(opened) = self.opened
            && let Err(error) = opened.shutdown(self.clock.now() + SHUTDOWN_MAX).await
        {
            warn(&Failure::from(error).problem().detail);
        }
        self.running.shutdown(self.clock.now() + SHUTDOWN_MAX).await;
    }
}

/// Opens the job store. Until a job runs, its calls wait only briefly during an outage.
pub(super) async fn jobs(config: &JobsConfig) -> Result<Jobs, Failure> {
    Ok(match config {
        JobsConfig::Embedded { path } => Jobs::local(EmbeddedJobs::open(path)?),
        JobsConfig::Postgres { url, schema, lease, patience } => {
            let store = PostgresJobs::open(&url.read()?, schema).await?.with_lease(*lease);
            let outages = store.outages().clone();
            Jobs { store: Arc::new(store), outages, max_wait: *patience }
        }
        JobsConfig::DynamoDb { table, aws, lease } => {
            Jobs::local(DynamoDbJobs::open(table, aws).await?.with_lease(*lease))
        }
    })
}

/// Prints a warning to standard error.
pub(super) fn warn(text: &str) {
    use std::io::Write as _;
    // Best effort: the command continues without a reader.
    drop(writeln!(std::io::stderr(), "warning: {}", escape_lines(text)));
}

/// Returns the route of the flags.
pub(super) fn typed(args: &ProviderArgs) -> Route {
    let name = |kind: ProviderKind| kind.to_possible_value().map(|it| it.get_name().to_owned());
    Route {
        provider: args.provider.and_then(name),
        url: args.provider_url.clone(),
        policy: args.policy.clone(),
        subject: args.subject.clone(),
    }
}

/// Returns the route of the flags, completed by `route` and then by the defaults.
pub(super) fn complete(args: &ProviderArgs, route: Route) -> Route {
    let defaults = Route {
        provider: Some("gemini".to_owned()),
        url: None,
        policy: Some("gemini-free".to_owned()),
        subject: Some("project".to_owned()),
    };
    typed(args).or(route).or(defaults)
}

/// Returns the policy of `route`.
pub(super) fn policy(config: &Config, route: &Route) -> Result<Policy, Failure> {
    let name = route.policy.as_deref().unwrap_or_default();
    let policy = config.policies.get(name).map_err(|error| {
        invalid(format!("{}; name one with --policy", Failure::from(error).problem().detail))
    })?;
    check_quota(policy, route.subject.as_deref().unwrap_or_default())?;
    Ok(policy.clone())
}

/// Checks that `policy` can count the calls of a translation for `subject`.
pub(super) fn check_quota(policy: &Policy, subject: &str) -> Result<(), Failure> {
    let name = policy.name();
    if let Some(unit) = policy.units().find(|unit| !["requests", "tokens"].contains(unit)) {
        return Err(invalid(format!(
            "the policy {name:?} counts {unit:?}, and a translation has only requests and tokens; name another policy"
        )));
    }
    Ok(tollgate::Ask::new(policy, subject).check().map_err(tollgate::Error::from)?)
}

/// Returns the API of the provider of `route`.
pub(super) fn provider_kind(route: &Route) -> Result<ProviderKind, Failure> {
    let name = route.provider.as_deref().unwrap_or_default();
    ProviderKind::from_str(name, false)
        .map_err(|_| invalid(format!("unknown provider {name:?}; name another with --provider")))
}

/// Returns the provider of `route`, with its key.
pub(super) fn provider(
    args: &ProviderArgs,
    route: &Route,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Provider>, Failure> {
    let kind = provider_kind(route)?;
    let (dialect, url) = match kind {
        ProviderKind::Gemini => (Dialect::Gemini, Dialect::Gemini.url()),
        ProviderKind::Openai => (Dialect::OpenAi, openai::BASE_URL),
        ProviderKind::Anthropic => (Dialect::Anthropic, Dialect::Anthropic.url()),
    };
    let key = match (&args.key_env, &args.key_file) {
        _ if args.no_key => None,
        (Some(name), _) => Some(ApiKey::from_environment(&[name])?),
        (None, Some(file)) => Some(ApiKey::from_file(file)?),
        (None, None) => Some(ApiKey::from_environment(dialect.key_variables())?),
    };
    let url = route.url.as_deref().unwrap_or(url);
    let transport = Arc::new(Http::for_url(url)?) as Arc<dyn Transport>;
    let url = if args.plain_http { Endpoint::unencrypted(url) } else { url.into() };
    let client = ProviderClient::new(url, key, transport, Arc::clone(clock), TIMEOUT_DEFAULT)?;
    Ok(match kind {
        ProviderKind::Gemini => Arc::new(Gemini::new(client)),
        ProviderKind::Openai => Arc::new(OpenAi::new(client)),
        ProviderKind::Anthropic => Arc::new(Anthropic::new(client)),
    })
}

/// Returns the flags of this command, to repeat them.
pub(super) fn again(
    args: &ProviderArgs,
    broker: Option<&BrokerConfig>,
    config_file: Option<&Path>,
) -> String {
    let file = |path: &Path| path.display().to_string();
    let typed = typed(args);
    let flags = [
        ("--config", config_file.map(file)),
        ("--server", broker.and_then(|broker| broker.url.clone())),
        ("--authority", broker.and_then(|broker| broker.authority.as_deref()).map(file)),
        ("--provider", typed.provider),
        ("--provider-url", typed.url),
        ("--key-env", args.key_env.clone()),
        ("--key-file", args.key_file.as_deref().map(file)),
        ("--policy", typed.policy),
        ("--subject", typed.subject),
        ("--workers", (args.workers != 10).then(|| args.workers.to_string())),
    ];
    let given = flags.into_iter().filter_map(|(flag, value)| Some((flag, value?)));
    let switches = [("--plain-http", args.plain_http), ("--no-key", args.no_key)];
    let switches = switches.into_iter().filter(|(_, is_on)| *is_on);
    given
        .map(|(flag, value)| format!(" {flag} {}", quoted(&value)))
        .chain(switches.map(|(flag, _)| format!(" {flag}")))
        .collect()
}

/// Quotes `value` for a shell.
fn quoted(value: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=@%+,".contains(c);
    match value.chars().all(is_plain) {
        true => value.to_owned(),
        false => format!("'{}'", value.replace('\'', "'\\''")),
    }
}
