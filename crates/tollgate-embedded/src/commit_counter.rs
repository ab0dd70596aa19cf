//! The number of commits, in the database and in a file beside it.
//!
//! SQLite treats a truncated, overwritten or deleted log like one that a crash cut short: it silently returns to the last good
//! commit. So each transaction counts itself in the database, and the file `commits` has the count afterwards. If the
//! database is behind the file on open, commits were lost.
//!
//! The file is not synced, so it may lag, and a power failure may tear it, which makes it void. It is written after the
//! commit is on disk, so it is never ahead of an intact database.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use rusqlite::Connection;
use tollgate::{Error, ErrorKind};

use crate::database::{self, DAMAGED, fault};
use crate::folder::{unusable, writable};
use crate::row::checksum;

const FILE: &str = "commits";

/// Digits of the count.
const DIGITS: usize = 19;

/// A longer file is not ours.
const FILE_BYTES_MAX: u64 = 64;

/// The count of the database, and its file.
#[derive(Debug)]
pub(crate) struct CommitCounter {
    file: File,
    commits: i64,
}

impl CommitCounter {
    /// Reads both counts. Fails if commits are missing in the database of `folder`.
    pub(crate) fn open(folder: &Path, connection: &Connection) -> Result<Self, Error> {
        let database = database::path(folder);
        let commits =
            database::commits(connection).map_err(|error| fault("read", &database, error))?;
        let path = folder.join(FILE);
        let mut file = writable(&path).map_err(|error| unusable("open", &path, error))?;
        let said = read(&mut file).map_err(|error| unusable("read", &path, error))?;
        match said {
            Some(said) if commits < said => Err(missing(&database, &path, commits, said)),
            _ => Ok(Self { file, commits }),
        }
    }

    /// Returns the count of the next commit.
    pub(crate) const fn next(&self) -> i64 {
        self.commits + 1
    }

    /// Records a durable commit.
    pub(crate) fn committed(&mut self) {
        self.commits += 1;
        let text = line(self.commits);
        // The file may lag, so an error is ignored.
        let _ = self.file.rewind().and_then(|()| self.file.write_all(text.as_bytes()));
    }
}

/// Parses the file; `None` if it is torn.
fn read(file: &mut File) -> io::Result<Option<i64>> {
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    let digits = bytes.get(..DIGITS).and_then(|digits| std::str::from_utf8(digits).ok());
    let commits = digits.and_then(|digits| digits.parse().ok());
    Ok(commits.filter(|commits| line(*commits).as_bytes() == bytes))
}

/// Formats the file, always with the same length, so that rewriting it leaves no rest.
fn line(commits: i64) -> String {
    let sum = checksum(FILE.as_bytes(), &commits.to_le_bytes());
    format!("{commits:0DIGITS$} {sum:08x}\n")
}

fn missing(database: &Path, file: &Path, commits: i64, said: i64) -> Error {
    let (database, file) = (database.display(), file.display());
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "{database} is damaged: its newest decisions are missing, since it has {commits} commits and {file} says that \
             there were {said}, so {database}-wal was cut, overwritten or deleted; {DAMAGED}, or remove {file} to go on \
             without them"
        ),
    )
}
