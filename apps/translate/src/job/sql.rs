//! SQL that the stores in SQLite and PostgreSQL share. Parameters are written as PostgreSQL has them; SQLite takes `?`.

use super::{CallUsage, ChunkUpdate, Claim};

/// The columns of a job.
pub(super) const JOB: &str =
    "id, name, state, resume_at, why, settings, created_at, started_at, ended_at";

/// The columns of a chunk that make a [`ChunkRecord`](super::ChunkRecord).
pub(super) const CHUNK: &str = "first, last, state, texts, reason, calls, due";

/// Sets the state of a job that is not cancelled.
pub(super) const SET_STATE: &str = "SET state = $2, resume_at = $3, why = $4,
         started_at = CASE WHEN $2 = 'running' THEN coalesce(started_at, $5) ELSE started_at END,
         ended_at = CASE WHEN $6 THEN $5 ELSE NULL END
     WHERE id = $1 AND state <> 'cancelled'";

/// Makes failed chunks pending.
pub(super) const RETRY: &str = "SET state = 'pending', due = 0, faults = 0, passing = 0
     WHERE job = $1 AND state = 'failed'";

/// Makes the job of such chunks running.
pub(super) const REOPEN: &str =
    "SET state = 'running', ended_at = NULL WHERE id = $1 AND state <> 'cancelled'";

/// A value of an update.
#[derive(Debug)]
pub(super) enum Value {
    Integer(i64),
    Text(Option<String>),
}

/// An update of one chunk, whose job, first, last and fence are `$1` to `$4`.
#[derive(Debug)]
pub(super) struct Update {
    pub(super) set: String,
    /// The condition: the claim is valid. A translation is as good from an expired worker as from its successor.
    pub(super) condition: &'static str,
    /// From `$5` on.
    pub(super) values: Vec<Value>,
}

pub(super) fn update(claim: &Claim, update: &ChunkUpdate) -> Update {
    let text = |text: &String| Value::Text(Some(text.clone()));
    let finished = |set: &str, used: &CallUsage, more: Vec<Value>| {
        let used =
            [used.input, used.output, used.cost].map(|number| Value::Integer(integer(number)));
        let set = format!(
            "{set}, input = input + $5, output = output + $6, cost = cost + $7, expected = 0"
        );
        (set, used.into_iter().chain(more).collect())
    };
    let (set, values) = match update {
        ChunkUpdate::Sent { cost, .. } => {
            let calls = i64::from(claim.calls.saturating_add(1));
            let values = vec![Value::Integer(integer(*cost)), Value::Integer(calls)];
            ("state = 'sent', expected = $5, calls = $6::bigint".to_owned(), values)
        }
        ChunkUpdate::Returned => ("state = 'pending', expected = 0".to_owned(), Vec::new()),
        ChunkUpdate::Done { drafts, used } => {
            let texts = vec![Value::Text(drafts.to_json())];
            finished("state = 'done', texts = $8, reason = NULL", used, texts)
        }
        ChunkUpdate::Again { at, reason, drafts, used, is_fault } => {
            let counted = match is_fault {
                true => "faults = faults + 1, passing = 0",
                false => "passing = passing + 1",
            };
            let due = Value::Integer(integer(at.as_micros()));
            let set = format!("state = 'again', due = $8, reason = $9, texts = $10, {counted}");
            finished(&set, used, vec![due, text(reason), Value::Text(drafts.to_json())])
        }
        ChunkUpdate::Failed { reason, used } => {
            finished("state = 'failed', reason = $8", used, vec![text(reason)])
        }
        ChunkUpdate::Split { reason, used, .. } => {
            finished("state = 'split', reason = $8", used, vec![text(reason)])
        }
    };
    let condition = match update {
        ChunkUpdate::Done { .. } => "state NOT IN ('done', 'split') AND $4::bigint IS NOT NULL",
        _ => "state IN ('reserved', 'sent') AND fence = $4",
    };
    Update { set, condition, values }
}

pub(super) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn natural(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
