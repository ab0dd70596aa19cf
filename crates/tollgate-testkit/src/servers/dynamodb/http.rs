//! Just enough HTTP/1.1 to pass messages on: a head, and a body whose length the head says.

use std::io::{self, BufRead};

/// The longest message that is passed on.
const MESSAGE_BYTES_MAX: usize = 1 << 25;

#[derive(Debug)]
pub(super) struct Message {
    head: String,
    body: Vec<u8>,
}

impl Message {
    /// Reads one message; `None` at the end of the stream.
    pub(super) fn read(from: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if from.read_line(&mut head)? == 0 {
                return Ok(None);
            }
            if MESSAGE_BYTES_MAX < head.len() {
                return Err(io::Error::other("the head is too long"));
            }
        }
        let mut message = Self { head, body: Vec::new() };
        let length = message.header("content-length").map_or(Ok(0), str::parse::<usize>);
        let length = length.map_err(io::Error::other)?;
        if MESSAGE_BYTES_MAX < length {
            return Err(io::Error::other("the body is too long"));
        }
        message.body.resize(length, 0);
        from.read_exact(&mut message.body)?;
        Ok(Some(message))
    }

    /// A reply with a JSON body.
    pub(super) fn reply(status: &str, body: &str) -> Self {
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        Self { head, body: body.as_bytes().to_vec() }
    }

    /// The value of the header `name`, which is in lower case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let headers = self.head.lines().filter_map(|line| line.split_once(':'));
        let mut found = headers.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.trim())
    }

    /// The operation of a DynamoDB request, as in `UpdateItem`.
    pub(super) fn operation(&self) -> &str {
        let target = self.header("x-amz-target").unwrap_or_default();
        target.rsplit_once('.').map_or(target, |(_, operation)| operation)
    }

    pub(super) fn mentions(&self, text: &str) -> bool {
        String::from_utf8_lossy(&self.body).contains(text)
    }

    /// Whether the request succeeded.
    pub(super) fn is_success(&self) -> bool {
        self.head.starts_with("HTTP/1.1 200")
    }

    /// Whether the condition of a write failed.
    pub(super) fn is_refusal(&self) -> bool {
        String::from_utf8_lossy(&self.body).contains("ConditionalCheckFailedException")
    }

    /// The same message with its `Date` replaced.
    pub(super) fn dated(mut self, date: &str) -> Self {
        let lines = self.head.lines().filter(|line| !line.is_empty());
        let kept = lines.filter(|line| !line.to_ascii_lowercase().starts_with("date:"));
        self.head = kept.map(|line| format!("{line}\r\n")).collect();
        self.head += &format!("date: {date}\r\n\r\n");
        self
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        [self.head.as_bytes(), &self.body].concat()
    }
}
