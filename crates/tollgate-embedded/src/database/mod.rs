//! The database file: SQLite in WAL mode, synced at each commit.
//!
//! SQLite opens files lazily, so each new connection reads something: damage shows when the store is opened, not at the
//! first decision. Neither commits nor closing checkpoint (see `maintenance`), since each short command would pay for one.

mod create;
mod fault;
mod rows;

use create::PERMIT_KEY;
pub(crate) use create::{ensure, is_there, key_value, quick_check};
pub(crate) use fault::{DAMAGED, damaged, fault};
pub(crate) use rows::{
    Writes, checkpoint, commits, cursor, empty_log, id, key_counts, latest, load, page,
    replace_unused_key, rows, saved_clock, set_cursor,
};

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use tollgate::Error;

/// The file's name in the data folder.
pub(crate) const FILE: &str = "entries.sqlite";

/// The application id in the header: "toll" in ASCII.
pub(crate) const APPLICATION_ID: u32 = 0x746f_6c6c;

/// The format that is written, and the newest that is read.
pub(crate) const FORMAT: u32 = 2;

/// How long a commit waits for other programs, such as a backup.
const BUSY_WAIT: Duration = Duration::from_secs(5);

/// Page cache of one connection, in KiB.
const CACHE_KIB: u32 = 8 * 1_024;

/// Prepared statements cached per connection.
const STATEMENTS: usize = 16;

/// Returns the path of the database of `folder`.
pub(crate) fn path(folder: &Path) -> PathBuf {
    folder.join(FILE)
}

/// Opens a connection to an existing database.
pub(crate) fn open(path: &Path) -> Result<Connection, Error> {
    configured(path).map_err(|error| fault("open", path, error))
}

fn configured(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_WAIT)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.execute_batch(&format!(
        "PRAGMA cache_size = -{CACHE_KIB}; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0"
    ))?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A killed process leaves its pages to the system, so no test that kills one would notice a commit that is not
    /// synced. In WAL mode a commit syncs the log exactly if `synchronous` is FULL (2).
    #[test]
    fn every_connection_syncs_each_commit() {
        let folder = tempfile::tempdir().unwrap();
        let (created, _) = ensure(folder.path()).unwrap();
        let (opened, _) = ensure(folder.path()).unwrap();
        let other = open(&path(folder.path())).unwrap();
        for connection in [created, opened, other] {
            let number = |sql| connection.query_row(sql, [], |row| row.get::<_, u32>(0)).unwrap();
            let mode: String =
                connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
            assert_eq!((number("PRAGMA synchronous"), mode.as_str()), (2, "wal"));
            assert_eq!(number("PRAGMA wal_autocheckpoint"), 0);
        }
    }
}
