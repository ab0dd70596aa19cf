//! A provider that fails in every way: the client gets an answer in its dialect, and no permit is lost.

use std::io::Write as _;
use std::net::TcpListener;

use tollgate::Span;
use tollgate_testkit::fakes::llm::{Dialect, Fault, Settings, Trouble, When};

use super::raw::Raw;
use super::{Assembled, RunningGateway, Setup};
use crate::running::get;

/// A gateway that waits for a second, before a provider with `fault`.
fn start(fault: Fault, times: u64) -> Assembled {
    let gateway = "first_byte_timeout = \"1s\"\nidle_timeout = \"1s\"";
    let troubles = vec![Trouble::new(fault, When::Every(1)).times(times)];
    Setup { gateway, max_wait: "1s", ..Setup::default() }
        .start(Settings { troubles, ..Settings::default() })
}

#[test]
fn a_provider_that_answers_nonsense_is_an_error_in_the_dialect() {
    for fault in [
        Fault::Html { status: 200 },
        Fault::Html { status: 502 },
        Fault::Html { status: 403 },
        Fault::Empty,
        Fault::Hangup,
        Fault::Stall { after: 0 },
    ] {
        let assembled = start(fault, u64::MAX);
        for dialect in Dialect::ALL {
            let reply = Raw::say(dialect, "Hi", false).through(&assembled.gateway.url, dialect);
            let text = reply.text();
            assert!(
                [502, 503, 504].contains(&reply.status),
                "{fault:?} {dialect}: {} {text}",
                reply.status
            );
            assert!(reply.error(dialect).is_some(), "{fault:?} {dialect}: {text}");
            assert!(!text.contains("<html>"), "{fault:?} {dialect}: {text}");
        }
        assembled.provider.idle();
        assembled.gateway.settled();
    }
}

/// JSON that breaks off within a complete response is the client's to read. The gateway keeps the charge, counts the call as aborted,
/// and says so once per upstream and model.
#[test]
fn an_answer_that_breaks_off_keeps_its_estimate() {
    let mut assembled = start(Fault::Garbage, u64::MAX);
    for dialect in Dialect::ALL {
        let reply = Raw::say(dialect, "Hi", false).through(&assembled.gateway.url, dialect);
        assert!(
            reply.status == 200 && reply.text().starts_with("{\"choices\""),
            "{}",
            reply.text()
        );
        assembled.gateway.settled();
        assert_eq!(assembled.gateway.used("provider", dialect.name(), "output"), 100);
        let direct =
            Raw::say(dialect, "Hi", false).direct(&assembled.provider.served.url(), dialect);
        assert_eq!(reply.body, direct.body, "it passes unchanged");
        let log = assembled.gateway.broker.log_until("a response broke off or was not readable");
        assert!(log.contains(&format!("upstream=\"{dialect}\"")), "{log}");
    }
    let metrics = get(&assembled.gateway.broker.url, "/metrics");
    for upstream in Dialect::ALL.map(Dialect::name) {
        let counted = |line: &str| {
            line.starts_with("tollgate_gateway_calls_total{")
                && line.contains(&format!("upstream=\"{upstream}\""))
                && line.contains("outcome=\"aborted\"} 1")
        };
        assert!(metrics.lines().any(counted), "{metrics}");
    }
}

/// A port that answers everything with bytes that are not HTTP.
#[test]
fn an_upstream_that_speaks_no_http_is_an_error_in_the_dialect() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            drop(stream.write_all(b"\x16\x03\x01\0\xff garbage\r\n\r\n"));
        }
    });
    let gateway = RunningGateway::start(&Setup { max_wait: "1s", ..Setup::default() }.config(&url));
    for dialect in Dialect::ALL {
        let reply = Raw::say(dialect, "Hi", false).through(&gateway.url, dialect);
        // Garbage before the request was sent is a failed connection, which is tried again; after it, it is an answer.
        assert!([502, 503].contains(&reply.status), "{}", reply.text());
        assert!(reply.error(dialect).is_some(), "{}", reply.text());
    }
    gateway.settled();
}

/// A port that nothing listens on: the call was not processed, so it costs nothing.
#[test]
fn an_upstream_that_cannot_be_reached_costs_nothing() {
    let closed =
        TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let config = Setup { max_wait: "1s", ..Setup::default() }.config(&format!("http://{closed}"));
    let gateway = RunningGateway::start(&config);
    for dialect in Dialect::ALL {
        let reply = Raw::say(dialect, "Hi", false).through(&gateway.url, dialect);
        assert!([502, 503, 529].contains(&reply.status), "{}", reply.text());
        assert!(reply.error(dialect).is_some(), "{}", reply.text());
        gateway.settled();
        assert_eq!(gateway.used("provider", dialect.name(), "output"), 0);
        assert_eq!(gateway.used("provider", dialect.name(), "rate"), 0);
    }
}

