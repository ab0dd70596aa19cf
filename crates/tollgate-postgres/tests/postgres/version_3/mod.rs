//! A schema of version 3, as the version before this one installs it and writes to it.
//!
//! `rows.sql` is a dump (`pg_dump --inserts`) of a database on which that version ran the [story], and `standings.txt` is
//! what it said of it in the end: policy, limit, used, remaining.

mod beside;
mod joint;
pub(super) mod rows;
mod shared;
pub(super) mod story;

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate_postgres::{Options, Postgres};

use super::TestDatabase;

const ROWS: &str = include_str!("rows.sql");

impl TestDatabase {
    /// A database of version 3 with the rows of the story.
    fn of_version_3() -> Self {
        let database = Self::new();
        database.psql(ROWS);
        database
    }

    /// A database of version 3 without entries and records.
    pub(super) fn empty_of_version_3() -> Self {
        let database = Self::of_version_3();
        database.psql("DELETE FROM tollgate.entries; DELETE FROM tollgate.audit; DELETE FROM tollgate.overrides");
        database
    }

    pub(super) fn options_3(&self) -> Options {
        self.options().format(3).unwrap()
    }

    async fn gate_3(&self) -> Postgres {
        Postgres::open(self.options_3()).await.unwrap()
    }

    pub(super) async fn gate_3_by(&self, clock: &ManualClock) -> Postgres {
        Postgres::open(self.options_3().test_clock(Arc::new(clock.clone()))).await.unwrap()
    }

    pub(super) fn version(&self) -> String {
        self.psql("SELECT max(version) FROM tollgate.migrations")
    }
}
