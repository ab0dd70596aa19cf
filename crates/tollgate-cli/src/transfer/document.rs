//! The document that an export writes and an import reads, in JSON Lines.
//!
//! ```text
//! {"format":"tollgate-export","version":1,"taken_at":"…","store":"redis"}      with "permit_key" only on request
//! {"overrides":{…}}                                                            if there are any
//! {"entry":{"policy":"…","subject":"…","at":"…","state":"<base64>"}}           any number
//! {"end":{"entries":2,"sha256":"<of all bytes before this line>"}}
//! ```
//! The state is the entry in the encoding of the core, with the numbers of its policy. The last line distinguishes a
//! complete document from a truncated one.

use std::io::{self, BufRead, Read as _, Write};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tollgate::core::{Entry, codec};
use tollgate::entries::PERMIT_KEY_BYTES;
use tollgate::overrides::Document;
use tollgate::{Ask, Error, ErrorKind, Timestamp};
use tollgate_server::overrides::Overrides;

const FORMAT: &str = "tollgate-export";

/// The version that is written, and the newest that is read.
const VERSION: u32 = 1;

/// The longest line: an entry with as many settled permits as it may have stays far below it.
const LINE_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
    taken_at: String,
    store: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    permit_key: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Record {
    Overrides(Value),
    Entry(Box<EntryRecord>),
    End(End),
}

#[derive(Debug, Serialize, Deserialize)]
struct EntryRecord {
    policy: String,
    subject: String,
    /// For people; the state has it too.
    at: String,
    state: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct End {
    entries: u64,
    sha256: String,
}

/// The first line.
#[derive(Debug)]
pub(super) struct Origin {
    /// The source's time when the export began.
    pub(super) taken_at: Timestamp,
    /// The kind of the source.
    pub(super) store: String,
    pub(super) permit_key: Option<[u8; PERMIT_KEY_BYTES]>,
}

/// Writes a document.
pub(super) struct Writer<W> {
    out: W,
    sum: Sha256,
    pub(super) entries: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a document.
    pub(super) fn begin(out: W, origin: &Origin) -> io::Result<Self> {
        let mut writer = Self { out, sum: Sha256::new(), entries: 0 };
        writer.line(&Header {
            format: FORMAT.to_owned(),
            version: VERSION,
            taken_at: origin.taken_at.to_string(),
            store: origin.store.clone(),
            permit_key: origin.permit_key.map(|key| BASE64_STANDARD.encode(key)),
        })?;
        Ok(writer)
    }

    pub(super) fn overrides(&mut self, document: &Document) -> io::Result<()> {
        self.line(&Record::Overrides(serde_json::from_str(&document.text)?))
    }

    pub(super) fn entry(&mut self, policy: &str, subject: &str, entry: &Entry) -> io::Result<()> {
        let mut bytes = Vec::new();
        codec::encode(entry, &mut bytes);
        self.entries += 1;
        self.line(&Record::Entry(Box::new(EntryRecord {
            policy: policy.to_owned(),
            subject: subject.to_owned(),
            at: entry.at().to_string(),
            state: BASE64_STANDARD.encode(bytes),
        })))
    }

    /// Writes the last line, and returns the output.
    pub(super) fn end(mut self) -> io::Result<W> {
        let sha256 = hex(&self.sum.clone().finalize());
        self.line(&Record::End(End { entries: self.entries, sha256 }))?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn line(&mut self, value: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.sum.update(&line);
        self.out.write_all(&line)
    }
}

/// An entry of a document.
#[derive(Debug)]
pub(super) struct Moved {
    pub(super) policy: String,
    pub(super) subject: String,
    pub(super) entry: Entry,
}

/// The contents of a document beside its entries.
#[derive(Debug)]
pub(super) struct Summary {
    pub(super) origin: Origin,
    pub(super) overrides: Option<Overrides>,
    pub(super) entries: u64,
}

/// Reads a document, entry by entry.
#[derive(Debug)]
pub(super) struct DocumentReader<R> {
    lines: LineReader<R>,
    /// Whether a truncated document is accepted.
    partial: bool,
    /// What was read so far; complete after the last entry.
    pub(super) summary: Summary,
}

impl<R: BufRead> DocumentReader<R> {
    /// Reads the first line.
    pub(super) fn begin(input: R, partial: bool) -> Result<Self, Error> {
        let mut lines = LineReader { input, sum: Sha256::new(), number: 0 };
        let header = lines.next()?.ok_or_else(|| invalid("the export is empty"))?;
        let origin = origin(&header).map_err(|why| invalid(format!("line 1 {why}")))?;
        Ok(Self { lines, partial, summary: Summary { origin, overrides: None, entries: 0 } })
    }

    /// Returns the next entry; `None` after the last one of a complete document.
    pub(super) fn next(&mut self) -> Result<Option<Moved>, Error> {
        loop {
            let before = hex(&self.lines.sum.clone().finalize());
            let Some(line) = self.lines.next()? else { return self.truncated() };
            let number = self.lines.number;
            let wrong = |why: String| invalid(format!("line {number} {why}"));
            let line = match serde_json::from_slice::<Record>(&line) {
                Ok(line) => line,
                // The last line is incomplete.
                Err(_) if !line.ends_with(b"\n") => return self.truncated(),
                Err(error) => return Err(wrong(format!("is no line of an export: {error}"))),
            };
            match line {
                Record::Overrides(document) => {
                    let document = Document { version: 0, text: document.to_string() };
                    let overrides = Overrides::parse(&document).map_err(|error| {
                        wrong(format!("has overrides that do not decode: {error}"))
                    })?;
                    self.summary.overrides = Some(overrides);
                }
                Record::Entry(line) => {
                    self.summary.entries += 1;
                    return line.moved().map(Some).map_err(wrong);
                }
                Record::End(end) => {
                    if end.entries != self.summary.entries || end.sha256 != before {
                        return Err(invalid(format!(
                            "the export was changed after it was written: it has {} entries, and its last line is about \
                             {} and another checksum; nothing was imported, export again",
                            self.summary.entries, end.entries
                        )));
                    }
                    return match self.lines.next()? {
                        None => Ok(None),
                        Some(_) => Err(invalid("the export goes on behind its last line")),
                    };
                }
            }
        }
    }

