//! Requests with a timeout and a bounded number of retries.
//!
//! The SDK's own retries are off: they would hide how often an item was written. A retry is safe because every write carries a
//! token and the condition that the token is missing.

use std::sync::Arc;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{
    AttributeValue, CancellationReason, Delete, Put, ReturnValue,
    ReturnValuesOnConditionCheckFailure, TransactWriteItem,
};
use tollgate::clock::SystemClock;
use tollgate::core::Backoff;
use tollgate::internal::edge::random;
use tollgate::observe::AttemptResult;
use tollgate::{Clock, Error, ErrorKind, Span};

use crate::attempts::{Attempts, RequestObserver};
use crate::error::{AttemptError, Target};
use crate::expression::Expression;
use crate::id::IdWrite;
use crate::item::{Attributes, Item, KEY};

/// The most attempts of a request with an unknown result.
pub const ATTEMPTS_MAX: u32 = 3;

/// The most retries of a throttled request.
pub const THROTTLE_RETRIES_MAX: u32 = 5;

/// The most retries of a request that conflicts with a transaction.
pub const CONFLICT_RETRIES_MAX: u32 = 12;

/// The backoff between attempts.
const PAUSE: Backoff = Backoff {
    base: Span::from_millis(25),
    max: Span::from_millis(400),
    jitter_low: 500,
    jitter_high: 1_500,
    clamp: false,
};

/// The result of a conditional write.
#[derive(Debug)]
pub(crate) enum Written {
    /// Applied; the new item, if the service returns it.
    Applied(Option<Arc<Item>>),
    /// The condition failed; the current item, if there is one.
    Refused(Option<Arc<Item>>),
    /// The condition of the id failed; the item of the id, if there is one. The entry is unknown.
    IdRefused(Option<Arc<Item>>),
}

/// A client of one table.
#[derive(Debug)]
pub(crate) struct TableClient {
    pub(crate) client: Client,
    pub(crate) target: Target,
    pub(crate) requests: RequestObserver,
}

/// A result, its latency, and whether no earlier attempt may still be applied.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) written: Written,
    pub(crate) took: Span,
    pub(crate) is_clean: bool,
}

impl TableClient {
    /// Sends one update until its result is known.
    pub(crate) async fn update(
        &self,
        attempts: &mut Attempts<'_>,
        key: &str,
        expression: &Expression,
    ) -> Result<Delivered, Error> {
        let (names, values) = expression.clone().into_parts();
        let request = self
            .client
            .update_item()
            .table_name(&self.target.table)
            .key(KEY, AttributeValue::S(key.to_owned()))
            .update_expression(expression.update())
            .condition_expression(expression.condition())
            .set_expression_attribute_names(Some(names))
            .set_expression_attribute_values(Some(values))
            .return_values(ReturnValue::AllNew)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        deliver(attempts, || async {
            match request.clone().send().await {
                Ok(output) => Ok(Written::Applied(to_item(output.attributes))),
                Err(error) => match error.as_service_error() {
                    Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                        Ok(Written::Refused(to_item(failed.item.clone())))
                    }
                    _ => Err(self.target.classify("UpdateItem", error)),
                },
            }
        })
        .await
    }

    /// Writes a whole item under the condition of `expression`.
    pub(crate) async fn put(
        &self,
        attempts: &mut Attempts<'_>,
        key: &str,
        mut attributes: Attributes,
        expression: &Expression,
    ) -> Result<Delivered, Error> {
        attributes.insert(KEY.to_owned(), AttributeValue::S(key.to_owned()));
        let (names, values) = expression.clone().into_parts();
        let request = self
            .client
            .put_item()
            .table_name(&self.target.table)
            .set_item(Some(attributes.clone()))
            .condition_expression(expression.condition())
            .set_expression_attribute_names(Some(names))
            .set_expression_attribute_values((!values.is_empty()).then_some(values))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let written = to_item(Some(attributes));
        deliver(attempts, || async {
            match request.clone().send().await {
                Ok(_) => Ok(Written::Applied(written.clone())),
                Err(error) => match error.as_service_error() {
                    Some(PutItemError::ConditionalCheckFailedException(failed)) => {
                        Ok(Written::Refused(to_item(failed.item.clone())))
                    }
                    _ => Err(self.target.classify("PutItem", error)),
                },
            }
        })
        .await
    }

    /// Writes a whole item and that of an id in one transaction, each under its own condition.
    pub(crate) async fn transact(
        &self,
        attempts: &mut Attempts<'_>,
        key: &str,
        mut attributes: Attributes,
        condition: &Expression,
        id: &IdWrite,
    ) -> Result<Delivered, Error> {
        attributes.insert(KEY.to_owned(), AttributeValue::S(key.to_owned()));
        let table = self.target.table.as_str();
        let entry = put_in_transaction(table, attributes.clone(), condition)?;
        let id_key = AttributeValue::S(id.key.clone());
        // A transaction needs the permissions of its parts.
        let action = if id.item.is_some() { "PutItem" } else { "DeleteItem" };
        let id = match &id.item {
            Some(item) => {
                let mut item = item.clone();
                item.insert(KEY.to_owned(), id_key);
                put_in_transaction(table, item, &id.condition)?
            }
            None => {
                let (names, values) = id.condition.clone().into_parts();
                let delete = Delete::builder()
                    .table_name(table)
                    .key(KEY, id_key)
                    .condition_expression(id.condition.condition())
                    .set_expression_attribute_names(Some(names))
                    .set_expression_attribute_values(Some(values))
                    .return_values_on_condition_check_failure(
                        ReturnValuesOnConditionCheckFailure::AllOld,
                    );
                let delete = delete.build().map_err(unbuilt)?;
                TransactWriteItem::builder().delete(delete).build()
            }
        };
        let request = self.client.transact_write_items().transact_items(entry).transact_items(id);
        let written = to_item(Some(attributes));
        deliver(attempts, || async {
            match request.clone().send().await {
                Ok(_) => Ok(Written::Applied(written.clone())),
                Err(error) => match error.as_service_error() {
                    Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                        let reasons = cancelled.cancellation_reasons();
                        match refused_by(reasons) {
                            Some(written) => Ok(written),
                            None => {
                                let mut codes = reasons.iter().filter_map(|reason| reason.code());
                                let code = codes.rfind(|code| *code != "None");
                                let code = code.unwrap_or("TransactionConflict").to_owned();
                                Err(self.target.refused(action, &code, error))
                            }
                        }
                    }
                    _ => Err(self.target.classify(action, error)),
                },
            }
        })
        .await
    }

    /// Reads an item with strong consistency.
    pub(crate) async fn read(
        &self,
        attempts: &mut Attempts<'_>,
        key: &str,
    ) -> Result<Option<Arc<Item>>, Error> {
        let request = self
            .client
            .get_item()
            .table_name(&self.target.table)
            .key(KEY, AttributeValue::S(key.to_owned()))
            .consistent_read(true);
        let delivered = deliver(attempts, || async {
            match request.clone().send().await {
                Ok(output) => Ok(Written::Applied(to_item(output.item))),
                Err(error) => Err(self.target.classify("GetItem", error)),
            }
        });
        let delivered = delivered.await?;
        attempts.ended(delivered.took, AttemptResult::Answered);
        match delivered.written {
            Written::Applied(item) | Written::Refused(item) | Written::IdRefused(item) => Ok(item),
        }
    }
}