#[test]
fn a_stream_that_breaks_off_breaks_off_for_the_client_too() {
    for fault in [
        Fault::Disconnect { after: 6 },
        Fault::Truncate { after: 6 },
        Fault::Stall { after: 6 },
        Fault::Garbage,
    ] {
        let assembled = start(fault, u64::MAX);
        for dialect in Dialect::ALL {
            let reply = Raw::say(dialect, "Hi", true).through(&assembled.gateway.url, dialect);
            assert!(!reply.body.is_empty(), "{fault:?} {dialect}");
            if fault != Fault::Garbage {
                assert!(
                    reply.status == 200 && reply.text().contains("data: {"),
                    "{}",
                    reply.text()
                );
            }
        }
        assembled.provider.idle();
        assembled.gateway.settled();
        for dialect in Dialect::ALL {
            let charged = assembled.gateway.used("provider", dialect.name(), "output");
            assert!(0 < charged, "{fault:?} {dialect}: nothing was charged");
        }
    }
}

#[test]
fn a_call_that_was_not_processed_is_sent_again() {
    let hint = Some(Span::from_millis(200));
    for fault in [
        Fault::Refuse { status: 429, retry_after: hint },
        Fault::Refuse { status: 503, retry_after: hint },
        Fault::Refuse { status: 529, retry_after: hint },
    ] {
        for dialect in Dialect::ALL {
            let gateway = "";
            let troubles = vec![Trouble::new(fault, When::Every(1)).times(2)];
            let assembled = Setup { gateway, max_wait: "20s", ..Setup::default() }
                .start(Settings { troubles, ..Settings::default() });
            let reply = Raw::say(dialect, "Hi", false).through(&assembled.gateway.url, dialect);
            assert_eq!(reply.status, 200, "{fault:?} {dialect}: {}", reply.text());
            assert_eq!(assembled.provider.fake.tally().calls, 3, "{fault:?} {dialect}");
            assembled.gateway.settled();
            let charged = assembled.gateway.used("provider", dialect.name(), "output");
            assert_eq!(
                charged, 16,
                "only the call that was processed is charged: {fault:?} {dialect}"
            );
        }
    }
}

#[test]
fn errors_of_the_provider_pass_unchanged() {
    for status in [400, 401, 403, 404, 413, 422, 500, 504] {
        let assembled = start(Fault::status(status), u64::MAX);
        for dialect in Dialect::ALL {
            let raw = Raw::say(dialect, "Hi", false);
            let through = raw.through(&assembled.gateway.url, dialect);
            let direct = raw.direct(&assembled.provider.served.url(), dialect);
            assert_eq!((through.status, direct.status), (status, status));
            if dialect != Dialect::Anthropic {
                assert_eq!(through.text(), direct.text(), "{dialect}");
            }
        }
        assert_eq!(assembled.provider.fake.tally().calls, 6, "nothing was sent twice");
        assembled.gateway.settled();
    }
    let assembled = start(Fault::NoCredit, u64::MAX);
    let reply =
        Raw::say(Dialect::OpenAi, "Hi", false).through(&assembled.gateway.url, Dialect::OpenAi);
    assert_eq!(reply.status, 429);
    assert!(reply.text().contains("insufficient_quota"), "{}", reply.text());
    assert_eq!(assembled.provider.fake.tally().calls, 1, "waiting does not bring credit");
}

#[test]
fn a_stream_without_usage_keeps_at_least_what_was_streamed() {
    for (fault, wanted) in
        [(Fault::UsageNever, 16..=100), (Fault::UsageLate(Span::from_millis(300)), 16..=16)]
    {
        let assembled = start(fault, u64::MAX);
        for dialect in Dialect::ALL {
            let reply = Raw::say(dialect, "Hi", true).through(&assembled.gateway.url, dialect);
            assert_eq!(reply.status, 200);
            assembled.gateway.settled();
            let charged = assembled.gateway.used("provider", dialect.name(), "output");
            assert!(wanted.contains(&charged), "{fault:?} {dialect}: {charged}");
        }
    }
}

#[test]
fn a_refusal_is_in_the_dialect_and_says_when() {
    let limits = r#"{ name = "rate", unit = "requests", rule = "rolling-window", limit = 1, window = "1h" }"#;
    let assembled =
        Setup { limits, max_wait: "100ms", ..Setup::default() }.start(Settings::default());
    for dialect in Dialect::ALL {
        let raw = Raw::say(dialect, "Hi", false);
        assert_eq!(raw.through(&assembled.gateway.url, dialect).status, 200);
        let reply = raw.through(&assembled.gateway.url, dialect);
        assert_eq!(reply.status, 429, "{}", reply.text());
        assert!(reply.error(dialect).is_some(), "{}", reply.text());
        let seconds: u64 = reply.header("retry-after").expect("a hint").parse().expect("seconds");
        assert!((3_500..=3_600).contains(&seconds), "{seconds}");
        assert_eq!(reply.header("x-should-retry"), Some("false"), "an hour is too long to wait");
    }
    assert_eq!(assembled.provider.fake.tally().calls, 3);
}
