//! The fake of LLM providers is as strict as they are, and fails on demand.

use std::collections::BTreeMap;
use std::sync::Arc;

use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tollgate::clock::{ManualClock, SystemClock};
use tollgate::{Clock, Span, Timestamp};
use tollgate_testkit::fakes::llm::{
    Dialect, FakeLlm, Fault, Limit, Quota, Served, Settings, Trouble, When, Window,
};

/// A response as far as it arrived.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    text: String,
    /// Whether the body ended as it should.
    is_whole: bool,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).expect("JSON")
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

struct Fixture {
    fake: FakeLlm,
    served: Served,
    clock: ManualClock,
}

async fn start(settings: Settings) -> Fixture {
    let clock = ManualClock::at("2026-01-10T12:00:30Z".parse::<Timestamp>().expect("a time"));
    let fake = FakeLlm::new(Arc::new(clock.clone()), settings);
    let served = fake.serve(0).await.expect("it serves");
    Fixture { fake, served, clock }
}

async fn on(quota: Quota) -> Fixture {
    start(Settings { quota, ..Settings::default() }).await
}

async fn with(fault: Fault) -> Fixture {
    let troubles = vec![Trouble::new(fault, When::Every(1))];
    start(Settings { troubles, ..Settings::default() }).await
}

/// Sends a request; `None` if the connection was closed without a response.
async fn send(
    url: &str,
    path: &str,
    key: &str,
    body: &Value,
    headers: &[(&str, &str)],
) -> Option<Answer> {
    let address = url.replace("http://", "");
    let stream = TcpStream::connect(&address).await.expect("it listens");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("it speaks HTTP");
    let task = tokio::spawn(connection);
    let mut request = Request::post(path).header("host", address);
    request = request.header("authorization", format!("Bearer {key}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body.to_string()))).expect("a request");
    let response = sender.send_request(request).await.ok()?;
    let status = response.status().as_u16();
    let named = response
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().expect("text").to_owned()));
    let headers = named.collect();
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    let mut is_whole = true;
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => bytes.extend(frame.into_data().expect("data")),
            Err(_) => is_whole = false,
        }
        if !is_whole {
            break;
        }
    }
    task.abort();
    Some(Answer { status, headers, text: String::from_utf8_lossy(&bytes).into_owned(), is_whole })
}

/// The path and the body of a request of about `words` tokens in a dialect.
fn ask(dialect: Dialect, words: usize, is_stream: bool, output_max: u64) -> (&'static str, Value) {
    let text = "word ".repeat(words);
    match dialect {
        Dialect::OpenAi => (
            "/v1/chat/completions",
            json!({"model": "m", "stream": is_stream, "max_completion_tokens": output_max, "messages": [{"role": "user", "content": text}]}),
        ),
        Dialect::Anthropic => (
            "/anthropic/v1/messages",
            json!({"model": "m", "stream": is_stream, "max_tokens": output_max, "messages": [{"role": "user", "content": text}]}),
        ),
        Dialect::Gemini => (
            if is_stream {
                "/v1beta/models/m:streamGenerateContent?alt=sse"
            } else {
                "/gemini/v1/models/m:generateContent"
            },
            json!({"contents": [{"parts": [{"text": text}]}], "generationConfig": {"maxOutputTokens": output_max}}),
        ),
    }
}

impl Fixture {
    async fn call(&self, dialect: Dialect, key: &str, words: usize, output_max: u64) -> Answer {
        let (path, body) = ask(dialect, words, false, output_max);
        send(&self.served.url(), path, key, &body, &[]).await.expect("a response")
    }

    async fn stream(&self, dialect: Dialect) -> Option<Answer> {
        let (path, body) = ask(dialect, 3, true, 100);
        send(&self.served.url(), path, "sk", &body, &[]).await
    }

    fn violations(&self, limit: Limit, window: Window) -> u64 {
        self.fake.tally().violations.get(&(limit, window)).copied().unwrap_or(0)
    }
}

