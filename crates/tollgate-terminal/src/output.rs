//! Writing to standard output and standard error. A closed pipe is not an error.

use std::io::{self, ErrorKind as IoKind, Write as _};

use serde::Serialize;
use serde_json::Value;
use tollgate::ErrorKind;
use unicode_width::UnicodeWidthStr as _;

use crate::{Failure, LineWriter, escape_controls};

/// The format of what a command prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// Text for people.
    Text,
    /// JSON for programs, one document per line.
    Json,
}

/// Prints `value` as JSON, or what `text` returns.
pub fn print(
    format: OutputFormat,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    print_bytes(&render(format, value, text)?)
}

/// Returns what [`print()`] prints.
pub fn render(
    format: OutputFormat,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<Vec<u8>, Failure> {
    match format {
        OutputFormat::Text => Ok(format!("{}\n", escape_lines(&text())).into_bytes()),
        OutputFormat::Json => json_line(value),
    }
}

/// Prints `text` and a line break.
pub fn print_line(text: &str) -> Result<(), Failure> {
    print_bytes(format!("{}\n", escape_lines(text)).as_bytes())
}

/// Escapes control characters and direction marks, except line breaks.
#[must_use]
pub fn escape_lines(text: &str) -> String {
    text.split('\n').map(escape_controls).collect::<Vec<_>>().join("\n")
}

/// Prints `value` as one line of JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print_bytes(&json_line(value)?)
}

fn json_line(value: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let mut text = serde_json::to_vec(value).map_err(|error| {
        Failure::new(ErrorKind::Invalid, format!("could not print JSON: {error}"))
    })?;
    text.push(b'\n');
    Ok(text)
}

/// Prints `bytes` unchanged.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != IoKind::BrokenPipe => Err(Failure::new(
            ErrorKind::Unavailable,
            format!("could not write to standard output: {error}"),
        )),
        _ => Ok(()),
    }
}

/// Prints `text` and a line break to standard error. Best effort: it may be closed, full or stalled.
pub fn print_error(text: &str) {
    if let Ok(lines) = LineWriter::start(&io::stderr(), |_| String::new()) {
        lines.push(format!("{}\n", escape_lines(text)).as_bytes());
        lines.finish();
    }
}

/// Formats `rows` under `columns`, each as wide as its widest cell; `empty` if there are none.
#[must_use]
pub fn table(columns: &[&str], rows: &[Value], empty: &str) -> String {
    if rows.is_empty() {
        return empty.to_owned();
    }
    let cell = |row: &Value, column: &str| match &row[column] {
        Value::Null => "-".to_owned(),
        Value::String(text) => escape_controls(text),
        other => other.to_string(),
    };
    let mut lines: Vec<Vec<String>> =
        vec![columns.iter().map(|name| name.replace('_', " ")).collect()];
    lines.extend(rows.iter().map(|row| columns.iter().map(|name| cell(row, name)).collect()));
    let width = |column: usize| lines.iter().map(|line| line[column].width()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let lines = lines.iter().map(|line| {
        let cells = line.iter().zip(&widths).map(|(cell, width)| pad(cell, *width));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns `text` followed by spaces up to `width` columns of a terminal.
#[must_use]
pub fn pad(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_terminal_width() {
        let rows =
            [serde_json::json!({"id": "翻訳", "n": 1}), serde_json::json!({"id": "abc", "n": 2})];
        assert_eq!(table(&["id", "n"], &rows, ""), "id    n\n翻訳  1\nabc   2");
    }
}