fn put_in_transaction(
    table: &str,
    item: Attributes,
    condition: &Expression,
) -> Result<TransactWriteItem, Error> {
    let (names, values) = condition.clone().into_parts();
    let put = Put::builder()
        .table_name(table)
        .set_item(Some(item))
        .condition_expression(condition.condition())
        .set_expression_attribute_names(Some(names))
        .set_expression_attribute_values((!values.is_empty()).then_some(values))
        .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
    let put = put.build().map_err(unbuilt)?;
    Ok(TransactWriteItem::builder().put(put).build())
}

fn unbuilt(error: aws_sdk_dynamodb::error::BuildError) -> Error {
    Error::new(ErrorKind::Invalid, "dynamodb: the transaction cannot be described").caused_by(error)
}

/// Returns the condition that cancelled a transaction of an entry and an id. The entry comes first: its item shows whether
/// the transaction was applied before.
fn refused_by(reasons: &[CancellationReason]) -> Option<Written> {
    let failed = |place: usize| {
        let reason = reasons.get(place)?;
        (reason.code() == Some("ConditionalCheckFailed")).then(|| to_item(reason.item.clone()))
    };
    failed(0).map(Written::Refused).or_else(|| failed(1).map(Written::IdRefused))
}

/// Sends until there is a result, within the bounds. Not `tollgate::retry::Retry`: each kind of failure has its own bound, and an
/// ambiguous one marks the result.
async fn deliver<F>(attempts: &mut Attempts<'_>, send: impl Fn() -> F) -> Result<Delivered, Error>
where
    F: Future<Output = Result<Written, AttemptError>>,
{
    let (mut throttled, mut unknown, mut conflicts) = (0, 0, 0);
    loop {
        let mark = attempts.mark();
        let sent = send().await;
        let took = attempts.passed_since(mark);
        let error = match sent {
            Ok(written) => return Ok(Delivered { written, took, is_clean: unknown == 0 }),
            Err(error) => error,
        };
        attempts.ended(took, error.tried());
        match error {
            AttemptError::Throttled(_) if throttled < THROTTLE_RETRIES_MAX => throttled += 1,
            AttemptError::Conflict(_) if conflicts < CONFLICT_RETRIES_MAX => conflicts += 1,
            AttemptError::Ambiguous(_) if unknown + 1 < ATTEMPTS_MAX => unknown += 1,
            other => return Err(other.into_error()),
        }
        pause(throttled + unknown + conflicts - 1).await;
    }
}

/// Waits before attempt number `attempt`, on the system clock, whatever clock decides.
pub(crate) async fn pause(attempt: u32) {
    let delay = PAUSE.delay(attempt, random());
    SystemClock.sleep_until(SystemClock.now() + delay).await;
}

fn to_item(attributes: Option<Attributes>) -> Option<Arc<Item>> {
    let attributes = attributes.filter(|attributes| !attributes.is_empty())?;
    Some(Arc::new(Item { attributes }))
}
