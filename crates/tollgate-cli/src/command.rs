//! Runs the command that the arguments name.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::CommandFactory as _;
use tokio::runtime::{Builder, Runtime};
use tollgate::clock::SystemClock;
use tollgate::internal::edge::{environment, variables};
use tollgate::{Clock, Error, ErrorKind, Policy};
use tollgate_config::open;
use tollgate_protocol::json::{PermitRequest, PoliciesResponse, StandingQuery};
use tollgate_terminal::output::{self, OutputFormat};
use tollgate_terminal::{EXIT_DENIED, Failure};

#[cfg(feature = "gateway")]
use crate::args::GatewayCommand;
use crate::args::{
    AuditCommand, Cli, Command, DynamodbCommand, Global, KeysCommand, PoliciesCommand,
    PostgresCommand, Top,
};
use crate::backend::Backend;
use crate::backoff::BackoffFlags;
use crate::call::Call;
use crate::config::{self, ServeConfig};
#[cfg(feature = "gateway")]
use crate::gateway;
use crate::local::Local;
use crate::reload::ConfigSource;
use crate::remote::{BrokerUrl, ClientIdentity, Credentials, Remote, Server};
use crate::{
    KEY_VARIABLE, audit, convert, dynamodb, envoy_ratelimit, incidents, keys, lambda, plan,
    postgres, repair, serve, show, startup_report, top, transfer,
};

/// What the global flags say.
struct Context {
    config: Option<std::path::PathBuf>,
    format: OutputFormat,
    /// The broker of `--server`.
    url: Option<BrokerUrl>,
    /// The certificates for it.
    credentials: Credentials,
}