#[tokio::test]
async fn requests_are_refused_in_a_rolling_minute_in_every_dialect() {
    for dialect in Dialect::ALL {
        let fixture = on(Quota { rpm: 2, ..Quota::NONE }).await;
        for _ in 0..2 {
            assert_eq!(fixture.call(dialect, "p.a", 1, 9).await.status, 200);
        }
        // 12:01:25 is in another fixed minute.
        fixture.clock.advance(Span::from_secs(55));
        let refused = fixture.call(dialect, "p.b", 1, 9).await;
        assert_eq!(refused.status, 429, "two keys of a project share its quota: {refused:?}");
        assert_eq!(fixture.violations(Limit::Requests, Window::Rolling), 1);
        assert_eq!(fixture.violations(Limit::Requests, Window::Fixed), 0);
        assert_eq!(fixture.call(dialect, "q", 1, 9).await.status, 200, "another project");
        fixture.clock.advance(Span::from_secs(5));
        assert_eq!(fixture.call(dialect, "p", 1, 9).await.status, 200);
        assert_eq!(fixture.fake.tally().peaks[&(Limit::Requests, Window::Rolling)], 2);
        assert_eq!(fixture.fake.tally().answered(429), 1);
    }
}

#[tokio::test]
async fn a_provider_with_fixed_windows_admits_a_burst_over_the_boundary() {
    let quota =
        Quota { rpm: 2, refuses: Some(Window::Fixed), minute: Span::from_secs(1), ..Quota::NONE };
    let fixture = on(quota).await;
    fixture.clock.advance(Span::from_millis(900));
    for _ in 0..2 {
        assert_eq!(fixture.call(Dialect::OpenAi, "p", 1, 9).await.status, 200);
    }
    assert_eq!(fixture.call(Dialect::OpenAi, "p", 1, 9).await.status, 429);
    fixture.clock.advance(Span::from_millis(100));
    for _ in 0..2 {
        assert_eq!(fixture.call(Dialect::OpenAi, "p", 1, 9).await.status, 200);
    }
    assert_eq!(fixture.fake.tally().peaks[&(Limit::Requests, Window::Rolling)], 4);
}

#[tokio::test]
async fn output_is_counted_as_declared_until_the_answer_is_complete() {
    let fixture = on(Quota { output_tpm: 100, ..Quota::NONE }).await;
    let anthropic = Dialect::Anthropic;
    // 16 of the 90 declared tokens remain counted after the answer.
    assert_eq!(fixture.call(anthropic, "p", 1, 90).await.status, 200);
    assert_eq!(fixture.call(anthropic, "p", 1, 84).await.status, 200);
    let refused = fixture.call(anthropic, "p", 1, 84).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    assert_eq!(refused.header("anthropic-ratelimit-output-tokens-remaining"), Some("68"));
    assert_eq!(
        refused.header("anthropic-ratelimit-output-tokens-reset"),
        Some("2026-01-10T12:01:30Z")
    );
    assert_eq!(refused.header("retry-after"), Some("60"));
}

#[tokio::test]
async fn input_total_day_and_concurrency_are_limits_too() {
    let openai = Dialect::OpenAi;
    let fixture = on(Quota { tpm: 10, ..Quota::NONE }).await;
    assert_eq!(fixture.call(openai, "p", 11, 9).await.status, 429);
    assert_eq!(fixture.call(openai, "p", 10, 9).await.status, 200);

    let fixture = on(Quota { total_tpm: 50, ..Quota::NONE }).await;
    let answer = fixture.call(openai, "p", 10, 40).await;
    assert_eq!(answer.header("x-ratelimit-limit-tokens"), Some("50"));
    assert_eq!(answer.header("x-ratelimit-remaining-tokens"), Some("0"));
    assert_eq!(answer.header("x-ratelimit-reset-tokens"), Some("1m0s"));
    let refused = fixture.call(openai, "p", 10, 15).await;
    assert_eq!((refused.status, refused.header("retry-after-ms")), (429, Some("60000")));
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");

    let fixture = on(Quota { rpd: 1, ..Quota::NONE }).await;
    for wanted in [200, 429] {
        assert_eq!(fixture.call(Dialect::Gemini, "p", 1, 9).await.status, wanted);
        fixture.clock.advance(Span::from_hours(1));
    }
    fixture.clock.advance(Span::from_hours(20));
    assert_eq!(fixture.call(Dialect::Gemini, "p", 1, 9).await.status, 200, "after midnight");

    let slow = Settings {
        latency: Span::from_secs(1),
        quota: Quota { at_once: 1, ..Quota::NONE },
        ..Settings::default()
    };
    let fixture = start(slow).await;
    let (path, body) = ask(openai, 1, false, 9);
    let (url, fake) = (fixture.served.url(), fixture.fake.clone());
    let under_way = tokio::spawn(async move { send(&url, path, "p", &body, &[]).await });
    until(|| fake.tally().at_once == 1).await;
    assert_eq!(fixture.call(openai, "p", 1, 9).await.status, 429);
    assert_eq!(fake.tally().at_once_max, 2);
    fixture.clock.advance(Span::from_secs(1));
    assert_eq!(under_way.await.expect("no panic").expect("a response").status, 200);
}

