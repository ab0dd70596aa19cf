//! The flags made into values: costs, spans, addresses. Still nothing is read or opened.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap_complete::Shell;
use serde_json::Value;
use tollgate::spec::{LimitSpec, in_words};
use tollgate::{Error, ErrorKind, Span};
use tollgate_server::wire::{
    AcquireRequest, AuditQuery, PermitRequest, SettleRequest, StandingQuery, ViolationRequest,
    named_costs,
};

use crate::args::{
    Acquire, AuditCommand, AuditDenials, AuditHistory, AuditIncidents, Cli, Command, DrsFlags,
    DynamodbCommand, Export, Import, KeysCommand, KeysNew, Lambda, Override, PlanFlags,
    PoliciesCommand, PostgresCommand, PostgresInstall, Repair, Serve, Top, TranslateFlags,
};
use crate::backoff::BackoffFlags;
use crate::config::{Listen, LogFormat};
use crate::output::Reader;
use crate::remote::{BrokerUrl, Credentials, Server, Shows};

/// The longest `--wait`: beyond it a schedule is the better tool.
const WAIT_MAX: Span = Span::from_hours(24);

/// What to do, on what, and how to print it.
#[derive(Debug)]
pub(crate) struct Intent {
    /// The configuration that was named.
    pub(crate) config: Option<PathBuf>,
    /// What to do.
    pub(crate) action: Action,
    /// Who reads the answer.
    pub(crate) reader: Reader,
}

/// What to do.
#[derive(Debug)]
pub(crate) enum Action {
    /// Answer a question, here or at a broker.
    Call { call: Call, server: Option<Server>, backoff: BackoffFlags },
    /// Check a file.
    Check(PathBuf),
    /// List entries from the future, and mend them.
    Repair(Repairing),
    /// Write the store into a document.
    Export(Export),
    /// Read a document into the store.
    Import(Import),
    /// Run the broker.
    Serve(Serving),
    /// Run the broker as a Lambda function.
    Lambda(Lambda),
    /// Make a key.
    KeysNew(KeysNew),
    /// Make the DynamoDB table.
    DynamodbCreateTable,
    /// Set up a PostgreSQL database.
    PostgresInstall(PostgresInstall),
    /// Who reached the limit of a quota over a table.
    AuditHistory(AuditHistory),
    /// What providers refused.
    AuditIncidents(AuditIncidents),
    /// Compare the strategies.
    Plan(Box<PlanFlags>),
    /// What a broker wrote down.
    AuditDenials { query: AuditQuery, broker: Broker },
    /// Watch a broker.
    Top { once: bool, subject: Option<StandingQuery>, broker: Broker },
    /// Elastic Disaster Recovery.
    Drs(Box<DrsFlags>),
    /// Long documents, within a provider's quota.
    Translate { flags: Box<TranslateFlags>, server: Option<Server> },
    /// Print a completion script.
    Completions(Shell),
}

/// A broker that a command needs: the one that is named, or else the one that the configuration starts.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) url: Option<BrokerUrl>,
    pub(crate) credentials: Credentials,
}

/// What the flags of `serve` put before the configuration.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) http: Option<SocketAddr>,
    pub(crate) resp: Option<Listen>,
    pub(crate) grpc: Option<Listen>,
    pub(crate) data: Option<PathBuf>,
    pub(crate) allow_anonymous: bool,
    pub(crate) log: Option<LogFormat>,
}

/// Which entries `repair` lists, and whether it mends them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repairing {
    /// Entries that are more than this ahead.
    pub(crate) ahead_max: Span,
    pub(crate) yes: bool,
    /// Whether the clock counts more than the time that the store last saw.
    pub(crate) clock_is_right: bool,
}

/// One question. It is the same for a store that is opened here and for a broker.
#[derive(Debug)]
pub(crate) enum Call {
    Acquire(AcquireRequest),
    Settle(SettleRequest),
    Release(PermitRequest),
    Renew(PermitRequest),
    Standing(StandingQuery),
    Reset(StandingQuery),
    Violation(ViolationRequest),
    Policies,
    Override { of: StandingQuery, limits: Vec<LimitSpec> },
    Restore(StandingQuery),
}

impl Call {
    /// Whether it is about entries of the store, not about policies and overrides alone.
    pub(crate) const fn needs_store(&self) -> bool {
        !matches!(self, Self::Policies | Self::Override { .. } | Self::Restore(_))
    }
}

