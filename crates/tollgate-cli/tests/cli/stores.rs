//! What holds on every shared store alike: the same test on Redis, a Redis cluster, PostgreSQL, DynamoDB and a broker.

use serde_json::Value;
use tollgate_testkit::servers::{DynamoDb, Postgres, Redis, RedisCluster};

use crate::folder::Folder;
use crate::processes::admit_exactly_five;
use crate::running::Broker;

const POLICIES: &str = r#"
[[policy]]
name = "video-requests"
limits = [{ name = "daily", unit = "requests", rule = "rolling-window", limit = 5, window = "24h" }]

[[policy]]
name = "llm"
limits = [
  { name = "rpm", unit = "requests", rule = "rolling-window", limit = 5, window = "1h", resolution = 12 },
  { name = "tpm", unit = "tokens", rule = "token-bucket", capacity = 10_000, refill = "1/h" },
]

[[policy]]
name = "jobs"
limits = [{ name = "running", unit = "jobs", rule = "concurrency", limit = 1, ttl = "1h" }]
"#;

/// A folder whose configuration has `store` as its `[store]`.
pub(crate) fn on(store: &str) -> Folder {
    Folder::with(&format!("{store}{POLICIES}"))
}

/// A folder on DynamoDB, with its table.
pub(crate) fn on_dynamodb(server: &DynamoDb) -> Folder {
    let folder = on(&server.snippet());
    let made = folder.run("dynamodb create-table");
    assert_eq!((made.code, made.err.as_str()), (0, ""));
    assert!(made.out.starts_with("table tollgate: made"), "{}", made.out);
    folder
}

/// R000.8 and promise 1: however many processes ask at once, exactly the limit is admitted, and none fails.
#[test]
fn r000_8_two_hundred_processes_on_redis_admit_exactly_the_limit() {
    let server = Redis::start().expect("a server");
    admit_exactly_five(&on(&server.snippet()), "video-requests");
}

/// The same on a database without tables.
#[test]
fn r000_8_two_hundred_processes_on_postgres_admit_exactly_the_limit() {
    // Each process has a connection of its own.
    let server = Postgres::start_with("-c max_connections=300").expect("a server");
    admit_exactly_five(&on(&server.snippet()), "video-requests");
}

/// The same by expressions and by swaps.
#[test]
fn r000_8_two_hundred_processes_on_dynamodb_admit_exactly_the_limit() {
    let server = DynamoDb::start().expect("a server");
    let folder = on_dynamodb(&server);
    for policy in ["llm", "video-requests"] {
        admit_exactly_five(&folder, policy);
    }
}

/// The same at a broker, whose own store is a folder (R002.4).
#[test]
fn r002_4_two_hundred_processes_at_a_broker_admit_exactly_the_limit() {
    let (_folder, broker) = upstream();
    admit_exactly_five(&on(&at_broker(&broker)), "video-requests");
}

/// A broker with the same policies on a folder of its own.
fn upstream() -> (Folder, Broker) {
    let folder = on("");
    let broker = Broker::start(&folder, "--grpc 127.0.0.1:0");
    (folder, broker)
}

fn at_broker(broker: &Broker) -> String {
    let grpc = broker.grpc.as_ref().expect("it is on");
    format!("[store]\nkind = \"broker\"\nurl = \"{}\"\ngrpc = \"{grpc}\"\n", broker.url)
}

/// What a program sees through a history: `{0}` stands for the first permit that was given, and so on. It has repeats,
/// a conflict, denials, settling and releasing twice, slots, a reset and what comes after it.
const HISTORY: &[&str] = &[
    "standing llm p",
    "acquire llm p --cost tokens=4000 --id a",
    "acquire llm p --cost tokens=4000 --id a",
    "acquire llm p --cost tokens=5 --id a",
    "acquire llm p --cost tokens=9000",
    "acquire llm p --cost tokens=20000",
    "acquire llm p --cost bytes=1",
    "settle {0} --actual tokens=1000",
    "settle {0} --actual tokens=0",
    "standing llm p",
    "acquire llm p --cost tokens=9000 --id b",
    "release {2}",
    "release {2}",
    "acquire llm p --cost tokens=1 --id b",
    "acquire llm p --cost requests=3",
    "acquire llm p",
    "standing llm p",
    "acquire video-requests p",
    "acquire video-requests p --cost requests=5",
    "settle {5} --actual requests=2",
    "standing video-requests p",
    "acquire jobs p --cost jobs=1",
    "acquire jobs p --cost jobs=1",
    "renew {6}",
    "release {6}",
    "acquire jobs p --cost jobs=1",
    "renew {6}",
    "reset llm p",
    "reset llm p",
    "release {4}",
    "standing llm p",
    "standing llm q",
];

