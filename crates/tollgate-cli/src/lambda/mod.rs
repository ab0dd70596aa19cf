//! `tollgate lambda`: the broker's HTTP calls as an AWS Lambda function, for `deploy/broker-lambda.yaml`.
//!
//! A function is frozen as soon as it has answered, and may never go on. So the store decides every ask, and everything that a
//! broker does in the background is done before the answer: what is owed to the store is posted, and the audit and the sinks
//! of telemetry are written.

mod event;
mod runtime;

use std::sync::Arc;

use tollgate::edge::environment;
use tollgate::{Clock, ErrorKind, SystemClock};
use tollgate_server::Direct;
use tollgate_server::token::{self, KEY_BYTES};

use self::event::UrlAnswer;
pub(crate) use self::runtime::Runtime;
use crate::args::Lambda;
use crate::config::{Config, StoreConfig, StrategyConfig};
use crate::failure::Failure;
use crate::log;
use crate::serve::{self, Assembled, Assembly, Stop};
use crate::telemetry::FLUSH_MAX;

/// Fewer letters are guessed.
const SECRET_LETTERS_MIN: usize = 32;

/// Answers events until Lambda ends the process, or says that it will.
pub(crate) async fn run(config: Config, flags: Lambda) -> Result<(), Failure> {
    let log = log::start(config.server.log)?;
    let ended = answer_events(config, flags).await;
    log.finish();
    ended
}

async fn answer_events(config: Config, flags: Lambda) -> Result<(), Failure> {
    let runtime = Runtime::from_environment()?;
    let mut stop = Stop::new()?;
    let kind = check(&config)?;
    let keys = serve::keys_of(&config)?;
    if keys.is_none() && !(flags.allow_anonymous || config.server.anonymous) {
        return Err(invalid(
            "anybody can call a function URL, and there is no [[key]]; make one with tollgate keys new, or let everybody in \
             with --allow-anonymous where the URL has AuthType AWS_IAM",
        ));
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let assembly = Assembly {
        config: &config,
        store: &config.store,
        url: "lambda",
        kind,
        is_loopback: false,
        permit_key: permit_key(flags.permit_key_env.as_deref())?,
    };
    let Assembled { app, running, opened } = serve::assemble(assembly, &clock).await?;
    app.replace_keys(keys);
    if flags.permit_key_env.is_none() {
        tokio::spawn(serve::adopt_keys(opened.keys(), Arc::clone(&app)));
    }
    let direct = Direct::new(app);
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
            Ok(request) => Ok(UrlAnswer::from(direct.answer(request).await)),
            Err(failure) => Err(failure),
        };
        let (written, ()) = tokio::join!(running.flush(), direct.flush());
        if !written {
            tracing::warn!("a telemetry sink did not write in time");
        }
        opened.flush(FLUSH_MAX, &*clock).await;
        if let Err(failure) = runtime.tell(event.request, answer).await {
            break Err(failure);
        }
    };
    drop(direct);
    running.drain().await;
    opened.close().await?;
    ended
}

/// The kind of the store, if functions can work with `config`.
fn check(config: &Config) -> Result<&'static str, Failure> {
    if !matches!(config.strategy, StrategyConfig::Atomic) {
        return Err(invalid(
            "a function is frozen between two events, and what it holds then is lost to the others; remove [strategy], so that \
             the store decides every ask",
        ));
    }
    if config.telemetry.cloudwatch.is_some() {
        return Err(invalid(
            "[telemetry.cloudwatch] would make a call of CloudWatch before every answer; use [telemetry.emf], which writes \
             metrics to the log of the function",
        ));
    }
    match &config.store {
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

/// The key of permits that every instance makes of the secret in `variable`; without one, that of the store.
fn permit_key(variable: Option<&str>) -> Result<Option<[u8; KEY_BYTES]>, Failure> {
    let Some(variable) = variable else { return Ok(None) };
    let secret = environment(variable).ok_or_else(|| {
        invalid(format!(
            "the variable {variable} is not set; it holds the secret that permits are sealed with"
        ))
    })?;
    let secret = secret.trim();
    if secret.chars().count() < SECRET_LETTERS_MIN {
        return Err(invalid(format!(
            "the secret in {variable} has fewer than {SECRET_LETTERS_MIN} letters; make one with openssl rand -hex 32"
        )));
    }
    Ok(Some(token::key_from(secret)))
}

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::Invalid, text)
}
