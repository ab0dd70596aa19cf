//! Chunks in SQLite: claims, steps, and how far a job is.

use rusqlite::{Connection, OptionalExtension, params};
use tollgate::Timestamp;

use super::super::{
    ChunkRecord, ChunkState, Claim, Counts, Drafts, JobState, Next, Run, Step, Texts, Used,
};
use super::{Done, begin, integer, job, natural};
use crate::error::Error;

/// Takes back what a process that is gone had. Whether its calls were answered is unknown, so they count as made.
pub(in crate::job) fn take_back(connection: &Connection, id: &str) -> Done<()> {
    connection.execute(
        "UPDATE chunks SET state = 'pending', cost = cost + expected, expected = 0
         WHERE job = ?1 AND state IN ('reserved', 'sent')",
        [id],
    )?;
    Ok(())
}

pub(in crate::job) fn claim(connection: &mut Connection, id: &str, now: Timestamp) -> Done<Next> {
    let transaction = begin(connection)?;
    match job(&transaction, id)?.map(|job| job.state) {
        Some(JobState::Planned | JobState::Running) => {}
        Some(halted) => return Ok(Next::Halted(halted)),
        None => return Err(Error::invalid(format!("there is no job {id:?}")).into()),
    }
    let found = transaction
        .prepare_cached(
            "SELECT first, last, calls, faults, passing, fence, texts FROM chunks
             WHERE job = ?1 AND state IN ('pending', 'again') AND due <= ?2 ORDER BY faults, first LIMIT 1",
        )?
        .query_row(params![id, integer(now.as_micros())], |row| {
            let run = Run { first: row.get(0)?, end: row.get(1)? };
            let (fence, texts): (i64, Option<String>) = (row.get(5)?, row.get(6)?);
            Ok((run, row.get(2)?, row.get(3)?, row.get(4)?, natural(fence) + 1, texts))
        })
        .optional()?;
    let Some((run, calls, faults, passing, fence, texts)) = found else {
        let sql = "SELECT min(due), count(*) FROM chunks WHERE job = ?1 AND state = 'again'";
        let (due, waiting): (Option<i64>, u32) =
            transaction.query_row(sql, [id], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let sql = "SELECT count(*) FROM chunks WHERE job = ?1 AND state IN ('reserved', 'sent')";
        let working: u32 = transaction.query_row(sql, [id], |row| row.get(0))?;
        return Ok(match due {
            Some(due) if 0 < waiting => Next::Later(Timestamp::from_micros(natural(due))),
            // Only this process works on the job, so it knows when one of them is through.
            _ if 0 < working => Next::Later(Timestamp::MAX),
            _ => Next::Nothing,
        });
    };
    transaction.execute(
        "UPDATE chunks SET state = 'reserved', fence = ?4 WHERE job = ?1 AND first = ?2 AND last = ?3",
        params![id, run.first, run.end, integer(fence)],
    )?;
    let sql =
        "SELECT coalesce(sum(cost), 0), coalesce(sum(expected), 0) FROM chunks WHERE job = ?1";
    let sums = transaction.query_row(sql, [id], |row| Ok((row.get(0)?, row.get(1)?)))?;
    transaction.commit()?;
    let (job, (spent, under_way)) = (id.to_owned(), sums);
    let (spent, under_way) = (natural(spent), natural(under_way));
    let drafts = Drafts::from_json(texts.as_deref(), run.len())?;
    Ok(Next::Chunk(Claim { job, run, calls, faults, passing, fence, spent, under_way, drafts }))
}

pub(in crate::job) fn record(
    connection: &mut Connection,
    claim: &Claim,
    step: &Step,
) -> Done<bool> {
    let transaction = begin(connection)?;
    let Claim { job, run, fence, .. } = claim;
    // A translation is as good from a worker that was given up as from its successor.
    let whose = match step {
        Step::Done { .. } => "state NOT IN ('done', 'split') AND ?4 = ?4",
        Step::Sent { .. } => {
            "state IN ('reserved', 'sent') AND fence = ?4
             AND (SELECT sum(cost + expected) FROM chunks WHERE job = ?1) + ?5 <= ?6"
        }
        _ => "state IN ('reserved', 'sent') AND fence = ?4",
    };
    let update = |set: &str, values: &[&dyn rusqlite::ToSql]| {
        let sql = format!(
            "UPDATE chunks SET {set} WHERE job = ?1 AND first = ?2 AND last = ?3 AND {whose}"
        );
        let fence = integer(*fence);
        let mut all: Vec<&dyn rusqlite::ToSql> = vec![job, &run.first, &run.end, &fence];
        all.extend_from_slice(values);
        transaction.prepare_cached(&sql)?.execute(all.as_slice())
    };
    let used = |used: &Used| (integer(used.input), integer(used.output), integer(used.cost));
    const USED: &str = "input = input + ?5, output = output + ?6, cost = cost + ?7, expected = 0";
    let changed = match step {
        Step::Sent { cost, most } => {
            let most = most.map_or(i64::MAX, integer);
            let set = "state = 'sent', calls = calls + 1, expected = ?5";
            update(set, &[&integer(*cost), &most])?
        }
        Step::Back => update("state = 'pending', expected = 0", &[])?,
        Step::Done { drafts, used: spent } => {
            let (input, output, cost) = used(spent);
            let set = format!("state = 'done', texts = ?8, reason = NULL, {USED}");
            update(&set, &[&input, &output, &cost, &drafts.to_json()])?
        }
        Step::Again { at, reason, drafts, used: spent, is_fault } => {
            let (input, output, cost) = used(spent);
            let due = integer(at.as_micros());
            let count = if *is_fault {
                "faults = faults + 1, passing = 0"
            } else {
                "passing = passing + 1"
            };
            let set =
                format!("state = 'again', due = ?8, reason = ?9, texts = ?10, {count}, {USED}");
            update(&set, &[&input, &output, &cost, &due, reason, &drafts.to_json()])?
        }
        Step::Failed { reason, used: spent } => {
            let (input, output, cost) = used(spent);
            update(
                &format!("state = 'failed', reason = ?8, {USED}"),
                &[&input, &output, &cost, reason],
            )?
        }
        Step::Split { parts, reason, used: spent } => {
            let (input, output, cost) = used(spent);
            let set = format!("state = 'split', reason = ?8, {USED}");
            let changed = update(&set, &[&input, &output, &cost, reason])?;
            if 0 < changed {
                let sql = "INSERT INTO chunks (job, first, last, state, texts, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
                for part in parts {
                    let (state, texts) = (part.state().word(), part.drafts.to_json());
                    let values =
                        params![job, part.run.first, part.run.end, state, texts, part.failed];
                    transaction.execute(sql, values)?;
                }
            }
            changed
        }
    };
    transaction.commit()?;
    Ok(0 < changed)
}

pub(in crate::job) fn counts(connection: &Connection, id: &str) -> Done<Counts> {
    let mut statement = connection.prepare_cached(
        "SELECT state, count(*), sum(calls), sum(input), sum(output), sum(cost + expected) FROM chunks
         WHERE job = ?1 GROUP BY state",
    )?;
    let mut counts = Counts::default();
    let mut rows = statement.query([id])?;
    while let Some(row) = rows.next()? {
        let number = |place: usize| row.get::<_, i64>(place).map(natural);
        let state: String = row.get(0)?;
        counts.add(state.parse()?, number(1)?);
        counts.calls += number(2)?;
        counts.input_tokens += number(3)?;
        counts.output_tokens += number(4)?;
        counts.cost += number(5)?;
    }
    Ok(counts)
}

pub(in crate::job) fn chunks(connection: &Connection, id: &str) -> Done<Vec<ChunkRecord>> {
    let mut statement = connection.prepare_cached(
        "SELECT first, last, state, texts, reason, calls, due FROM chunks
         WHERE job = ?1 AND state <> 'split' ORDER BY first",
    )?;
    let mut rows = statement.query([id])?;
    let mut chunks = Vec::new();
    while let Some(row) = rows.next()? {
        let run = Run { first: row.get(0)?, end: row.get(1)? };
        let (state, texts): (String, Option<String>) = (row.get(2)?, row.get(3)?);
        let (state, due) = (state.parse()?, natural(row.get(6)?));
        let whole = Drafts::from_json(texts.as_deref(), run.len())?.whole();
        let Texts { texts, warnings } =
            whole.filter(|_| state == ChunkState::Done).unwrap_or_default();
        chunks.push(ChunkRecord {
            run,
            state,
            again_at: ChunkRecord::due(due).filter(|_| state == ChunkState::Again),
            texts,
            warnings,
            due: ChunkRecord::due(due),
            reason: row.get(4)?,
            calls: row.get(5)?,
        });
    }
    Ok(chunks)
}

pub(in crate::job) fn retry_failed(connection: &mut Connection, id: &str) -> Done<u64> {
    let transaction = begin(connection)?;
    let changed = transaction.execute(
        "UPDATE chunks SET state = 'pending', due = 0, faults = 0, passing = 0 WHERE job = ?1 AND state = 'failed'",
        [id],
    )?;
    if 0 < changed {
        transaction.execute(
            "UPDATE jobs SET state = 'running', ended_at = NULL WHERE id = ?1 AND state <> 'cancelled'",
            [id],
        )?;
    }
    transaction.commit()?;
    Ok(changed as u64)
}
