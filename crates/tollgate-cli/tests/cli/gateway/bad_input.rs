//! Requests that are wrong get a clear error in the dialect of their path, and take nothing.

use std::io::Write as _;

use tollgate_testkit::fakes::llm::{Dialect, Settings};

use super::raw::{Raw, Reply, body, connect, read};
use super::{Assembled, KEY, Setup};

/// Asserts an error with `status` that says `word`.
fn is_error(reply: &Reply, dialect: Dialect, status: u16, word: &str) {
    assert_eq!(reply.status, status, "{dialect}: {}", reply.text());
    let message = reply.error(dialect);
    let message =
        message.unwrap_or_else(|| format!("not in the shape of {dialect}: {}", reply.text()));
    assert!(message.contains(word), "{dialect}: {message:?} does not say {word:?}");
}

fn start() -> Assembled {
    Setup::default().start(Settings::default())
}

impl Assembled {
    /// Nothing arrived, nothing is held, and nothing was charged.
    fn is_untouched(&self) {
        self.gateway.settled();
        assert_eq!(self.provider.fake.tally().calls, 0, "{:?}", self.provider.fake.arrivals());
        for dialect in Dialect::ALL {
            assert_eq!(self.gateway.used("provider", dialect.name(), "rate"), 0);
        }
    }
}

#[test]
fn bodies_that_cannot_be_read_are_refused() {
    let assembled = start();
    let url = &assembled.gateway.url;
    for dialect in Dialect::ALL {
        for broken in ["", "{", "null", "[1]", "{\"model\": }", "\u{0}\u{1}", "<html>"] {
            let reply = Raw::new(dialect, broken, false).through(url, dialect);
            is_error(&reply, dialect, 400, "");
        }
        let nested = format!(
            "{{\"model\":\"{}\",\"messages\":{}",
            super::model(dialect),
            "[".repeat(100_000)
        );
        is_error(&Raw::new(dialect, nested, false).through(url, dialect), dialect, 400, "");
        let mut without = body(dialect, "Hi", false);
        without.as_object_mut().expect("an object").remove("model");
        let mut raw = Raw::new(dialect, without.to_string(), false);
        raw.path = raw.path.replace(super::model(dialect), "");
        let reply = raw.through(url, dialect);
        assert!([400, 404].contains(&reply.status), "{dialect}: {}", reply.text());
        assert!(reply.error(dialect).is_some(), "{dialect}: {}", reply.text());
    }
    assembled.is_untouched();
}

#[test]
fn models_paths_and_keys_that_are_unknown_are_refused() {
    let assembled = start();
    let url = &assembled.gateway.url;
    for dialect in Dialect::ALL {
        let ours = super::model(dialect);
        let unknown = body(dialect, "Hi", false).to_string().replace(ours, "no-such-model");
        let mut raw = Raw::new(dialect, unknown, false);
        raw.path = raw.path.replace(ours, "no-such-model");
        is_error(&raw.through(url, dialect), dialect, 404, "model");

        let raw = Raw::say(dialect, "Hi", false);
        for key in ["", "wrong", &super::upstream_key(dialect)] {
            is_error(&raw.send(url, dialect, key), dialect, 401, "key");
        }
        for path in ["/v1/files", "/v1/batches", "/v1/nothing", "/v1beta/models/x:predict", "/"] {
            let raw = Raw { path: format!("/{dialect}{path}"), ..Raw::say(dialect, "Hi", false) };
            let reply = raw.through(url, dialect);
            assert!((400..500).contains(&reply.status), "{path}: {}", reply.text());
            assert!(reply.error(dialect).is_some(), "{path}: {}", reply.text());
        }
    }
    let background = r#"{"model":"gpt-4o-mini","input":"Hi","background":true}"#;
    let mut raw = Raw::new(Dialect::OpenAi, background, false);
    raw.path = "/openai/v1/responses".to_owned();
    is_error(&raw.through(url, Dialect::OpenAi), Dialect::OpenAi, 404, "background");
    assembled.is_untouched();
}

#[test]
fn bodies_that_are_too_large_are_refused() {
    let assembled = start();
    let url = &assembled.gateway.url;
    for dialect in Dialect::ALL {
        let raw = Raw::say(dialect, &"x".repeat(40 << 20), false);
        is_error(&raw.through(url, dialect), dialect, 413, "");
    }
    // A body without an end: chunk after chunk, until it is refused.
    let mut stream = connect(url);
    let head = format!(
        "POST /openai/v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {KEY}\r\n\
         content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("the gateway reads");
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x1_0000));
    let refused = (0..4_096).find(|_| stream.write_all(chunk.as_bytes()).is_err());
    assert!(refused.is_some(), "256 MiB were taken");
    if let Some(reply) = read(&mut stream) {
        is_error(&reply, Dialect::OpenAi, 413, "");
    }
    assembled.is_untouched();
}

#[test]
fn a_client_that_leaves_within_its_body_takes_nothing() {
    let assembled = start();
    let url = &assembled.gateway.url;
    for dialect in Dialect::ALL {
        let mut raw = Raw::say(dialect, "Hi", false);
        raw.headers = "x-ignored: 1\r\n".to_owned();
        let whole = raw.body.len();
        raw.body.truncate(whole / 2);
        // The length says that more follows.
        let mut stream = connect(url);
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\ncontent-length: {whole}\r\n\r\n",
            raw.path
        );
        stream.write_all(head.as_bytes()).expect("the gateway reads");
        stream.write_all(&raw.body).expect("the gateway reads");
    }
    assembled.is_untouched();
}

#[test]
fn line_breaks_do_not_reach_the_provider() {
    let assembled = start();
    let url = &assembled.gateway.url;
    for dialect in Dialect::ALL {
        for headers in [
            "x-a: 1\r\n folded: 2\r\n",
            "x-a: 1\rx-injected: 2\r\n",
            "x-a: 1\u{0}2\r\n",
            "x-a : 1\r\n",
        ] {
            let raw = Raw { headers: headers.to_owned(), ..Raw::say(dialect, "Hi", false) };
            let reply = raw.through(url, dialect);
            assert_eq!(reply.status, 400, "{headers:?}: {}", reply.text());
        }
    }
    for model in ["m%0d%0ax-injected:%202", "..%2f..%2fadmin", "a/../../b", "m%00"] {
        let raw = Raw {
            path: format!("/gemini/v1beta/models/{model}:generateContent"),
            ..Raw::say(Dialect::Gemini, "Hi", false)
        };
        let reply = raw.through(url, Dialect::Gemini);
        assert!((400..500).contains(&reply.status), "{model}: {}", reply.text());
    }
    assembled.is_untouched();
}
