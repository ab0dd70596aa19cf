//! The commands that the broker prints to try: each works unchanged.

use std::process::Command;

use crate::folder::Folder;
use crate::running::Broker;

/// A policy whose asks cost nothing unless they name a cost is asked for with one, on every protocol.
#[test]
fn the_lines_to_try_name_a_cost_where_one_is_needed() {
    let tokens = "[[policy]]\nname = \"llm\"\nlimits = [{ name = \"tpm\", unit = \"tokens\", rule = \"rolling-window\", \
                  limit = 9, window = \"1h\" }]\n";
    let folder = Folder::with(&format!("[store]\nkind = \"memory\"\n{tokens}"));
    let broker = Broker::start(&folder, "--grpc 127.0.0.1:0");
    let line = |broker: &Broker, program: &str| {
        let mut lines = broker.printed().lines().map(str::trim);
        lines.find(|line| line.starts_with(program)).expect(program).to_owned()
    };
    let used = || {
        let (_, body) = folder.json(&format!("standing llm alice --server {}", broker.url));
        body["limits"][0]["used"].clone()
    };
    let curl = Command::new("sh").args(["-c", &line(&broker, "curl ")]).output().expect("it runs");
    let answer = String::from_utf8_lossy(&curl.stdout).into_owned();
    assert!(answer.contains("\"admitted\":true"), "{answer}");
    assert_eq!(used(), 1);
    let own = line(&broker, "tollgate acquire ");
    let ran = folder.run(own.trim_start_matches("tollgate "));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(used(), 2);
    let grpcurl = line(&broker, "grpcurl ");
    assert!(grpcurl.contains("\"subject\": \"alice\", \"costs\": {\"tokens\": 1}}'"), "{grpcurl}");

    let store = format!("[store]\nkind = \"broker\"\nurl = \"{}\"\n", broker.url);
    let front = Folder::with(&format!("{store}{tokens}"));
    let front = Broker::start(&front, "");
    let redis_cli = line(&front, "redis-cli ");
    let ran = Command::new("sh").args(["-c", &redis_cli]).output().expect("it runs");
    let answer = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(answer.starts_with("admitted"), "{redis_cli}: {answer}");
    assert_eq!(used(), 3);
}
