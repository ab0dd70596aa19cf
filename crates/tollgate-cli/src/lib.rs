#![doc = include_str!("../README.md")]

mod args;
mod audit;
mod backend;
mod backoff;
mod broker;
mod config;
mod consent;
mod destination;
mod drs;
mod dynamodb;
mod failure;
mod files;
mod incidents;
mod intent;
mod keys;
mod lambda;
mod lines;
mod local;
mod log;
mod notify;
mod open;
mod output;
mod place;
mod plan;
mod postgres;
mod reload;
mod remote;
mod repair;
mod reply;
mod serve;
mod show;
mod strategy;
mod telemetry;
mod top;
mod transfer;
mod translate;
mod view;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, Parser};
use tokio::runtime::{Builder, Runtime};
use tollgate::edge::environment;
use tollgate::{Clock, ErrorKind, Policy, SystemClock};
use tollgate_server::wire::{PoliciesResponse, Problem};

use args::Cli;
use backend::Backend;
use backoff::BackoffFlags;
use config::Config;
use failure::Failure;
use intent::{Action, Broker, Call, Intent};
use local::Local;
use output::Reader;
use remote::{Remote, Server};

/// The variable with the key for a broker that asks for one. A flag would be seen by everybody who lists processes.
const KEY_VARIABLE: &str = "TOLLGATE_KEY";

/// The exit status of a denial.
const DENIED: u8 = 1;

/// The exit status of everything that could not be done; clap uses it too.
const FAILED: u8 = 2;

/// Does what the arguments of this process say.
pub fn main() -> ExitCode {
    // A process of `plan --measure` is no command of its own: it gets its work from its parent.
    if std::env::args_os().nth(1).is_some_and(|word| word == plan::WORKER) {
        return match plan::work() {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                output::error(&failure.to_string());
                ExitCode::from(FAILED)
            }
        };
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && args::asks_for_json(std::env::args_os()) => {
            drop(output::json(&Problem::invalid(args::for_programs(&error))));
            return ExitCode::from(FAILED);
        }
        Err(error) => error.exit(),
    };
    let reader = cli.global.reader();
    match run(cli) {
        Ok(code) => code,
        Err(failure) => {
            match reader {
                Reader::Person => output::error(&failure.to_string()),
                // Programs read one document from one place, whatever happened. If even that place is gone, the
                // status remains.
                Reader::Program => drop(output::json(&failure.problem())),
            }
            ExitCode::from(FAILED)
        }
    }
}

