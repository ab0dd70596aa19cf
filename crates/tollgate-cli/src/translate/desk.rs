//! What a translation works with: the provider, the quota, the jobs and the sinks.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use clap::ValueEnum as _;
use tollgate::edge::environment;
use tollgate::{Clock, Gate, Observer, Policy, SystemClock};
use tollgate_translate::job::{EmbeddedJobs, Job, JobStore, PostgresJobs};
use tollgate_translate::pipeline::{JobSettings, Options, Pipeline, Route, Throttle};
use tollgate_translate::provider::gemini::{self, Gemini};
use tollgate_translate::provider::openai::{self, OpenAi};
use tollgate_translate::provider::{Http, Key, Provider, TIMEOUT_DEFAULT, Transport};

use super::turns::Turns;
use super::{invalid, list};
use crate::KEY_VARIABLE;
use crate::args::{Provided, ProviderKind};
use crate::config::{BrokerConfig, Config, JobsConfig, Secret, StoreConfig};
use crate::failure::Failure;
use crate::open::{self, Opened};
use crate::output::Reader;
use crate::remote::Server;
use crate::telemetry::{self, Running};

/// What a command works with.
pub(super) struct Desk<'a> {
    pub(super) jobs: Arc<dyn JobStore>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) gate: Arc<dyn Gate>,
    pub(super) reader: Reader,
    /// The flags that a later command needs too, each with a space before it.
    pub(super) again: String,
    provided: &'a Provided,
    config: &'a Config,
    /// Jobs with the same provider and quota stand in the same line.
    lines: Mutex<Vec<(Route, Arc<Line>)>>,
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
}

impl<'a> Desk<'a> {
    /// Opens everything that `provided` and `config` name.
    pub(super) async fn open(
        provided: &'a Provided,
        config: &'a Config,
        server: Option<Server>,
        named: Option<&Path>,
        reader: Reader,
    ) -> Result<Self, Failure> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
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
        let lines = Mutex::default();
        Ok(Self { jobs, clock, gate, reader, again, provided, config, lines, opened, running })
    }

    /// What is wrong with the flags, said before there is a job. Jobs may name what was not typed.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let (provided, route) = (self.provided, whole(self.provided, Route::default()));
        if provided.policy.is_some() {
            policy(self.config, &route)?;
        }
        if provided.provider.is_some() || provided.key_env.is_some() || provided.key_file.is_some()
        {
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
        let provider = provider(self.provided, &route, &self.clock)?;
        let subject = route.subject.clone().unwrap_or_default();
        let throttle = Arc::new(Throttle::observed(
            Arc::clone(&self.gate),
            policy.clone(),
            subject.clone(),
            Arc::clone(&self.clock),
            Arc::clone(&self.running.telemetry) as Arc<dyn Observer>,
        ));
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
    if let Some(unit) = policy.units().find(|unit| !["requests", "tokens"].contains(unit)) {
        return Err(invalid(format!(
            "the policy {name:?} counts {unit:?}, and a translation has only requests and tokens; name another with --policy"
        )));
    }
    let subject = route.subject.as_deref().unwrap_or_default();
    tollgate::Ask::new(policy, subject).check().map_err(tollgate::Error::from)?;
    Ok(policy.clone())
}

/// Whose interface the provider of `route` speaks.
pub(super) fn kind(route: &Route) -> Result<ProviderKind, Failure> {
    let name = route.provider.as_deref().unwrap_or_default();
    ProviderKind::from_str(name, false).map_err(|_| {
        invalid(format!("this program knows no provider {name:?}; name another with --provider"))
    })
}

fn provider(
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
        (Some(name), _) => Key::from_environment(&[name])?,
        (None, Some(file)) => Key::from_file(file)?,
        (None, None) => Key::from_environment(variables)?,
    };
    let url = route.url.as_deref().unwrap_or(url);
    let transport = Arc::new(Http::new()?) as Arc<dyn Transport>;
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
