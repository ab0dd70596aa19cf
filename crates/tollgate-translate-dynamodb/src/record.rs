//! The steps of a chunk.

use aws_sdk_dynamodb::error::ProvideErrorMetadata as _;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{Put, TransactWriteItem, Update};
use tollgate_translate::Error;
use tollgate_translate::job::{ChunkState, Claim, Drafts, Part, Step, Used};

use crate::DynamoDbJobs;
use crate::change::{Change, Expressions};
use crate::chunk::{fresh, key, texts_of};
use crate::claim::mine;
use crate::item::{Item, Key, integer, number, string, text};
use crate::table::{pause, unusable};

/// The most items that one transaction changes.
const TRANSACTION_MAX: usize = 100;

/// How a transaction ended.
enum Ended {
    /// Everything was changed.
    Done,
    /// Nothing was changed: the condition on one of these places did not hold.
    Refused(Vec<usize>),
    /// Nothing was changed, because another request was changing the same items.
    Conflict,
}

impl DynamoDbJobs {
    pub(crate) async fn change_chunk(&self, claim: &Claim, step: &Step) -> Result<bool, Error> {
        let Some(body) = self.body(&claim.job).await? else { return Ok(false) };
        let state = |state: ChunkState| Change::new().set("state", string(state.word()));
        match step {
            Step::Sent { cost, most: Some(most) } => {
                self.send_within(&body, claim, *cost, *most).await
            }
            Step::Sent { cost, most: None } => {
                self.update_mine(&body, claim, sent(claim, *cost)).await
            }
            Step::Back => {
                let change = state(ChunkState::Pending).set("expected", integer(0));
                self.update_mine(&body, claim, change).await
            }
            Step::Failed { reason, used } => {
                let change = spent(state(ChunkState::Failed), used).set("reason", string(reason));
                self.update_mine(&body, claim, change).await
            }
            Step::Again { at, reason, drafts, used, is_fault } => {
                let change = spent(state(ChunkState::Again), used)
                    .set("due", integer(at.as_micros()))
                    .set("reason", string(reason));
                let change = if *is_fault {
                    change.add("faults", 1).set("passing", integer(0))
                } else {
                    change.add("passing", 1)
                };
                let condition = |change| mine(change, claim.fence);
                let old = self.with_texts(&body, claim, drafts, condition, change).await?;
                // Nobody else has the chunk, so nobody reads its earlier drafts any more.
                if let Some(texts) = old.as_ref().and_then(|old| text(old, "texts").ok()) {
                    self.table.remove_blob(&texts_of(&body), &texts).await?;
                }
                Ok(old.is_some())
            }
            Step::Done { drafts, used } => {
                let change = spent(state(ChunkState::Done), used).remove("reason");
                // A translation is as good from a worker that was given up as from its successor.
                let anybodys = |change: Change| {
                    change
                        .value(":done", string(ChunkState::Done.word()))
                        .value(":split", string(ChunkState::Split.word()))
                        .when("attribute_exists(#pk) AND #state <> :done AND #state <> :split")
                };
                Ok(self.with_texts(&body, claim, drafts, anybodys, change).await?.is_some())
            }
            Step::Split { parts, reason, used } => {
                let change = spent(state(ChunkState::Split), used).set("reason", string(reason));
                self.split(&body, claim, mine(change, claim.fence), parts).await
            }
        }
    }

    async fn update_mine(&self, body: &str, claim: &Claim, change: Change) -> Result<bool, Error> {
        self.table.update(&key(body, claim.run), mine(change, claim.fence)).await
    }

    /// Makes `change` with what is translated by now. The texts are written first, so that a chunk never refers to
    /// something that is not there. Returns the chunk as it was before, or `None` if the condition did not hold.
    async fn with_texts(
        &self,
        body: &str,
        claim: &Claim,
        drafts: &Drafts,
        condition: impl Fn(Change) -> Change,
        change: Change,
    ) -> Result<Option<Item>, Error> {
        let texts = self.put_texts(body, drafts).await?;
        let change = change.set_or_remove("texts", texts.as_deref().map(string));
        let old = self.table.replace(&key(body, claim.run), condition(change)).await?;
        if let (None, Some(texts)) = (&old, texts) {
            self.table.remove_blob(&texts_of(body), &texts).await?;
        }
        Ok(old)
    }

    async fn put_texts(&self, body: &str, drafts: &Drafts) -> Result<Option<String>, Error> {
        match drafts.to_json() {
            None => Ok(None),
            Some(json) => self.table.put_blob(&texts_of(body), json.as_bytes()).await.map(Some),
        }
    }

