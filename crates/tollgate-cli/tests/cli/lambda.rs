//! `tollgate translate lambda` on a runtime interface: what it answers to which event, which is its contract with the state
//! machine of `deploy/translate.yaml`. [`crate::state_machine`] executes that.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tollgate::Timestamp;
use tollgate_testkit::fakes::gemini::{Fault, Settings, Trouble, When};
use tollgate_testkit::servers::{Postgres, eventually};
use tollgate_translate::Layout;

use crate::translate::{World, expected, kill, prose, signal, slow, troubled};

/// The runtime interface of Lambda for any number of functions.
pub(crate) struct Runtime {
    pub(crate) address: String,
    events: Sender<(Value, Sender<Value>)>,
}

type Waiting = Arc<Mutex<HashMap<String, Sender<Value>>>>;

impl Runtime {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has one").to_string();
        let (events, next) = channel();
        let (next, waiting) = (Arc::new(Mutex::new(next)), Waiting::default());
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().flatten().enumerate() {
                let (next, waiting) = (Arc::clone(&next), Arc::clone(&waiting));
                std::thread::spawn(move || answer(stream, number, &next, &waiting));
            }
        });
        Self { address, events }
    }

    /// Calls a function, whichever is free.
    pub(crate) fn invoke(&self, event: Value) -> Value {
        let (done, answer) = channel();
        self.events.send((event, done)).expect("it listens");
        answer.recv().expect("it answers")
    }
}

/// One request of a function: for an event, or with the answer to one.
fn answer(
    mut stream: TcpStream,
    number: usize,
    next: &Mutex<Receiver<(Value, Sender<Value>)>>,
    waiting: &Waiting,
) {
    let mut reader = BufReader::new(stream.try_clone().expect("it is open"));
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
        if head.is_empty() {
            head = line;
        }
    }
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the body is whole");
    let (id, body) = if path.ends_with("/next") {
        let Ok((event, done)) = next.lock().expect("no thread panicked").recv() else { return };
        let id = format!("request-{number}");
        waiting.lock().expect("no thread panicked").insert(id.clone(), done);
        (id, event.to_string())
    } else {
        let mut parts = path.rsplit('/');
        let (kind, id) = (parts.next().expect("a kind"), parts.next().expect("an id"));
        let answer: Value = serde_json::from_slice(&body).expect("JSON");
        let done = waiting.lock().expect("no thread panicked").remove(id).expect("it was asked");
        done.send(json!({ kind: answer })).expect("the caller waits");
        (String::new(), String::new())
    };
    let length = body.len();
    let reply = format!(
        "HTTP/1.1 200 OK\r\nLambda-Runtime-Aws-Request-Id: {id}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    // A function that was killed does not read it.
    drop(stream.write_all(reply.as_bytes()));
}

/// What the function writes to standard output, in which Lambda looks for metrics.
const LOG: &str = "function.log";

/// A job in PostgreSQL, and a function that works on it.
struct Stage {
    _server: Postgres,
    world: World,
    runtime: Runtime,
    function: Child,
    text: String,
    id: String,
}

impl Stage {
    fn new(policy: &str) -> Self {
        Self::with(policy, slow(0), "")
    }

    /// The same with another provider, and with `keys` in `[telemetry]`.
    fn with(policy: &str, settings: Settings, keys: &str) -> Self {
        let server = Postgres::start().expect("a server");
        let database = server.database().expect("a database");
        let tables = format!(
            "[telemetry]\n{keys}\n[telemetry.emf]\ninterval = \"1h\"\n[translate]\njobs = \"postgres\"\nurl_file = \"jobs.url\"\n"
        );
        let world = World::on(settings, &tables);
        world.folder.write("jobs.url", &server.url(&database));
        let text = prose(60);
        world.folder.write("book.txt", &text);
        let (_, kept) = world.folder.json(&world.make("book.txt --yes --detach"));
        let id = kept["id"].as_str().expect("an id").to_owned();
        let runtime = Runtime::start();
        let flags = world.provided().replace("wide", policy);
        let mut command = world.folder.command(&format!("translate lambda {flags}"));
        let log = File::create(world.folder.path().join(LOG)).expect("it is writable");
        command.env("AWS_LAMBDA_RUNTIME_API", &runtime.address).env("TMPDIR", world.folder.path());
        command.stdout(log).stderr(Stdio::null());
        let function = command.spawn().expect("the binary starts");
        Self { _server: server, world, runtime, function, text, id }
    }