pub(crate) fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let Cli { global, command } = cli;
    let context = Context::new(global, &command)?;
    let (config, format) = (context.config.as_deref(), context.format);
    match command {
        Command::Acquire(args) => {
            let backoff = BackoffFlags::parse(args.backoff.as_deref(), args.jitter)?;
            return context.call(&Call::acquire(args)?, backoff);
        }
        Command::Settle(args) => return context.call_at_once(&Call::settle(args)?),
        Command::Release(args) => {
            return context.call_at_once(&Call::Release(PermitRequest { permit: args.permit }));
        }
        Command::Renew(args) => {
            return context.call_at_once(&Call::Renew(PermitRequest { permit: args.permit }));
        }
        Command::Standing(args) => return context.call_at_once(&Call::Standing(args.into())),
        Command::Reset(args) => return context.call_at_once(&Call::Reset(args.into())),
        Command::Violation(args) => return context.call_at_once(&Call::violation(args)?),
        Command::Policies(policies) => match policies.command {
            None => return context.call_at_once(&Call::Policies),
            Some(PoliciesCommand::Override(args)) => {
                return context.call_at_once(&Call::overriding(args)?);
            }
            Some(PoliciesCommand::Check { file }) => check(&file, format)?,
        },
        Command::Repair(args) => {
            context.refuse_server(
                "repair works on the store itself; leave --server out and name the broker's configuration with --config",
            )?;
            block_on(repair::run(&config::load(config)?, config, &args, format))?;
        }
        Command::Export(args) => {
            context.refuse_server(MOVES_STORE)?;
            return block_on(transfer::export(&config::load(config)?, &args, format));
        }
        Command::Import(args) => {
            context.refuse_server(MOVES_STORE)?;
            block_on(transfer::import(&config::load(config)?, &args, format))?;
        }
        Command::Convert(args) => {
            context.refuse_server("convert only reads files; leave --server out")?;
            convert::run(&args)?;
        }
        Command::EnvoyRatelimit { .. } => {
            context.refuse_server("envoy-ratelimit is the server itself; leave --server out")?;
            if config.is_some() {
                let text = "envoy-ratelimit is configured by environment variables; leave --config out, or use serve";
                return Err(Failure::new(ErrorKind::Invalid, text));
            }
            let drop_in = envoy_ratelimit::DropIn::read(variables())?;
            block_on_threads(serve::run_drop_in(drop_in, format))?;
        }
        Command::Lambda(args) => {
            context.refuse_server("lambda is the broker itself; leave --server out")?;
            block_on(lambda::run(ServeConfig::load(config)?, args))?;
        }
        Command::Serve(args) => {
            context.refuse_server("serve is the broker itself; leave --server out")?;
            let options = serve::Options::parse(args)?;
            let loaded = ServeConfig::load(config)?;
            let source = ConfigSource::File(context.config);
            block_on_threads(serve::run(source, loaded, options, format))?;
        }
        Command::Keys(KeysCommand::New(args)) => keys::new(args, format)?,
        Command::Top(Top { once, standing }) => {
            let subject = standing.and_then(|words| <[String; 2]>::try_from(words).ok());
            let subject = subject.map(|[policy, subject]| StandingQuery { policy, subject });
            block_on(top::run(&context.broker()?, subject, once, format))?;
        }
        Command::Dynamodb(DynamodbCommand::CreateTable) => {
            context.refuse_server(AT_DATABASE)?;
            block_on(dynamodb::create(config, format))?;
        }
        Command::Postgres(PostgresCommand::Install(args)) => {
            context.refuse_server(AT_DATABASE)?;
            block_on(postgres::install(args, config, format))?;
        }
        Command::Audit(AuditCommand::History(args)) => {
            context.refuse_server(AT_DATABASE)?;
            block_on(postgres::history(args, config, format))?;
        }
        Command::Audit(AuditCommand::Incidents(args)) => {
            context.refuse_server(
                "this reads the file of incidents itself; leave --server out, or ask a broker with audit denials --outcome violated",
            )?;
            incidents::list(&args, config, format)?;
        }
        Command::Audit(AuditCommand::Denials(args)) => {
            block_on(audit::denials(&context.broker()?, args, format))?;
        }
        Command::Plan(args) => {
            context.refuse_server(
                "plan simulates, or measures the configured store; leave --server out",
            )?;
            plan::run(&args, &config::load(config)?, format)?;
        }
        #[cfg(feature = "gateway")]
        Command::Gateway(GatewayCommand::Check(args)) => {
            context.refuse_server(
                "gateway check calls the upstreams itself; leave --server out and name the configuration with --config",
            )?;
            return block_on(gateway::check::run(&ServeConfig::load(config)?, &args, format));
        }
        #[cfg(not(feature = "gateway"))]
        Command::Gateway(_) => return Err(not_compiled("gateway")),
        #[cfg(feature = "drs")]
        Command::Drs(args) => {
            context.refuse_server(
                "drs talks to AWS itself; leave --server out, or name a shared store in the configuration and say --shared",
            )?;
            return block_on(tollgate_drs::command::run(*args, &config::load(config)?, format));
        }
        #[cfg(not(feature = "drs"))]
        Command::Drs(_) => return Err(not_compiled("drs")),
        #[cfg(feature = "translate")]
        Command::Translate(args) => {
            let server = context.server();
            return block_on_threads(crate::translate::run(*args, server, config, format));
        }
        #[cfg(not(feature = "translate"))]
        Command::Translate(_) => return Err(not_compiled("translate")),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut script);
            output::print_bytes(&script)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Why `--server` is refused by commands that move entries.
const MOVES_STORE: &str = "export and import work on the store itself; leave --server out and name the configuration of the store \
                           with --config";

/// Why `--server` is refused by commands on a database.
const AT_DATABASE: &str = "this talks to the database itself; leave --server out";

