//! Chunks in PostgreSQL: claims, leases, steps, and how far a job is.

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tollgate::Timestamp;

use super::super::sqlite::{integer, natural};
use super::super::{
    ChunkRecord, ChunkState, Claim, Counts, Drafts, JobState, Next, Step, Texts, Used,
};
use super::rows::{count, place, run_of};
use super::{NOW, PostgresJobs};
use crate::error::Error;

const USED: &str = "input = input + $5, output = output + $6, cost = cost + $7, expected = 0";
const SENT: &str = "state = 'sent', expected = $5, calls = $6";
const MINE: &str = "state IN ('reserved', 'sent') AND fence = $4";
/// A translation is as good from a worker that was given up as from its successor.
const ANYBODYS: &str = "state NOT IN ('done', 'split') AND $4::bigint IS NOT NULL";

impl PostgresJobs {
    pub(super) async fn claim_next(
        &self,
        id: &str,
        worker: &str,
        now: Timestamp,
    ) -> Result<Next, Error> {
        let sql = format!(
            "WITH clock AS (SELECT {NOW} AS now),
             job AS (SELECT state, resume_at, why FROM @.translate_jobs WHERE id = $2),
             picked AS (
                 SELECT first, last FROM @.translate_chunks, clock
                 WHERE job = $2 AND (SELECT state FROM job) IN ('planned', 'running')
                   AND ((state IN ('pending', 'again') AND due <= now) OR (state IN ('reserved', 'sent') AND lease_until <= now))
                 ORDER BY faults, first LIMIT 1 FOR UPDATE OF translate_chunks SKIP LOCKED
             ),
             taken AS (
                 UPDATE @.translate_chunks c
                 SET state = 'reserved', fence = c.fence + 1, worker = $3, lease_until = now + $4,
                     cost = c.cost + c.expected, expected = 0
                 FROM picked, clock WHERE c.job = $2 AND c.first = picked.first AND c.last = picked.last
                 RETURNING c.first, c.last, c.calls, c.faults, c.passing, c.fence, c.texts
             )
             SELECT job.state, job.resume_at, job.why, taken.first, taken.last, taken.calls, taken.faults, taken.passing, taken.fence,
                 (SELECT coalesce(sum(cost + expected), 0)::bigint FROM @.translate_chunks WHERE job = $2),
                 (SELECT coalesce(sum(expected), 0)::bigint FROM @.translate_chunks, clock WHERE job = $2 AND now < lease_until),
                 (SELECT min(CASE state WHEN 'pending' THEN now WHEN 'again' THEN due ELSE lease_until END)
                  FROM @.translate_chunks, clock WHERE job = $2 AND state IN ('pending', 'again', 'reserved', 'sent')),
                 taken.texts
             FROM job LEFT JOIN taken ON true"
        );
        let lease = integer(self.lease.as_micros());
        let rows = self.query(&sql, &[&self.now(now), &id, &worker, &lease]).await?;
        let Some(row) = rows.first() else {
            return Err(Error::invalid(format!("there is no job {id:?}")));
        };
        let state: String = row.get(0);
        let state = JobState::read(&state, row.get::<_, Option<i64>>(1).map(natural), row.get(2))?;
        if !matches!(state, JobState::Planned | JobState::Running) {
            return Ok(Next::Halted(state));
        }
        if row.get::<_, Option<i64>>(3).is_none() {
            let later: Option<i64> = row.get(11);
            return Ok(
                later.map_or(Next::Nothing, |at| Next::Later(Timestamp::from_micros(natural(at))))
            );
        }
        let (all, under_way) = (natural(row.get(9)), natural(row.get(10)));
        let run = run_of(row, 3);
        Ok(Next::Chunk(Claim {
            job: id.to_owned(),
            run,
            calls: count(row, 5),
            faults: count(row, 6),
            passing: count(row, 7),
            fence: natural(row.get(8)),
            spent: all - under_way,
            under_way,
            drafts: Drafts::from_json(row.get(12), run.len())?,
        }))
    }

