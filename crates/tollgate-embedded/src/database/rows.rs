//! Reading and writing rows.

use rusqlite::{CachedStatement, Connection, OptionalExtension, params};
use tollgate::core::Entry;
use tollgate::{Error, Policy, Timestamp};

use crate::ids::{self, IdRecord};
use crate::keys::{self, KeyCounts, StoredKeys};
use crate::row::{self, Key};
use crate::time::Saved;

/// Loads the entry of `key`. The outer error is the database's, the inner one is about this row.
pub(crate) fn load(
    connection: &Connection,
    key: &Key,
    policy: Option<&Policy>,
) -> rusqlite::Result<Option<Result<Entry, Error>>> {
    connection
        .prepare_cached("SELECT value FROM entries WHERE key = ?1")?
        .query_row([key.bytes()], |found| {
            Ok(row::decode(key, found.get_ref(0)?.as_blob()?, policy))
        })
        .optional()
}

/// Loads the record of `id` under the entry of `key`; the inner `None` is a damaged row.
pub(crate) fn id(
    connection: &Connection,
    key: &Key,
    id: &str,
) -> rusqlite::Result<Option<Option<IdRecord>>> {
    let key = ids::key(key, id);
    connection
        .prepare_cached("SELECT value FROM ids WHERE key = ?1")?
        .query_row([&key], |found| Ok(ids::decode(&key, found.get_ref(0)?.as_blob()?)))
        .optional()
}

/// The write statements of one commit.
pub(crate) struct Writes<'a> {
    connection: &'a Connection,
    put: CachedStatement<'a>,
    remove: CachedStatement<'a>,
    count: CachedStatement<'a>,
}

impl<'a> Writes<'a> {
    pub(crate) fn new(connection: &'a Connection) -> rusqlite::Result<Self> {
        let put = "REPLACE INTO entries (key, value, written_at) VALUES (?1, ?2, ?3)";
        let remove = "DELETE FROM entries WHERE key = ?1";
        Ok(Self {
            connection,
            put: connection.prepare_cached(put)?,
            remove: connection.prepare_cached(remove)?,
            count: connection.prepare_cached(SET_META)?,
        })
    }

    /// Writes `value` under `key`, as of `at`.
    pub(crate) fn put(&mut self, key: &Key, value: &[u8], at: Timestamp) -> rusqlite::Result<()> {
        self.put.execute(params![key.bytes(), value, micros(at)]).map(drop)
    }

    /// Removes the row of `key`.
    pub(crate) fn remove(&mut self, key: &Key) -> rusqlite::Result<()> {
        self.remove.execute([key.bytes()]).map(drop)
    }

    /// Writes the record of the id under `key`, or removes it.
    pub(crate) fn id(&mut self, key: &[u8], record: Option<&IdRecord>) -> rusqlite::Result<()> {
        let changed = match record {
            Some(record) => self
                .connection
                .prepare_cached("REPLACE INTO ids (key, value, expires_at) VALUES (?1, ?2, ?3)")?
                .execute(params![key, ids::encode(key, record), micros(record.given.expires_at)]),
            None => {
                self.connection.prepare_cached("DELETE FROM ids WHERE key = ?1")?.execute([key])
            }
        };
        changed.map(drop)
    }

    /// Removes at most `most` ids that are expired at `now`.
    pub(crate) fn forget_ids(&mut self, now: Timestamp, most: usize) -> rusqlite::Result<()> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let expired = "SELECT key FROM ids WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2";
        self.connection
            .prepare_cached(&format!("DELETE FROM ids WHERE key IN ({expired})"))?
            .execute(params![micros(now), most])
            .map(drop)
    }

    /// Saves the readings of the clock.
    pub(crate) fn clock(&mut self, clock: Saved) -> rusqlite::Result<()> {
        self.count.execute(params![CLOCK, clock.to_string()]).map(drop)
    }

    /// Records that this is commit number `commits`, in which the counts of keys are saved.
    pub(crate) fn count(&mut self, commits: i64) -> rusqlite::Result<()> {
        self.count.execute(params![KEYS_COUNTED_AT, commits])?;
        self.count.execute(params![COMMITS, commits]).map(drop)
    }

    /// Saves the number of rows of `policy`.
    pub(crate) fn keys(&mut self, policy: &str, keys: u64) -> rusqlite::Result<()> {
        let name = format!("{KEYS}{policy}");
        if keys == 0 {
            let remove = "DELETE FROM meta WHERE name = ?1";
            return self.connection.prepare_cached(remove)?.execute([name]).map(drop);
        }
        self.count.execute(params![name, i64::try_from(keys).unwrap_or(i64::MAX)]).map(drop)
    }

    /// Removes the saved counts of an older state.
    pub(crate) fn forget_keys(&mut self) -> rusqlite::Result<()> {
        let remove = "DELETE FROM meta WHERE ?1 <= name AND name < ?2 OR name = ?3";
        self.connection.execute(remove, [KEYS, KEYS_END, OLDER_CURSOR]).map(drop)
    }
}

