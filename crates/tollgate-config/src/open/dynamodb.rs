//! A DynamoDB table as the store.

use std::sync::Arc;

use tollgate::observe::Observer;
use tollgate::{Clock, Error, Span};
use tollgate_dynamodb::{DynamoDb, Options};

use super::random_bytes;
use super::remote::Remote;
use crate::DynamoDbConfig;

pub(super) async fn open(
    config: &DynamoDbConfig,
    timeout: Span,
    clock: Arc<dyn Clock>,
    observer: Option<Arc<dyn Observer>>,
) -> Result<Remote, Error> {
    let mut options = dynamodb_options(config)?.attempt_timeout(timeout).clock(clock);
    if let Some(observer) = observer {
        options = options.observer(observer);
    }
    let store = DynamoDb::open(options).await?;
    // Programs on one table accept each other's permits.
    let key = store.permit_key(random_bytes()?).await?;
    let store = Arc::new(store);
    Ok(Remote { gate: Arc::clone(&store) as _, key, overrides: store, chore: None })
}

/// Returns how to reach the configured table.
pub fn dynamodb_options(config: &DynamoDbConfig) -> Result<Options, Error> {
    let mut options = Options::new(&config.table);
    if let Some(region) = &config.region {
        options = options.region(region);
    }
    if let Some(endpoint) = &config.endpoint {
        options = options.endpoint(endpoint);
    }
    if let Some(format) = config.format {
        options = options.format(format)?;
    }
    Ok(options)
}
