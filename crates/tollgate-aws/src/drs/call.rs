//! One call: a token before each attempt, a bound on its time, one judgement of its failure, and what is told about it.

use std::sync::Arc;

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use tollgate::Span;
use tollgate::retry::{RetryError, Stopped, Worth};

use super::retry_clock::RetryClock;
use super::{DrsClient, Inner};
use crate::error::{Context, Error, Refused, RetryExhausted};
use crate::escalation::{self, Escalation};
use crate::failure::Failure;
use crate::monitor::Event;
use crate::retry::RetryConfig;

/// Why an attempt has no answer.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    /// The attempt was made.
    Failed(Failure),
    /// No attempt was made, or none may follow.
    Stop(Error),
}

impl DrsClient {
    /// Who calls `operation`, under an id of its own.
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

    pub(crate) fn retry(&self) -> &RetryConfig {
        &self.0.retry
    }

    /// One attempt of `send`, with a token.
    pub(super) async fn attempt<T, E>(
        &self,
        context: &Context,
        attempt: u32,
        send: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, Trouble>
    where
        E: std::error::Error + ProvideErrorMetadata + 'static,
    {
        let Inner { desk, clock, wait_max, attempt_max, .. } = &*self.0;
        let bucket = desk.of(Some(context.operation));
        bucket.take(*wait_max).await.map_err(Trouble::Stop)?;
        let (began, since) = clock.both();
        let answer = tokio::select! {
            biased;
            answer = send => answer.map_err(|error| Failure::of(&error)),
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
        answer.map_err(Trouble::Failed)
    }

    /// Runs `attempt` as often as `retry` allows and it is worth it, and tells what became of it.
    pub(super) async fn call<T, F>(
        &self,
        context: &Context,
        retry: &RetryConfig,
        attempt: impl Fn(u32) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Trouble>>,
    {
        let answer = self.run(context, retry, attempt).await;
        self.conclude(context, answer).await
    }

    pub(super) async fn run<T, F>(
        &self,
        context: &Context,
        retry: &RetryConfig,
        attempt: impl Fn(u32) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Trouble>>,
    {
        let judge = |trouble: &Trouble| match trouble {
            Trouble::Failed(failure) => retry.worth(failure),
            Trouble::Stop(_) => Worth::Fatal,
        };
        let clock = RetryClock::new(self, context);
        let judge = |trouble: &Trouble| {
            if let Trouble::Failed(failure) = trouble {
                clock.failed(failure);
            }
            judge(trouble)
        };
        let answer = retry.retry().run(&clock, attempt, judge).await;
        answer.map_err(|error| error_of(context, error))
    }

    /// Tells what became of a call.
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

    /// Tells people. Whether that works is nothing to the caller.
    async fn escalate(&self, exhausted: &RetryExhausted) {
        let Some(escalate) = &self.0.escalate else { return };
        let clock = &self.0.clock;
        let about = Escalation::of(exhausted, clock.now());
        let told = tokio::select! {
            told = escalate.escalate(&about) => told,
            () = clock.sleep_until(clock.now() + escalation::NOTIFY_MAX) => Err(escalation::silent()),
        };
        if let Err(error) = told {
            tracing::warn!(correlation_id = &*exhausted.context.correlation_id, %error, "nobody was told of exhausted retries");
        }
    }
}

impl Inner {
    /// A text that nobody else makes: 128 random bits.
    pub(crate) fn id(&self) -> String {
        let bits = || self.chance.draw();
        format!("{:08x}{:08x}{:08x}{:08x}", bits(), bits(), bits(), bits())
    }
}

fn error_of(context: &Context, error: RetryError<Trouble>) -> Error {
    let RetryError { last, attempts, stopped } = error;
    match last {
        Trouble::Stop(error) => error,
        Trouble::Failed(failure) if stopped == Stopped::Fatal => {
            Error::Refused(Arc::new(Refused { context: context.clone(), failure }))
        }
        Trouble::Failed(last) => Error::RetryExhausted(Arc::new(RetryExhausted {
            context: context.clone(),
            last,
            attempts,
            stopped,
        })),
    }
}
