//! The broker: what it prints, what it answers, what it holds, how it ends.

mod files;
mod grpc;
mod incidents;
mod try_it;

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::folder::Folder;
use crate::running::{Broker, get, get_with};

const API: &str = "[[policy]]\nname = \"api\"\nlimits = [{ name = \"burst\", unit = \"requests\", \
                   rule = \"token-bucket\", capacity = 20, refill = \"10/s\" }]\n";

#[test]
fn serve_says_where_everything_is_and_ends_well_on_a_signal() {
    for signal in ["-TERM", "-INT"] {
        let folder = Folder::new();
        let broker = Broker::start(&folder, "");
        let (url, resp) = (broker.url.clone(), broker.resp.clone().expect("it is on"));
        let expected = format!(
            "tollgate {} serves\n  http       {url}\n  resp       {resp}\n  dashboard  {url}/\n  \
             config     built-in sample policies; write a tollgate.toml for your own\n  data       tollgate-data\n  \
             strategy   atomic: the store decides every ask\n",
            env!("CARGO_PKG_VERSION")
        );
        assert!(broker.printed.starts_with(&expected), "{}", broker.printed);
        assert!(
            broker.printed.contains(&format!("\n  curl {url}/v1/acquire ")),
            "{}",
            broker.printed
        );
        assert!(
            broker
                .printed
                .contains(&format!("\n  tollgate acquire gemini-free alice --server {url}\n"))
        );
        let port = resp.strip_prefix("127.0.0.1:").expect("it listens on loopback");
        let redis_cli = format!("\n  redis-cli -p {port} CL.THROTTLE alice 15 30 60\n");
        assert!(broker.printed.contains(&redis_cli), "{}", broker.printed);
        let (code, out, err) = broker.end(signal);
        assert_eq!((code, &*out, &*err), (Some(0), "stopped\n", ""), "{signal}");
    }
}

/// Every call means the same at a broker, and what it decided is there when the folder is opened again.
#[test]
fn every_call_goes_through_a_broker_and_the_state_stays() {
    let folder = Folder::new();
    let broker = Broker::start(&folder, "");
    // Elsewhere there is neither configuration nor data: all of it is the broker's.
    let elsewhere = Folder::new();
    let at = format!("--server {}", broker.url);

    let (code, body) =
        elsewhere.json(&format!("acquire gemini-free p/7&ü --cost tokens=3750 {at}"));
    assert_eq!(code, 0, "{body}");
    let permit = body["permit"].as_str().expect("text").to_owned();
    let (code, body) = elsewhere.json(&format!("settle {permit} --actual tokens=3100 {at}"));
    assert_eq!((code, body), (0, json!({ "changed": true })));
    let ran = elsewhere.run(&format!("standing gemini-free p/7&ü {at}"));
    assert!(
        ran.out.contains("\n  tpm: used 3100 of 250000, 246900 left, resets in "),
        "{}",
        ran.out
    );
    assert_eq!(elsewhere.run(&format!("renew {permit} {at}")).code, 0);
    assert_eq!(elsewhere.run(&format!("release {permit} {at}")).code, 0);

    for _ in 0..5 {
        assert_eq!(elsewhere.run(&format!("acquire video-requests u1 {at}")).code, 0);
    }
    let ran = elsewhere.run(&format!("acquire video-requests u1 {at} --wait 2s"));
    assert_eq!(ran.code, 1);
    assert!(ran.out.starts_with("denied by daily: 0 of 5 left, try again in "), "{}", ran.out);
    assert_eq!(elsewhere.run(&format!("reset video-requests u1 {at}")).code, 0);
    assert_eq!(elsewhere.run(&format!("acquire video-requests u1 {at}")).code, 0);
    assert_eq!(elsewhere.run(&format!("policies {at}")).out, elsewhere.run("policies").out);

    let (code, problem) = elsewhere.json(&format!("standing nothing u1 {at}"));
    assert_eq!((code, &problem["kind"]), (2, &"unknown-policy".into()));
    let ran = elsewhere.run(&format!("standing nothing u1 {at}"));
    assert!(ran.err.starts_with("tollgate: no policy is called \"nothing\"; "), "{}", ran.err);

    assert_eq!(broker.end("-TERM").0, Some(0));
    let (_, body) = folder.json("standing video-requests u1");
    assert_eq!(body["limits"][0]["used"], 1);
    assert!(!elsewhere.path().join("tollgate-data").exists());
}

