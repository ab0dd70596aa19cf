//! The function on Lambda: its settings come from the environment, and everything else is in the library.

use std::io::stdout;
use std::sync::Arc;

use drs_lambda::{Function, Request};
use lambda_runtime::{Error, LambdaEvent, run, service_fn};
use tollgate::edge::environment;
use tollgate::{Atomic, Gate, Span};
use tollgate_aws::throttle::Settings;
use tollgate_aws::{DrsClient, RetryConfig};
use tollgate_dynamodb::{DynamoDb, Options};

/// API Gateway waits 30 s for an answer, so retries of one call end before that.
const DEADLINE: Span = Span::from_secs(10);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let region = environment("AWS_REGION").ok_or("AWS_REGION is not set; Lambda sets it")?;
    let retry = RetryConfig { deadline: Some(DEADLINE), ..RetryConfig::default() };
    let mut drs = DrsClient::builder(region).retry(retry).wait_max(DEADLINE).attempt_max(DEADLINE);
    if let Some(endpoint) = environment("DRS_ENDPOINT") {
        drs = drs.endpoint(endpoint);
    }
    // One table for all instances of the function: without it, each has a rate and slots of its own.
    let gate = match environment("TOLLGATE_TABLE") {
        Some(table) => {
            let store = DynamoDb::connect(Options::new(table)).await?;
            Some(Arc::new(Atomic::new(store)) as Arc<dyn Gate>)
        }
        None => None,
    };
    let settings = Settings::from_environment()?;
    let function = Function::connect(drs, settings, gate, stdout(), stdout()).await?;
    let function = &function;
    run(service_fn(|event: LambdaEvent<Request>| async move {
        Ok::<_, Error>(function.handle(&event.payload).await)
    }))
    .await
}
