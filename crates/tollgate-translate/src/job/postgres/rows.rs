//! Rows of the tables, read and named.

use tokio_postgres::Row;
use tollgate::Timestamp;

use super::super::sqlite::natural;
use super::super::{Job, JobState, Run};
use crate::error::Error;

pub(super) const JOB: &str =
    "id, name, state, resume_at, why, settings, created_at, started_at, ended_at";

pub(super) fn read_job(row: &Row) -> Result<Job, Error> {
    let time = |place: usize| row.get::<_, Option<i64>>(place).map(natural);
    let state: String = row.get(2);
    Ok(Job {
        id: row.get(0),
        name: row.get(1),
        state: JobState::read(&state, time(3), row.get(4))?,
        settings: row.get(5),
        created_at: Timestamp::from_micros(time(6).unwrap_or(0)),
        started_at: time(7).map(Timestamp::from_micros),
        ended_at: time(8).map(Timestamp::from_micros),
    })
}

pub(super) fn place(run: Run) -> (i64, i64) {
    (i64::from(run.first), i64::from(run.end))
}

pub(super) fn run_of(row: &Row, first: usize) -> Run {
    let number = |place: usize| u32::try_from(row.get::<_, i64>(place)).unwrap_or(u32::MAX);
    Run { first: number(first), end: number(first + 1) }
}

pub(super) fn count(row: &Row, place: usize) -> u32 {
    u32::try_from(row.get::<_, i32>(place)).unwrap_or(0)
}