/// Two writers on one folder could each admit the limit, so a command asks the broker that holds it, and a second broker is
/// names the broker to ask instead.
#[test]
fn a_command_asks_the_broker_that_holds_its_folder() {
    let folder = Folder::new();
    let broker = Broker::start(&folder, "");
    let (code, given) = folder.json("acquire video-requests u1");
    assert_eq!((code, &given["admitted"]), (0, &json!(true)));
    let used = |place: &str| {
        folder.json(&format!("standing video-requests u1{place}")).1["limits"][0]["used"].clone()
    };
    assert_eq!(used(&format!(" --server {}", broker.url)), json!(1));
    assert_eq!(used(""), json!(1));
    let permit = given["permit"].as_str().unwrap();
    assert_eq!(folder.json(&format!("release {permit}")).1, json!({ "changed": true }));
    let ran = folder.run("serve --http 127.0.0.1:0 --resp off --grpc off");
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("--server"), "{}", ran.err);
    assert_eq!(broker.end("-TERM").0, Some(0));
    assert_eq!(folder.run("acquire video-requests u1").code, 0);
}

#[test]
fn an_address_in_use_is_refused_before_the_store_is_opened() {
    let folder = Folder::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for (flag, others) in [
        ("--http", "--resp off --grpc off"),
        ("--resp", "--http 127.0.0.1:0 --grpc off"),
        ("--grpc", "--http 127.0.0.1:0 --resp off"),
    ] {
        let ran = folder.run(&format!("serve {flag} {address} {others}"));
        assert_eq!((ran.code, &*ran.out), (2, ""));
        assert_eq!(
            ran.err,
            format!(
                "tollgate: could not listen on {address}: the address is in use; stop what runs there, or choose \
                 another address with {flag}\n"
            )
        );
    }
    assert!(!folder.path().join("tollgate-data").exists());
}

#[test]
fn serve_takes_its_folder_from_the_flag_and_its_address_from_the_file() {
    let folder = Folder::with(
        r#"
        [server]
        http = "127.0.0.1:0"
        [[policy]]
        name = "mine"
        limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 2, refill = "1/h" }]
        [[policy]]
        name = "quick"
        limits = [{ name = "one", unit = "requests", rule = "rolling-window", limit = 1, window = "200ms" }]
        "#,
    );
    let broker = Broker::start(&folder, "--data elsewhere");
    assert!(
        broker.printed.contains("\n  config     tollgate.toml\n  data       elsewhere\n"),
        "{}",
        broker.printed
    );
    let ask = format!("acquire mine u1 --server {}", broker.url);
    let codes: Vec<i32> = (0..3).map(|_| folder.run(&ask).code).collect();
    assert_eq!(codes, [0, 0, 1]);
    for _ in 0..2 {
        let ran = folder.run(&format!("acquire quick u1 --wait 10s --server {}", broker.url));
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    }
    assert!(
        folder.path().join("elsewhere").exists() && !folder.path().join("tollgate-data").exists()
    );
}