    /// Whether a worker has a chunk of a job, or waits to try one again.
    pub(super) async fn has_claims(&self, id: &str, now: Timestamp) -> Result<bool, Error> {
        let sql = format!(
            "SELECT 1 FROM @.translate_chunks WHERE job = $2
               AND (state IN ('reserved', 'sent') AND {NOW} < lease_until OR state = 'again' AND {NOW} < due + $3) LIMIT 1"
        );
        let lease = integer(self.lease.as_micros());
        Ok(!self.query(&sql, &[&self.now(now), &id, &lease]).await?.is_empty())
    }

    pub(super) async fn renew_claim(&self, claim: &Claim, now: Timestamp) -> Result<(), Error> {
        let sql = format!(
            "UPDATE @.translate_chunks SET lease_until = {NOW} + $6
             WHERE job = $2 AND first = $3 AND last = $4 AND state IN ('reserved', 'sent') AND fence = $5"
        );
        let ((first, last), fence) = (place(claim.run), integer(claim.fence));
        let lease = integer(self.lease.as_micros());
        let values: [&(dyn ToSql + Sync); 6] =
            [&self.now(now), &claim.job, &first, &last, &fence, &lease];
        self.execute(&sql, &values).await.map(drop)
    }

    pub(super) async fn change(&self, claim: &Claim, step: &Step) -> Result<bool, Error> {
        let ((first, last), fence) = (place(claim.run), integer(claim.fence));
        let whose = if matches!(step, Step::Done { .. }) { ANYBODYS } else { MINE };
        let update = async |set: &str, values: &[&(dyn ToSql + Sync)]| {
            let sql = format!(
                "UPDATE @.translate_chunks SET {set} WHERE job = $1 AND first = $2 AND last = $3 AND {whose}"
            );
            let mut all: Vec<&(dyn ToSql + Sync)> = vec![&claim.job, &first, &last, &fence];
            all.extend_from_slice(values);
            self.execute(&sql, &all).await
        };
        let used = |used: &Used| (integer(used.input), integer(used.output), integer(used.cost));
        let changed = match step {
            Step::Sent { cost, most: Some(most) } => {
                return self.send_within(claim, integer(*cost), *most).await;
            }
            Step::Sent { cost, most: None } => {
                update(SENT, &[&integer(*cost), &calls_of(claim)]).await?
            }
            Step::Back => update("state = 'pending', expected = 0", &[]).await?,
            Step::Done { drafts, used: spent } => {
                let (input, output, cost) = used(spent);
                let set = format!("state = 'done', texts = $8, reason = NULL, {USED}");
                update(&set, &[&input, &output, &cost, &drafts.to_json()]).await?
            }
            Step::Again { at, reason, drafts, used: spent, is_fault } => {
                let (input, output, cost) = used(spent);
                let counted = if *is_fault {
                    "faults = faults + 1, passing = 0"
                } else {
                    "passing = passing + 1"
                };
                let set = format!(
                    "state = 'again', due = $8, reason = $9, texts = $10, {counted}, {USED}"
                );
                let (due, texts) = (integer(at.as_micros()), drafts.to_json());
                update(&set, &[&input, &output, &cost, &due, reason, &texts]).await?
            }
            Step::Failed { reason, used: spent } => {
                let (input, output, cost) = used(spent);
                update(
                    &format!("state = 'failed', reason = $8, {USED}"),
                    &[&input, &output, &cost, reason],
                )
                .await?
            }
            Step::Split { parts, reason, used: spent } => {
                let (input, output, cost) = used(spent);
                let sql = format!(
                    "WITH parent AS (
                         UPDATE @.translate_chunks SET state = 'split', reason = $8, {USED}
                         WHERE job = $1 AND first = $2 AND last = $3 AND {MINE} RETURNING first
                     )
                     INSERT INTO @.translate_chunks (job, first, last, state, texts, reason)
                     SELECT $1, part.first, part.last, part.state, part.texts, part.reason
                     FROM parent, unnest($9::bigint[], $10::bigint[], $11::text[], $12::text[], $13::text[])
                         AS part (first, last, state, texts, reason)"
                );
                let (firsts, lasts): (Vec<i64>, Vec<i64>) =
                    parts.iter().map(|part| place(part.run)).unzip();
                let states: Vec<&str> = parts.iter().map(|part| part.state().word()).collect();
                let texts: Vec<Option<String>> =
                    parts.iter().map(|part| part.drafts.to_json()).collect();
                let failed: Vec<Option<&str>> =
                    parts.iter().map(|part| part.failed.as_deref()).collect();
                let values: [&(dyn ToSql + Sync); 13] = [
                    &claim.job, &first, &last, &fence, &input, &output, &cost, reason, &firsts,
                    &lasts, &states, &texts, &failed,
                ];
                self.execute(&sql, &values).await?
            }
        };
        Ok(0 < changed)
    }

    /// Reserves what a call may cost. Two workers that ask at once must not both have the last of it, so whoever saw a sum that
    /// another has added to since looks again.
    async fn send_within(&self, claim: &Claim, cost: i64, most: u64) -> Result<bool, Error> {
        let ((first, last), fence) = (place(claim.run), integer(claim.fence));
        // An answer that was lost on the way may have reserved it already.
        let look = "SELECT coalesce((SELECT turn FROM @.translate_purses WHERE job = $1), 0),
                (SELECT sum(cost + CASE WHEN first = $2 AND last = $3 THEN 0 ELSE expected END)::bigint
                 FROM @.translate_chunks WHERE job = $1)";
        let take = format!(
            "WITH turn AS (
                 INSERT INTO @.translate_purses AS purse (job, turn) VALUES ($1, $7::bigint + 1)
                 ON CONFLICT (job) DO UPDATE SET turn = excluded.turn WHERE purse.turn = $7 RETURNING turn
             ), sent AS (
                 UPDATE @.translate_chunks SET {SENT}
                 WHERE job = $1 AND first = $2 AND last = $3 AND {MINE} AND EXISTS (SELECT FROM turn) RETURNING first
             )
             SELECT EXISTS (SELECT FROM turn), EXISTS (SELECT FROM sent)"
        );
        loop {
            let rows = self.query(look, &[&claim.job, &first, &last]).await?;
            let Some(row) = rows.first() else { return Ok(false) };
            let (turn, all): (i64, i64) = (row.get(0), row.get(1));
            if most < natural(all.saturating_add(cost)) {
                return Ok(false);
            }
            let values: [&(dyn ToSql + Sync); 7] =
                [&claim.job, &first, &last, &fence, &cost, &calls_of(claim), &turn];
            let rows = self.query(&take, &values).await?;
            if let Some(row) = rows.first().filter(|row| row.get(0)) {
                return Ok(row.get(1));
            }
        }
    }

    pub(super) async fn count(&self, id: &str) -> Result<Counts, Error> {
        let sql =
            "SELECT state, count(*), sum(calls)::bigint, sum(input)::bigint, sum(output)::bigint,
                     sum(cost + expected)::bigint
                 FROM @.translate_chunks WHERE job = $1 GROUP BY state";
        let mut counts = Counts::default();
        for row in self.query(sql, &[&id]).await? {
            let number = |place: usize| natural(row.get(place));
            counts.add(row.get::<_, String>(0).parse()?, number(1));
            counts.calls += number(2);
            counts.input_tokens += number(3);
            counts.output_tokens += number(4);
            counts.cost += number(5);
        }
        Ok(counts)
    }

    pub(super) async fn read_chunks(&self, id: &str) -> Result<Vec<ChunkRecord>, Error> {
        let sql = "SELECT first, last, state, texts, reason, calls, due FROM @.translate_chunks
                 WHERE job = $1 AND state <> 'split' ORDER BY first";
        let read = |row: &Row| {
            let run = run_of(row, 0);
            let (state, due) = (row.get::<_, String>(2).parse()?, natural(row.get(6)));
            let whole = Drafts::from_json(row.get(3), run.len())?.whole();
            let Texts { texts, warnings } =
                whole.filter(|_| state == ChunkState::Done).unwrap_or_default();
            Ok(ChunkRecord {
                run,
                state,
                again_at: ChunkRecord::due(due).filter(|_| state == ChunkState::Again),
                texts,
                warnings,
                due: ChunkRecord::due(due),
                reason: row.get(4),
                calls: count(row, 5),
            })
        };
        self.query(sql, &[&id]).await?.iter().map(read).collect()
    }
}

fn calls_of(claim: &Claim) -> i32 {
    i32::try_from(claim.calls.saturating_add(1)).unwrap_or(i32::MAX)
}
