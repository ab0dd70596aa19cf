//! Readiness costs the store nothing and tells strangers nothing.

use tollgate_testing::servers::{Program, Redis, run};

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

#[test]
fn readiness_asks_the_store_once_a_second_and_shows_no_address() {
    let mut redis = Redis::start().expect("a server");
    let (inspect, table) = new_key("watcher", "--scope inspect");
    let store = format!("{}attempt_timeout = \"1s\"\n", redis.snippet());
    let folder = Folder::with(&format!("{store}{table}\n{POLICY}"));
    let broker = Broker::start(&folder, "");
    let url = store.split('"').find(|text| text.starts_with("redis://")).expect("an address");
    let port = url.trim_end_matches('/').rsplit(':').next().expect("a port").to_owned();
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    let before = commands(&port);
    for _ in 0..300 {
        assert!(get(&broker.url, "/readyz").starts_with("HTTP/1.1 200"));
    }
    let asked = commands(&port) - before;
    assert!(asked < 150, "300 calls of /readyz were {asked} commands");
    redis.process().kill().expect("it is killed");
    let answer = loop {
        let answer = get(&broker.url, "/readyz");
        if answer.starts_with("HTTP/1.1 503") {
            break answer;
        }
    };
    assert!(answer.contains("\"detail\":\"not ready\""), "{answer}");
    assert!(!answer.contains(&port), "{answer}");
    let field = format!("authorization: Bearer {inspect}\r\n");
    let answer = get_with(&broker.url, "/readyz", &field);
    assert!(!answer.contains("\"detail\":\"not ready\""), "{answer}");
}
