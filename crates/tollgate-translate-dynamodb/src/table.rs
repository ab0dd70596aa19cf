//! The table: made on demand, and the few requests that jobs need of it.

use std::fmt;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, PutRequest, ReturnValue,
    ReturnValuesOnConditionCheckFailure, ScalarAttributeType, TableStatus, TimeToLiveSpecification,
    WriteRequest,
};
use tollgate::{Backoff, Clock as _, Span, SystemClock, edge};
use tollgate_telemetry::sinks::aws::Place;
use tollgate_translate::{Error, ErrorKind};

use crate::change::{Change, Expressions, TOKEN};
use crate::item::{Item, Key, number, string, unique};

/// The version of the items.
const VERSION: u64 = 1;

/// How long one attempt of a request may take.
const ATTEMPT_MAX: Span = Span::from_secs(10);

/// How often a request is sent, with the pauses of the SDK.
const ATTEMPTS_MAX: u32 = 6;

/// How often the first request is sent.
const OPENING_ATTEMPTS_MAX: u32 = 2;

/// The most items of one batch.
const BATCH_MAX: usize = 25;

/// How often a new table, or the rest of a batch, is looked at again.
const LOOKS_MAX: u32 = 60;

const BACKOFF: Backoff = Backoff {
    base: Span::from_millis(50),
    max: Span::from_secs(2),
    jitter_low: 500,
    jitter_high: 1_500,
    clamp: true,
};

/// A table of jobs.
pub(crate) struct Table {
    pub(crate) client: Client,
    pub(crate) name: String,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Table").field(&self.name).finish()
    }
}

