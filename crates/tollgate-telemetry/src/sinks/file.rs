//! The file of incidents: one JSON object a line, with a bound on its size, for `tollgate audit incidents`.
//!
//! When the file would grow beyond its bound it becomes the old one, which is replaced. A line that a crash cut short is
//! skipped by the reader, and ended before the next one is written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tollgate::incident::{Recorded, StoreIncident};
use tollgate::{BoxFuture, Error, ErrorKind, Event};

use super::writer::Writer;
use crate::record::{Record, What};
use crate::sink::RecordSink;

/// How large the file gets before it becomes the old one, unless set otherwise.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// What the name of the old file ends with.
const OLD: &str = ".old";

/// Appends incidents to a file.
#[derive(Debug)]
pub struct IncidentFile {
    writer: Writer,
}

impl IncidentFile {
    /// Appends to the file at `path` and keeps it within `bytes_max`. The file is made with the first incident.
    #[must_use]
    pub fn new(path: &Path, bytes_max: u64) -> Self {
        Self { writer: Writer::new(Rotating { path: path.to_owned(), open: None, bytes_max }) }
    }
}

/// The file at `path`, ready for the next line, and its size.
fn open(path: &Path) -> io::Result<(File, u64)> {
    let mut file = OpenOptions::new().create(true).append(true).read(true).open(path)?;
    let mut bytes = file.metadata()?.len();
    if bytes != 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
            bytes += 1;
        }
    }
    Ok((file, bytes))
}

/// The old file of the file at `path`.
fn old_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(OLD);
    name.into()
}

struct Rotating {
    path: PathBuf,
    /// The file and its size.
    open: Option<(File, u64)>,
    bytes_max: u64,
}

impl Rotating {
    /// The file that has room for `more` bytes, and its size.
    fn room_for(&mut self, more: u64) -> io::Result<(File, u64)> {
        let (file, bytes) = match self.open.take() {
            Some(open) => open,
            None => open(&self.path)?,
        };
        if bytes == 0 || bytes + more <= self.bytes_max {
            return Ok((file, bytes));
        }
        fs::rename(&self.path, old_of(&self.path))?;
        open(&self.path)
    }
}

impl Write for Rotating {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let size = lines.len() as u64;
        let (mut file, bytes) = self.room_for(size)?;
        // A line that was written in part is ended when the file is opened again.
        file.write_all(lines)?;
        self.open = Some((file, bytes + size));
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        // Incidents are few, and the next thing to fail may be the machine.
        self.open.as_ref().map_or(Ok(()), |(file, _)| file.sync_data())
    }
}

impl RecordSink for IncidentFile {
    fn name(&self) -> &'static str {
        "incident_file"
    }

    fn wants(&self, event: &Event<'_>) -> bool {
        matches!(event, Event::Violated { .. } | Event::Misconfigured { .. })
    }

    fn write<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            for record in records {
                let Some(incident) = recorded(record) else { continue };
                let line = serde_json::to_vec(&incident).map_err(|error| {
                    Error::new(ErrorKind::Invalid, format!("could not write an incident: {error}"))
                })?;
                self.writer.write([&line, &b"\n"[..]].concat()).await?;
            }
            Ok(())
        })
    }
}

/// What the file keeps of `record`.
fn recorded(record: &Record) -> Option<Recorded> {
    match &record.what {
        What::Violated(incident) => Some(Recorded::Violated(incident.clone())),
        What::Misconfigured { error } => Some(Recorded::Store(StoreIncident::Misconfigured {
            id: record.correlation_id.clone(),
            at: record.at,
            error: error.clone(),
        })),
        _ => None,
    }
}

/// The incidents in the file at `path` and the one before it, oldest first, and how many lines were damaged.
///
/// # Errors
/// If a file is there but cannot be read. That neither is there means that there was no incident.
pub fn read(path: &Path) -> io::Result<(Vec<Recorded>, usize)> {
    let (mut incidents, mut damaged) = (Vec::new(), 0);
    for path in [old_of(path), path.to_owned()] {
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        for line in BufReader::new(file).split(b'\n') {
            let line = line?;
            match serde_json::from_slice(&line) {
                Ok(incident) => incidents.push(incident),
                Err(_) => damaged += usize::from(!line.is_empty()),
            }
        }
    }
    Ok((incidents, damaged))
}
