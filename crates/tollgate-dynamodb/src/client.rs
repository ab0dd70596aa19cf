//! Requests with a timeout and a bounded number of retries.
//!
//! The SDK's own retries are off: they would hide how often an item was written. A retry is safe because every write carries a
//! token and the condition that the token is missing. Attempts of one transaction share a client request token as well, by
//! which the service recognises them.

use std::collections::HashMap;
use std::sync::Arc;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{
    AttributeValue, CancellationReason, Delete, KeysAndAttributes, Put, ReturnValue,
    ReturnValuesOnConditionCheckFailure, TransactWriteItem, Update,
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
pub(crate) struct Delivered<T = Written> {
    pub(crate) written: T,
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
        attributes: Attributes,
        expression: &Expression,
    ) -> Result<Delivered, Error> {
        let attributes = with_key(attributes, key);
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
        attributes: Attributes,
        condition: &Expression,
        id: &IdWrite,
    ) -> Result<Delivered, Error> {
        let written = to_item(Some(with_key(attributes.clone(), key)));
        let writes = vec![self.put_write(key, attributes, condition)?, self.id_write(id)?];
        let delivered = self.transact_all(attempts, id.action(), writes).await?;
        Ok(Delivered {
            written: match delivered.written {
                Ok(()) => Written::Applied(written),
                Err(reasons) => refused_by(&reasons),
            },
            took: delivered.took,
            is_clean: delivered.is_clean,
        })
    }

    /// Sends `writes` as one transaction until its result is known: applied, or the reasons if a condition failed. `action` is
    /// named if a permission is missing: a transaction needs those of its parts.
    pub(crate) async fn transact_all(
        &self,
        attempts: &mut Attempts<'_>,
        action: &str,
        writes: Vec<TransactWriteItem>,
    ) -> Result<Delivered<Result<(), Vec<CancellationReason>>>, Error> {
        let token: String = (0..4).map(|_| format!("{:08x}", random())).collect();
        let request = self
            .client
            .transact_write_items()
            .client_request_token(token)
            .set_transact_items(Some(writes));
        deliver(attempts, || async {
            let error = match request.clone().send().await {
                Ok(_) => return Ok(Ok(())),
                Err(error) => error,
            };
            let Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) =
                error.as_service_error()
            else {
                return Err(self.target.classify(action, error));
            };
            let reasons = cancelled.cancellation_reasons();
            if reasons.iter().any(is_refusal) {
                return Ok(Err(reasons.to_vec()));
            }
            let mut codes = reasons.iter().filter_map(|reason| reason.code());
            let code = codes.rfind(|code| *code != "None");
            let code = code.unwrap_or("TransactionConflict").to_owned();
            Err(self.target.refused(action, &code, error))
        })
        .await
    }

    /// Returns the write of a whole item, for a transaction.
    pub(crate) fn put_write(
        &self,
        key: &str,
        item: Attributes,
        condition: &Expression,
    ) -> Result<TransactWriteItem, Error> {
        let (names, values) = condition.clone().into_parts();
        let put = Put::builder()
            .table_name(&self.target.table)
            .set_item(Some(with_key(item, key)))
            .condition_expression(condition.condition())
            .set_expression_attribute_names(Some(names))
            .set_expression_attribute_values((!values.is_empty()).then_some(values))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let put = put.build().map_err(unbuilt)?;
        Ok(TransactWriteItem::builder().put(put).build())
    }

    /// Returns an update, for a transaction.
    pub(crate) fn update_write(
        &self,
        key: &str,
        expression: &Expression,
    ) -> Result<TransactWriteItem, Error> {
        let (names, values) = expression.clone().into_parts();
        let update = Update::builder()
            .table_name(&self.target.table)
            .key(KEY, AttributeValue::S(key.to_owned()))
            .update_expression(expression.update())
            .condition_expression(expression.condition())
            .set_expression_attribute_names(Some(names))
            .set_expression_attribute_values(Some(values));
        let update = update.build().map_err(unbuilt)?;
        Ok(TransactWriteItem::builder().update(update).build())
    }

    /// Returns the write of an id, for a transaction.
    pub(crate) fn id_write(&self, id: &IdWrite) -> Result<TransactWriteItem, Error> {
        if let Some(item) = &id.item {
            return self.put_write(&id.key, item.clone(), &id.condition);
        }
        let (names, values) = id.condition.clone().into_parts();
        let delete = Delete::builder()
            .table_name(&self.target.table)
            .key(KEY, AttributeValue::S(id.key.clone()))
            .condition_expression(id.condition.condition())
            .set_expression_attribute_names(Some(names))
            .set_expression_attribute_values(Some(values))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let delete = delete.build().map_err(unbuilt)?;
        Ok(TransactWriteItem::builder().delete(delete).build())
    }

    /// Reads several items, each with strong consistency, in the order of `keys`. They are not a snapshot.
    pub(crate) async fn read_all(
        &self,
        attempts: &mut Attempts<'_>,
        keys: &[&str],
    ) -> Result<Vec<Option<Arc<Item>>>, Error> {
        let key = |key: &&str| HashMap::from([(KEY.to_owned(), AttributeValue::S((*key).into()))]);
        let wanted = KeysAndAttributes::builder()
            .set_keys(Some(keys.iter().map(key).collect()))
            .consistent_read(true);
        let request = self
            .client
            .batch_get_item()
            .request_items(&self.target.table, wanted.build().map_err(unbuilt)?);
        let delivered = deliver(attempts, || async {
            match request.clone().send().await {
                Ok(output) if output.unprocessed_keys().is_some_and(|keys| !keys.is_empty()) => {
                    let cause = std::io::Error::other("the reply lacks some of the items");
                    Err(self.target.refused("BatchGetItem", "ThrottlingException", cause))
                }
                Ok(output) => Ok(output.responses.unwrap_or_default()),
                Err(error) => Err(self.target.classify("BatchGetItem", error)),
            }
        });
        let delivered = delivered.await?;
        attempts.ended(delivered.took, AttemptResult::Answered);
        let items = delivered.written.into_values().flatten();
        let mut items: HashMap<String, Attributes> =
            items.filter_map(|item| Some((item.get(KEY)?.as_s().ok()?.clone(), item))).collect();
        Ok(keys.iter().map(|key| to_item(items.remove(*key))).collect())
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

fn with_key(mut attributes: Attributes, key: &str) -> Attributes {
    attributes.insert(KEY.to_owned(), AttributeValue::S(key.to_owned()));
    attributes
}

fn unbuilt(error: aws_sdk_dynamodb::error::BuildError) -> Error {
    Error::new(ErrorKind::Invalid, "dynamodb: the transaction cannot be described").caused_by(error)
}

fn is_refusal(reason: &CancellationReason) -> bool {
    reason.code() == Some("ConditionalCheckFailed")
}

/// Returns the condition that cancelled a transaction of an entry and an id. The entry comes first: its item shows whether
/// the transaction was applied before.
fn refused_by(reasons: &[CancellationReason]) -> Written {
    let failed = |place: usize| {
        let reason = reasons.get(place).filter(|reason| is_refusal(reason))?;
        Some(to_item(reason.item.clone()))
    };
    failed(0).map_or_else(|| Written::IdRefused(failed(1).flatten()), Written::Refused)
}

/// Sends until there is a result, within the bounds. Not `tollgate::retry::Retry`: each kind of failure has its own bound, and an
/// ambiguous one marks the result.
async fn deliver<T, F>(
    attempts: &mut Attempts<'_>,
    send: impl Fn() -> F,
) -> Result<Delivered<T>, Error>
where
    F: Future<Output = Result<T, AttemptError>>,
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