/// The answers to [`HISTORY`], without times and without the permits themselves.
fn answers(folder: &Folder) -> Vec<(i32, Value)> {
    let mut permits: Vec<String> = Vec::new();
    let mut answers = Vec::new();
    for line in HISTORY {
        let mut line = (*line).to_owned();
        for (place, permit) in permits.iter().enumerate() {
            line = line.replace(&format!("{{{place}}}"), permit);
        }
        let ran = folder.run(&format!("{line} --json"));
        let mut body: Value = serde_json::from_str(&ran.out).expect("--json prints JSON");
        if let (Some(permit), true) = (body["permit"].as_str(), line.starts_with("acquire")) {
            permits.push(permit.to_owned());
        }
        without_times(&mut body);
        answers.push((ran.code, body));
    }
    answers
}

fn without_times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let of_one_run = [
                "permit",
                "reset_at",
                "reset_in",
                "full_at",
                "refilled_at",
                "decided_at",
                "expires_at",
                "retry_after_ms",
            ];
            for name in of_one_run {
                if let Some(value) = fields.get_mut(name) {
                    *value = Value::from("there");
                }
            }
            if let Some(Value::String(detail)) = fields.get_mut("detail")
                && let Some(place) = detail.find("; ask again in")
            {
                detail.truncate(place);
            }
            fields.values_mut().for_each(without_times);
        }
        Value::Array(values) => values.iter_mut().for_each(without_times),
        _ => {}
    }
}

/// Promise 8: identical answers for identical histories, whatever the store; a permit of one process is settled, released
/// and renewed by another.
#[test]
fn identical_histories_have_identical_answers_on_every_store() {
    let embedded = answers(&on(""));
    let count = |code| embedded.iter().filter(|(other, _)| *other == code).count();
    // Enough of each kind: admitted or done, denied, refused.
    assert_eq!([count(0), count(1), count(2)], [24, 5, 3], "{embedded:#?}");
    let same = |name: &str, folder: &Folder| {
        for ((line, expected), found) in HISTORY.iter().zip(&embedded).zip(answers(folder)) {
            assert_eq!(found, *expected, "{name}: {line}");
        }
    };
    let server = Redis::start().expect("a server");
    same("redis", &on(&server.snippet()));
    let server = RedisCluster::start().expect("a cluster");
    same("redis cluster", &on(&server.snippet()));
    let server = Postgres::start().expect("a server");
    same("postgres", &on(&server.snippet()));
    let server = DynamoDb::start().expect("a server");
    same("dynamodb", &on_dynamodb(&server));
}

/// R002.4 and promise 8: an application moves from a store to a broker by its configuration, whatever protocol it speaks,
/// and sees no difference.
#[test]
fn r002_4_a_broker_as_the_store_answers_as_a_store_does() {
    let embedded = answers(&on(""));
    let address = |key: &str, url: &str| format!("[store]\nkind = \"broker\"\n{key} = \"{url}\"\n");
    for key in ["url", "grpc", "resp", "both"] {
        let (_folder, broker) = upstream();
        let store = match key {
            "url" => address(key, &broker.url),
            "grpc" => address(key, broker.grpc.as_ref().expect("it is on")),
            "resp" => address(key, &format!("redis://{}", broker.resp.as_ref().expect("it is on"))),
            _ => at_broker(&broker),
        };
        for ((line, expected), found) in HISTORY.iter().zip(&embedded).zip(answers(&on(&store))) {
            assert_eq!(found, *expected, "{key}: {line}");
        }
    }
}
