//! Keys and prompts are in no log, metric or error.

use tollgate_testkit::fakes::llm::{Dialect, Fault, Settings, Trouble, When};

use super::raw::Raw;
use super::{KEY, Setup, upstream_key};
use crate::running::get;

const PROMPT: &str = "canary-prompt-8f3a";

#[test]
fn keys_and_prompts_are_in_no_log_metric_or_error() {
    let named = |fault, text: &str| Trouble::new(fault, When::Contains(text.to_owned()));
    let troubles = vec![
        named(Fault::status(400), "fail-400"),
        named(Fault::status(500), "fail-500"),
        named(Fault::Refuse { status: 429, retry_after: None }, "fail-429"),
        named(Fault::Garbage, "fail-garbage"),
        named(Fault::Hangup, "fail-hangup"),
        named(Fault::Disconnect { after: 4 }, "fail-cut"),
    ];
    let assembled = Setup { max_wait: "1s", ..Setup::default() }
        .start(Settings { troubles, ..Settings::default() });
    let gateway = assembled.gateway;
    let mut ours = String::new();
    for dialect in Dialect::ALL {
        for (word, is_stream) in [
            ("", false),
            ("", true),
            ("fail-400", false),
            ("fail-500", false),
            ("fail-429", false),
            ("fail-garbage", false),
            ("fail-garbage", true),
            ("fail-hangup", false),
            ("fail-cut", true),
        ] {
            let mut raw = Raw::say(dialect, &format!("{PROMPT} {word}"), is_stream);
            raw.headers = format!("x-note: {PROMPT}\r\ncookie: {PROMPT}\r\n");
            let separator = if raw.path.contains('?') { '&' } else { '?' };
            raw.path = format!("{}{separator}note={PROMPT}", raw.path);
            let reply = raw.through(&gateway.url, dialect);
            // What the provider says about a prompt is for its client; what the gateway says is not about prompts.
            if !["fail-400", "fail-500", "fail-429"].contains(&word) {
                ours += &reply.text();
            }
        }
        for wrong in [format!("{KEY}-wrong"), format!("{PROMPT}-key")] {
            ours += &Raw::say(dialect, PROMPT, false).send(&gateway.url, dialect, &wrong).text();
        }
        ours += &Raw::new(dialect, format!("{{\"model\": {PROMPT}"), false)
            .through(&gateway.url, dialect)
            .text();
        let mut query = Raw::say(dialect, PROMPT, false);
        query.path += &format!("?key={KEY}-wrong");
        ours += &query.send(&gateway.url, dialect, "").text();
    }
    for path in ["/metrics", "/v1/stats", "/v1/audit", "/v1/policies", "/v1/incidents"] {
        ours += &get(&gateway.broker.url, path);
    }
    for arrival in assembled.provider.fake.arrivals() {
        let is_leaked =
            arrival.headers.iter().any(|(name, value)| value.contains(KEY) || name == "cookie");
        assert!(!is_leaked, "{arrival:?}");
    }
    let (_, printed, log) = gateway.broker.end("-TERM");
    let mut secrets = vec![KEY.to_owned(), PROMPT.to_owned()];
    secrets.extend(Dialect::ALL.map(upstream_key));
    for text in [&ours, &printed, &log] {
        for secret in &secrets {
            let line = text.lines().find(|line| line.contains(secret.as_str()));
            assert_eq!(line, None, "{secret} is told");
        }
    }
}
