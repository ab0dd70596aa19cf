//! The writer of replies.
//!
//! RESP2 has no maps, booleans or null: there a map is a flat array, a boolean is 1 or 0, and null is a null bulk string,
//! as Redis replies to old clients.

/// Buffered replies of one connection.
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

    /// Writes an error; programs look at `code`, the first word.
    pub(super) fn error(&mut self, code: &str, text: &str) {
        self.bytes.push(b'-');
        self.bytes.extend_from_slice(code.as_bytes());
        self.bytes.push(b' ');
        // A line break would end the reply.
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

    /// Begins a map of `length` pairs.
    pub(super) fn map(&mut self, length: usize) {
        if self.is_resp3 { self.head(b'%', length) } else { self.head(b'*', length * 2) }
    }

    pub(super) fn boolean(&mut self, value: bool) {
        match (self.is_resp3, value) {
            (true, true) => self.line(b'#', b"t"),
            (true, false) => self.line(b'#', b"f"),
            (false, value) => self.integer(i64::from(value)),
        }
    }

    pub(super) fn null(&mut self) {
        if self.is_resp3 { self.line(b'_', b"") } else { self.line(b'$', b"-1") }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Empties the buffer after it was sent.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Discards everything after the first `length` bytes.
    pub(super) fn truncate(&mut self, length: usize) {
        self.bytes.truncate(length);
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

    #[test]
    fn an_error_stays_on_its_line() {
        let mut replies = Replies::default();
        replies.error("ERR", "a\r\n+OK");
        assert_eq!(replies.bytes(), b"-ERR a  +OK\r\n");
    }
}
