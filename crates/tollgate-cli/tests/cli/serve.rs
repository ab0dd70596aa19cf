//! The broker: what it prints, what it answers, what it holds, how it ends.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};

use tollgate::{Ask, CalendarWindow, Gate as _, Limit, Period, Policy};
use tollgate_client::{Client, Settings};

use crate::folder::Folder;

/// A broker that runs, and is ended with the test.
pub(crate) struct Broker {
    child: Child,
    out: BufReader<ChildStdout>,
    /// What it printed until it was ready.
    printed: String,
    pub(crate) url: String,
}

impl Broker {
    /// Starts a broker in `folder` on a free port and waits until it said where it is.
    pub(crate) fn start(folder: &Folder, arguments: &str) -> Self {
        let mut command = folder.command(&format!("serve --http 127.0.0.1:0 {arguments}"));
        let mut child = command
            // For the one store that wants them.
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "s3cret")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut printed = String::new();
        while !printed.ends_with("stops it.\n") {
            let read = out.read_line(&mut printed).expect("the broker prints text");
            assert_ne!(read, 0, "the broker ended early: {printed}");
        }
        let url = printed
            .lines()
            .find_map(|line| line.trim().strip_prefix("http  "))
            .expect("it says where");
        let url = url.trim().to_owned();
        Self { child, out, printed, url }
    }

    /// Sends the signal, waits for the end, and returns the exit status, what else it printed, and its errors.
    pub(crate) fn end(mut self, signal: &str) -> (Option<i32>, String, String) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().expect("kill runs");
        assert!(sent.success());
        let status = self.child.wait().expect("the broker ends");
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).expect("the broker prints text");
        let errors = self.child.stderr.take().expect("it is piped");
        BufReader::new(errors).read_to_string(&mut err).expect("the broker prints text");
        (status.code(), out, err)
    }
}

impl Drop for Broker {
    /// A test that failed leaves no broker behind; one that ended already cannot be ended again.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn serve_says_where_everything_is_and_ends_well_on_a_signal() {
    for signal in ["-TERM", "-INT"] {
        let folder = Folder::new();
        let broker = Broker::start(&folder, "");
        let url = broker.url.clone();
        let expected = format!(
            "tollgate {} serves\n  http       {url}\n  dashboard  {url}/\n  \
             config     built-in sample policies; write a tollgate.toml for your own\n  data       tollgate-data\n",
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
        let (code, out, err) = broker.end(signal);
        assert_eq!((code, &*out, &*err), (Some(0), "stopped\n", ""), "{signal}");
    }
}

/// R002.4: an application reaches the broker by gRPC, and the command line sees what it used.
#[test]
fn r002_4_serve_answers_grpc_where_the_configuration_says() {
    let folder = Folder::with(
        "[server]\ngrpc = \"127.0.0.1:0\"\n[[policy]]\nname = \"api\"\n\
         limits = [{ name = \"day\", unit = \"requests\", rule = \"calendar-window\", limit = 5, period = \"day\", time_zone = \"UTC\" }]\n\
         [[envoy]]\ndomain = \"shop\"\ndescriptor = [{ key = \"client\" }]\npolicy = \"api\"\nsubject = \"{client}\"\n",
    );
    let broker = Broker::start(&folder, "");
    let mut lines = broker.printed.lines();
    let grpc = lines.find_map(|line| line.trim().strip_prefix("grpc  ")).expect("it says where");
    let client = Client::new(&Settings::new().grpc(grpc.trim())).expect("an address");
    let day = CalendarWindow::new(5, Period::Day);
    let policy = Policy::new("api", [Limit::new("day", "requests", day)]).expect("a policy");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let ask = Ask::new(&policy, "alice").cost("requests", 2);
    let decision = runtime.block_on(client.acquire(&ask)).expect("the broker answers");
    assert!(decision.is_admitted());
    let ran = folder.run(&format!("standing api alice --server {}", broker.url));
    assert!(ran.out.contains("day: used 2 of 5, 3 left"), "{}", ran.out);
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
    assert_eq!((code, body), (0, serde_json::json!({ "changed": true })));
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

/// Two writers on one folder could each admit the limit, so the second is told whom to ask instead.
#[test]
fn a_folder_held_by_a_broker_is_refused_and_names_its_address() {
    let folder = Folder::new();
    let broker = Broker::start(&folder, "");
    let ran = folder.run("acquire api u1");
    assert_eq!((ran.code, &*ran.out), (2, ""));
    assert!(ran.err.contains(&format!("--server {}", broker.url)), "{}", ran.err);
    let ran = folder.run("serve --http 127.0.0.1:0");
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("--server"), "{}", ran.err);
    assert_eq!(broker.end("-TERM").0, Some(0));
    assert_eq!(folder.run("acquire api u1").code, 0);
}

#[test]
fn an_address_in_use_is_refused_before_the_store_is_opened() {
    let folder = Folder::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let ran = folder.run(&format!("serve --http {address}"));
    assert_eq!((ran.code, &*ran.out), (2, ""));
    assert_eq!(
        ran.err,
        format!(
            "tollgate: could not listen on {address}: the address is in use; stop what runs there, or choose another \
             address with --http\n"
        )
    );
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
    let mut command = folder.command("serve --http 127.0.0.1:0 --data here --json");
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).unwrap();
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let place: serde_json::Value = serde_json::from_str(&line).unwrap();
    let url = place["http"].as_str().unwrap();
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    let expected = serde_json::json!({
        "http": url, "dashboard": format!("{url}/"), "config": null, "store": "embedded", "data": "here",
    });
    assert_eq!(place, expected);
}