/// Waits until a condition holds that another task makes true.
async fn until(mut holds: impl FnMut() -> bool) {
    let clock = SystemClock;
    for _ in 0..6_000 {
        if holds() {
            return;
        }
        clock.sleep_until(clock.now() + Span::from_millis(5)).await;
    }
    assert!(holds(), "it did not come true within 30 s");
}

#[tokio::test]
async fn the_same_request_gets_the_same_bytes() {
    for dialect in Dialect::ALL {
        let fixture = start(Settings::default()).await;
        let first = fixture.stream(dialect).await.expect("a stream");
        let second = fixture.stream(dialect).await.expect("a stream");
        assert_eq!(first.text, second.text);
        assert!(first.is_whole && first.text.contains("data: {"), "{}", first.text);
        let arrival = &fixture.fake.arrivals()[1];
        assert!(arrival.is_complete && arrival.is_over, "{arrival:?}");
        assert_eq!((arrival.input, arrival.output, arrival.status), (3, 16, 200));
    }
}

#[tokio::test]
async fn usage_of_a_chat_stream_comes_only_if_asked_for() {
    let fixture = start(Settings::default()).await;
    let (path, mut body) = ask(Dialect::OpenAi, 3, true, 100);
    let without = send(&fixture.served.url(), path, "sk", &body, &[]).await.expect("a stream").text;
    assert!(!without.contains("usage"), "{without}");
    body["stream_options"] = json!({"include_usage": true});
    let with = send(&fixture.served.url(), path, "sk", &body, &[]).await.expect("a stream").text;
    let stripped: String = with
        .split_inclusive("\n\n")
        .filter(|event| !event.contains("\"choices\":[],"))
        .map(|event| event.replace(",\"usage\":null", ""))
        .collect();
    assert_eq!(stripped, without);
    assert!(with.contains("\"prompt_tokens\":3"), "{with}");
}

#[tokio::test]
async fn bad_requests_get_errors_in_their_dialect() {
    let fixture = start(Settings { keys: vec!["right".to_owned()], ..Settings::default() }).await;
    for dialect in Dialect::ALL {
        let (path, body) = ask(dialect, 1, false, 9);
        let refused =
            send(&fixture.served.url(), path, "wrong", &body, &[]).await.expect("a response");
        assert_eq!(refused.status, 401);
        let refused =
            send(&fixture.served.url(), path, "right", &json!({}), &[]).await.expect("a response");
        assert_eq!(refused.status, 400);
        let error = &refused.json()["error"];
        assert!(error["message"].is_string(), "{error}");
        let nowhere =
            path.replace("m:", "m:un").replace("chat", "chats").replace("messages", "messagess");
        let lost =
            send(&fixture.served.url(), &nowhere, "right", &body, &[]).await.expect("a response");
        assert_eq!(lost.status, 404, "{lost:?}");
    }
}

#[tokio::test]
async fn statuses_come_on_demand_with_hints() {
    for dialect in Dialect::ALL {
        for status in [400, 429, 500, 503, 529] {
            let fixture =
                with(Fault::Refuse { status, retry_after: Some(Span::from_millis(1_500)) }).await;
            let answer = fixture.stream(dialect).await.expect("a response");
            assert_eq!(answer.status, status);
            let hint = (answer.header("retry-after-ms"), answer.header("retry-after"));
            let wanted = match dialect {
                Dialect::OpenAi => (Some("1500"), Some("2")),
                Dialect::Anthropic => (None, Some("2")),
                Dialect::Gemini => (None, None),
            };
            assert_eq!(hint, wanted);
        }
        let fixture = with(Fault::NoCredit).await;
        assert_ne!(fixture.stream(dialect).await.expect("a response").status, 200);
    }
}

