//! Answers in the Redis protocol, written into a buffer.
//!
//! RESP2 has neither maps nor booleans nor a null of its own; there a map is a flat array, a boolean is 1 or 0, and a null
//! is a null bulk string, as Redis answers old clients.

use serde_json::Value;

/// Answers on their way to one connection.
#[derive(Debug, Default)]
pub(super) struct Replies {
    bytes: Vec<u8>,
    /// Whether the client asked for RESP3.
    pub(super) is_resp3: bool,
}

impl Replies {
    pub(super) fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error; `code` is the first word, which programs look at.
    pub(super) fn error(&mut self, code: &str, text: &str) {
        self.bytes.push(b'-');
        self.bytes.extend_from_slice(code.as_bytes());
        self.bytes.push(b' ');
        // A line break would end the answer.
        self.bytes
            .extend(text.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
        self.end();
    }

    pub(super) fn integer(&mut self, number: i64) {
        self.bytes.push(b':');
        self.number(number);
        self.end();
    }

    pub(super) fn bulk(&mut self, text: &[u8]) {
        self.head(b'$', text.len());
        self.bytes.extend_from_slice(text);
        self.end();
    }

    pub(super) fn array(&mut self, length: usize) {
        self.head(b'*', length);
    }

    /// A map of `length` pairs.
    pub(super) fn map(&mut self, length: usize) {
        if self.is_resp3 { self.head(b'%', length) } else { self.head(b'*', length * 2) }
    }

    fn boolean(&mut self, value: bool) {
        match (self.is_resp3, value) {
            (true, true) => self.line(b'#', b"t"),
            (true, false) => self.line(b'#', b"f"),
            (false, value) => self.integer(i64::from(value)),
        }
    }

    pub(super) fn null(&mut self) {
        if self.is_resp3 { self.line(b'_', b"") } else { self.line(b'$', b"-1") }
    }

    /// A value of JSON, member for member, so that every face gives the same answer.
    pub(super) fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.null(),
            Value::Bool(value) => self.boolean(*value),
            Value::Number(number) => match number.as_i64() {
                Some(number) => self.integer(number),
                None => self.bulk(number.to_string().as_bytes()),
            },
            Value::String(text) => self.bulk(text.as_bytes()),
            Value::Array(values) => {
                self.array(values.len());
                values.iter().for_each(|value| self.value(value));
            }
            Value::Object(members) => {
                self.map(members.len());
                for (name, value) in members {
                    self.bulk(name.as_bytes());
                    self.value(value);
                }
            }
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets what was sent.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(text);
        self.end();
    }

    fn head(&mut self, kind: u8, length: usize) {
        self.bytes.push(kind);
        self.number(i64::try_from(length).unwrap_or(i64::MAX));
        self.end();
    }

    fn number(&mut self, number: i64) {
        self.bytes.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    fn end(&mut self) {
        self.bytes.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(is_resp3: bool, value: &Value) -> String {
        let mut replies = Replies { is_resp3, ..Replies::default() };
        replies.value(value);
        String::from_utf8(replies.bytes).unwrap()
    }

    #[test]
    fn a_value_in_both_versions() {
        let value = serde_json::json!({"a": true, "b": [null, -12, "x"]});
        assert_eq!(
            written(true, &value),
            "%2\r\n$1\r\na\r\n#t\r\n$1\r\nb\r\n*3\r\n_\r\n:-12\r\n$1\r\nx\r\n"
        );
        assert_eq!(
            written(false, &value),
            "*4\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n*3\r\n$-1\r\n:-12\r\n$1\r\nx\r\n"
        );
    }

    #[test]
    fn an_error_stays_on_its_line() {
        let mut replies = Replies::default();
        replies.error("ERR", "a\r\n+OK");
        assert_eq!(replies.bytes(), b"-ERR a  +OK\r\n");
    }
}
