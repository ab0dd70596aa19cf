//! Claims and leases.

use tollgate::Timestamp;
use tollgate_translate::job::{ChunkState, Claim, JobState, Next};
use tollgate_translate::{Error, ErrorKind};

use crate::change::Change;
use crate::chunk::{Chunk, key};
use crate::item::{integer, string};
use crate::{DynamoDbJobs, read_job};

/// The condition that a worker still has its chunk.
pub(crate) const MINE: &str = "(#state = :reserved OR #state = :sent) AND #fence = :mine";

/// `change`, on condition that the worker of `fence` still has the chunk.
pub(crate) fn mine(change: Change, fence: u64) -> Change {
    change
        .value(":reserved", string(ChunkState::Reserved.word()))
        .value(":sent", string(ChunkState::Sent.word()))
        .value(":mine", integer(fence))
        .when(MINE)
}

impl Chunk {
    fn is_ready(&self, now: u64) -> bool {
        match self.state {
            ChunkState::Pending | ChunkState::Again => self.due <= now,
            ChunkState::Reserved | ChunkState::Sent => self.lease_until <= now,
            ChunkState::Split | ChunkState::Done | ChunkState::Failed => false,
        }
    }

    /// Whether a worker has it.
    pub(crate) const fn is_leased(&self, now: u64) -> bool {
        matches!(self.state, ChunkState::Reserved | ChunkState::Sent) && now < self.lease_until
    }

    /// When it can be taken, if it ever can.
    const fn ready_at(&self, now: u64) -> Option<u64> {
        match self.state {
            ChunkState::Pending => Some(now),
            ChunkState::Again => Some(self.due),
            ChunkState::Reserved | ChunkState::Sent => Some(self.lease_until),
            ChunkState::Split | ChunkState::Done | ChunkState::Failed => None,
        }
    }
}

impl DynamoDbJobs {
    pub(crate) async fn claim_next(
        &self,
        id: &str,
        worker: &str,
        now: Timestamp,
    ) -> Result<Next, Error> {
        let Some(item) = self.item(id).await? else {
            return Err(Error::new(ErrorKind::Invalid, format!("there is no job {id:?}")));
        };
        let state = read_job(id, &item)?.state;
        if !matches!(state, JobState::Planned | JobState::Running) {
            return Ok(Next::Halted(state));
        }
        let (body, now) = (self.remember_body(id, &item)?, now.as_micros());
        loop {
            let chunks = self.chunk_items(&body).await?;
            let all: u64 = chunks.iter().map(|chunk| chunk.cost + chunk.expected).sum();
            let held = chunks.iter().filter(|chunk| now < chunk.lease_until);
            let under_way: u64 = held.map(|chunk| chunk.expected).sum();
            let mut ready: Vec<&Chunk> =
                chunks.iter().filter(|chunk| chunk.is_ready(now)).collect();
            if ready.is_empty() {
                let at = chunks.iter().filter_map(|chunk| chunk.ready_at(now)).min();
                return Ok(at.map_or(Next::Nothing, |at| Next::Later(Timestamp::from_micros(at))));
            }
            ready.sort_by_key(|chunk| (chunk.faults, chunk.run.first));
            for chunk in ready {
                if !self.take(&body, chunk, worker, now).await? {
                    continue;
                }
                return Ok(Next::Chunk(Claim {
                    job: id.to_owned(),
                    run: chunk.run,
                    calls: chunk.calls,
                    faults: chunk.faults,
                    passing: chunk.passing,
                    fence: chunk.fence + 1,
                    spent: all.saturating_sub(under_way),
                    under_way,
                    drafts: self.drafts(&body, chunk).await?,
                }));
            }
            // Others took every chunk that was ready; they are looked at anew.
        }
    }

    /// Reserves `chunk`, if it is still as it was read. What a call whose end nobody saw may have cost counts as paid.
    async fn take(&self, body: &str, chunk: &Chunk, worker: &str, now: u64) -> Result<bool, Error> {
        let change = Change::new()
            .set("state", string(ChunkState::Reserved.word()))
            .set("fence", integer(chunk.fence + 1))
            .set("worker", string(worker))
            .set("lease_until", integer(now.saturating_add(self.lease.as_micros())))
            .set("cost", integer(chunk.cost + chunk.expected))
            .set("expected", integer(0))
            .value(":was", string(chunk.state.word()))
            .value(":seen", integer(chunk.fence))
            .value(":until", integer(chunk.lease_until))
            .when(
                "#state = :was AND (#fence = :seen OR attribute_not_exists(#fence)) \
                 AND (#lease_until = :until OR attribute_not_exists(#lease_until))",
            );
        self.table.update(&key(body, chunk.run), change).await
    }

    pub(crate) async fn renew_claim(&self, claim: &Claim, now: Timestamp) -> Result<(), Error> {
        let Some(body) = self.body(&claim.job).await? else { return Ok(()) };
        let until = now.as_micros().saturating_add(self.lease.as_micros());
        let change = mine(Change::new().set("lease_until", integer(until)), claim.fence);
        self.table.update(&key(&body, claim.run), change).await.map(drop)
    }
}
