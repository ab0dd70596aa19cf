//! RESP3 replies as JSON, so that all transports share their message types.

use serde_json::{Map, Value};

use crate::target::RESPONSE_BYTES_MAX;

/// The maximum nesting of a reply; a broker's has less.
const DEPTH_MAX: usize = 8;

/// One reply.
#[derive(Debug, PartialEq)]
pub(super) enum Reply {
    Value(Value),
    /// An error: its first word, and the rest.
    Failed {
        code: String,
        text: String,
    },
}

/// A malformed reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// Parses the reply in `input`; `None` if it is incomplete.
pub(super) fn read(input: &[u8]) -> Result<Option<Reply>, Malformed> {
    if RESPONSE_BYTES_MAX < input.len() {
        return Err(Malformed("it is too long"));
    }
    let mut cursor = Cursor { input, at: 0 };
    let reply = match input.first() {
        Some(b'-') => cursor.error()?,
        Some(_) => cursor.value(0)?.map(Reply::Value),
        None => None,
    };
    match reply {
        Some(_) if cursor.at < input.len() => Err(Malformed("more than one reply")),
        reply => Ok(reply),
    }
}

struct Cursor<'a> {
    input: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Returns the rest of the line, without its end.
    fn line(&mut self) -> Result<Option<&'a str>, Malformed> {
        let rest = self.input.get(self.at..).unwrap_or_default();
        let Some(length) = rest.windows(2).position(|end| end == b"\r\n") else {
            return Ok(None);
        };
        self.at += length + 2;
        text(&rest[..length]).map(Some)
    }

    fn error(&mut self) -> Result<Option<Reply>, Malformed> {
        let Some(line) = self.line()? else { return Ok(None) };
        let (code, text) = line[1..].split_once(' ').unwrap_or((&line[1..], ""));
        Ok(Some(Reply::Failed { code: code.to_owned(), text: text.to_owned() }))
    }

    fn value(&mut self, depth: usize) -> Result<Option<Value>, Malformed> {
        if DEPTH_MAX < depth {
            return Err(Malformed("it is nested too deep"));
        }
        let Some(line) = self.line()? else { return Ok(None) };
        let kind = line.as_bytes().first().copied().unwrap_or_default();
        let rest = line.get(1..).ok_or(Malformed("a line begins with nothing that is known"))?;
        Ok(Some(match kind {
            b'+' => Value::from(rest),
            b':' => Value::from(rest.parse::<i64>().map_err(|_| Malformed("an invalid integer"))?),
            b'_' => Value::Null,
            b'#' => Value::from(rest == "t"),
            b'$' => {
                let Some(word) = self.word(length(rest)?)? else { return Ok(None) };
                Value::from(word)
            }
            b'*' => {
                let mut values = Vec::new();
                for _ in 0..length(rest)? {
                    let Some(value) = self.value(depth + 1)? else { return Ok(None) };
                    values.push(value);
                }
                Value::from(values)
            }
            b'%' => {
                let mut members = Map::new();
                for _ in 0..length(rest)? {
                    let Some(name) = self.value(depth + 1)? else { return Ok(None) };
                    let Some(value) = self.value(depth + 1)? else { return Ok(None) };
                    let Value::String(name) = name else {
                        return Err(Malformed("a member has no name"));
                    };
                    members.insert(name, value);
                }
                Value::from(members)
            }
            _ => return Err(Malformed("a line begins with nothing that is known")),
        }))
    }

    /// Returns the next `length` bytes, which end a line.
    fn word(&mut self, length: usize) -> Result<Option<&'a str>, Malformed> {
        let end = self.at + length;
        match self.input.get(end..end + 2) {
            None => Ok(None),
            Some(b"\r\n") => {
                let word = text(&self.input[self.at..end])?;
                self.at = end + 2;
                Ok(Some(word))
            }
            Some(_) => Err(Malformed("a text does not end where it says")),
        }
    }
}

fn text(bytes: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(bytes).map_err(|_| Malformed("it is not UTF-8"))
}

fn length(text: &str) -> Result<usize, Malformed> {
    let length = text.parse().ok().filter(|length| *length <= RESPONSE_BYTES_MAX);
    length.ok_or(Malformed("an invalid length"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const WHOLE: &[u8] =
        b"%3\r\n$8\r\nadmitted\r\n#t\r\n$6\r\nlimits\r\n*2\r\n:-7\r\n_\r\n$1\r\n\xc3\xbc\r\n+x\r\n";

    #[test]
    fn a_map_is_an_object() {
        let whole = b"%3\r\n$8\r\nadmitted\r\n#t\r\n$6\r\nlimits\r\n*2\r\n:-7\r\n_\r\n$2\r\n\xc3\xbc\r\n+x\r\n";
        let value = json!({"admitted": true, "limits": [-7, null], "\u{fc}": "x"});
        assert_eq!(read(whole), Ok(Some(Reply::Value(value))));
        for cut in 0..whole.len() {
            assert_eq!(read(&whole[..cut]), Ok(None), "{cut}");
        }
    }

    #[test]
    fn an_error_is_its_kind_and_its_text() {
        let failed = Reply::Failed { code: "NOAUTH".to_owned(), text: "Come in.".to_owned() };
        assert_eq!(read(b"-NOAUTH Come in.\r\n"), Ok(Some(failed)));
    }

    #[test]
    fn nonsense_is_refused() {
        let deep = "*1\r\n".repeat(DEPTH_MAX + 2);
        let rows: [&[u8]; 8] = [
            WHOLE,
            b"!\r\n",
            b"\r\n",
            b":x\r\n",
            b"$-1\r\n",
            b"$9999999999\r\n",
            b"_\r\n_\r\n",
            deep.as_bytes(),
        ];
        for input in rows {
            assert!(read(input).is_err(), "{}", String::from_utf8_lossy(input));
        }
    }
}