impl Intent {
    /// What the flags mean.
    pub(crate) fn of(cli: Cli) -> Result<Self, Error> {
        let Cli { global, command } = cli;
        let reader = global.reader();
        let url: Option<BrokerUrl> = global.server.as_deref().map(str::parse).transpose()?;
        let shows = global.client_cert.zip(global.client_key);
        let shows = shows.map(|(certificate, key)| Shows { certificate, key });
        let credentials = Credentials { authority: global.authority, shows };
        let at_configured = url.is_none()
            && matches!(command, Command::Top(_) | Command::Audit(AuditCommand::Denials(_)));
        if let Some(flag) = credentials.flag()
            && !at_configured
            && !url.as_ref().is_some_and(BrokerUrl::is_https)
        {
            let text = format!("{flag} is for a broker with TLS; add --server https://…");
            return Err(invalid(text));
        }
        let broker = Broker { url: url.clone(), credentials: credentials.clone() };
        let server = url.map(|url| credentials.at(url));
        let is_remote = server.is_some();
        let mut backoff = BackoffFlags::Unset;
        if let Command::Acquire(Acquire { backoff: given, jitter, .. }) = &command {
            backoff = BackoffFlags::parse(given.as_deref(), *jitter)?;
        }
        let call = |call| Action::Call { call, server: server.clone(), backoff };
        let action = match command {
            Command::Acquire(acquire) => call(Call::Acquire(AcquireRequest {
                costs: named_costs(acquire.costs.iter().map(String::as_str))?,
                wait_ms: acquire.wait.as_deref().map(wait_ms).transpose()?,
                policy: acquire.policy,
                subject: acquire.subject,
                id: acquire.id,
                ..AcquireRequest::default()
            })),
            Command::Settle(settle) => call(Call::Settle(SettleRequest {
                permit: settle.permit,
                actual: named_costs(settle.actual.iter().map(String::as_str))?,
            })),
            Command::Release(of) => call(Call::Release(PermitRequest { permit: of.permit })),
            Command::Renew(of) => call(Call::Renew(PermitRequest { permit: of.permit })),
            Command::Standing(of) => {
                call(Call::Standing(StandingQuery { policy: of.policy, subject: of.subject }))
            }
            Command::Reset(of) => {
                call(Call::Reset(StandingQuery { policy: of.policy, subject: of.subject }))
            }
            Command::Violation(violation) => {
                let request = ViolationRequest {
                    retry_after_ms: violation.retry_after.parse::<Span>()?.as_millis_ceil(),
                    policy: violation.policy,
                    subject: violation.subject,
                    limit: violation.limit,
                    permit: violation.permit,
                };
                request.retry_after()?;
                call(Call::Violation(request))
            }
            Command::Policies(policies) => match policies.command {
                None => call(Call::Policies),
                Some(PoliciesCommand::Check { file }) => Action::Check(file),
                Some(PoliciesCommand::Override(Override { of, set, remove })) => {
                    let of = StandingQuery { policy: of.policy, subject: of.subject };
                    call(if remove {
                        Call::Restore(of)
                    } else {
                        Call::Override { of, limits: limits(&set)? }
                    })
                }
            },
            Command::Repair(_) if is_remote => {
                return Err(invalid(
                    "repair works on the store itself; leave --server out and name the broker's configuration with --config",
                ));
            }
            Command::Repair(Repair { yes, ahead, clock_is_right, .. }) => {
                Action::Repair(Repairing {
                    ahead_max: span("--ahead", &ahead, "5m")?,
                    yes,
                    clock_is_right,
                })
            }
            Command::Export(_) | Command::Import(_) if is_remote => {
                return Err(invalid(
                    "export and import work on the store itself; leave --server out and name the configuration of the store \
                     with --config",
                ));
            }
            Command::Export(export) => Action::Export(export),
            Command::Import(import) => Action::Import(import),
            Command::Lambda(_) if is_remote => {
                return Err(invalid("lambda is the broker itself; leave --server out"));
            }
            Command::Lambda(flags) => Action::Lambda(flags),
            Command::Serve(_) if is_remote => {
                return Err(invalid("serve is the broker itself; leave --server out"));
            }
            Command::Serve(Serve { http, resp, grpc, allow_anonymous, log_format, data }) => {
                Action::Serve(Serving {
                    log: log_format.as_deref().map(log).transpose()?,
                    http: http
                        .as_deref()
                        .map(|text| address("--http", text, "127.0.0.1:8080"))
                        .transpose()?,
                    resp: resp
                        .as_deref()
                        .map(|text| listen("--resp", text, "127.0.0.1:6380"))
                        .transpose()?,
                    grpc: grpc
                        .as_deref()
                        .map(|text| listen("--grpc", text, "127.0.0.1:8081"))
                        .transpose()?,
                    data,
                    allow_anonymous,
                })
            }
            Command::Keys(KeysCommand::New(new)) => Action::KeysNew(new),
            Command::Audit(AuditCommand::Incidents(_)) if is_remote => {
                return Err(invalid(
                    "this reads the file of incidents itself; leave --server out, or ask a broker with audit denials --outcome violated",
                ));
            }
            Command::Top(Top { once, standing }) => {
                let subject = standing.and_then(|words| <[String; 2]>::try_from(words).ok());
                let subject = subject.map(|[policy, subject]| StandingQuery { policy, subject });
                Action::Top { once, subject, broker }
            }
            Command::Audit(AuditCommand::Denials(denials)) => {
                Action::AuditDenials { query: audit_query(denials), broker }
            }
            Command::Dynamodb(_) | Command::Postgres(_) | Command::Audit(_) if is_remote => {
                return Err(invalid("this talks to the database itself; leave --server out"));
            }
            Command::Dynamodb(DynamodbCommand::CreateTable) => Action::DynamodbCreateTable,
            Command::Postgres(PostgresCommand::Install(install)) => {
                Action::PostgresInstall(install)
            }
            Command::Audit(AuditCommand::History(history)) => Action::AuditHistory(history),
            Command::Audit(AuditCommand::Incidents(incidents)) => Action::AuditIncidents(incidents),
            Command::Plan(_) if is_remote => {
                return Err(invalid(
                    "plan simulates, or measures the configured store; leave --server out",
                ));
            }
            Command::Plan(flags) => Action::Plan(flags),
            Command::Drs(_) if is_remote => {
                return Err(invalid(
                    "drs talks to AWS itself; leave --server out, or name a shared store in the configuration and say --shared",
                ));
            }
            Command::Drs(flags) => Action::Drs(flags),
            Command::Translate(flags) => Action::Translate { flags, server },
            Command::Completions { shell } => Action::Completions(shell),
        };
        Ok(Self { reader, config: global.config, action })
    }
}