    fn truncated(&self) -> Result<Option<Moved>, Error> {
        if self.partial {
            return Ok(None);
        }
        Err(invalid(format!(
            "the export is cut off: it ends after {} entries without its last line; nothing was imported. Export again, or \
             import the rest with --partial",
            self.summary.entries
        )))
    }
}

impl EntryRecord {
    fn moved(self) -> Result<Moved, String> {
        let Self { policy, subject, state, .. } = self;
        let broken = |why: String| format!("(policy {policy:?}, subject {subject:?}) {why}");
        let state = BASE64_STANDARD.decode(state);
        let state =
            state.map_err(|error| broken(format!("has a state that is not base64: {error}")))?;
        let entry =
            codec::decode_any(&state, &policy).map_err(|error| broken(error.to_string()))?;
        Ask::new(entry.policy(), subject.as_str())
            .check()
            .map_err(|error| broken(error.to_string()))?;
        Ok(Moved { policy, subject, entry })
    }
}

#[derive(Debug)]
struct LineReader<R> {
    input: R,
    sum: Sha256,
    number: u64,
}

impl<R: BufRead> LineReader<R> {
    fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let mut line = Vec::new();
        let read = self.input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        let unreadable = |error: io::Error| {
            Error::new(ErrorKind::Unavailable, format!("the export cannot be read: {error}"))
        };
        if read.map_err(unreadable)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.sum.update(&line);
        Ok(Some(line))
    }
}

fn origin(line: &[u8]) -> Result<Origin, String> {
    let no_export = |why: String| {
        format!("is not the first line of an export ({why}); write one with tollgate export")
    };
    let header: Header =
        serde_json::from_slice(line).map_err(|error| no_export(error.to_string()))?;
    if header.format != FORMAT {
        return Err(no_export(format!("its format is {:?}", header.format)));
    }
    if VERSION < header.version {
        return Err(format!(
            "says version {}, and this program reads up to {VERSION}; use the newer program that wrote it",
            header.version
        ));
    }
    let taken_at = header.taken_at.parse().map_err(|error| no_export(format!("{error}")))?;
    let key = |text: String| {
        let key = BASE64_STANDARD.decode(text).ok().and_then(|key| key.try_into().ok());
        key.ok_or_else(|| no_export("its permit key is not 32 bytes".to_owned()))
    };
    let permit_key = header.permit_key.map(key).transpose()?;
    Ok(Origin { taken_at, store: header.store, permit_key })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

#[cfg(test)]
mod tests {
    use tollgate::{Limit, Policy, TokenBucket};

    use super::*;

    fn written(subjects: &[&str]) -> Vec<u8> {
        let limit = Limit::new("burst", "requests", TokenBucket::per_second(10));
        let policy = Policy::new("api", [limit]).unwrap();
        let taken_at = Timestamp::from_secs(1_700_000_000);
        let origin = Origin { taken_at, store: "redis".to_owned(), permit_key: Some([7; 32]) };
        let mut writer = Writer::begin(Vec::new(), &origin).unwrap();
        for subject in subjects {
            writer.entry("api", subject, &Entry::used_up(&policy, taken_at)).unwrap();
        }
        writer.end().unwrap()
    }

    fn subjects(document: &[u8], partial: bool) -> Result<Vec<String>, Error> {
        let mut subjects = Vec::new();
        let mut reader = DocumentReader::begin(document, partial)?;
        while let Some(moved) = reader.next()? {
            subjects.push(moved.subject);
        }
        assert_eq!(reader.summary.origin.permit_key, Some([7; 32]));
        Ok(subjects)
    }

    #[test]
    fn a_document_cut_anywhere_is_noticed_and_partly_readable() {
        let names = ["alice", "bob\n{\"end\":1}", "日本/\u{1f600}\\ \""];
        let document = written(&names);
        assert_eq!(subjects(&document, false).unwrap(), names);
        let header = document.iter().position(|byte| *byte == b'\n').unwrap();
        for length in 0..document.len() - 1 {
            let error = subjects(&document[..length], false).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{length} bytes");
            if header < length {
                let found = subjects(&document[..length], true).unwrap();
                assert_eq!(found, names[..found.len()], "{length} bytes");
            }
        }
    }

    #[test]
    fn a_document_that_was_changed_is_refused() {
        let document = String::from_utf8(written(&["alice", "bob"])).unwrap();
        let lines: Vec<&str> = document.lines().collect();
        let without_bob = [lines[0], lines[1], lines[3], ""].join("\n");
        for (changed, what) in [
            (without_bob, "was changed after it was written: it has 1 entries"),
            (document.replace("alice", "alicf"), "was changed after it was written"),
            (document.replace("\"version\":1", "\"version\":2"), "reads up to 1"),
            (document.replace("tollgate-export", "export"), "its format is \"export\""),
            (document.replace("\"state\":\"", "\"state\":\"!"), "line 2 (policy \"api\", subject"),
            (format!("{document}{document}"), "goes on behind its last line"),
            (String::new(), "is empty"),
        ] {
            let error = subjects(changed.as_bytes(), false).unwrap_err().to_string();
            assert!(error.contains(what), "{what}: {error}");
        }
    }
}
