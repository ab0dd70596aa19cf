//! Chunks as items: their keys, their attributes and their updates.

use crate::job::{CallUsage, ChunkPart, ChunkState, ChunkUpdate, Claim, SegmentRange};
use crate::{Error, Result};

use super::item::{Change, Item, Key, integer, number, string, text};
use super::table::unusable;

/// A stored chunk, without its texts.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) run: SegmentRange,
    pub(super) state: ChunkState,
    pub(super) due: u64,
    pub(super) calls: u32,
    pub(super) faults: u32,
    pub(super) transient: u32,
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) cost: u64,
    pub(super) expected: u64,
    pub(super) fence: u64,
    pub(super) lease_until: u64,
    pub(super) reason: Option<String>,
    /// The reference to its translations.
    pub(super) texts: Option<String>,
}

/// The partition of the chunks of `body`.
pub(super) fn partition(body: &str) -> String {
    format!("chunks#{body}")
}

/// The key of the chunk with these segments.
pub(super) fn key(body: &str, run: SegmentRange) -> Key {
    Key::new(partition(body), format!("{:010}-{:010}", run.first, run.end))
}

/// The item of a new chunk.
pub(super) fn new_item(body: &str, run: SegmentRange, state: ChunkState) -> Item {
    let mut item = key(body, run).item();
    item.insert("state".to_owned(), string(state.word()));
    item
}

/// The item of a part of a split chunk, with a reference to its translations.
pub(super) fn part_item(body: &str, part: &ChunkPart, texts: Option<&str>) -> Item {
    let mut item = new_item(body, part.run, part.state());
    for (name, value) in [("texts", texts), ("reason", part.failed.as_deref())] {
        item.extend(value.map(|value| (name.to_owned(), string(value))));
    }
    item
}

impl Chunk {
    pub(super) fn parse(item: &Item) -> Result<Self, Error> {
        let small = |name| u32::try_from(number(item, name)).unwrap_or(u32::MAX);
        let sk = text(item, "sk")?;
        let run = sk.split_once('-').and_then(|(first, end)| {
            Some(SegmentRange { first: first.parse().ok()?, end: end.parse().ok()? })
        });
        Ok(Self {
            run: run.ok_or_else(|| unusable(format!("invalid key of a chunk: {sk:?}")))?,
            state: text(item, "state")?.parse()?,
            due: number(item, "due"),
            calls: small("calls"),
            faults: small("faults"),
            transient: small("passing"),
            input: number(item, "input"),
            output: number(item, "output"),
            cost: number(item, "cost"),
            expected: number(item, "expected"),
            fence: number(item, "fence"),
            lease_until: number(item, "lease_until"),
            reason: text(item, "reason").ok(),
            texts: text(item, "texts").ok(),
        })
    }

    /// Returns when it can be claimed, if it ever can.
    pub(super) const fn ready_at(&self) -> Option<u64> {
        match self.state {
            ChunkState::Pending | ChunkState::Again => Some(self.due),
            ChunkState::Reserved | ChunkState::Sent => Some(self.lease_until),
            ChunkState::Split | ChunkState::Done | ChunkState::Failed => None,
        }
    }

    /// Returns whether a worker has it.
    pub(super) const fn is_leased(&self, now: u64) -> bool {
        matches!(self.state, ChunkState::Reserved | ChunkState::Sent) && now < self.lease_until
    }

    /// The claim of `worker`, if the chunk is still as it was read. A call whose outcome is unknown counts as paid.
    pub(super) fn claim(&self, worker: &str, lease_until: u64) -> Change {
        set_state(ChunkState::Reserved)
            .set("fence", integer(self.fence + 1))
            .set("worker", string(worker))
            .set("lease_until", integer(lease_until))
            .set("cost", integer(self.cost + self.expected))
            .set("expected", integer(0))
            .value(":was", string(self.state.word()))
            .value(":seen", integer(self.fence))
            .value(":until", integer(self.lease_until))
            .when(
                "#state = :was AND (#fence = :seen OR attribute_not_exists(#fence)) \
                 AND (#lease_until = :until OR attribute_not_exists(#lease_until))",
            )
    }
}

pub(super) fn set_state(state: ChunkState) -> Change {
    Change::default().set("state", string(state.word()))
}

/// Makes `change` conditional on the claim being valid.
pub(super) fn when_claimed(change: Change, claim: &Claim) -> Change {
    change
        .value(":reserved", string(ChunkState::Reserved.word()))
        .value(":sent", string(ChunkState::Sent.word()))
        .value(":mine", integer(claim.fence))
        .when("(#state = :reserved OR #state = :sent) AND #fence = :mine")
}

/// The change that `update` makes, without its translations and parts.
pub(super) fn change(claim: &Claim, update: &ChunkUpdate) -> Change {
    let change = match update {
        ChunkUpdate::Sent { cost, .. } => set_state(ChunkState::Sent)
            .set("expected", integer(*cost))
            .set("calls", integer(u64::from(claim.calls.saturating_add(1)))),
        ChunkUpdate::Returned => set_state(ChunkState::Pending).set("expected", integer(0)),
        ChunkUpdate::Failed { reason, used } => {
            finished(ChunkState::Failed, used).set("reason", string(reason))
        }
        ChunkUpdate::Split { reason, used, .. } => {
            finished(ChunkState::Split, used).set("reason", string(reason))
        }
        ChunkUpdate::Again { at, reason, used, is_fault, .. } => {
            let change = finished(ChunkState::Again, used)
                .set("due", integer(at.as_micros()))
                .set("reason", string(reason));
            match is_fault {
                true => change.add("faults", 1).set("passing", integer(0)),
                false => change.add("passing", 1),
            }
        }
        // A translation is as good from an expired worker as from its successor.
        ChunkUpdate::Done { used, .. } => {
            return finished(ChunkState::Done, used)
                .remove("reason")
                .value(":done", string(ChunkState::Done.word()))
                .value(":split", string(ChunkState::Split.word()))
                .when("attribute_exists(#pk) AND #state <> :done AND #state <> :split");
        }
    };
    when_claimed(change, claim)
}

/// The usage of a call replaces its reserved cost.
fn finished(state: ChunkState, used: &CallUsage) -> Change {
    set_state(state)
        .add("input", used.input)
        .add("output", used.output)
        .add("cost", used.cost)
        .set("expected", integer(0))
}
