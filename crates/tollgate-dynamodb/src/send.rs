//! Attempts: one request, a bound on its time, and a bounded number of resends of exactly the same request.
//!
//! The SDK's own retries are off: they would hide how often something was written. A resend is safe because every write
//! carries a mark and the condition that the mark is not there yet.

use std::sync::Arc;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{
    AttributeValue, CancellationReason, Delete, Put, ReturnValue,
    ReturnValuesOnConditionCheckFailure, TransactWriteItem,
};
use tollgate::core::Backoff;
use tollgate::edge::random;
use tollgate::{Clock, Error, ErrorKind, Span, SystemClock, Tried};

use crate::expression::Expression;
use crate::fault::{Target, Trouble};
use crate::id::IdWrite;
use crate::item::{Attributes, Item, KEY};
use crate::tries::{Tries, Watch};

/// How often a request is sent when nobody knows what became of it (R000.10: three failures open the fallback).
pub const ATTEMPTS_MAX: u32 = 3;

/// How often a request is sent again when the service throttles (R000.11).
pub const THROTTLE_RETRIES_MAX: u32 = 5;

/// How often a request is sent again because a transaction has the item at the same time.
pub const CONFLICT_RETRIES_MAX: u32 = 12;

/// The pauses between attempts.
const PAUSE: Backoff = Backoff {
    base: Span::from_millis(25),
    max: Span::from_millis(400),
    jitter_low: 500,
    jitter_high: 1_500,
    clamp: false,
};

/// What became of a conditional write.
#[derive(Debug)]
pub(crate) enum Written {
    /// It was applied; the item afterwards, where the service returns it.
    Applied(Option<Arc<Item>>),
    /// Its condition did not hold; the item as it is, if there is one.
    Refused(Option<Arc<Item>>),
    /// The condition of the id did not hold, and nothing is known of the entry; the item of the id, if there is one.
    IdRefused(Option<Arc<Item>>),
}

/// A way to one table.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) client: Client,
    pub(crate) target: Target,
    pub(crate) watch: Watch,
}

/// A reply, how long it took, and whether an earlier attempt may still be on its way. Who asked says what it means.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) written: Written,
    pub(crate) took: Span,
    pub(crate) is_clean: bool,
}

impl Wire {
    /// Sends one update until it is known what became of it.
    pub(crate) async fn update(
        &self,
        tries: &mut Tries<'_>,
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
        deliver(tries, || async {
            match request.clone().send().await {
                Ok(output) => Ok(Written::Applied(to_item(output.attributes))),
                Err(error) => match error.as_service_error() {
                    Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                        Ok(Written::Refused(to_item(failed.item.clone())))
                    }
                    _ => Err(self.target.trouble("UpdateItem", error)),
                },
            }
        })
        .await
    }

    /// Writes a whole item under the condition of `expression`.
    pub(crate) async fn put(
        &self,
        tries: &mut Tries<'_>,
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
        deliver(tries, || async {
            match request.clone().send().await {
                Ok(_) => Ok(Written::Applied(written.clone())),
                Err(error) => match error.as_service_error() {
                    Some(PutItemError::ConditionalCheckFailedException(failed)) => {
                        Ok(Written::Refused(to_item(failed.item.clone())))
                    }
                    _ => Err(self.target.trouble("PutItem", error)),
                },
            }
        })
        .await
    }

    /// Writes a whole item and that of an id in one transaction, each under its own condition.
    pub(crate) async fn transact(
        &self,
        tries: &mut Tries<'_>,
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
        deliver(tries, || async {
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
                    _ => Err(self.target.trouble(action, error)),
                },
            }
        })
        .await
    }

    /// Reads an item as it is now.
    pub(crate) async fn read(
        &self,
        tries: &mut Tries<'_>,
        key: &str,
    ) -> Result<Option<Arc<Item>>, Error> {
        let request = self
            .client
            .get_item()
            .table_name(&self.target.table)
            .key(KEY, AttributeValue::S(key.to_owned()))
            .consistent_read(true);
        let delivered = deliver(tries, || async {
            match request.clone().send().await {
                Ok(output) => Ok(Written::Applied(to_item(output.item))),
                Err(error) => Err(self.target.trouble("GetItem", error)),
            }
        });
        let delivered = delivered.await?;
        tries.ended(delivered.took, Tried::Answered);
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

/// Which condition cancelled a transaction of an entry and an id, if one did. That of the entry comes first: its item shows
/// whether the transaction had been applied before.
fn refused_by(reasons: &[CancellationReason]) -> Option<Written> {
    let failed = |place: usize| {
        let reason = reasons.get(place)?;
        (reason.code() == Some("ConditionalCheckFailed")).then(|| to_item(reason.item.clone()))
    };
    failed(0).map(Written::Refused).or_else(|| failed(1).map(Written::IdRefused))
}

/// Sends until somebody answers, within the bounds.
async fn deliver<F>(tries: &mut Tries<'_>, send: impl Fn() -> F) -> Result<Delivered, Error>
where
    F: Future<Output = Result<Written, Trouble>>,
{
    let (mut throttled, mut unknown, mut conflicts) = (0, 0, 0);
    loop {
        let mark = tries.mark();
        let sent = send().await;
        let took = tries.passed_since(mark);
        let trouble = match sent {
            Ok(written) => return Ok(Delivered { written, took, is_clean: unknown == 0 }),
            Err(trouble) => trouble,
        };
        tries.ended(took, trouble.tried());
        match trouble {
            Trouble::Throttled(_) if throttled < THROTTLE_RETRIES_MAX => throttled += 1,
            Trouble::Conflict(_) if conflicts < CONFLICT_RETRIES_MAX => conflicts += 1,
            Trouble::Ambiguous(_) if unknown + 1 < ATTEMPTS_MAX => unknown += 1,
            other => return Err(other.into_error()),
        }
        pause(throttled + unknown + conflicts - 1).await;
    }
}

/// Waits before attempt number `attempt`, on the machine's clock: the service is a real one, whatever clock decides.
pub(crate) async fn pause(attempt: u32) {
    let delay = PAUSE.delay(attempt, random());
    SystemClock.sleep_until(SystemClock.now() + delay).await;
}

fn to_item(attributes: Option<Attributes>) -> Option<Arc<Item>> {
    let attributes = attributes.filter(|attributes| !attributes.is_empty())?;
    Some(Arc::new(Item { attributes }))
}