impl Table {
    pub(crate) async fn open(name: &str, place: &Place) -> Result<Self, Error> {
        let config = place.config("dynamodb").await?;
        let timeouts = TimeoutConfig::builder().operation_attempt_timeout(ATTEMPT_MAX.into());
        let settings = aws_sdk_dynamodb::config::Builder::from(&config)
            .timeout_config(timeouts.build())
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS_MAX));
        let table = Self { client: Client::from_conf(settings.build()), name: name.to_owned() };
        table.check_version().await?;
        Ok(table)
    }

    /// Makes the table if it is missing, and refuses one of another version.
    async fn check_version(&self) -> Result<(), Error> {
        let key = Key::new("version", "version");
        let asked = self.client.get_item().table_name(&self.name).set_key(Some(key.item()));
        // A mistake in the configuration is told at once.
        let once = aws_sdk_dynamodb::Config::builder()
            .retry_config(RetryConfig::standard().with_max_attempts(OPENING_ATTEMPTS_MAX));
        let asked = asked.consistent_read(true).customize().config_override(once);
        let found = match asked.send().await {
            Ok(found) => found.item,
            Err(error) if error.code() == Some("ResourceNotFoundException") => {
                self.create().await?;
                None
            }
            Err(error) if error.code() == Some("ValidationException") => {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!(
                        "the table {:?} has other keys than pk and sk, which jobs need; name a table of their own",
                        self.name
                    ),
                ));
            }
            Err(error) => return Err(self.failed(&error)),
        };
        match found.map(|item| number(&item, "version")) {
            Some(VERSION) => Ok(()),
            Some(other) => Err(unusable(format!(
                "the table {:?} is of version {other}, and this program knows {VERSION}; use a newer program",
                self.name
            ))),
            None => {
                let mut item = key.item();
                item.insert("version".to_owned(), crate::item::integer(VERSION));
                self.put(item).await
            }
        }
    }

    async fn create(&self) -> Result<(), Error> {
        let wrong = |error: aws_sdk_dynamodb::error::BuildError| unusable(error.to_string());
        let key = |name, kind| {
            let schema = KeySchemaElement::builder().attribute_name(name).key_type(kind).build();
            let attribute = AttributeDefinition::builder()
                .attribute_name(name)
                .attribute_type(ScalarAttributeType::S)
                .build();
            Ok::<_, aws_sdk_dynamodb::error::BuildError>((schema?, attribute?))
        };
        let (pk, pk_type) = key("pk", KeyType::Hash).map_err(wrong)?;
        let (sk, sk_type) = key("sk", KeyType::Range).map_err(wrong)?;
        let request = self.client.create_table().table_name(&self.name);
        let request =
            request.billing_mode(BillingMode::PayPerRequest).key_schema(pk).key_schema(sk);
        let made =
            request.attribute_definitions(pk_type).attribute_definitions(sk_type).send().await;
        match made {
            Ok(_) => {}
            // Of many that find it missing one makes it.
            Err(error) if error.code() == Some("ResourceInUseException") => {}
            Err(error) => {
                let why = DisplayErrorContext(&error);
                return Err(unusable(format!(
                    "the table {:?} is missing and cannot be made ({why}); make it with deploy/translate.yaml",
                    self.name
                )));
            }
        }
        for look in 0..LOOKS_MAX {
            let described = self.client.describe_table().table_name(&self.name).send().await;
            let described = described.map_err(|error| self.failed(&error))?;
            let status = described.table().and_then(|table| table.table_status());
            if status == Some(&TableStatus::Active) {
                return self.switch_ttl_on().await;
            }
            pause(look).await;
        }
        Err(unusable(format!("the table {:?} is not ready yet; try again", self.name)))
    }

    async fn switch_ttl_on(&self) -> Result<(), Error> {
        let ttl = TimeToLiveSpecification::builder().attribute_name("ttl").enabled(true).build();
        let ttl = ttl.map_err(|error| unusable(error.to_string()))?;
        let request = self.client.update_time_to_live().table_name(&self.name);
        match request.time_to_live_specification(ttl).send().await {
            // It is on already where another process made the table.
            Err(error) if error.code() != Some("ValidationException") => Err(self.failed(&error)),
            _ => Ok(()),
        }
    }

    pub(crate) async fn get(&self, key: &Key) -> Result<Option<Item>, Error> {
        let request = self.client.get_item().table_name(&self.name).set_key(Some(key.item()));
        let found = request.consistent_read(true).send().await;
        found.map(|found| found.item).map_err(|error| self.failed(&error))
    }

    pub(crate) async fn put(&self, item: Item) -> Result<(), Error> {
        let request = self.client.put_item().table_name(&self.name).set_item(Some(item));
        request.send().await.map(drop).map_err(|error| self.failed(&error))
    }

    pub(crate) async fn delete(&self, key: &Key) -> Result<(), Error> {
        let request = self.client.delete_item().table_name(&self.name).set_key(Some(key.item()));
        request.send().await.map(drop).map_err(|error| self.failed(&error))
    }

    /// Puts many items, in no order.
    pub(crate) async fn put_all(&self, items: impl Iterator<Item = Item>) -> Result<(), Error> {
        let request = |item| {
            let put = PutRequest::builder().set_item(Some(item)).build();
            put.map(|put| WriteRequest::builder().put_request(put).build())
        };
        let requests: Result<Vec<_>, _> = items.map(request).collect();
        let requests = requests.map_err(|error| unusable(error.to_string()))?;
        for batch in requests.chunks(BATCH_MAX) {
            let mut left = batch.to_vec();
            let mut look = 0;
            while !left.is_empty() {
                if LOOKS_MAX < look {
                    return Err(unusable(format!("the table {:?} is throttled", self.name)));
                }
                if 0 < look {
                    pause(look).await;
                }
                let sent = self.client.batch_write_item().request_items(&self.name, left);
                let sent = sent.send().await.map_err(|error| self.failed(&error))?;
                let rest = sent.unprocessed_items.and_then(|mut all| all.remove(&self.name));
                left = rest.unwrap_or_default();
                look += 1;
            }
        }
        Ok(())
    }

    /// The items of the partition `pk` whose `sk` begins with `prefix`, in order.
    pub(crate) async fn query(&self, pk: &str, prefix: &str) -> Result<Vec<Item>, Error> {
        let mut request = self
            .client
            .query()
            .table_name(&self.name)
            .consistent_read(true)
            .expression_attribute_values(":pk", string(pk));
        request = if prefix.is_empty() {
            request.key_condition_expression("pk = :pk")
        } else {
            request
                .key_condition_expression("pk = :pk AND begins_with(sk, :sk)")
                .expression_attribute_values(":sk", string(prefix))
        };
        let (mut items, mut from) = (Vec::new(), None);
        loop {
            let page = request.clone().set_exclusive_start_key(from).send().await;
            let page = page.map_err(|error| self.failed(&error))?;
            items.extend(page.items.unwrap_or_default());
            from = page.last_evaluated_key;
            if from.is_none() {
                return Ok(items);
            }
        }
    }

    /// Removes everything in the partition `pk`.
    pub(crate) async fn remove_all(&self, pk: &str) -> Result<(), Error> {
        for item in self.query(pk, "").await? {
            self.delete(&Key::new(pk, crate::item::text(&item, "sk")?)).await?;
        }
        Ok(())
    }

    /// Makes `change`. Returns whether its condition held.
    pub(crate) async fn update(&self, key: &Key, change: Change) -> Result<bool, Error> {
        self.replace(key, change).await.map(|old| old.is_some())
    }

    /// Makes `change`. Returns the item as it was before, or `None` if the condition did not hold.
    ///
    /// An update whose answer was lost is sent again by the SDK, and would find its own change in the way: the token tells.
    /// What was there before is not known then, and nothing is returned of it.
    pub(crate) async fn replace(&self, key: &Key, change: Change) -> Result<Option<Item>, Error> {
        let token = unique();
        let Expressions { update, condition, names, values } =
            change.set(TOKEN, string(&token)).expressions();
        let request = self
            .client
            .update_item()
            .table_name(&self.name)
            .set_key(Some(key.item()))
            .update_expression(update)
            .set_condition_expression(condition)
            .set_expression_attribute_names(Some(names))
            .set_expression_attribute_values(Some(values))
            .return_values(ReturnValue::AllOld)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        match request.send().await {
            Ok(made) => Ok(Some(made.attributes.unwrap_or_default())),
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                    let last = failed.item().and_then(|item| item.get(TOKEN));
                    Ok((last == Some(&string(&token))).then(Item::new))
                }
                _ => Err(self.failed(&error)),
            },
        }
    }

    pub(crate) fn failed<E, R>(&self, error: &SdkError<E, R>) -> Error
    where
        E: std::error::Error + ProvideErrorMetadata + 'static,
        R: fmt::Debug,
    {
        let hint = match (error, error.code()) {
            (_, Some("AccessDeniedException")) => {
                "; allow dynamodb:GetItem, PutItem, UpdateItem, DeleteItem, BatchWriteItem and Query on the table"
            }
            (
                _,
                Some(
                    "UnrecognizedClientException"
                    | "ExpiredTokenException"
                    | "InvalidSignatureException",
                ),
            ) => "; renew the credentials, or check the region",
            (SdkError::DispatchFailure(_) | SdkError::TimeoutError(_), _) => {
                "; check endpoint, region and credentials"
            }
            _ => "",
        };
        unusable(format!("table {:?}: {}{hint}", self.name, DisplayErrorContext(error)))
    }
}

pub(crate) async fn pause(look: u32) {
    let wait = BACKOFF.delay(look, edge::random());
    SystemClock.sleep_until(SystemClock.now() + wait).await;
}

pub(crate) fn unusable(text: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Store, format!("the jobs in DynamoDB cannot be used: {text}"))
}
