//! The table: its creation, and the few requests that jobs need.
//!
//! A blob is split into pieces that fit into items, written once under a unique name, and then referred to. The reference ends with
//! the number of its pieces, so that a missing piece is detected.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::{Error, ErrorKind, Result};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::error::{BuildError, DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, Put, PutRequest,
    ReturnValue, ReturnValuesOnConditionCheckFailure, ScalarAttributeType, TableStatus,
    TimeToLiveSpecification, TransactWriteItem, Update, WriteRequest,
};
use tollgate::Span;
use tollgate::clock::SystemClock;
use tollgate::retry::{Backoff, ErrorClass, Retry};
use tollgate_telemetry::sinks::aws::AwsOptions;

use super::item::{Change, Expressions, Item, Key, TOKEN, integer, number, string, text, unique};

/// The version of the items.
const VERSION: u64 = 1;

/// The timeout of one attempt of a request.
const ATTEMPT_MAX: Span = Span::from_secs(10);

/// The attempts of a request, with the backoff of the SDK.
const ATTEMPTS_MAX: u32 = 6;

/// The attempts of the first request.
const OPENING_ATTEMPTS_MAX: u32 = 2;

/// The most items of one batch.
const BATCH_MAX: usize = 25;

/// How often the status of a new table is polled, or the rest of a batch is sent.
const POLLS_MAX: u32 = 60;

const BACKOFF: Backoff =
    Backoff { base: Span::from_millis(50), max: Span::from_secs(2), ..Backoff::CALL.clamped() };

/// The most bytes of one piece of a blob. An item takes 400 KB with its key.
pub(super) const PIECE_BYTES_MAX: usize = 350_000;

/// The most items of one transaction.
const TRANSACTION_MAX: usize = 100;

/// The text of the error after the last retry of a transaction.
pub(super) const CONTENDED: &str = "too many concurrent requests";

const BYTES: &str = "bytes";

/// How a transaction ended.
pub(super) enum TransactionOutcome {
    Done,
    /// Nothing was changed: the conditions at these indices did not hold.
    Refused(Vec<usize>),
}

/// A table of jobs.
pub(super) struct Table {
    client: Client,
    name: String,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Table").field(&self.name).finish()
    }
}

