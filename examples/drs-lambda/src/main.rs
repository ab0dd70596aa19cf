//! The function on Lambda, configured by the environment.

use std::io::stdout;
use std::sync::Arc;

use drs_lambda::{Function, Request};
use lambda_runtime::{Error, LambdaEvent, run, service_fn};
use tollgate::internal::edge::environment;
use tollgate::{Gate, Span};
use tollgate_drs::client::ClientOptions;
use tollgate_drs::journal::Severity;
use tollgate_drs::throttle::ThrottleOptions;
use tollgate_drs::{DrsClient, RetryOptions, SnsEscalation};
use tollgate_dynamodb::{DynamoDb, Options};
use tollgate_telemetry::sinks::aws::AwsOptions;

/// Retries of one call end before the 30 s timeout of API Gateway.
const DEADLINE: Span = Span::from_secs(10);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let region = environment("AWS_REGION").ok_or("AWS_REGION is not set; Lambda sets it")?;
    let settings = ClientOptions::from_environment()?;
    let retry = RetryOptions { deadline: Some(DEADLINE), ..RetryOptions::default() };
    let drs = DrsClient::builder(region).wait_max(DEADLINE).attempt_max(DEADLINE);
    let mut drs = settings.apply(drs, retry);
    if let Some(endpoint) = environment("DRS_ENDPOINT") {
        drs = drs.endpoint(endpoint);
    }
    if let Some(topic) = &settings.alerts_topic {
        drs = drs.escalate(Arc::new(SnsEscalation::open(topic, &AwsOptions::default()).await?));
    }
    // Shared by all instances of the function; without it, each has its own rate and slots.
    let gate = match environment("TOLLGATE_TABLE") {
        Some(table) => {
            let store = DynamoDb::open(Options::new(table)).await?;
            Some(Arc::new(store) as Arc<dyn Gate>)
        }
        None => None,
    };
    let level = settings.log_level.unwrap_or(Severity::Info);
    let jobs = ThrottleOptions::from_environment()?;
    let function = Function::open(drs, jobs, gate, (level, stdout()), stdout()).await?;
    let function = &function;
    run(service_fn(|event: LambdaEvent<Request>| async move {
        Ok::<_, Error>(function.handle(&event.payload).await)
    }))
    .await
}
