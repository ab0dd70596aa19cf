//! Readiness costs the store nothing and tells strangers nothing.

use serde_json::{Value, json};
use tollgate::Clock as _;
use tollgate::clock::SystemClock;
use tollgate_testkit::servers::{Program, Redis, eventually, python, run};

use crate::folder::Folder;
use crate::keys::new_key;
use crate::running::{Broker, get, get_with};

const POLICY: &str = r#"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 2, refill = "1/h" }]
"#;

/// How many commands the server has executed.
fn commands(port: &str) -> u64 {
    let program = Program::new("redis-cli").args("-p").arg(port).args("INFO stats");
    let stats = run(&program).expect("redis-cli runs");
    let line = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    line.expect("it counts").trim().parse().expect("a number")
}

/// The port of the server in its `[store]` table.
fn port(store: &str) -> String {
    let url = store.split('"').find(|text| text.starts_with("redis://")).expect("an address");
    let port = url.trim_end_matches('/').rsplit(':').next().expect("a port");
    port.chars().take_while(char::is_ascii_digit).collect()
}

/// The answer to `/readyz` once it fails.
fn not_ready(broker: &Broker) -> String {
    eventually(|| {
        let answer = get(&broker.url, "/readyz");
        answer.starts_with("HTTP/1.1 503").then_some(answer)
    })
    .expect("it notices")
}

/// The table of the store, with time for a busy machine.
fn store(redis: &Redis) -> String {
    format!("{}attempt_timeout = \"5s\"\n", redis.snippet())
}

/// More commands than a second costs: readiness, and what a broker asks by itself.
const COMMANDS_MAX: u64 = 10;

/// Calls `ask` with a broker, which asks about its readiness 300 times, and counts the commands that Redis got.
fn asks_once_a_second(ask: impl FnOnce(&Broker)) {
    let redis = Redis::start().expect("a server");
    let store = store(&redis);
    let folder = Folder::with(&format!("{store}{POLICY}"));
    let broker = Broker::start(&folder, "--grpc 127.0.0.1:0");
    let port = port(&store);
    let (before, since) = (commands(&port), SystemClock.now());
    ask(&broker);
    let asked = commands(&port) - before;
    let took = SystemClock.now().since(since);
    let most = COMMANDS_MAX * (took.as_secs_ceil() + 1);
    assert!(asked <= most, "300 calls were {asked} commands in {took}");
}

#[test]
fn readiness_asks_the_store_once_a_second() {
    asks_once_a_second(|broker| {
        for _ in 0..300 {
            assert!(get(&broker.url, "/readyz").starts_with("HTTP/1.1 200"));
        }
    });
}

/// Checks the health a given number of times, and prints the answers.
const CHECK: &str = r"
import json, sys
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

health = health_pb2_grpc.HealthStub(grpc.insecure_channel(sys.argv[1]))
answers = [health.Check(health_pb2.HealthCheckRequest(), timeout=30).status for _ in range(int(sys.argv[2]))]
print(json.dumps(sorted(set(answers))))
";

/// The same over gRPC.
#[test]
fn the_health_over_grpc_asks_the_store_once_a_second() {
    asks_once_a_second(|broker| {
        let address = broker.grpc.as_ref().expect("it is on").trim_start_matches("http://");
        let answers = python(CHECK, &[address, "300"]).expect("the script passes");
        // SERVING
        assert_eq!(answers.trim(), "[1]");
    });
}

/// Without a key that may inspect, a broker with keys and one without say the same. The log has the reason.
#[test]
fn readiness_tells_strangers_ready_or_not_and_nothing_else() {
    let (inspect, table) = new_key("watcher", "--scope inspect");
    for keys in ["", &table] {
        let mut redis = Redis::start().expect("a server");
        let store = store(&redis);
        let folder = Folder::with(&format!("{store}{keys}\n{POLICY}"));
        let broker = Broker::start(&folder, "");
        let port = port(&store);
        redis.process().kill().expect("it is killed");
        let answer = not_ready(&broker);
        assert!(answer.contains("\"kind\":\"unavailable\",\"detail\":\"not ready\""), "{answer}");
        assert!(!answer.contains(&port), "{answer}");
        let field = format!("authorization: Bearer {inspect}\r\n");
        let answer = get_with(&broker.url, "/readyz", &field);
        assert_eq!(answer.contains(&port), !keys.is_empty(), "{answer}");
        let log = broker.end("-TERM").2;
        let reason = log.lines().find(|line| line.contains("not ready"));
        assert!(reason.is_some_and(|line| line.contains(&port)), "{log}");
    }
}

/// Opens a given number of Watch streams on each of two connections, and counts the answers.
const WATCH: &str = r"
import collections, json, sys
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

address, each = sys.argv[1], int(sys.argv[2])
answers, streams = collections.Counter(), []
for connection in range(2):
    channel = grpc.insecure_channel(address, [('grpc.use_local_subchannel_pool', 1)])
    for _ in range(each):
        stream = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=30)
        streams.append(stream)
        try:
            next(stream)
            answers['watched'] += 1
        except grpc.RpcError as error:
            answers[error.code().name] += 1
print(json.dumps(answers))
";

/// Each watcher is a task that asks about the store; strangers get so many of them and no more.
#[test]
fn watchers_of_the_health_are_bounded() {
    let folder = Folder::with(&format!("[store]\nkind = \"memory\"\n{POLICY}"));
    let broker = Broker::start(&folder, "--grpc 127.0.0.1:0");
    let address = broker.grpc.as_ref().expect("it is on").trim_start_matches("http://");
    let counted = python(WATCH, &[address, "150"]).expect("the script passes");
    let counted: Value = serde_json::from_str(&counted).expect("JSON");
    assert_eq!(counted, json!({ "watched": 256, "RESOURCE_EXHAUSTED": 44 }));
}