impl Table {
    pub(super) async fn open(name: &str, options: &AwsOptions) -> Result<Self> {
        let config = options.config("dynamodb").await?;
        let timeouts = TimeoutConfig::builder().operation_attempt_timeout(ATTEMPT_MAX.into());
        let settings = aws_sdk_dynamodb::config::Builder::from(&config)
            .timeout_config(timeouts.build())
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS_MAX));
        let table = Self { client: Client::from_conf(settings.build()), name: name.to_owned() };
        table.check_version().await?;
        Ok(table)
    }

    /// Creates a missing table, and refuses one of another version.
    async fn check_version(&self) -> Result<()> {
        let key = Key::new("version", "version");
        let asked = self.client.get_item().table_name(&self.name).set_key(Some(key.item()));
        // A configuration error is reported at once.
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
                        "the table {:?} has other keys than pk and sk; name another table for the jobs",
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
                item.insert("version".to_owned(), integer(VERSION));
                self.put(item).await
            }
        }
    }

    async fn create(&self) -> Result<()> {
        let key = |name, kind| {
            let schema = KeySchemaElement::builder().attribute_name(name).key_type(kind).build();
            let attribute = AttributeDefinition::builder()
                .attribute_name(name)
                .attribute_type(ScalarAttributeType::S)
                .build();
            Ok::<_, BuildError>((schema?, attribute?))
        };
        let (pk, pk_type) = key("pk", KeyType::Hash).map_err(unusable)?;
        let (sk, sk_type) = key("sk", KeyType::Range).map_err(unusable)?;
        let request = self.client.create_table().table_name(&self.name);
        let request =
            request.billing_mode(BillingMode::PayPerRequest).key_schema(pk).key_schema(sk);
        let made =
            request.attribute_definitions(pk_type).attribute_definitions(sk_type).send().await;
        match made {
            Ok(_) => {}
            // Another process created it.
            Err(error) if error.code() == Some("ResourceInUseException") => {}
            Err(error) => {
                let why = DisplayErrorContext(&error);
                return Err(unusable(format!(
                    "the table {:?} is missing and cannot be created ({why}); create it with deploy/translate.yaml",
                    self.name
                )));
            }
        }
        let poll = |_| async {
            let described = self.client.describe_table().table_name(&self.name).send().await;
            let described = described.map_err(|error| Some(self.failed(&error)))?;
            let status = described.table().and_then(|table| table.table_status());
            (status == Some(&TableStatus::Active)).then_some(()).ok_or(None)
        };
        let not_ready = format!("the table {:?} is not ready yet; try again", self.name);
        retry(POLLS_MAX, &not_ready, poll).await?;
        self.enable_ttl().await
    }

    async fn enable_ttl(&self) -> Result<()> {
        let ttl = TimeToLiveSpecification::builder().attribute_name("ttl").enabled(true).build();
        let ttl = ttl.map_err(unusable)?;
        let request = self.client.update_time_to_live().table_name(&self.name);
        match request.time_to_live_specification(ttl).send().await {
            // Another process enabled it.
            Err(error) if error.code() != Some("ValidationException") => Err(self.failed(&error)),
            _ => Ok(()),
        }
    }

    pub(super) async fn get(&self, key: &Key) -> Result<Option<Item>> {
        let request = self.client.get_item().table_name(&self.name).set_key(Some(key.item()));
        let found = request.consistent_read(true).send().await;
        found.map(|found| found.item).map_err(|error| self.failed(&error))
    }

    pub(super) async fn put(&self, item: Item) -> Result<()> {
        let request = self.client.put_item().table_name(&self.name).set_item(Some(item));
        request.send().await.map(drop).map_err(|error| self.failed(&error))
    }

    pub(super) async fn delete(&self, key: &Key) -> Result<()> {
        let request = self.client.delete_item().table_name(&self.name).set_key(Some(key.item()));
        request.send().await.map(drop).map_err(|error| self.failed(&error))
    }

    /// Puts many items, in any order.
    pub(super) async fn put_all(&self, items: impl Iterator<Item = Item>) -> Result<()> {
        let request = |item| {
            let put = PutRequest::builder().set_item(Some(item)).build();
            put.map(|put| WriteRequest::builder().put_request(put).build())
        };
        let requests: Result<Vec<_>, _> = items.map(request).collect();
        let requests = requests.map_err(unusable)?;
        let throttled = format!("the table {:?} is throttled", self.name);
        for batch in requests.chunks(BATCH_MAX) {
            let left = Mutex::new(batch.to_vec());
            let unsent =
                || std::mem::take(&mut *left.lock().unwrap_or_else(PoisonError::into_inner));
            let send = |_| async {
                let sent = self.client.batch_write_item().request_items(&self.name, unsent());
                let sent = sent.send().await.map_err(|error| Some(self.failed(&error)))?;
                let rest = sent.unprocessed_items.and_then(|mut all| all.remove(&self.name));
                let Some(rest) = rest.filter(|rest| !rest.is_empty()) else { return Ok(()) };
                *left.lock().unwrap_or_else(PoisonError::into_inner) = rest;
                Err(None)
            };
            retry(POLLS_MAX, &throttled, send).await?;
        }
        Ok(())
    }

    /// Returns the items of the partition `pk` whose `sk` begins with `prefix`, in order.
    pub(super) async fn query(&self, pk: &str, prefix: &str) -> Result<Vec<Item>> {
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

    /// Removes the items of the partition `pk`.
    pub(super) async fn remove_all(&self, pk: &str) -> Result<()> {
        for item in self.query(pk, "").await? {
            self.delete(&Key::new(pk, text(&item, "sk")?)).await?;
        }
        Ok(())
    }

    /// Makes `change`. Returns whether its condition held.
    pub(super) async fn update(&self, key: &Key, change: Change) -> Result<bool> {
        self.replace(key, change).await.map(|old| old.is_some())
    }

    /// Makes `change`. Returns the item as it was before, or `None` if the condition did not hold.
    ///
    /// The SDK repeats an update whose response was lost, and the condition of the repeat fails because of the first: the token
    /// identifies that. The item before is unknown then, and an empty one is returned.
    pub(super) async fn replace(&self, key: &Key, change: Change) -> Result<Option<Item>> {
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

    /// Writes all of `updates` and `items`, or nothing, and retries while it conflicts with concurrent requests. The SDK gives each
    /// transaction an idempotency token.
    pub(super) async fn transact(
        &self,
        updates: Vec<(Key, Change)>,
        items: Vec<Item>,
    ) -> Result<TransactionOutcome> {
        if TRANSACTION_MAX < updates.len() + items.len() {
            let text =
                format!("a transaction of {} items is too large", updates.len() + items.len());
            return Err(unusable(text));
        }
        let update = |(key, change): (Key, Change)| {
            let Expressions { update, condition, names, values } = change.expressions();
            let update = Update::builder()
                .table_name(&self.name)
                .set_key(Some(key.item()))
                .update_expression(update)
                .set_condition_expression(condition)
                .set_expression_attribute_names(Some(names))
                .set_expression_attribute_values(Some(values));
            Ok(TransactWriteItem::builder().update(update.build()?).build())
        };
        let put = |item: Item| {
            let put = Put::builder().table_name(&self.name).set_item(Some(item));
            Ok(TransactWriteItem::builder().put(put.build()?).build())
        };
        let writes = updates.into_iter().map(update).chain(items.into_iter().map(put));
        let writes: Result<Vec<_>, BuildError> = writes.collect();
        let writes = writes.map_err(unusable)?;
        retry(u32::MAX, CONTENDED, |_| self.transact_once(writes.clone())).await
    }

    /// Fails without an error on a conflict.
    async fn transact_once(
        &self,
        writes: Vec<TransactWriteItem>,
    ) -> Result<TransactionOutcome, Option<Error>> {
        let sent = self.client.transact_write_items().set_transact_items(Some(writes));
        let Err(error) = sent.send().await else { return Ok(TransactionOutcome::Done) };
        if error.code() == Some("TransactionInProgressException") {
            return Err(None);
        }
        let Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) =
            error.as_service_error()
        else {
            return Err(Some(self.failed(&error)));
        };
        let (mut refused, mut is_conflict) = (Vec::new(), false);
        for (index, reason) in cancelled.cancellation_reasons().iter().enumerate() {
            match reason.code() {
                Some("ConditionalCheckFailed") => refused.push(index),
                Some(
                    "TransactionConflict" | "ThrottlingError" | "ProvisionedThroughputExceeded",
                ) => is_conflict = true,
                _ => {}
            }
        }
        match is_conflict {
            _ if !refused.is_empty() => Ok(TransactionOutcome::Refused(refused)),
            true => Err(None),
            false => Err(Some(self.failed(&error))),
        }
    }

    /// Writes `bytes` in the partition `pk`, and returns the reference to them.
    pub(super) async fn put_blob(&self, pk: &str, bytes: &[u8]) -> Result<String> {
        let pieces: Vec<&[u8]> = bytes.chunks(PIECE_BYTES_MAX).collect();
        let reference = format!("{}.{}", unique(), pieces.len());
        for (number, piece) in pieces.into_iter().enumerate() {
            let mut item = Key::new(pk, piece_key(&reference, number)).item();
            item.insert(BYTES.to_owned(), AttributeValue::B(Blob::new(piece)));
            self.put(item).await?;
        }
        Ok(reference)
    }

    /// Reads the blob `reference` in the partition `pk`.
    pub(super) async fn get_blob(&self, pk: &str, reference: &str) -> Result<Vec<u8>> {
        let items = self.query(pk, &format!("{reference}#")).await?;
        join_blob(&items, reference)
    }

    /// Removes the blob `reference`.
    pub(super) async fn remove_blob(&self, pk: &str, reference: &str) -> Result<()> {
        for number in 0..piece_count(reference) {
            self.delete(&Key::new(pk, piece_key(reference, number))).await?;
        }
        Ok(())
    }

    fn failed<E, R>(&self, error: &SdkError<E, R>) -> Error
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

fn piece_key(reference: &str, number: usize) -> String {
    format!("{reference}#{number:06}")
}

fn piece_count(reference: &str) -> usize {
    let count = reference.rsplit_once('.').and_then(|(_, count)| count.parse().ok());
    count.unwrap_or(0)
}

/// Joins the pieces of the blob `reference`, which are in order.
pub(super) fn join_blob<'a>(
    pieces: impl IntoIterator<Item = &'a Item>,
    reference: &str,
) -> Result<Vec<u8>> {
    let (mut bytes, mut found) = (Vec::new(), 0);
    for piece in pieces {
        let part = piece.get(BYTES).and_then(|value| value.as_b().ok());
        bytes.extend_from_slice(part.map(Blob::as_ref).unwrap_or_default());
        found += 1;
    }
    match piece_count(reference) {
        wanted if wanted == found => Ok(bytes),
        wanted => Err(unusable(format!("{found} of {wanted} pieces of {reference} exist"))),
    }
}

/// Runs `call` until it succeeds or fails with an error. A failure without one is retried, at most `max_retries` times; then
/// `exhausted` says why it failed.
pub(super) async fn retry<T, F: Future<Output = Result<T, Option<Error>>>>(
    max_retries: u32,
    exhausted: &str,
    call: impl FnMut(u32) -> F,
) -> Result<T> {
    let classify = |error: &Option<Error>| match error {
        Some(_) => ErrorClass::Fatal,
        None => ErrorClass::Retryable,
    };
    let retry = Retry { max_retries, ..Retry::unlimited(BACKOFF) };
    let result = retry.run(&SystemClock, call, classify).await;
    result.map_err(|stopped| stopped.last.unwrap_or_else(|| unusable(exhausted)))
}

pub(super) fn unusable(text: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Store, format!("the jobs in DynamoDB cannot be used: {text}"))
}