impl Context {
    fn new(global: Global, command: &Command) -> Result<Self, Error> {
        let format = global.format();
        let url: Option<BrokerUrl> = global.server.as_deref().map(str::parse).transpose()?;
        let identity = global.client_cert.zip(global.client_key);
        let identity = identity.map(|(certificate, key)| ClientIdentity { certificate, key });
        let credentials = Credentials { authority: global.authority, identity };
        let may_be_configured = url.is_none()
            && matches!(command, Command::Top(_) | Command::Audit(AuditCommand::Denials(_)));
        if let Some(flag) = credentials.flag()
            && !may_be_configured
            && !url.as_ref().is_some_and(BrokerUrl::is_https)
        {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("{flag} is for a broker with TLS; add --server https://…"),
            ));
        }
        Ok(Self { config: global.config, format, url, credentials })
    }

    /// Returns the broker of `--server`.
    fn server(&self) -> Option<Server> {
        self.url.clone().map(|url| Server { url, credentials: self.credentials.clone() })
    }

    fn refuse_server(&self, message: &str) -> Result<(), Failure> {
        match self.url {
            Some(_) => Err(Failure::new(ErrorKind::Invalid, message)),
            None => Ok(()),
        }
    }

    /// Connects to the broker of `--server`, or to the one that the configuration starts.
    fn broker(&self) -> Result<Remote, Failure> {
        let url = match &self.url {
            Some(url) => url.clone(),
            None => {
                let config = ServeConfig::load(self.config.as_deref())?;
                startup_report::configured_url(&config.server).parse()?
            }
        };
        if let Some(flag) = self.credentials.flag().filter(|_| !url.is_https()) {
            let message = format!(
                "{flag} is for a broker with TLS, and the configuration has no [server.tls]"
            );
            return Err(Failure::new(ErrorKind::Invalid, message));
        }
        let server = Server { url, credentials: self.credentials.clone() };
        Ok(Remote::new(server, environment(KEY_VARIABLE).as_deref())?)
    }

    fn call_at_once(&self, call: &Call) -> Result<ExitCode, Failure> {
        self.call(call, BackoffFlags::Unset)
    }

    /// Makes a call to the broker of `--server`, to the broker that holds the configured folder, or to the store.
    fn call(&self, call: &Call, backoff: BackoffFlags) -> Result<ExitCode, Failure> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let mut configured = None;
        let server = match self.server() {
            Some(server) => Ok(server),
            None => {
                let config = config::load(self.config.as_deref())?;
                configured = config.backoff;
                let served_at = open::served_at(&config.store).filter(|_| call.needs_store());
                match served_at.map(|url| url.parse()).transpose()? {
                    Some(url) => Ok(Server { url, credentials: Credentials::default() }),
                    None => Err(config),
                }
            }
        };
        let backend = match server {
            Ok(server) => Backend::Remote(Box::new(Remote::new(
                server,
                environment(KEY_VARIABLE).as_deref(),
            )?)),
            Err(config) => Backend::Local(Box::new(Local::new(config, Arc::clone(&clock)))),
        };
        let reply = block_on(backend.answer(call, backoff.over(configured), &clock))?;
        output::print(self.format, &reply, || show::reply(call, &reply))?;
        Ok(if reply.is_denied() { ExitCode::from(EXIT_DENIED) } else { ExitCode::SUCCESS })
    }
}

fn check(file: &Path, format: OutputFormat) -> Result<(), Failure> {
    let config = ServeConfig::load(Some(file))?;
    #[cfg(feature = "gateway")]
    for warning in config.gateway.iter().flat_map(|gateway| &gateway.warnings) {
        output::print_error(warning);
    }
    for warning in &config.envoy.warnings {
        output::print_error(warning);
    }
    let config = config.gates;
    let policies: PoliciesResponse = config.policies.iter().collect();
    output::print(format, &policies, || {
        let names: Vec<&str> = config.policies.iter().map(Policy::name).collect();
        let all = show::policies(&policies).replace('\n', "\n  ");
        format!("{}: ok, policies: {}\n  {all}", file.display(), names.join(", "))
    })
}

/// Runs `work` on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    runtime(Builder::new_current_thread())?.block_on(work)
}

/// Runs `work` on all cores.
fn block_on_threads<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    runtime(Builder::new_multi_thread())?.block_on(work)
}

pub(crate) fn runtime(mut builder: Builder) -> Result<Runtime, Failure> {
    builder.enable_all().build().map_err(|error| {
        Failure::new(ErrorKind::Unavailable, format!("could not start the runtime: {error}"))
    })
}

#[cfg(not(all(feature = "drs", feature = "gateway", feature = "translate")))]
fn not_compiled(feature: &str) -> Failure {
    Failure::new(
        ErrorKind::Invalid,
        format!(
            "this tollgate was built without the feature {feature}; build it with --features {feature}"
        ),
    )
}
