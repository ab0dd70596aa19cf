//! A real Envoy in front of an upstream, limited by the files of envoyproxy/ratelimit: what the integration tests of that project
//! check, with a configuration of the same shape. Weeks are rolling windows, so no test meets a border.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};

use tollgate_testkit::servers::{Proxy, eventually};

use super::service::{RateLimitClient, Service, call_with, descriptor};
use crate::folder::Folder;

const LIMITS: &str = "
domain: shop
descriptors:
  - { key: client, rate_limit: { unit: week, requests_per_unit: 5 } }
  - { key: client, value: vip, rate_limit: { unlimited: true } }
  - { key: client, value: mallory, rate_limit: { unit: week, requests_per_unit: 0 } }
  - { key: client, value: trial, shadow_mode: true, rate_limit: { unit: week, requests_per_unit: 1 } }
  - key: plan
    value: free
    descriptors:
      - { key: user, rate_limit: { unit: week, requests_per_unit: 2 } }
      - { key: user, value: staff, rate_limit: { unit: week, requests_per_unit: 3 } }
  - { key: path, value: /api/*, rate_limit: { unit: week, requests_per_unit: 2 } }
  - { key: path, value: /static/*, share_threshold: true, rate_limit: { unit: week, requests_per_unit: 2 } }
  - { key: group, rate_limit: { unit: week, requests_per_unit: 2, name: per-group } }
  - { key: endpoint, rate_limit: { unit: week, requests_per_unit: 3, replaces: [{ name: per-group }] } }
  - { key: service, value: one, quota_mode: true, rate_limit: { unit: week, requests_per_unit: 1 } }
  - { key: service, value: two, quota_mode: true, rate_limit: { unit: week, requests_per_unit: 2 } }
  - { key: detailed, detailed_metric: true, rate_limit: { unit: week, requests_per_unit: 2 } }
  - { key: batch, rate_limit: { unit: week, requests_per_unit: 10 } }
  - { key: stream, rate_limit: { unit: week, requests_per_unit: 5 } }
";

/// Answers each request with its own head, until the test ends.
pub(super) struct Upstream(SocketAddr);

impl Upstream {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut head = Vec::new();
                let mut bytes = [0; 4_096];
                while !head.windows(4).any(|window| window == b"\r\n\r\n") {
                    match stream.read(&mut bytes) {
                        Ok(read @ 1..) => head.extend_from_slice(&bytes[..read]),
                        _ => break,
                    }
                }
                let length = head.len();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
                );
                drop(stream.write_all(answer.as_bytes()).and_then(|()| stream.write_all(&head)));
            }
        });
        Self(address)
    }
}

/// Starts Envoy in front of `upstream`, limited by the service at the port `grpc`, with a configuration changed by `change`.
pub(super) fn envoy(
    Upstream(upstream): &Upstream,
    grpc: u16,
    change: impl FnOnce(String) -> String,
) -> Proxy {
    let port = |number: u16| format!("port_value: {number} ");
    let started = Proxy::envoy(|listen| {
        let text = include_str!("envoy.yaml")
            .replace(&port(10_000), &port(listen))
            .replace(&port(9_000), &port(upstream.port()))
            .replace(&port(8_081), &port(grpc));
        change(text)
    });
    started.expect("Envoy starts")
}

/// The service with [`LIMITS`], an upstream, and Envoy between.
struct Stack {
    service: Service,
    envoy: Proxy,
    _folder: Folder,
}

impl Stack {
    fn start(more: &[(&str, &str)]) -> Self {
        let folder = Folder::new();
        std::fs::create_dir(folder.path().join("config")).expect("a folder");
        folder.write("config/shop.yaml", LIMITS);
        let service = Service::start(&folder, more);
        let envoy = envoy(&Upstream::start(), service.grpc(), |text| text);
        Self { service, envoy, _folder: folder }
    }

    /// Sends a request with `fields`, as in `x-client: a`, and returns the status, the head and the body.
    fn get(&mut self, fields: &[&str]) -> (u16, String, String) {
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        call_with(self.envoy.process().port(), "GET / HTTP/1.1", &fields, "")
    }

    /// Sends the same request again and again, until it is refused or was sent `most` times, and returns how many passed.
    fn passed(&mut self, fields: &[&str], most: usize) -> usize {
        let passes = (0..most).take_while(|_| {
            let status = self.get(fields).0;
            assert!(matches!(status, 200 | 429), "{fields:?}: {status}");
            status == 200
        });
        passes.count()
    }

    /// What is left for a descriptor, without a charge.
    fn remaining(&self, key: &str, value: &str) -> u32 {
        let mut looked = descriptor([(key, value)]);
        looked.hits_addend = Some(0);
        let answer =
            RateLimitClient::new(self.service.grpc()).ask(vec![looked]).expect("an answer");
        answer.statuses[0].limit_remaining
    }
}

#[test]
fn each_kind_of_limit_applies_behind_a_real_envoy() {
    let mut stack = Stack::start(&[]);
    // The headers, how often they are sent, how many pass, and why.
    let rows: [(&[&str], usize, usize, &str); 19] = [
        (&["x-client: a"], 9, 5, "a limit for each value"),
        (&["x-client: b"], 2, 2, "another value has its own"),
        (&["x-client: vip"], 9, 9, "unlimited"),
        (&["x-client: mallory"], 1, 0, "zero blocks"),
        (&["x-client: trial"], 4, 4, "shadow mode"),
        (&["x-plan: free", "x-user: u"], 9, 2, "nested"),
        (&["x-plan: free", "x-user: v"], 1, 1, "nested, another value"),
        (&["x-plan: free", "x-user: staff"], 9, 3, "the most specific one"),
        (&["x-plan: paid", "x-user: u"], 4, 4, "nothing matches"),
        (&["x-path: /api/a"], 9, 2, "a wildcard, for each value"),
        (&["x-path: /api/b"], 1, 1, "a wildcard, another value"),
        (&["x-path: /static/a"], 1, 1, "a wildcard, shared"),
        (&["x-path: /static/b"], 9, 1, "a wildcard, shared by another value"),
        (&["x-path: /login"], 4, 4, "no wildcard matches"),
        (&["x-group: g", "x-endpoint: e"], 9, 3, "one limit replaces the other"),
        (&["x-group: g"], 9, 2, "which was not charged"),
        (&["x-service: one", "x-other-service: two"], 9, 2, "quotas refuse only together"),
        (&["x-detailed: x"], 9, 2, "with the value in the metrics"),
        (&[], 4, 4, "no descriptor"),
    ];
    for (fields, most, passed, why) in rows {
        assert_eq!(stack.passed(fields, most), passed, "{why}: {fields:?}");
    }
    // Two descriptors, one of which refuses: the other is not charged.
    assert_eq!(stack.remaining("client", "b"), 3);
    for _ in 0..4 {
        assert_eq!(stack.get(&["x-client: b", "x-plan: free", "x-user: u"]).0, 429);
    }
    assert_eq!(stack.remaining("client", "b"), 3);
    let metrics = stack.service.metrics();
    let count = |name: &str, keys: &str| {
        let line = format!("ratelimit_service_rate_limit_{name}{{domain=\"shop\",{keys}}} ");
        let found = metrics.lines().find_map(|found| found.strip_prefix(&line));
        found
            .and_then(|count| count.parse::<u64>().ok())
            .unwrap_or_else(|| panic!("{line}: {metrics}"))
    };
    // Five of a pass and one is refused; two of b pass, and four requests with b are refused by another limit.
    let client = "key1=\"client\"";
    let counts =
        ["total_hits", "over_limit", "within_limit", "near_limit"].map(|name| count(name, client));
    // Near is from 80 % on: the fifth of a. Those that were looked at have no hits.
    assert_eq!(counts, [12, 1, 11, 1]);
    assert_eq!(count("shadow_mode", "key1=\"client_trial\""), 3);
    assert_eq!(count("over_limit", "key1=\"client_mallory\""), 1);
    assert_eq!(count("over_limit", "key1=\"plan_free\",key2=\"user\""), 5);
    assert_eq!(count("over_limit", "key1=\"detailed_x\""), 1);
}

#[test]
fn headers_tell_client_and_upstream_the_limit() {
    let mut stack = Stack::start(&[
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_RESET_HEADER", "x-reset"),
        ("LIMIT_REQUEST_HEADERS_ENABLED", "true"),
        ("LIMIT_REQUEST_REMAINING_HEADER", "x-left"),
    ]);
    let (status, head, body) = stack.get(&["x-client: a"]);
    assert_eq!(status, 200);
    // A week has 604,800 seconds. Envoy makes further headers of the statuses.
    for field in [
        "ratelimit-limit: 5\r",
        "ratelimit-remaining: 4\r",
        "x-reset: 604800\r",
        "x-ratelimit-limit: 5",
        "x-ratelimit-remaining: 4\r",
    ] {
        assert!(head.contains(&format!("\n{field}")), "{field} in {head}");
    }
    let body = body.to_ascii_lowercase();
    for field in ["ratelimit-limit: 5\r", "x-left: 4\r", "ratelimit-reset: 604800\r"] {
        assert!(body.contains(&format!("\n{field}")), "{field} at the upstream: {body}");
    }
    // Of several limits, the one with the least left.
    let (_, head, _) = stack.get(&["x-client: a", "x-plan: free", "x-user: u"]);
    assert!(
        head.contains("\nratelimit-limit: 2\r") && head.contains("\nratelimit-remaining: 1\r"),
        "{head}"
    );
    let (status, head, _) = stack.get(&["x-client: mallory"]);
    assert_eq!(status, 429);
    for field in ["ratelimit-limit: 0\r", "ratelimit-remaining: 0\r", "x-envoy-ratelimited: true\r"]
    {
        assert!(head.contains(&format!("\n{field}")), "{field} in {head}");
    }
}

#[test]
fn hits_of_a_descriptor_are_charged_before_or_after_the_request() {
    let mut stack = Stack::start(&[]);
    for (status, left) in [(200, 6), (200, 2), (429, 0), (429, 0)] {
        assert_eq!(stack.get(&["x-batch: b"]).0, status);
        assert_eq!(stack.remaining("batch", "b"), left);
    }
    // Three hits when a response is complete, of five: the second report does not fit, and is charged all the same.
    for left in [2, 0] {
        assert_eq!(stack.get(&["x-stream: s"]).0, 200);
        let charged = eventually(|| (stack.remaining("stream", "s") == left).then_some(()));
        assert!(charged.is_some(), "{left}");
    }
    assert_eq!(stack.get(&["x-stream: s"]).0, 429);
}
