//! One call: each attempt takes a token and has a timeout, and failed attempts are retried.

use std::sync::Arc;

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use tollgate::Span;
use tollgate::retry::{ErrorClass, Pause, RetryError, Stopped};

use super::{DrsClient, Inner};
use crate::error::{Context, Error, Refused, RetryExhausted};
use crate::escalation::{self, Escalation};
use crate::failure::Failure;
use crate::monitor::Event;
use crate::retry::RetryOptions;

/// Why an attempt failed.
#[derive(Clone, Debug)]
pub(super) enum AttemptError {
    /// The attempt was made.
    Failed(Failure),
    /// No attempt was made, or none may follow.
    Stop(Error),
}

impl DrsClient {
    /// Returns the identity of a new call of `operation`.
    pub(crate) fn context(&self, operation: &'static str) -> Context {
        Context {
            operation,
            region: Arc::clone(&self.0.region),
            account: Arc::clone(&self.0.account),
            correlation_id: self.0.id().into(),
        }
    }

    pub(crate) fn observe(&self, event: &Event<'_>) {
        self.0.monitor.observe(event);
    }

    pub(crate) fn retry(&self) -> &RetryOptions {
        &self.0.retry
    }

    /// Takes a token and makes one attempt.
    pub(super) async fn attempt<T, E>(
        &self,
        context: &Context,
        attempt: u32,
        send: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, AttemptError>
    where
        E: std::error::Error + ProvideErrorMetadata + 'static,
    {
        let Inner { buckets, clock, wait_max, attempt_max, .. } = &*self.0;
        let bucket = buckets.for_operation(Some(context.operation));
        let taken = bucket.take(*wait_max).await;
        taken.map_err(|error| AttemptError::Stop(error.into()))?;
        let (began, since) = clock.both();
        let answer = tokio::select! {
            biased;
            answer = send => answer.map_err(|error| Failure::from_sdk_error(&error)),
            () = clock.sleep_until(began + *attempt_max) => Err(Failure::timed_out(*attempt_max)),
        };
        let took =
            Span::from_micros(clock.monotonic().as_micros().saturating_sub(since.as_micros()));
        match &answer {
            Ok(_) => bucket.succeeded(),
            Err(failure) if failure.is_throttling() => bucket.throttled(failure.retry_after).await,
            Err(_) => {}
        }
        self.observe(&Event::Attempted { context, attempt, took, failure: answer.as_ref().err() });
        answer.map_err(AttemptError::Failed)
    }

    /// Runs `attempt` with retries, and reports the result.
    pub(super) async fn call<T, F>(
        &self,
        context: &Context,
        retry: &RetryOptions,
        attempt: impl Fn(u32) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, AttemptError>>,
    {
        let answer = self.run(context, retry, attempt).await;
        self.conclude(context, answer).await
    }

    pub(super) async fn run<T, F>(
        &self,
        context: &Context,
        retry: &RetryOptions,
        attempt: impl Fn(u32) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, AttemptError>>,
    {
        let classify = |error: &AttemptError| match error {
            AttemptError::Failed(failure) => retry.classify(failure),
            AttemptError::Stop(_) => ErrorClass::Fatal,
        };
        let clock = self.clock();
        let pause = |pause: Pause<'_, AttemptError>| {
            let Pause { attempts: attempt, until: at, error } = pause;
            if let AttemptError::Failed(failure) = error {
                self.observe(&Event::Retrying { context, attempt, at, failure });
            }
            clock.sleep_until(at)
        };
        let answer = retry.retry().run_with_pause(&**clock, attempt, classify, pause).await;
        answer.map_err(|error| call_error(context, error))
    }

    /// Reports the result of a call.
    pub(super) async fn conclude<T>(
        &self,
        context: &Context,
        answer: Result<T, Error>,
    ) -> Result<T, Error> {
        self.observe(&Event::Called { context, error: answer.as_ref().err() });
        if let Err(Error::RetryExhausted(exhausted)) = &answer {
            self.observe(&Event::Exhausted(exhausted));
            self.escalate(exhausted).await;
        }
        answer
    }

    /// Notifies people. Best effort.
    async fn escalate(&self, exhausted: &RetryExhausted) {
        let Some(escalate) = &self.0.escalate else { return };
        let clock = &self.0.clock;
        let about = Escalation::from_exhausted(exhausted, clock.now());
        let sent = tokio::select! {
            sent = escalate.escalate(&about) => sent,
            () = clock.sleep_until(clock.now() + escalation::NOTIFY_MAX) => Err(escalation::timeout_error()),
        };
        if let Err(error) = sent {
            tracing::warn!(correlation_id = &*exhausted.context.correlation_id, %error, "the escalation of exhausted retries was not sent");
        }
    }
}

impl Inner {
    /// Returns 128 random bits as text.
    pub(crate) fn id(&self) -> String {
        let bits = || self.chance.draw();
        format!("{:08x}{:08x}{:08x}{:08x}", bits(), bits(), bits(), bits())
    }
}

fn call_error(context: &Context, error: RetryError<AttemptError>) -> Error {
    let RetryError { last, attempts, stopped } = error;
    match last {
        AttemptError::Stop(error) => error,
        AttemptError::Failed(failure) if stopped == Stopped::Fatal => {
            Error::Refused(Arc::new(Refused { context: context.clone(), failure }))
        }
        AttemptError::Failed(last) => Error::RetryExhausted(Arc::new(RetryExhausted {
            context: context.clone(),
            last,
            attempts,
            stopped,
        })),
    }
}