/// A memory store lives in the broker; a command of its own would decide on an empty one, and always admit.
#[test]
fn a_memory_store_is_served_but_not_opened_by_commands() {
    let folder = Folder::with(
        r#"
        [store]
        kind = "memory"
        [[policy]]
        name = "mine"
        limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 1, refill = "1/h" }]
        "#,
    );
    let ran = folder.run("acquire mine u1");
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("start tollgate serve and name it with --server URL"), "{}", ran.err);
    let ran = folder.run("serve --data folder");
    assert_eq!(ran.code, 2);
    assert!(
        ran.err.starts_with("tollgate: --data names a folder, but the configured store is memory"),
        "{}",
        ran.err
    );

    let broker = Broker::start(&folder, "");
    assert!(
        broker.printed.contains("\n  data       in memory, gone when the broker ends\n"),
        "{}",
        broker.printed
    );
    let ask = format!("acquire mine u1 --server {}", broker.url);
    let codes: Vec<i32> = (0..2).map(|_| folder.run(&ask).code).collect();
    assert_eq!(codes, [0, 1]);
    assert_eq!(broker.end("-TERM").0, Some(0));
}

/// Programs get one line about where everything is, and nothing more.
#[test]
fn serve_tells_programs_where_it_is() {
    let folder = Folder::new();
    let mut command =
        folder.command("serve --http 127.0.0.1:0 --resp off --grpc off --data here --json");
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).unwrap();
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let place: serde_json::Value = serde_json::from_str(&line).unwrap();
    let url = place["http"].as_str().unwrap();
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    let expected = json!({
        "http": url, "resp": null, "grpc": null, "dashboard": format!("{url}/"), "config": null, "store": "embedded",
        "strategy": "atomic", "passed_through": {}, "data": "here",
    });
    assert_eq!(place, expected);
}

/// R000.13: the page counts what the broker decided.
#[test]
fn r000_13_serve_has_a_page_for_prometheus() {
    let folder = Folder::new();
    let broker = Broker::start(&folder, "");
    let at = format!("--server {}", broker.url);
    assert_eq!(folder.run(&format!("acquire gemini-free p7 --cost tokens=3750 {at}")).code, 0);
    let page = get(&broker.url, "/metrics");
    let line = "tollgate_tokens_acquired_total{policy=\"gemini-free\",limit=\"tpm\"} 3750";
    assert!(page.lines().any(|other| other == line), "{page}");
    assert_eq!(broker.end("-TERM").0, Some(0));

    let silent = Folder::with(&format!("[telemetry]\nprometheus = false\n\n{API}"));
    let broker = Broker::start(&silent, "");
    assert!(get(&broker.url, "/metrics").contains("not-found"));
}

/// The fields that old clients know are there if the configuration says so, and proxies are answered by `serve`.
#[test]
fn serve_sends_the_old_fields_where_the_configuration_says() {
    for (server, wanted) in [("", false), ("[server]\nlegacy_fields = true\n\n", true)] {
        let folder = Folder::with(&format!("{server}{API}"));
        let broker = Broker::start(&folder, "");
        let path = "/v1/forward-auth?policy=api&subject_header=X-Real-IP";
        let answer = get_with(&broker.url, path, "X-Real-IP: 192.0.2.1\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("\r\nratelimit: \"burst\";r=19"), "{answer}");
        assert_eq!(answer.contains("\r\nx-ratelimit-remaining: 19\r\n"), wanted, "{answer}");
        assert!(get(&broker.url, "/openapi.json").contains("\"openapi\":\"3.1.0\""));
    }
}

/// The bounds of a store in memory are settings, and what is full names the one to raise.
#[test]
fn a_memory_store_has_the_bounds_of_its_configuration() {
    let store = "[store]\nkind = \"memory\"\nkeys_max = 1\nids_max = 1\n";
    let folder = crate::stores::on(store);
    let broker = Broker::start(&folder, "");
    let ask = |arguments: &str| {
        folder.run(&format!("acquire video-requests {arguments} --server {}", broker.url))
    };
    assert_eq!(ask("u1 --id a").code, 0);
    for (arguments, words) in
        [("u1 --id b", "raise ids_max of the store"), ("u2", "raise keys_max of the store")]
    {
        let ran = ask(arguments);
        assert!(ran.code == 2 && ran.err.contains(words), "{arguments}: {ran:?}");
    }
}