#[tokio::test]
async fn streams_break_off_on_demand() {
    for dialect in Dialect::ALL {
        let whole = start(Settings::default()).await.stream(dialect).await.expect("a stream").text;
        let cut = with(Fault::Disconnect { after: 5 }).await;
        let answer = cut.stream(dialect).await.expect("a stream");
        assert!(!answer.is_whole && whole.starts_with(&answer.text) && !answer.text.is_empty());
        until(|| cut.fake.tally().unfinished == 1).await;
        assert!(cut.fake.arrivals()[0].output < 16);

        let answer =
            with(Fault::Truncate { after: 5 }).await.stream(dialect).await.expect("a stream");
        assert!(
            answer.is_whole && whole.starts_with(&answer.text) && answer.text.len() < whole.len()
        );

        let answer =
            with(Fault::ErrorEvent { after: 5 }).await.stream(dialect).await.expect("a stream");
        assert!(answer.is_whole && answer.text.contains("\"error\":"), "{}", answer.text);

        let answer = with(Fault::UsageNever).await.stream(dialect).await.expect("a stream");
        assert!(!answer.text.to_lowercase().contains("usage"), "{}", answer.text);

        assert!(with(Fault::Hangup).await.stream(dialect).await.is_none());
        let answer = with(Fault::Empty).await.stream(dialect).await.expect("a response");
        assert_eq!((answer.status, answer.text.as_str()), (200, ""));
        let answer =
            with(Fault::Html { status: 502 }).await.stream(dialect).await.expect("a response");
        assert!(answer.status == 502 && answer.text.starts_with("<html>"));
        let answer = with(Fault::Garbage).await.stream(dialect).await.expect("a response");
        assert!(answer.status == 200 && answer.text.contains("not an event"));
    }
}

#[tokio::test]
async fn waits_take_their_time_on_the_clock() {
    for (fault, span) in [
        (Fault::Slow(Span::from_secs(5)), Span::from_secs(5)),
        (Fault::UsageLate(Span::from_secs(7)), Span::from_secs(7)),
        (Fault::SlowStream(Span::from_secs(1)), Span::from_secs(16)),
    ] {
        let fixture = with(fault).await;
        let began = fixture.clock.now();
        let stepping = async {
            loop {
                tokio::task::yield_now().await;
                fixture.clock.advance(Span::from_millis(250));
            }
        };
        tokio::select! {
            answer = fixture.stream(Dialect::Anthropic) => assert!(answer.expect("a stream").is_whole),
            () = stepping => {}
        }
        let passed = fixture.clock.now().since(began);
        assert!(span <= passed, "{fault:?}: {passed}");
    }
    let fixture = with(Fault::Stall { after: 3 }).await;
    let clock = SystemClock;
    tokio::select! {
        answer = fixture.stream(Dialect::OpenAi) => panic!("it ended: {answer:?}"),
        () = clock.sleep_until(clock.now() + Span::from_millis(100)) => {}
    }
    until(|| fixture.fake.tally().unfinished == 1).await;
    assert_eq!(fixture.fake.arrivals()[0].output, 2, "the role, and two words");
}

#[tokio::test]
async fn it_compresses_for_clients_that_accept_it() {
    let fixture = start(Settings { gzip: true, ..Settings::default() }).await;
    let (path, body) = ask(Dialect::OpenAi, 1, false, 9);
    let gzip = [("accept-encoding", "gzip, deflate")];
    let answer = send(&fixture.served.url(), path, "sk", &body, &gzip).await.expect("a response");
    assert_eq!(answer.header("content-encoding"), Some("gzip"));
    let identity = [("accept-encoding", "identity")];
    let answer =
        send(&fixture.served.url(), path, "sk", &body, &identity).await.expect("a response");
    assert_eq!(answer.header("content-encoding"), None);
    assert_eq!(answer.json()["usage"]["completion_tokens"], 9);
}
