//! Readiness costs the store nothing and tells strangers nothing.

use tollgate_testing::servers::{Program, Redis, eventually, run};

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

#[test]
fn readiness_asks_the_store_once_a_second() {
    let redis = Redis::start().expect("a server");
    let store = redis.snippet();
    let broker = Broker::start(&Folder::with(&format!("{store}{POLICY}")), "");
    let port = port(&store);
    let before = commands(&port);
    for _ in 0..300 {
        assert!(get(&broker.url, "/readyz").starts_with("HTTP/1.1 200"));
    }
    let asked = commands(&port) - before;
    assert!(asked < 150, "300 calls of /readyz were {asked} commands");
}

/// Without a key that may inspect, a broker with keys and one without say the same. The log has the reason.
#[test]
fn readiness_tells_strangers_ready_or_not_and_nothing_else() {
    let (inspect, table) = new_key("watcher", "--scope inspect");
    for keys in ["", &table] {
        let mut redis = Redis::start().expect("a server");
        let store = redis.snippet();
        let broker = Broker::start(&Folder::with(&format!("{store}{keys}\n{POLICY}")), "");
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