/// What is wrong with `text` as a configuration, for the fuzzer in `fuzz/`.
#[cfg(fuzzing)]
pub fn check_text(text: &str) -> Option<String> {
    Config::parse(None, text).err().map(|blame| blame.to_string())
}

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let Intent { config, action, reader } = Intent::of(cli)?;
    match action {
        Action::Completions(shell) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut script);
            output::bytes(&script)?;
        }
        Action::Check(file) => check(&file, reader)?,
        Action::Lambda(flags) => {
            let loaded = Config::load(config.as_deref())?;
            runtime(Builder::new_current_thread())?.block_on(lambda::run(loaded, flags))?;
        }
        Action::Serve(flags) => {
            let loaded = Config::load(config.as_deref())?;
            let work = serve::run(config, loaded, flags, reader);
            runtime(Builder::new_multi_thread())?.block_on(work)?;
        }
        Action::Repair(wanted) => {
            let named = config.as_deref();
            let loaded = Config::load(named)?;
            let work = repair::run(&loaded, named, wanted, reader);
            runtime(Builder::new_current_thread())?.block_on(work)?;
        }
        Action::Export(flags) => {
            let loaded = Config::load(config.as_deref())?;
            let work = transfer::export(&loaded, &flags, reader);
            return runtime(Builder::new_current_thread())?.block_on(work);
        }
        Action::Import(flags) => {
            let loaded = Config::load(config.as_deref())?;
            let work = transfer::import(&loaded, &flags, reader);
            runtime(Builder::new_current_thread())?.block_on(work)?;
        }
        Action::KeysNew(wanted) => keys::new(wanted, reader)?,
        Action::DynamodbCreateTable => {
            let work = dynamodb::create(config.as_deref(), reader);
            runtime(Builder::new_current_thread())?.block_on(work)?;
        }
        Action::PostgresInstall(install) => {
            let work = postgres::install(install, config.as_deref(), reader);
            runtime(Builder::new_current_thread())?.block_on(work)?;
        }
        Action::AuditHistory(history) => {
            let work = postgres::history(history, config.as_deref(), reader);
            runtime(Builder::new_current_thread())?.block_on(work)?;
        }
        Action::AuditIncidents(incidents) => {
            incidents::list(&incidents, config.as_deref(), reader)?;
        }
        Action::Drs(flags) => {
            let work = drs::run(*flags, config.as_deref(), reader);
            return runtime(Builder::new_current_thread())?.block_on(work);
        }
        Action::Translate { flags, server } => {
            let work = translate::run(*flags, server, config.as_deref(), reader);
            return runtime(Builder::new_multi_thread())?.block_on(work);
        }
        Action::Plan(flags) => plan::run(&flags, &Config::load(config.as_deref())?, reader)?,
        Action::AuditDenials { query, broker } => {
            audit::denials(&remote(broker, config.as_deref())?, &query, reader)?;
        }
        Action::Top { once, subject, broker } => {
            top::run(&remote(broker, config.as_deref())?, subject, once, reader)?;
        }
        Action::Call { call, server, backoff } => {
            return answer(call, backoff, server, config.as_deref(), reader);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn check(file: &Path, reader: Reader) -> Result<(), Failure> {
    let config = Config::load(Some(file))?;
    let policies: PoliciesResponse = config.policies.iter().collect();
    output::answer(reader, &policies, || {
        let names: Vec<&str> = config.policies.iter().map(Policy::name).collect();
        let all = show::policies(&policies).replace('\n', "\n  ");
        format!("{}: ok, policies: {}\n  {all}", file.display(), names.join(", "))
    })
}

fn answer(
    call: Call,
    backoff: BackoffFlags,
    server: Option<Server>,
    config: Option<&Path>,
    reader: Reader,
) -> Result<ExitCode, Failure> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let mut configured = None;
    let backend = match server {
        Some(server) => Backend::Remote(Remote::new(server, environment(KEY_VARIABLE))?),
        None => {
            let config = Config::load(config)?;
            configured = config.backoff;
            let served_at = open::served_at(&config.store).filter(|_| call.needs_store());
            match served_at.map(|url| url.parse()).transpose()? {
                Some(url) => {
                    let server = Server { url, authority: None, shows: None };
                    Backend::Remote(Remote::new(server, environment(KEY_VARIABLE))?)
                }
                None => Backend::Local(Box::new(Local::new(config, Arc::clone(&clock)))),
            }
        }
    };
    let question = show::Question::of(&call);
    let work = backend.answer(call, backoff.over(configured), &clock);
    let reply = runtime(Builder::new_current_thread())?.block_on(work)?;
    output::answer(reader, &reply, || show::reply(&question, &reply))?;
    Ok(if reply.is_denied() { ExitCode::from(DENIED) } else { ExitCode::SUCCESS })
}

/// The broker that is named, or the one that the configuration starts.
fn remote(broker: Broker, config: Option<&Path>) -> Result<Remote, Failure> {
    let Broker { url, credentials } = broker;
    let url = match url {
        Some(url) => url,
        None => place::url_of(&Config::load(config)?.server).parse()?,
    };
    if let Some(flag) = credentials.flag().filter(|_| !url.is_https()) {
        let text =
            format!("{flag} is for a broker with TLS, and the configuration has no [server.tls]");
        return Err(Failure::new(ErrorKind::Invalid, text));
    }
    Ok(Remote::new(credentials.at(url), environment(KEY_VARIABLE))?)
}

fn runtime(mut builder: Builder) -> Result<Runtime, Failure> {
    builder.enable_all().build().map_err(|error| {
        Failure::new(ErrorKind::Unavailable, format!("could not start the runtime: {error}"))
    })
}
