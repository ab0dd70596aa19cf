//! HTTP byte by byte: requests that no client would send, and responses as they were sent.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_testkit::fakes::llm::Dialect;

use super::{KEY, model, upstream_key};

/// How long a test waits for bytes.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// A response.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Reply {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Names in lower case, with their values.
    pub(super) fn named(&self) -> impl Iterator<Item = (String, String)> {
        self.headers.iter().map(|(name, value)| (name.to_lowercase(), value.clone()))
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the message of an error in the shape of `dialect`; `None` if it has another shape.
    pub(super) fn error(&self, dialect: Dialect) -> Option<String> {
        let body: Value = serde_json::from_slice(&self.body).ok()?;
        let error = &body["error"];
        let is_shaped = match dialect {
            Dialect::OpenAi => error["type"].is_string(),
            Dialect::Anthropic => body["type"] == "error" && error["type"].is_string(),
            Dialect::Gemini => error["code"] == self.status && error["status"].is_string(),
        };
        let is_json =
            self.header("content-type").is_some_and(|it| it.starts_with("application/json"));
        let message = error["message"].as_str().filter(|message| !message.is_empty());
        message.filter(|_| is_shaped && is_json).map(str::to_owned)
    }
}

/// A request to a path.
pub(super) struct Raw {
    pub(super) path: String,
    pub(super) headers: String,
    pub(super) body: Vec<u8>,
}

impl Raw {
    /// A request of `dialect` with `body`, to its usual path.
    pub(super) fn new(dialect: Dialect, body: impl Into<Vec<u8>>, is_stream: bool) -> Self {
        let path = match (dialect, is_stream) {
            (Dialect::OpenAi, _) => "/v1/chat/completions".to_owned(),
            (Dialect::Anthropic, _) => "/v1/messages".to_owned(),
            (Dialect::Gemini, false) => {
                format!("/v1beta/models/{}:generateContent", model(dialect))
            }
            (Dialect::Gemini, true) => {
                format!("/v1beta/models/{}:streamGenerateContent?alt=sse", model(dialect))
            }
        };
        Self { path: format!("/{dialect}{path}"), headers: String::new(), body: body.into() }
    }

    /// An ordinary request of `dialect` that says `text`.
    pub(super) fn say(dialect: Dialect, text: &str, is_stream: bool) -> Self {
        Self::new(dialect, body(dialect, text, is_stream).to_string(), is_stream)
    }

    /// Sends it to `url` with `key`, and returns the response.
    pub(super) fn send(&self, url: &str, dialect: Dialect, key: &str) -> Reply {
        let mut stream = self.open(url, dialect, key);
        read(&mut stream).expect("a response")
    }

    /// Sends it through the gateway at `url`.
    pub(super) fn through(&self, url: &str, dialect: Dialect) -> Reply {
        self.send(url, dialect, KEY)
    }

    /// Sends it to the provider at `url`.
    pub(super) fn direct(&self, url: &str, dialect: Dialect) -> Reply {
        self.send(url, dialect, &upstream_key(dialect))
    }

    /// Sends it, and leaves the response to be read.
    pub(super) fn open(&self, url: &str, dialect: Dialect, key: &str) -> TcpStream {
        let key = match dialect {
            Dialect::OpenAi => format!("authorization: Bearer {key}"),
            Dialect::Anthropic => format!("x-api-key: {key}\r\nanthropic-version: 2023-06-01"),
            Dialect::Gemini => format!("x-goog-api-key: {key}"),
        };
        let mut stream = connect(url);
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n{key}\r\n{}content-length: {}\r\n\r\n",
            self.path,
            self.headers,
            self.body.len()
        );
        stream.write_all(head.as_bytes()).expect("the server reads");
        // A server that refuses early may close before it has read everything.
        drop(stream.write_all(&self.body));
        stream
    }
}

pub(super) fn connect(url: &str) -> TcpStream {
    let stream = TcpStream::connect(url.trim_start_matches("http://")).expect("the server listens");
    stream.set_read_timeout(Some(READ_TIMEOUT)).expect("a socket");
    stream
}

/// The body of a request that says `text`, with a maximum of 100 tokens.
pub(super) fn body(dialect: Dialect, text: &str, is_stream: bool) -> Value {
    let messages = json!([{"role": "user", "content": text}]);
    match dialect {
        Dialect::OpenAi => {
            json!({"model": model(dialect), "messages": messages, "max_completion_tokens": 100, "stream": is_stream})
        }
        Dialect::Anthropic => {
            json!({"model": model(dialect), "messages": messages, "max_tokens": 100, "stream": is_stream})
        }
        Dialect::Gemini => {
            json!({"contents": [{"role": "user", "parts": [{"text": text}]}], "generationConfig": {"maxOutputTokens": 100}})
        }
    }
}

/// Reads a response to the end of the connection; `None` without a complete head.
pub(super) fn read(stream: &mut TcpStream) -> Option<Reply> {
    let mut bytes = Vec::new();
    // A reset after the response is an end too.
    drop(stream.read_to_end(&mut bytes));
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    let mut reply = Reply { status, headers, body: bytes[end + 4..].to_vec() };
    if reply.header("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
        reply.body = dechunked(&reply.body);
    }
    Some(reply)
}

/// Returns the data of chunks, as far as they are complete.
fn dechunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    loop {
        let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") else { return data };
        let size = std::str::from_utf8(&bytes[..end]).ok();
        let size = size.and_then(|size| usize::from_str_radix(size.trim(), 16).ok()).unwrap_or(0);
        let Some(chunk) = bytes.get(end + 2..end + 2 + size).filter(|chunk| !chunk.is_empty())
        else {
            return data;
        };
        data.extend_from_slice(chunk);
        bytes = bytes.get(end + 4 + size..).unwrap_or_default();
    }
}
