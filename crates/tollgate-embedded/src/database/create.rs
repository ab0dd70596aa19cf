//! Creates the database once, and checks it on every open.
//!
//! A marker file is written after the database was created. If the marker exists and the database is missing or empty, the
//! database was lost, which is an error; without the marker, an interrupted creation is resumed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use rusqlite::{Connection, OptionalExtension};
use tollgate::{Error, ErrorKind};

use super::fault::{damaged, fault};
use super::rows::checkpoint;
use super::{APPLICATION_ID, FORMAT, open, path};
use crate::folder::{unusable, writable};
use crate::row::checksum;

/// The marker file.
pub(crate) const MARKER: &str = "format";

/// The name of the key in `meta`.
pub(super) const PERMIT_KEY: &str = "permit_key";

/// Returns whether there is a database in `folder`, or was one.
pub(crate) fn is_there(folder: &Path) -> Result<bool, Error> {
    Ok(exists(&path(folder))? || exists(&folder.join(MARKER))?)
}

/// Opens the database of `folder`, and creates it if there never was one. Returns the connection and the key of permits.
pub(crate) fn ensure(folder: &Path) -> Result<(Connection, [u8; 32]), Error> {
    let path = path(folder);
    let marker = folder.join(MARKER);
    let made = exists(&marker)?;
    if made && !exists(&path)? {
        let name = marker.display();
        return Err(damaged(&path, &format!("it is missing, although {name} exists")));
    }
    if !exists(&path)? {
        // It holds a key. SQLite creates the other files with the same mode.
        writable(&path).map_err(|error| unusable("create", &path, error))?;
    }
    let connection = open(&path)?;
    match look(&connection, &path)? {
        State::Empty if made => return Err(damaged(&path, "it is empty")),
        State::Empty => create(&connection).map_err(|error| fault("create", &path, error))?,
        State::Format(FORMAT) => {}
        State::Format(_) => upgrade(&connection).map_err(|error| fault("upgrade", &path, error))?,
    }
    if !made {
        write_marker(folder, &marker).map_err(|error| {
            let text =
                format!("could not write {}; make the data folder writable", marker.display());
            Error::new(ErrorKind::Unavailable, text).caused_by(error)
        })?;
    }
    let key = permit_key(&connection, &path)?;
    Ok((connection, key))
}

/// Checks the structure of the whole database, which takes time for a large one.
pub(crate) fn quick_check(connection: &Connection, folder: &Path) -> Result<(), Error> {
    let path = path(folder);
    let said: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|error| fault("check", &path, error))?;
    if said == "ok" { Ok(()) } else { Err(damaged(&path, &said.replace('\n', " "))) }
}

enum State {
    Empty,
    Format(u32),
}

/// Identifies the database. The first statement that reads the file.
fn look(connection: &Connection, path: &Path) -> Result<State, Error> {
    let number = |pragma: &str| -> Result<u32, Error> {
        connection
            .query_row(pragma, [], |row| row.get(0))
            .map_err(|error| fault("read", path, error))
    };
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    let application = number("PRAGMA application_id")?;
    let format = number("PRAGMA user_version")?;
    let name = path.display();
    match (application, format, tables) {
        (0, 0, 0) => Ok(State::Empty),
        (APPLICATION_ID, 1..=FORMAT, _) => Ok(State::Format(format)),
        (APPLICATION_ID, newer, _) => Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "{name} has format {newer} and this program reads up to {FORMAT}; use the newer \
                 program that wrote it"
            ),
        )),
        _ => Err(Error::new(
            ErrorKind::Invalid,
            format!("{name} is a database of another program; choose another data folder"),
        )),
    }
}

/// Ask ids, which format 1 has in the entries.
const IDS: &str = "
    CREATE TABLE ids (
        key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL, expires_at INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX ids_by_expiry ON ids (expires_at);";

/// Upgrades from format 1, whose entries are still readable.
fn upgrade(connection: &Connection) -> rusqlite::Result<()> {
    connection
        .execute_batch(&format!("BEGIN IMMEDIATE; {IDS} PRAGMA user_version = {FORMAT}; COMMIT"))
}

fn create(connection: &Connection) -> rusqlite::Result<()> {
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(|error| {
        rusqlite::Error::ToSqlConversionFailure(format!("no random numbers: {error}").into())
    })?;
    let value = key_value(&key);
    connection.execute_batch("PRAGMA journal_mode = WAL; BEGIN IMMEDIATE")?;
    connection.execute_batch(&format!(
        "CREATE TABLE entries (
             key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL, written_at INTEGER NOT NULL
         ) WITHOUT ROWID;
         {IDS}
         CREATE TABLE meta (name TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL) WITHOUT ROWID;
         PRAGMA application_id = {APPLICATION_ID};
         PRAGMA user_version = {FORMAT};"
    ))?;
    connection.execute("INSERT INTO meta (name, value) VALUES (?1, ?2)", (PERMIT_KEY, value))?;
    connection.execute_batch("COMMIT")?;
    // Moves the tables from the log, which may be deleted, to the file itself before the marker is written.
    checkpoint(connection)
}

/// Encodes the key of permits with its checksum.
pub(crate) fn key_value(key: &[u8; 32]) -> Vec<u8> {
    let mut value = key.to_vec();
    value.extend(checksum(PERMIT_KEY.as_bytes(), key).to_le_bytes());
    value
}

fn permit_key(connection: &Connection, path: &Path) -> Result<[u8; 32], Error> {
    let value: Option<Vec<u8>> = connection
        .query_row("SELECT value FROM meta WHERE name = ?1", [PERMIT_KEY], |row| row.get(0))
        .optional()
        .map_err(|error| fault("read", path, error))?;
    let value = value.ok_or_else(|| damaged(path, "the key of its permits is missing"))?;
    let parts = value.split_first_chunk::<32>();
    match parts {
        Some((key, sum)) if sum == checksum(PERMIT_KEY.as_bytes(), key).to_le_bytes() => Ok(*key),
        _ => Err(damaged(path, "the key of its permits does not match its checksum")),
    }
}

fn exists(path: &Path) -> Result<bool, Error> {
    fs::exists(path).map_err(|error| {
        let text = format!("could not look for {}: {error}", path.display());
        Error::new(ErrorKind::Unavailable, text).caused_by(error)
    })
}

fn write_marker(folder: &Path, marker: &Path) -> io::Result<()> {
    let mut file = writable(marker)?;
    file.set_len(0)?;
    writeln!(file, "tollgate-embedded {FORMAT}")?;
    file.sync_all()?;
    File::open(folder)?.sync_all()?;
    // The entry of the folder itself may be new too.
    match folder.parent() {
        Some(parent) if parent != Path::new("") => File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}