    /// Every value of `metric` without dimensions that the function published by now.
    fn published(&self, metric: &str) -> Vec<f64> {
        let lines: Vec<Value> = self
            .world
            .read(LOG)
            .lines()
            .map(|line| serde_json::from_str(line).expect("a line is JSON"))
            .collect();
        let rolled_up = lines
            .iter()
            .filter(|line| line["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == json!([[]]));
        rolled_up.filter_map(|line| line[metric].as_f64()).collect()
    }

    fn invoke(&self) -> Value {
        self.runtime.invoke(json!({ "jobId": self.id, "chunk": { "first": 0, "end": 1 } }))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        kill(&mut self.function);
    }
}

/// R003.11: the function names the job in every answer, says what is wrong with an event, and lives on after that.
#[test]
fn r003_11_a_function_names_the_open_chunks_and_answers_for_each_and_at_the_end() {
    let mut stage = Stage::new("wide");
    let wrong = stage.runtime.invoke(json!({ "job": 1 }));
    let said = wrong["error"]["errorMessage"].as_str().expect("it says why");
    assert!(said.contains("the event is not {\"jobId\": \"JOB\"}"), "{wrong}");
    let unknown = stage.runtime.invoke(json!({ "jobId": "none" }));
    assert_eq!(unknown["error"]["errorType"], "invalid", "{unknown}");
    let open = || stage.runtime.invoke(json!({ "jobId": stage.id }))["response"].clone();
    let planned = open();
    assert_eq!(
        (&planned["next"], &planned["jobId"]),
        (&"chunks".into(), &stage.id.as_str().into())
    );
    let planned = planned["chunks"].as_array().expect("a list").clone();
    assert_eq!(planned[0]["first"], 0, "{planned:?}");
    let mut chunks = 0;
    let end = loop {
        let answer = stage.invoke();
        if answer["response"]["next"] != "chunk" {
            break answer;
        }
        assert_eq!(answer, json!({ "response": { "next": "chunk", "jobId": stage.id } }));
        chunks += 1;
        if chunks == 2 {
            assert_eq!(open()["chunks"].as_array(), Some(&planned[2..].to_vec()));
        }
    };
    assert_eq!((chunks, open()), (planned.len() as u64, end["response"].clone()));
    let wanted = json!({ "next": "end", "jobId": stage.id, "state": "completed", "why": null });
    assert_eq!(end["response"], wanted);
    assert_eq!(stage.invoke(), end, "it stays over");
    assert_eq!(stage.world.fake.tally().calls, chunks);
    // A signal while it waits for an event flushes the sinks and ends it.
    signal(&stage.function, "-TERM");
    assert_eq!(stage.function.wait().expect("it ends").code(), Some(0));
    assert_eq!(stage.world.resume(&stage.id, "").code, 0);
    assert_eq!(stage.world.read("book.fr.txt"), expected(&stage.text, Layout::Translation));
}

/// R003.3: a daily quota is a wait until a time as the state machine reads it, and nothing is called meanwhile.
#[test]
fn r003_3_a_function_answers_a_daily_quota_with_a_wait() {
    let stage = Stage::new("three");
    let waits = eventually(|| {
        let answer = stage.invoke();
        (answer["response"]["next"] == "wait").then_some(answer)
    });
    let waits = waits.expect("it waits");
    assert_eq!(waits["response"]["jobId"], *stage.id);
    let until = waits["response"]["until"].as_str().expect("a time");
    until.parse::<Timestamp>().expect("a time");
    assert!(until.len() == 20 && until.ends_with('Z'), "{until}: in whole seconds");
    assert_eq!(stage.invoke(), waits);
    assert_eq!(stage.world.fake.tally().calls, 3);
    let alone = stage.world.run(&format!("translate lambda {}", stage.world.provided()));
    assert!(
        alone.code == 2 && alone.err.contains("AWS_LAMBDA_RUNTIME_API is not set"),
        "{}",
        alone.err
    );
}

/// R003.9: Lambda freezes a function after its answer, so what it counted is written before.
#[test]
fn r003_9_a_function_publishes_what_it_counted_before_it_answers() {
    let stage = Stage::new("wide");
    let mut invocations = 0;
    loop {
        let answer = stage.invoke();
        if answer["response"]["next"] != "chunk" {
            break;
        }
        invocations += 1;
        let calls: f64 = stage.published("TranslationCalls").iter().sum();
        assert_eq!(calls, f64::from(invocations), "{answer}");
        assert_eq!(stage.published("ParallelChunkProcessing").last(), Some(&1.0));
        assert_eq!(stage.published("TranslationJobsRunning").last(), Some(&1.0));
    }
    let words: f64 = stage.published("TranslationWords").iter().sum();
    assert_eq!(words, stage.text.split_whitespace().count() as f64);
    assert_eq!(stage.published("TranslationJobs"), [1.0]);
    assert_eq!(stage.published("TranslationSpeed").len(), 1);
    stage.invoke();
    assert_eq!(stage.published("TranslationSpeed").len(), 1, "the time of a job is published once");
}

/// R000.14: the package of a function cannot be written to, so an incident is kept in the folder for temporary files, before the
/// answer.
#[test]
fn r000_14_a_function_keeps_incidents_where_it_can_write() {
    let refused = troubled(vec![Trouble::new(Fault::MinuteQuota, When::Call(1))]);
    let stage = Stage::with("wide", refused, "incident_file = \"no such folder/incidents.jsonl\"");
    stage.invoke();
    let kept: Value =
        serde_json::from_str(stage.world.read("incidents.jsonl").trim()).expect("a line");
    assert_eq!((&kept["policy"], &kept["subject"]), (&json!("wide"), &json!("project")), "{kept}");
    assert_eq!(stage.published("RateLimitViolations"), [1.0]);
}
