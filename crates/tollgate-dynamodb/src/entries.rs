//! All items one after the other.

use std::ops::ControlFlow;

use aws_sdk_dynamodb::types::AttributeValue;
use tollgate::entries::{EntryStore, PERMIT_KEY_BYTES, Rewrite, Visited, Visitor};
use tollgate::{BoxFuture, Error, Policy, Span, Timestamp};

use crate::expression::to_number;
use crate::fault::Trouble;
use crate::item::{AT, Item, KEY, SHAPE};
use crate::key::{SHARED, stored_key};
use crate::store::DynamoDb;

impl EntryStore for DynamoDb {
    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        Box::pin(async move {
            self.await_evidence().await?;
            Ok(self.clock.now())
        })
    }

    fn check(&self, policy: &Policy) -> Result<(), Error> {
        Self::check(policy)
    }

    /// Scans the whole table, which is paid for by its size. Needs the permission `dynamodb:Scan`.
    fn visit<'a>(
        &'a self,
        ahead_min: Option<Span>,
        visitor: &'a mut Visitor<'a>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let started = EntryStore::now(self).await?;
            let scan = self
                .wire
                .client
                .scan()
                .table_name(&self.wire.target.table)
                .consistent_read(true)
                .expression_attribute_names("#s", SHAPE);
            let scan = match ahead_min {
                Some(ahead) => scan
                    .filter_expression("attribute_exists(#s) AND #a > :least")
                    .expression_attribute_names("#a", AT)
                    .expression_attribute_values(
                        ":least",
                        to_number((started + ahead).as_micros().into()),
                    ),
                None => scan.filter_expression("attribute_exists(#s)"),
            };
            let mut pages = scan.into_paginator().items().send();
            while let Some(item) = pages.next().await {
                let item = item.map_err(|error| self.wire.target.trouble("Scan", error));
                let item = Item { attributes: item.map_err(Trouble::into_error)? };
                let key = item.attributes.get(KEY).and_then(|key| AttributeValue::as_s(key).ok());
                let Some((policy, subject)) = key.and_then(|key| key.split_once('/')) else {
                    continue;
                };
                if policy.is_empty() {
                    continue;
                }
                let (policy, subject) = (policy.to_owned(), subject.to_owned());
                let (entry, now) = (item.any_entry(&policy), self.clock.now());
                if visitor(Visited { policy, subject, entry, now })? == ControlFlow::Break(()) {
                    return Ok(());
                }
            }
            Ok(())
        })
    }

    fn rewrite<'a>(
        &'a self,
        policy: &'a str,
        subject: &'a str,
        rewrite: &'a Rewrite<'a>,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            self.await_evidence().await?;
            let key = format!("{policy}/{subject}");
            let mut tries = self.wire.watch.call(None);
            let item = self.read(&mut tries, &key).await?;
            Ok(self.rewritten(&mut tries, policy, &key, item, rewrite).await?.1)
        })
    }

    fn permit_key(&self) -> BoxFuture<'_, Result<Option<[u8; PERMIT_KEY_BYTES]>, Error>> {
        Box::pin(async move {
            let item = self.read(&mut self.wire.watch.call(None), SHARED).await?;
            item.as_deref().and_then(stored_key).transpose()
        })
    }

    fn adopt_permit_key(&self, key: [u8; PERMIT_KEY_BYTES]) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move { Ok(Self::permit_key(self, key).await? == key) })
    }
}