fn audit_query(flags: AuditDenials) -> AuditQuery {
    AuditQuery {
        policy: flags.policy,
        subject: flags.subject,
        since: flags.since,
        outcome: (flags.outcome != "all").then_some(flags.outcome),
        before: flags.before,
        limit: Some(flags.limit),
    }
}

fn wait_ms(text: &str) -> Result<u64, Error> {
    let wait: Span = text.parse()?;
    if WAIT_MAX < wait {
        return Err(invalid(format!("--wait {text} is too long; at most {WAIT_MAX}")));
    }
    Ok(wait.as_millis_ceil())
}

/// The span that `flag` gives.
fn span(flag: &str, text: &str, example: &str) -> Result<Span, Error> {
    text.parse().map_err(|error| invalid(format!("{flag} {text}: {error}, as in {flag} {example}")))
}

pub(crate) fn address(flag: &str, text: &str, example: &str) -> Result<SocketAddr, Error> {
    let wrong = || invalid(format!("{flag} {text:?} is not an address and port, as in {example}"));
    text.parse().map_err(|_| wrong())
}

fn log(text: &str) -> Result<LogFormat, Error> {
    LogFormat::parse(text)
        .ok_or_else(|| invalid(format!("--log-format {text:?} is neither text nor json")))
}

fn listen(flag: &str, text: &str, example: &str) -> Result<Listen, Error> {
    Listen::parse(text).ok_or_else(|| {
        invalid(format!("{flag} {text:?} is neither an address and port, as in {example}, nor off"))
    })
}

/// What `--set` gives, in the order in which limits are named first.
fn limits(given: &[String]) -> Result<Vec<LimitSpec>, Error> {
    let mut limits: Vec<serde_json::Map<String, Value>> = Vec::new();
    for text in given {
        let parts = text.split_once('=').and_then(|(left, value)| {
            let (limit, field) = left.rsplit_once('.')?;
            Some((limit, field, value)).filter(|_| !limit.is_empty() && field != "name")
        });
        let Some((name, field, value)) = parts else {
            let text = format!(
                "--set {text:?} is not a limit, its field and a value, as in burst.capacity=100"
            );
            return Err(invalid(text));
        };
        let is_named = |limit: &&mut serde_json::Map<String, Value>| limit["name"] == name;
        let limit = match limits.iter_mut().find(is_named) {
            Some(limit) => limit,
            None => {
                limits.push([("name".to_owned(), Value::from(name))].into_iter().collect());
                limits.last_mut().ok_or_else(|| invalid("there is no limit"))?
            }
        };
        let value = value.parse::<u64>().map_or_else(|_| Value::from(value), Value::from);
        if limit.insert(field.to_owned(), value).is_some() {
            return Err(invalid(format!("--set gives {name}.{field} twice; keep one")));
        }
    }
    let limits = limits.into_iter().map(|limit| serde_json::from_value(Value::Object(limit)));
    limits
        .collect::<Result<_, _>>()
        .map_err(|error| invalid(format!("--set: {}", in_words(&error.to_string(), "an object"))))
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, text)
}
