//! Who is let in by name, and clients that shut down their sending side.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use tollgate_testkit::servers::python;

use crate::folder::Folder;
use crate::running::Broker;

const POLICY: &str = r#"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 2, refill = "1/m" }]
"#;

/// Sends `head` and `body` as they are, shuts the sending side down if `half_closes`, and reads to the end.
fn send(broker: &Broker, head: &str, body: &str, half_closes: bool) -> String {
    let address = broker.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).expect("the broker listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    let length = body.len();
    let fields = format!("content-type: application/json\r\ncontent-length: {length}\r\n");
    let end = if half_closes { "" } else { "connection: close\r\n" };
    write!(stream, "{head}\r\n{fields}{end}\r\n{body}").expect("the broker reads");
    if half_closes {
        stream.shutdown(Shutdown::Write).expect("it half closes");
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the broker answers");
    answer
}

const PUT: &str = "PUT /v1/policies/api/overrides/alice HTTP/1.1";
const OVERRIDE: &str = r#"{"limits": [{"name": "burst", "capacity": 5}]}"#;

/// The status of an override that is sent under `host`, and the answer.
fn put(broker: &Broker, host: &str) -> (String, String) {
    let answer = send(broker, &format!("{PUT}\r\nhost: {host}"), OVERRIDE, false);
    (answer.chars().skip("HTTP/1.1 ".len()).take(3).collect(), answer)
}

fn folder(server: &str) -> Folder {
    Folder::with(&format!("{server}[store]\nkind = \"memory\"\n{POLICY}"))
}

/// A web page that gives its name a loopback address is refused by that name.
#[test]
fn a_foreign_host_is_refused() {
    for server in ["", "[server]\nhosts = [\"tollgate.internal\"]\n"] {
        let folder = folder(server);
        let broker = Broker::start(&folder, "");
        let (status, answer) = put(&broker, "evil.example:8080");
        assert_eq!(status, "421", "{answer}");
        assert!(answer.contains("hosts in [server]"), "{answer}");
        let absolute = "GET http://evil.example/v1/policies HTTP/1.1\r\nhost: localhost";
        assert!(send(&broker, absolute, "", false).starts_with("HTTP/1.1 421"));
        for own in ["localhost", "127.0.0.1:1", "[::1]:8080"] {
            let (status, answer) = put(&broker, own);
            assert_eq!(status, "200", "{own}: {answer}");
        }
        let expected = if server.is_empty() { "421" } else { "200" };
        let (status, answer) = put(&broker, "Tollgate.internal:8080");
        assert_eq!(status, expected, "{answer}");
    }
}

/// HTTP/1.1 without exactly one `Host` is malformed: two of them are read differently by a proxy and by the broker.
#[test]
fn a_request_without_exactly_one_host_is_refused() {
    let folder = folder("");
    let broker = Broker::start(&folder, "");
    for head in [PUT.to_owned(), format!("{PUT}\r\nhost: localhost\r\nhost: localhost")] {
        let answer = send(&broker, &head, OVERRIDE, false);
        assert!(answer.starts_with("HTTP/1.1 400"), "{head}: {answer}");
    }
}

/// Resets a subject over gRPC under each of the names that follow the address, and prints how each call ended.
const RESET: &str = r"
import json, sys
import grpc

ends = []
for name in sys.argv[2:]:
    channel = grpc.insecure_channel(sys.argv[1], [('grpc.default_authority', name)])
    reset = channel.unary_unary('/tollgate.v1.Gate/Reset', request_serializer=bytes, response_deserializer=bytes)
    try:
        reset(b'\x0a\x03api\x12\x05alice', timeout=30)
        ends.append(['OK', ''])
    except grpc.RpcError as error:
        ends.append([error.code().name, error.details()])
print(json.dumps(ends))
";

/// The same over gRPC, whose calls name the host in `:authority`.
#[test]
fn a_foreign_authority_is_refused_over_grpc() {
    for (server, internal) in
        [("", "PERMISSION_DENIED"), ("[server]\nhosts = [\"tollgate.internal\"]\n", "OK")]
    {
        let folder = folder(server);
        let broker = Broker::start(&folder, "--grpc 127.0.0.1:0");
        let address = broker.grpc.as_ref().expect("it is on").trim_start_matches("http://");
        let names =
            ["evil.example:8081", "localhost", "127.0.0.1:1", "[::1]:8081", "tollgate.internal"];
        let ends = python(RESET, &[&[address], &names[..]].concat()).expect("the script passes");
        let ends: Vec<(String, String)> = serde_json::from_str(&ends).expect("JSON");
        let codes: Vec<&str> = ends.iter().map(|(code, _)| &**code).collect();
        assert_eq!(codes, ["PERMISSION_DENIED", "OK", "OK", "OK", internal], "{ends:?}");
        assert!(ends[0].1.contains("hosts in [server]"), "{ends:?}");
        let log = broker.end("-TERM").2;
        assert!(log.contains("evil.example:8081"), "{log}");
    }
}

/// A charged ask is answered; one that cannot be distinguished from a disconnect is not charged.
#[test]
fn a_client_that_half_closes_is_answered() {
    let folder = folder("");
    let broker = Broker::start(&folder, "");
    let head = "POST /v1/acquire HTTP/1.1\r\nhost: localhost";
    let body = r#"{"policy": "api", "subject": "alice"}"#;
    for remaining in [1, 0] {
        let answer = send(&broker, head, body, true);
        assert!(answer.starts_with("HTTP/1.1 200"), "answered: {answer:?}");
        assert!(answer.contains(&format!("\"remaining\":{remaining}")), "{answer}");
    }
    let answer = send(&broker, head, body, true);
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    let waiting = r#"{"policy": "api", "subject": "alice", "wait_ms": 300000}"#;
    let answer = send(&broker, head, waiting, true);
    assert!(answer.contains("shut down its sending side"), "{answer}");
}