    async fn split(
        &self,
        body: &str,
        claim: &Claim,
        change: Change,
        parts: &[Part],
    ) -> Result<bool, Error> {
        if TRANSACTION_MAX <= parts.len() {
            let text = format!("a chunk cannot be split into {} parts at once", parts.len());
            return Err(unusable(text));
        }
        let mut puts = Vec::new();
        for part in parts {
            let mut item = fresh(body, part.run);
            item.insert("state".to_owned(), string(part.state().word()));
            if let Some(texts) = self.put_texts(body, &part.drafts).await? {
                item.insert("texts".to_owned(), string(&texts));
            }
            if let Some(reason) = &part.failed {
                item.insert("reason".to_owned(), string(reason));
            }
            puts.push(item);
        }
        let mut look = 0;
        loop {
            let mut writes = vec![self.updated(&key(body, claim.run), change.clone())?];
            for item in &puts {
                writes.push(self.inserted(item.clone())?);
            }
            match self.transact(writes).await? {
                Ended::Done => return Ok(true),
                Ended::Refused(_) => return Ok(false),
                Ended::Conflict => pause(look).await,
            }
            look += 1;
        }
    }

    /// Reserves what a call may cost. Two workers that ask at once must not both have the last of it, so the purse has a turn
    /// that grows with each reservation: who saw a sum that another has added to since looks again.
    async fn send_within(
        &self,
        body: &str,
        claim: &Claim,
        cost: u64,
        most: u64,
    ) -> Result<bool, Error> {
        let purse = Key::new(format!("purse#{body}"), "purse");
        let mut look = 0;
        loop {
            let turn = self.table.get(&purse).await?.map_or(0, |item| number(&item, "turn"));
            let chunks = self.chunk_items(body).await?;
            // An answer that was lost on the way may have reserved it already.
            let other = |run| if run == claim.run { 0 } else { 1 };
            let all: u64 =
                chunks.iter().map(|chunk| chunk.cost + chunk.expected * other(chunk.run)).sum();
            if most < all.saturating_add(cost) {
                return Ok(false);
            }
            let next = Change::new()
                .set("turn", integer(turn + 1))
                .value(":seen", integer(turn))
                .when(if turn == 0 {
                    "attribute_not_exists(#turn) OR #turn = :seen"
                } else {
                    "#turn = :seen"
                });
            let chunk = mine(sent(claim, cost), claim.fence);
            let writes =
                vec![self.updated(&purse, next)?, self.updated(&key(body, claim.run), chunk)?];
            match self.transact(writes).await? {
                Ended::Done => return Ok(true),
                Ended::Refused(places) if places.contains(&1) => return Ok(false),
                Ended::Refused(_) | Ended::Conflict => pause(look.min(4)).await,
            }
            look += 1;
        }
    }

    fn updated(&self, key: &Key, change: Change) -> Result<TransactWriteItem, Error> {
        let Expressions { update, condition, names, values } = change.expressions();
        let update = Update::builder()
            .table_name(&self.table.name)
            .set_key(Some(key.item()))
            .update_expression(update)
            .set_condition_expression(condition)
            .set_expression_attribute_names(Some(names))
            .set_expression_attribute_values(Some(values))
            .build()
            .map_err(|error| unusable(error.to_string()))?;
        Ok(TransactWriteItem::builder().update(update).build())
    }

    fn inserted(&self, item: Item) -> Result<TransactWriteItem, Error> {
        let put = Put::builder().table_name(&self.table.name).set_item(Some(item)).build();
        let put = put.map_err(|error| unusable(error.to_string()))?;
        Ok(TransactWriteItem::builder().put(put).build())
    }

    /// Writes all of `writes`, or nothing. The SDK gives each transaction a token by which a repeat is recognised.
    async fn transact(&self, writes: Vec<TransactWriteItem>) -> Result<Ended, Error> {
        let sent = self.table.client.transact_write_items().set_transact_items(Some(writes));
        let error = match sent.send().await {
            Ok(_) => return Ok(Ended::Done),
            Err(error) => error,
        };
        if error.code() == Some("TransactionInProgressException") {
            return Ok(Ended::Conflict);
        }
        let Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) =
            error.as_service_error()
        else {
            return Err(self.table.failed(&error));
        };
        let reasons = cancelled.cancellation_reasons().iter().enumerate();
        let (mut refused, mut is_conflict) = (Vec::new(), false);
        for (place, reason) in reasons {
            match reason.code() {
                Some("ConditionalCheckFailed") => refused.push(place),
                Some(
                    "TransactionConflict" | "ThrottlingError" | "ProvisionedThroughputExceeded",
                ) => {
                    is_conflict = true;
                }
                _ => {}
            }
        }
        if !refused.is_empty() {
            return Ok(Ended::Refused(refused));
        }
        if is_conflict { Ok(Ended::Conflict) } else { Err(self.table.failed(&error)) }
    }
}

fn sent(claim: &Claim, cost: u64) -> Change {
    Change::new()
        .set("state", string(ChunkState::Sent.word()))
        .set("expected", integer(cost))
        .set("calls", integer(u64::from(claim.calls.saturating_add(1))))
}

/// What a call used takes the place of what it was expected to cost.
fn spent(change: Change, used: &Used) -> Change {
    change
        .add("input", used.input)
        .add("output", used.output)
        .add("cost", used.cost)
        .set("expected", integer(0))
}
