//! Writing to standard output. A reader that went away is not an error.

use std::io::{self, ErrorKind as IoKind, Write as _};

use serde::Serialize;
use serde_json::Value;
use tollgate::ErrorKind;

use crate::failure::Failure;
use crate::lines::Lines;
use crate::show::plain;

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
    bytes(&rendered(reader, value, text)?)
}

/// What [`answer`] prints.
pub(crate) fn rendered(
    reader: Reader,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<Vec<u8>, Failure> {
    match reader {
        Reader::Person => Ok(format!("{}\n", legible(&text())).into_bytes()),
        Reader::Program => json_line(value),
    }
}

/// Prints `text` and a line break.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    bytes(format!("{}\n", legible(text)).as_bytes())
}

/// `text` without what would steer a terminal, except line breaks. Names of files, jobs and subjects come from others.
pub(crate) fn legible(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// Prints `value` as JSON on one line.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    bytes(&json_line(value)?)
}

fn json_line(value: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let mut text = serde_json::to_vec(value).map_err(|error| {
        Failure::new(ErrorKind::Invalid, format!("could not print JSON: {error}"))
    })?;
    text.push(b'\n');
    Ok(text)
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

/// Prints `text` and a line break to standard error, as far as that is possible: it may be closed, full or stalled.
pub(crate) fn error(text: &str) {
    if let Ok(lines) = Lines::start(&io::stderr(), |_| String::new()) {
        lines.push(format!("{}\n", legible(text)).as_bytes());
        lines.finish();
    }
}

/// Rows under their columns, as wide as they need to be; `none` where there are none.
pub(crate) fn table(columns: &[&str], rows: &[Value], none: &str) -> String {
    if rows.is_empty() {
        return none.to_owned();
    }
    let cell = |row: &Value, column: &str| match &row[column] {
        Value::Null => "-".to_owned(),
        Value::String(text) => plain(text),
        other => other.to_string(),
    };
    let mut lines: Vec<Vec<String>> =
        vec![columns.iter().map(|name| name.replace('_', " ")).collect()];
    lines.extend(rows.iter().map(|row| columns.iter().map(|name| cell(row, name)).collect()));
    let width =
        |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let drawn = lines.iter().map(|line| {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    drawn.collect::<Vec<_>>().join("\n")
}
