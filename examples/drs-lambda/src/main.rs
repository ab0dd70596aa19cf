//! The function on Lambda: its settings come from the environment, and everything else is in the library.

use std::io::stdout;
use std::sync::Arc;

use drs_lambda::{Function, Request};
use lambda_runtime::{Error, LambdaEvent, run, service_fn};
use tollgate::edge::environment;
use tollgate::{Atomic, Gate, Span};
use tollgate_aws::drs::Settings;
use tollgate_aws::journal::Severity;
use tollgate_aws::{DrsClient, RetryConfig, SnsEscalation, throttle};
use tollgate_dynamodb::{DynamoDb, Options};
use tollgate_telemetry::sinks::aws::Place;

/// API Gateway waits 30 s for an answer, so retries of one call end before that.
const DEADLINE: Span = Span::from_secs(10);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let region = environment("AWS_REGION").ok_or("AWS_REGION is not set; Lambda sets it")?;
    let settings = Settings::from_environment()?;
    let retry = RetryConfig { deadline: Some(DEADLINE), ..RetryConfig::default() };
    let drs = DrsClient::builder(region).wait_max(DEADLINE).attempt_max(DEADLINE);
    let mut drs = settings.apply(drs, retry);
    if let Some(endpoint) = environment("DRS_ENDPOINT") {
        drs = drs.endpoint(endpoint);
    }
    if let Some(topic) = &settings.alerts_topic {
        drs = drs.escalate(Arc::new(SnsEscalation::connect(topic, &Place::default()).await?));
    }
    // One table for all instances of the function: without it, each has a rate and slots of its own.
    let gate = match environment("TOLLGATE_TABLE") {
        Some(table) => {
            let store = DynamoDb::connect(Options::new(table)).await?;
            Some(Arc::new(Atomic::new(store)) as Arc<dyn Gate>)
        }
        None => None,
    };
    let level = settings.log_level.unwrap_or(Severity::Info);
    let jobs = throttle::Settings::from_environment()?;
    let function = Function::connect(drs, jobs, gate, (level, stdout()), stdout()).await?;
    let function = &function;
    run(service_fn(|event: LambdaEvent<Request>| async move {
        Ok::<_, Error>(function.handle(&event.payload).await)
    }))
    .await
}
