//! What passes the gateway is, byte for byte, what a direct call has.

use tollgate_testkit::fakes::llm::{Dialect, Settings, hash_of};

use super::raw::{Raw, Reply, body};
use super::{Assembled, Setup, model};

/// Headers that differ from call to call, or belong to the connection.
const OWN: [&str; 7] = [
    "date",
    "x-request-id",
    "request-id",
    "connection",
    "transfer-encoding",
    "content-length",
    "x-tollgate-waited-ms",
];

fn same(direct: &Reply, through: &Reply) {
    assert_eq!(direct.status, through.status);
    assert_eq!(direct.text(), through.text());
    assert_eq!(direct.body, through.body);
    let passed = |reply: &Reply| {
        reply.named().filter(|(name, _)| !OWN.contains(&name.as_str())).collect::<Vec<_>>()
    };
    assert_eq!(passed(direct), passed(through));
}

impl Assembled {
    /// Sends `raw` to both, and returns the hashes of the bodies that arrived.
    fn compare(&self, dialect: Dialect, raw: &Raw) -> (u64, u64) {
        let direct = raw.direct(&self.provider.served.url(), dialect);
        let through = raw.through(&self.gateway.url, dialect);
        same(&direct, &through);
        assert!(through.header("x-tollgate-waited-ms").is_some());
        let arrivals = self.provider.fake.arrivals();
        let newest = |back: usize| arrivals[arrivals.len() - back].body_hash;
        (newest(2), newest(1))
    }
}

/// A body as nobody's serializer would write it.
fn odd(dialect: Dialect, is_stream: bool, more: &str) -> String {
    let plain = body(dialect, "Grüße, 世界 \u{1f600}", is_stream).to_string();
    let inner = plain.strip_prefix('{').expect("an object");
    format!("\r\n {{ \"metadata\" : {{ \"a\":1.0E+2 , \"b\\u0041\" :[ ] }},{more}\t{inner}\n")
}

#[test]
fn bodies_and_streams_pass_byte_for_byte() {
    let assembled = Setup::default().start(Settings::default());
    for dialect in Dialect::ALL {
        for is_stream in [false, true] {
            let asks = dialect == Dialect::OpenAi && is_stream;
            let more = if asks { " \"stream_options\": {\"include_usage\" : true}, " } else { "" };
            let raw = Raw::new(dialect, odd(dialect, is_stream, more), is_stream);
            let (direct, through) = assembled.compare(dialect, &raw);
            assert_eq!(direct, through, "{dialect}");
            assert_eq!(through, hash_of(&raw.body));
        }
    }
    assembled.gateway.settled();
}

#[test]
fn injected_usage_is_removed_again() {
    let assembled = Setup::default().start(Settings::default());
    let dialect = Dialect::OpenAi;
    for more in
        ["", " \"stream_options\": {\"include_usage\": false}, ", " \"stream_options\": { } , "]
    {
        let raw = Raw::new(dialect, odd(dialect, true, more), true);
        let (direct, through) = assembled.compare(dialect, &raw);
        assert_ne!(direct, through, "usage was asked for");
    }
    assembled.gateway.settled();
    // Both knew the usage, though the client did not: 16 tokens of each answer through the gateway.
    assert_eq!(assembled.gateway.used("provider", "openai", "output"), 3 * 16);
}

#[test]
fn an_upstream_may_refuse_the_injection() {
    let assembled =
        Setup { upstream: "inject_usage = false", ..Setup::default() }.start(Settings::default());
    let dialect = Dialect::OpenAi;
    let (direct, through) =
        assembled.compare(dialect, &Raw::new(dialect, odd(dialect, true, ""), true));
    assert_eq!(direct, through);
}

#[test]
fn a_mapped_model_is_all_that_changes() {
    let url_model = |dialect: Dialect, name: &str| {
        let mut raw =
            Raw::new(dialect, odd(dialect, false, "").replace(model(dialect), name), false);
        raw.path = raw.path.replace(model(dialect), name);
        raw
    };
    for dialect in Dialect::ALL {
        let upstream = format!("models = {{ \"alias\" = \"{}\" }}", model(dialect));
        let assembled =
            Setup { upstream: &upstream, ..Setup::default() }.start(Settings::default());
        let direct =
            url_model(dialect, model(dialect)).direct(&assembled.provider.served.url(), dialect);
        let through = url_model(dialect, "alias").through(&assembled.gateway.url, dialect);
        same(&direct, &through);
        let arrivals = assembled.provider.fake.arrivals();
        assert_eq!(arrivals[0].body_hash, arrivals[1].body_hash, "{dialect}");
    }
}
