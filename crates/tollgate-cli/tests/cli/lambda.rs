//! `tollgate translate lambda` and the state machine of `deploy/translate.yaml`, which this file walks through as AWS would: the
//! choices it makes are by what the function really answers.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tollgate::Timestamp;
use tollgate_testing::servers::{Postgres, eventually};
use tollgate_translate::Layout;

use crate::translate::{World, expected, kill, prose, slow};

/// The runtime interface of Lambda for any number of functions.
struct Runtime {
    address: String,
    events: Sender<(Value, Sender<Value>)>,
}

type Waiting = Arc<Mutex<HashMap<String, Sender<Value>>>>;

impl Runtime {
    fn start() -> Self {
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
    fn invoke(&self, event: Value) -> Value {
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
        let Ok((event, done)) = next.lock().expect("nobody panics").recv() else { return };
        let id = format!("request-{number}");
        waiting.lock().expect("nobody panics").insert(id.clone(), done);
        (id, event.to_string())
    } else {
        let mut parts = path.rsplit('/');
        let (kind, id) = (parts.next().expect("a kind"), parts.next().expect("an id"));
        let answer: Value = serde_json::from_slice(&body).expect("JSON");
        let done = waiting.lock().expect("nobody panics").remove(id).expect("it was asked");
        done.send(json!({ kind: answer })).expect("somebody waits");
        (String::new(), String::new())
    };
    let length = body.len();
    let reply = format!(
        "HTTP/1.1 200 OK\r\nLambda-Runtime-Aws-Request-Id: {id}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    // A function that was killed does not read it.
    drop(stream.write_all(reply.as_bytes()));
}

/// The definition in the template.
fn definition() -> Value {
    let template = include_str!("../../../../deploy/translate.yaml");
    let (_, rest) = template.split_once("DefinitionString: !Sub |\n").expect("it is there");
    let (text, _) = rest.split_once("\nOutputs:").expect("it ends");
    let value: Value = serde_json::from_str(text).expect("it is JSON");
    assert_eq!(value["States"]["Translate"]["MaxConcurrency"], 10);
    value
}

/// One place of the Map: goes from state to state until it is over.
fn walk(processor: &Value, runtime: &Runtime, mut data: Value) -> Value {
    let mut name = processor["StartAt"].as_str().expect("a name").to_owned();
    loop {
        let state = &processor["States"][&name];
        let next = match state["Type"].as_str().expect("a type") {
            "Task" => {
                assert_eq!(state["Parameters"]["Payload"], json!({ "id.$": "$.id" }));
                assert_eq!(state["OutputPath"], "$.Payload");
                let answer = runtime.invoke(json!({ "id": data["id"] }));
                data = answer["response"].clone();
                assert!(data.is_object(), "{answer}");
                &state["Next"]
            }
            "Choice" => {
                let chosen = state["Choices"].as_array().expect("a list").iter().find(|choice| {
                    assert_eq!(choice["Variable"], "$.next");
                    choice["StringEquals"] == data["next"]
                });
                chosen.map_or(&state["Default"], |choice| &choice["Next"])
            }
            "Wait" => {
                assert_eq!(state["TimestampPath"], "$.until");
                let until = data["until"].as_str().expect("a time");
                until.parse::<Timestamp>().expect("a time as the service reads it");
                assert!(until.len() == 20 && until.ends_with('Z'), "{until}");
                &state["Next"]
            }
            kind => {
                assert_eq!(kind, "Succeed");
                return data;
            }
        };
        name = next.as_str().expect("a name").to_owned();
    }
}

/// R003.11, R003.2: the state machine finishes a job with fewer functions than places, and pays nothing twice.
#[test]
fn r003_11_the_state_machine_finishes_a_job_in_ten_places() {
    let server = Postgres::start().expect("a server");
    let database = server.database().expect("a database");
    let tables = "[translate]\njobs = \"postgres\"\nurl_file = \"jobs.url\"\nlease = \"5s\"\n";
    let world = World::on(slow(20), tables);
    world.folder.write("jobs.url", &server.url(&database));
    let text = prose(60);
    world.folder.write("book.txt", &text);
    let (_, kept) = world.folder.json(&world.make("book.txt --yes --detach"));
    let runtime = Runtime::start();
    let mut functions: Vec<_> = (0..3)
        .map(|_| {
            let mut command =
                world.folder.command(&format!("translate lambda {}", world.provided()));
            command.env("AWS_LAMBDA_RUNTIME_API", &runtime.address).stderr(Stdio::null());
            command.spawn().expect("the binary starts")
        })
        .collect();
    let wrong = runtime.invoke(json!({ "job": 1 }));
    let said = wrong["error"]["errorMessage"].as_str().expect("it says why");
    assert!(said.contains("the event is not {\"id\": \"JOB\"}"), "{wrong}");
    let unknown = runtime.invoke(json!({ "id": "none" }));
    assert_eq!(unknown["error"]["errorType"], "invalid", "{unknown}");
    let definition = definition();
    let processor = &definition["States"]["Translate"]["ItemProcessor"];
    let event = || json!({ "id": kept["id"] });
    let ends: Vec<Value> = std::thread::scope(|scope| {
        let places: Vec<_> =
            (0..10).map(|_| scope.spawn(|| walk(processor, &runtime, event()))).collect();
        places.into_iter().map(|place| place.join().expect("it ends")).collect()
    });
    for end in ends {
        assert_eq!((&end["next"], &end["state"]), (&"end".into(), &"completed".into()), "{end}");
    }
    functions.iter_mut().for_each(kill);
    let tally = world.fake.tally();
    assert_eq!((tally.repeated, tally.calls), (0, tally.translated));
    let id = kept["id"].as_str().expect("an id");
    assert_eq!(world.resume(id, "").code, 0);
    assert_eq!(world.read("book.fr.txt"), expected(&text, Layout::Translation));
}

/// R003.3: a daily quota is a wait of the state machine, and nothing is called meanwhile.
#[test]
fn r003_3_a_daily_quota_is_a_wait_of_the_state_machine() {
    let server = Postgres::start().expect("a server");
    let database = server.database().expect("a database");
    let tables = "[translate]\njobs = \"postgres\"\nurl_file = \"jobs.url\"\n";
    let world = World::on(slow(0), tables);
    world.folder.write("jobs.url", &server.url(&database));
    world.folder.write("book.txt", &prose(60));
    let (_, kept) = world.folder.json(&world.make("book.txt --yes --detach"));
    let runtime = Runtime::start();
    let flags = world.provided().replace("wide", "three");
    let mut command = world.folder.command(&format!("translate lambda {flags}"));
    command.env("AWS_LAMBDA_RUNTIME_API", &runtime.address).stderr(Stdio::null());
    let mut function = command.spawn().expect("the binary starts");
    let waits = eventually(|| {
        let answer = runtime.invoke(json!({ "id": kept["id"] }));
        (answer["response"]["next"] == "wait").then_some(answer)
    });
    let until: Timestamp = waits.expect("it waits")["response"]["until"]
        .as_str()
        .expect("a time")
        .parse()
        .expect("a time");
    let again = runtime.invoke(json!({ "id": kept["id"] }));
    assert_eq!(again["response"]["until"], until.to_string(), "{again}");
    assert_eq!(world.fake.tally().calls, 3);
    kill(&mut function);
    let alone = world.run(&format!("translate lambda {}", world.provided()));
    assert!(
        alone.code == 2 && alone.err.contains("AWS_LAMBDA_RUNTIME_API is not set"),
        "{}",
        alone.err
    );
}
