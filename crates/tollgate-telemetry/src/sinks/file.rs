//! The incident file: JSON lines of bounded size, for `tollgate audit incidents`.
//!
//! A file that would exceed its bound replaces the old file. The reader skips a line that a crash truncated, and the writer
//! terminates it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tollgate::gate::BoxFuture;
use tollgate::incident::{DifferentLimit, GatewayIncident, Recorded, StoreIncident};
use tollgate::observe::Event;
use tollgate::{Error, ErrorKind};

use super::writer::Writer;
use crate::record::{Record, RecordKind};
use crate::sink::RecordSink;

/// The default bound on the size of the file.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// The suffix of the old file.
const OLD_SUFFIX: &str = ".old";

/// Appends incidents to a file.
#[derive(Debug)]
pub struct IncidentFile {
    writer: Writer,
}

impl IncidentFile {
    /// Appends to the file at `path`, up to `bytes_max`. The first incident creates the file.
    #[must_use]
    pub fn new(path: &Path, bytes_max: u64) -> Self {
        Self { writer: Writer::new(RotatingFile { path: path.to_owned(), open: None, bytes_max }) }
    }
}

/// Opens the file at `path` for the next line. Returns its size, too.
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

/// Returns the path of the old file.
fn old_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(OLD_SUFFIX);
    name.into()
}

struct RotatingFile {
    path: PathBuf,
    /// The file and its size.
    open: Option<(File, u64)>,
    bytes_max: u64,
}

impl RotatingFile {
    /// Returns a file with room for `more` bytes, and its size.
    fn room_for(&mut self, more: u64) -> io::Result<(File, u64)> {
        let (file, bytes) = match self.open.take() {
            Some(open) => open,
            None => open(&self.path)?,
        };
        if bytes == 0 || bytes + more <= self.bytes_max {
            return Ok((file, bytes));
        }
        fs::rename(&self.path, old_path(&self.path))?;
        open(&self.path)
    }
}

impl Write for RotatingFile {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let size = lines.len() as u64;
        let (mut file, bytes) = self.room_for(size)?;
        // A partial line is terminated when the file is opened again.
        file.write_all(lines)?;
        self.open = Some((file, bytes + size));
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        // Incidents are few, and the machine may fail next.
        self.open.as_ref().map_or(Ok(()), |(file, _)| file.sync_data())
    }
}

impl RecordSink for IncidentFile {
    fn name(&self) -> &'static str {
        "incident_file"
    }

    fn wants(&self, event: &Event<'_>) -> bool {
        matches!(
            event,
            Event::Violated { .. } | Event::Misconfigured { .. } | Event::LimitDiffers(_)
        )
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

/// Returns the entry for `record`, if it is an incident.
fn recorded(record: &Record) -> Option<Recorded> {
    match &record.kind {
        RecordKind::Violated(incident) => Some(Recorded::Violated(incident.clone())),
        RecordKind::Misconfigured { error } => {
            Some(Recorded::Store(StoreIncident::Misconfigured {
                id: record.correlation_id.clone(),
                at: record.at,
                error: error.clone(),
            }))
        }
        RecordKind::LimitDiffers(limit) => Some(Recorded::Gateway(GatewayIncident::LimitDiffers {
            id: record.correlation_id.clone(),
            at: record.at,
            limit: DifferentLimit::clone(limit),
        })),
        _ => None,
    }
}

/// Reads the incidents in the file at `path` and its old file, oldest first. Returns the number of damaged lines, too.
///
/// # Errors
/// If a file exists but cannot be read. Without a file there was no incident.
pub fn read(path: &Path) -> io::Result<(Vec<Recorded>, usize)> {
    let (mut incidents, mut damaged) = (Vec::new(), 0);
    for path in [old_path(path), path.to_owned()] {
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
