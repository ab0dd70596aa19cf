//! How many commits there were, said beside the database.
//!
//! SQLite takes a log that was cut, overwritten or deleted for one that a crash cut short: it goes back to the last
//! good commit, without a word. So each transaction counts itself in the database, and after it the file `commits`
//! says how far the count is. If the database is behind the file when it is opened, commits were lost.
//!
//! The file is not synced, so it may lag, and a power failure may tear it; then it says nothing. It is written only
//! after the commit is on the disk, so it is never ahead of a database that is whole.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use rusqlite::Connection;
use tollgate::{Error, ErrorKind};

use crate::database::{self, DAMAGED, fault};
use crate::folder::{unusable, writable};
use crate::row::checksum;

const FILE: &str = "commits";

/// How many digits the count has.
const DIGITS: usize = 19;

/// The most that is read of the file; what is longer is not ours.
const FILE_BYTES_MAX: u64 = 64;

/// The count of the database, and the file that says it.
#[derive(Debug)]
pub(crate) struct Tally {
    file: File,
    commits: i64,
}

impl Tally {
    /// Reads both. Fails if commits are missing in the database of `folder`.
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

    /// The count that the next commit writes.
    pub(crate) const fn next(&self) -> i64 {
        self.commits + 1
    }

    /// The commit is on the disk.
    pub(crate) fn committed(&mut self) {
        self.commits += 1;
        let text = line(self.commits);
        // A file that cannot be written lags, which it may.
        let _ = self.file.rewind().and_then(|()| self.file.write_all(text.as_bytes()));
    }
}

/// What the file says, if it is whole.
fn read(file: &mut File) -> io::Result<Option<i64>> {
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    let digits = bytes.get(..DIGITS).and_then(|digits| std::str::from_utf8(digits).ok());
    let commits = digits.and_then(|digits| digits.parse().ok());
    Ok(commits.filter(|commits| line(*commits).as_bytes() == bytes))
}

/// The whole file. It always has the same length, so that writing it again leaves nothing of what was there.
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