/// Returns the number of rows by policy. The counts are saved ones, unless a program that saves none wrote since; then
/// every row is visited.
pub(crate) fn key_counts(connection: &Connection) -> rusqlite::Result<StoredKeys> {
    let counted_at: Option<i64> =
        connection.query_row(META, [KEYS_COUNTED_AT], |row| row.get(0)).optional()?;
    let is_cleaned_up: Option<bool> =
        connection.query_row(META, [OLDER_CURSOR], |_| Ok(true)).optional()?;
    let mut counts = KeyCounts::new();
    if counted_at == Some(commits(connection)?) && is_cleaned_up.is_none() {
        let mut saved =
            connection.prepare("SELECT name, value FROM meta WHERE ?1 <= name AND name < ?2")?;
        let mut rows = saved.query([KEYS, KEYS_END])?;
        while let Some(row) = rows.next()? {
            let name: String = row.get(0)?;
            let policy = name.strip_prefix(KEYS).unwrap_or_default();
            counts.insert(policy.into(), u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0));
        }
        return Ok(StoredKeys::new(counts, true));
    }
    let mut all = connection.prepare("SELECT key FROM entries")?;
    let mut rows = all.query([])?;
    while let Some(row) = rows.next()? {
        let key = row.get_ref(0)?.as_blob()?;
        let policy = key.split(|byte| *byte == 0).next().unwrap_or_default();
        keys::add(&mut counts, &String::from_utf8_lossy(policy), 1);
    }
    Ok(StoredKeys::new(counts, false))
}

/// A key, and whether its row was not written since a given time.
pub(crate) struct Listed {
    pub(crate) key: Vec<u8>,
    pub(crate) idle: bool,
}

/// Lists up to `rows_max` keys after `after` and before `end`, and whether their rows were last written by `before`.
pub(crate) fn page(
    connection: &Connection,
    [after, end]: [&[u8]; 2],
    before: Timestamp,
    rows_max: usize,
) -> rusqlite::Result<Vec<Listed>> {
    let rows_max = i64::try_from(rows_max).unwrap_or(i64::MAX);
    connection
        .prepare_cached(
            "SELECT key, written_at <= ?3 FROM entries WHERE ?1 < key AND key < ?2 ORDER BY key LIMIT ?4",
        )?
        .query_map(params![after, end, micros(before), rows_max], |row| {
            Ok(Listed { key: row.get(0)?, idle: row.get(1)? })
        })?
        .collect()
}

/// Copies the log into the database file, as far as no reader blocks it.
pub(crate) fn checkpoint(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

/// Copies the log into the database file and truncates it. Requires exclusive use of the database.
pub(crate) fn empty_log(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

/// Returns the key at which the clean-up of the last command stopped.
pub(crate) fn cursor(connection: &Connection) -> rusqlite::Result<Vec<u8>> {
    let found = connection.query_row(META, [CURSOR], |row| row.get(0)).optional()?;
    Ok(found.unwrap_or_default())
}

/// Saves the key at which the clean-up stopped.
pub(crate) fn set_cursor(connection: &Connection, key: &[u8]) -> rusqlite::Result<()> {
    connection.execute(SET_META, (CURSOR, key)).map(drop)
}

/// Returns the number of commits.
pub(crate) fn commits(connection: &Connection) -> rusqlite::Result<i64> {
    let found = connection.query_row(META, [COMMITS], |row| row.get(0)).optional()?;
    Ok(found.unwrap_or_default())
}

/// Returns the saved readings of the clock.
pub(crate) fn saved_clock(connection: &Connection) -> rusqlite::Result<Option<Saved>> {
    let found: Option<String> = connection.query_row(META, [CLOCK], |row| row.get(0)).optional()?;
    Ok(found.as_deref().and_then(Saved::parse))
}

/// Returns the latest time of any entry. Scans every row.
pub(crate) fn latest(connection: &Connection) -> rusqlite::Result<Timestamp> {
    let latest: Option<i64> =
        connection.query_row("SELECT max(written_at) FROM entries", [], |row| row.get(0))?;
    Ok(Timestamp::from_micros(latest.and_then(|at| u64::try_from(at).ok()).unwrap_or(0)))
}

/// A row as it is stored: its key and its value.
pub(crate) type Raw = (Vec<u8>, Vec<u8>);

/// Lists up to `rows_max` rows after `key`; with `after`, only those written later than that.
pub(crate) fn rows(
    connection: &Connection,
    key: &[u8],
    after: Option<Timestamp>,
    rows_max: usize,
) -> rusqlite::Result<Vec<Raw>> {
    let rows_max = i64::try_from(rows_max).unwrap_or(i64::MAX);
    connection
        .prepare_cached(
            "SELECT key, value FROM entries WHERE ?1 < key AND ?2 < written_at ORDER BY key LIMIT ?3",
        )?
        .query_map(params![key, after.map_or(-1, micros), rows_max], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?
        .collect()
}

/// Replaces the key of permits if there is no entry yet. Returns whether it did.
pub(crate) fn replace_unused_key(connection: &Connection, value: &[u8]) -> rusqlite::Result<bool> {
    let sql = "UPDATE meta SET value = ?2 WHERE name = ?1 AND NOT EXISTS (SELECT 1 FROM entries)";
    Ok(0 < connection.execute(sql, params![super::PERMIT_KEY, value])?)
}

const META: &str = "SELECT value FROM meta WHERE name = ?1";
const SET_META: &str = "REPLACE INTO meta (name, value) VALUES (?1, ?2)";
const CURSOR: &str = "cleaned_up_after";
/// The cursor of programs that save no counts of keys.
const OLDER_CURSOR: &str = "cleaned_up_to";
/// The prefix of the counts of keys; a policy name follows.
const KEYS: &str = "keys/";
/// The least name after all that begin with [`KEYS`].
const KEYS_END: &str = "keys0";
/// The commit as of which the counts of keys are saved.
const KEYS_COUNTED_AT: &str = "keys_counted_at";
const COMMITS: &str = "commits";
const CLOCK: &str = "clock";

fn micros(at: Timestamp) -> i64 {
    i64::try_from(at.as_micros()).unwrap_or(i64::MAX)
}
