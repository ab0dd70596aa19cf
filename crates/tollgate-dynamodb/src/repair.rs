//! Items from the future.

use aws_sdk_dynamodb::types::AttributeValue;
use tollgate::repair::{FutureEntry, LISTED_MAX, Repair};
use tollgate::{BoxFuture, Error, Policy, Span, Timestamp};

use crate::expression::to_number;
use crate::item::{AT, Attributes, Item, KEY};
use crate::store::DynamoDb;

impl Repair for DynamoDb {
    /// Scans the whole table, which is paid for by its size. Needs the permission `dynamodb:Scan`.
    fn list_future(&self, ahead_max: Span) -> BoxFuture<'_, Result<Vec<FutureEntry>, Error>> {
        Box::pin(async move {
            self.await_evidence().await?;
            let now = self.clock.now();
            let least = to_number((now + ahead_max).as_micros().into());
            let mut pages = self
                .wire
                .client
                .scan()
                .table_name(&self.wire.target.table)
                .consistent_read(true)
                .projection_expression("#k, #a")
                .filter_expression("#a > :least")
                .expression_attribute_names("#k", KEY)
                .expression_attribute_names("#a", AT)
                .expression_attribute_values(":least", least)
                .into_paginator()
                .items()
                .send();
            let mut found = Vec::new();
            while let Some(item) = pages.next().await {
                let item = item.map_err(|error| self.wire.target.trouble("Scan", error));
                let item = item.map_err(crate::fault::Trouble::into_error)?;
                found.extend(listed(item, now));
                if LISTED_MAX <= found.len() {
                    break;
                }
            }
            found.sort_by(|one, other| {
                (&one.policy, &one.subject).cmp(&(&other.policy, &other.subject))
            });
            Ok(found)
        })
    }

    fn mend<'a>(
        &'a self,
        entry: &'a FutureEntry,
        ahead_max: Span,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            self.await_evidence().await?;
            let key = format!("{}/{}", entry.policy, entry.subject);
            let mut tries = self.wire.watch.call(None);
            let item = self.read(&mut tries, &key).await?;
            let Some(policy) = item.as_deref().and_then(|item| policy_of(item, &entry.policy))
            else {
                return Ok(false);
            };
            let policy = policy?;
            Ok(self.replaced(&mut tries, &policy, &key, item, ahead_max).await?.1)
        })
    }
}

fn listed(attributes: Attributes, now: Timestamp) -> Option<FutureEntry> {
    let item = Item { attributes };
    let key = item.attributes.get(KEY).and_then(|key| AttributeValue::as_s(key).ok())?;
    let (policy, subject) = key.split_once('/').filter(|(policy, _)| !policy.is_empty())?;
    let (policy, subject, at) = (policy.to_owned(), subject.to_owned(), item.at());
    Some(FutureEntry { policy, subject, at, ahead: at.since(now) })
}

/// The policy called `name` that `item` was written under; nothing if it is no item of a subject.
fn policy_of(item: &Item, name: &str) -> Option<Result<Policy, Error>> {
    item.shape().map(|shape| Ok(Policy::from_shape_bytes(name, shape)?))
}
