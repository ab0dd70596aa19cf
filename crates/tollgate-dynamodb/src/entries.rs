//! Lists and rewrites the items of a table.

use aws_sdk_dynamodb::types::AttributeValue;
use tollgate::entries::{EntryPage, EntryStore, PERMIT_KEY_BYTES, Rewrite, Visited};
use tollgate::gate::BoxFuture;
use tollgate::{Error, Policy, Span, Timestamp};

use crate::expression::to_number;
use crate::item::{AT, Attributes, Item, KEY, SHAPE};
use crate::permit_key::{SHARED, stored_key};
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

    /// Scans the whole table, which is billed by its size. Needs the permission `dynamodb:Scan`.
    fn page<'a>(
        &'a self,
        cursor: &'a [u8],
        ahead_min: Option<Span>,
    ) -> BoxFuture<'a, Result<EntryPage, Error>> {
        Box::pin(async move {
            let started = EntryStore::now(self).await?;
            let start = String::from_utf8_lossy(cursor).into_owned();
            let start = (!start.is_empty()).then(|| (KEY.to_owned(), AttributeValue::S(start)));
            let scan = self
                .table
                .client
                .scan()
                .table_name(&self.table.target.table)
                .consistent_read(true)
                .set_exclusive_start_key(start.map(|start| [start].into()))
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
            let output = scan.send().await;
            let output =
                output.map_err(|error| self.table.target.classify("Scan", error).into_error())?;
            let key = |attributes: &Attributes| {
                attributes.get(KEY).and_then(|key| key.as_s().ok()).cloned()
            };
            let next = output.last_evaluated_key.as_ref().and_then(key).map(String::into_bytes);
            let entries = output.items.unwrap_or_default().into_iter().filter_map(|attributes| {
                let key = key(&attributes)?;
                let (policy, subject) = key.split_once('/').filter(|key| !key.0.is_empty())?;
                let entry = Item { attributes }.any_entry(policy);
                let (policy, subject) = (policy.to_owned(), subject.to_owned());
                Some(Visited { policy, subject, entry, now: self.clock.now() })
            });
            Ok(EntryPage { entries: entries.collect(), next })
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
            let mut attempts = self.table.requests.call(None);
            let item = self.read(&mut attempts, &key).await?;
            Ok(self.rewritten(&mut attempts, policy, &key, item, rewrite).await?.1)
        })
    }

    fn permit_key(&self) -> BoxFuture<'_, Result<Option<[u8; PERMIT_KEY_BYTES]>, Error>> {
        Box::pin(async move {
            let item = self.read(&mut self.table.requests.call(None), SHARED).await?;
            item.as_deref().and_then(stored_key).transpose()
        })
    }

    fn adopt_permit_key(&self, key: [u8; PERMIT_KEY_BYTES]) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move { Ok(Self::permit_key(self, key).await? == key) })
    }
}
