//! Writing to standard output. A reader that went away is not an error.

use std::io::{self, ErrorKind as IoKind, Write as _};

use serde::Serialize;
use tollgate::ErrorKind;

use crate::failure::Failure;

/// Who reads what is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// Somebody at a terminal.
    Person,
    /// A program, which gets JSON.
    Program,
}

/// Prints `value` for `reader`; `text` says it for people.
pub(crate) fn answer(
    reader: Reader,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    match reader {
        Reader::Person => line(&text()),
        Reader::Program => json(value),
    }
}

/// Prints `text` and a line break.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    bytes(format!("{text}\n").as_bytes())
}

/// Prints `value` as JSON on one line.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_vec(value).map_err(|error| {
        Failure::new(ErrorKind::Invalid, format!("could not print JSON: {error}"))
    })?;
    text.push(b'\n');
    bytes(&text)
}

/// Prints `bytes` as they are.
pub(crate) fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != IoKind::BrokenPipe => Err(Failure::new(
            ErrorKind::Unavailable,
            format!("could not write to standard output: {error}"),
        )),
        _ => Ok(()),
    }
}
