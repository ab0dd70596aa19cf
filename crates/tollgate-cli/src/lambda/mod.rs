//! `tollgate lambda`: the HTTP API of the broker as an AWS Lambda function, for `deploy/broker-lambda.yaml`.
//!
//! A function is frozen after its response, and may never resume. So the store decides every ask, and the background work of
//! a broker is done before the response: debt to the store is posted, and the audit log and telemetry are flushed.

mod event;
mod runtime;

use std::sync::Arc;

use tollgate::clock::SystemClock;
use tollgate::internal::edge::environment;
use tollgate::{Clock, ErrorKind};
use tollgate_protocol::permit_token::{self, KEY_BYTES};
use tollgate_server::HttpHandler;

use self::event::UrlResponse;
pub(crate) use self::runtime::Runtime;
use crate::args::Lambda;
use tollgate_config::{StoreConfig, StrategyConfig};

use crate::config::ServeConfig;
use crate::log;
use crate::serve::{self, Assembled, Assembly, Stop};
use tollgate_config::open::SHUTDOWN_MAX;
use tollgate_config::sinks::FLUSH_MAX;
use tollgate_terminal::Failure;

/// The shortest secret that cannot be guessed.
const SECRET_CHARS_MIN: usize = 32;

/// Handles events until Lambda stops the process.
pub(crate) async fn run(config: ServeConfig, flags: Lambda) -> Result<(), Failure> {
    let log = log::start(config.server.log)?;
    let ended = handle_events(config, flags).await;
    log.finish();
    ended
}

async fn handle_events(config: ServeConfig, flags: Lambda) -> Result<(), Failure> {
    let runtime = Runtime::from_environment()?;
    let mut stop = Stop::new()?;
    let kind = check(&config)?;
    let keys = serve::read_keys(&config)?;
    if keys.is_none() && !(flags.allow_anonymous || config.server.anonymous) {
        return Err(invalid(
            "anyone can call a function URL, and there is no [[key]]; create one with tollgate keys new, or allow calls without a key \
             with --allow-anonymous where the URL has AuthType AWS_IAM",
        ));
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let assembly = Assembly {
        config: &config,
        store: &config.gates.store,
        url: "lambda",
        kind,
        is_loopback: false,
        permit_key: permit_key(flags.permit_key_env.as_deref())?,
        only_rate_limits: false,
    };
    let Assembled { app, running, opened } = serve::assemble(assembly, &clock).await?;
    app.replace_keys(keys);
    if flags.permit_key_env.is_none() {
        tokio::spawn(serve::adopt_keys(opened.keys(), Arc::clone(&app)));
    }
    let handler = HttpHandler::new(app);
    let ended = loop {
        let event = tokio::select! {
            biased;
            () = stop.next() => break Ok(()),
            event = runtime.next() => event,
        };
        let event = match event {
            Ok(event) => event,
            Err(failure) => break Err(failure),
        };
        let answer = match event::request(&event.body) {
            Ok(request) => Ok(UrlResponse::from(handler.handle(request).await)),
            Err(failure) => Err(failure),
        };
        let (written, ()) = tokio::join!(running.flush(), handler.flush());
        if !written {
            tracing::warn!("a telemetry sink did not write in time");
        }
        opened.flush(FLUSH_MAX, &*clock).await;
        if let Err(failure) = runtime.post_result(event.request, answer).await {
            break Err(failure);
        }
    };
    drop(handler);
    running.shutdown(clock.now() + SHUTDOWN_MAX).await;
    opened.shutdown(clock.now() + SHUTDOWN_MAX).await?;
    ended
}

/// Returns the kind of the store, if a function can run on `config`.
fn check(config: &ServeConfig) -> Result<&'static str, Failure> {
    #[cfg(feature = "gateway")]
    if config.gateway.is_some() {
        return Err(invalid(
            "a function answers one event at a time, and calls of a gateway wait; remove [gateway], and run it with tollgate serve",
        ));
    }
    if !matches!(config.gates.strategy, StrategyConfig::Atomic) {
        return Err(invalid(
            "a function is frozen between two events, and tokens that it holds are lost to the others; remove [strategy], so that \
             the store decides every ask",
        ));
    }
    if config.gates.telemetry.cloudwatch.is_some() {
        return Err(invalid(
            "[telemetry.cloudwatch] would call CloudWatch before every response; use [telemetry.emf], which writes \
             metrics to the log of the function",
        ));
    }
    match &config.gates.store {
        StoreConfig::DynamoDb(_) => Ok("dynamodb"),
        StoreConfig::Redis(_) => Ok("redis"),
        StoreConfig::Postgres(_) => Ok("postgres"),
        StoreConfig::Broker(_) => Ok("broker"),
        StoreConfig::Memory { .. } | StoreConfig::Embedded { .. } => Err(invalid(
            "instances of a function share no memory and no disk; configure [store] kind = \"dynamodb\", \"redis\" or \
             \"postgres\"",
        )),
    }
}

/// Derives the key that permits are sealed with from the secret in `variable`; `None` for the key in the store.
fn permit_key(variable: Option<&str>) -> Result<Option<[u8; KEY_BYTES]>, Failure> {
    let Some(variable) = variable else { return Ok(None) };
    let secret = environment(variable).ok_or_else(|| {
        invalid(format!(
            "the variable {variable} is not set; it holds the secret that permits are sealed with"
        ))
    })?;
    let secret = secret.trim();
    if secret.chars().count() < SECRET_CHARS_MIN {
        return Err(invalid(format!(
            "the secret in {variable} has fewer than {SECRET_CHARS_MIN} letters; make one with openssl rand -hex 32"
        )));
    }
    Ok(Some(permit_token::key_from(secret)))
}

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::Invalid, text)
}
