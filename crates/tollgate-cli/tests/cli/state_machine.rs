//! `deploy/translate.yaml`, deployed as it is and executed: the function is this binary in the package that the page
//! describes, and the state machine is walked through by an emulator that knows nothing of us.
//!
//! The emulator retries without jitter and after a minute at most, and passes over a `TimestampPath` that leads nowhere; what the
//! function answers is checked in [`crate::lambda`].

use std::io::{Cursor, Write as _};
use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};
use tollgate::clock::ManualClock;
use tollgate::{Span, Timestamp};
use tollgate_testkit::fakes::gemini::{Fault, Settings, Trouble, When};
use tollgate_testkit::servers::{Postgres, eventually};
use tollgate_translate::Layout;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::cloud::{Cloud, Executed};
use crate::folder::binary;
use crate::translate::{POLICIES, World, expected, prose, slow, troubled};

const TEMPLATE: &str = include_str!("../../../../deploy/translate.yaml");
const PAGE: &str = include_str!("../../../../docs/translate.md");

/// The chunks that are at the provider at once, unless a parameter says otherwise.
const PLACES: u64 = 10;

/// How long the provider takes where its clock is turned by hand.
const LATENCY: Span = Span::from_secs(1);

/// Jobs and quotas in one database, which `place` says how to find.
fn tables(place: &str) -> String {
    format!("[store]\nkind = \"postgres\"\n{place}\n[translate]\njobs = \"postgres\"\n{place}\n")
}

/// A document that is to be translated by a state machine.
struct Stage {
    world: World,
    server: Postgres,
    database: String,
    cloud: Cloud,
    text: String,
    id: String,
}

impl Stage {
    fn new(world: impl FnOnce(&str) -> World, share: f64) -> Self {
        let server = Postgres::start().expect("a server");
        let database = server.database().expect("a database");
        let world = world(&tables("url_file = \"database.url\""));
        world.folder.write("database.url", &server.url(&database));
        let text = prose(80);
        world.folder.write("book.txt", &text);
        let id = kept(&world, "book.txt");
        let cloud = Cloud::start(share);
        let secret = json!({ "gemini_key": "project.key", "database_url": server.url(&database) });
        cloud.keep("keys", &secret);
        Self { world, server, database, cloud, text, id }
    }

    /// Deploys `template`, with a function that begins with the lines `first`, and executes it for the job `id`.
    fn execute(&self, name: &str, template: &str, policy: &str, first: &str, id: &str) -> String {
        let key = format!("{name}.zip");
        self.cloud.put("packages", &key, &self.package(policy, first));
        let parameters = [
            ("CodeBucket", "packages"),
            ("CodeKey", &key),
            ("SecretName", "keys"),
            ("GateTable", ""),
            ("JobsTable", ""),
        ];
        let machine = self.cloud.deploy(name, template, &parameters, "StateMachineArn");
        self.cloud.execute(&machine, &json!({ "jobId": id }))
    }

    fn package(&self, policy: &str, first: &str) -> Vec<u8> {
        let config = tables("url_env = \"DATABASE_URL\"") + POLICIES;
        package(&self.world, &config, policy, first)
    }

    fn end(&self, execution: &str) -> Executed {
        eventually(|| self.cloud.ended(execution)).expect("it ends")
    }
}

/// The package of the function: as on the page, but with a script that starts the binary where it was built.
fn package(world: &World, config: &str, policy: &str, first: &str) -> Vec<u8> {
    let (_, script) = PAGE.split_once("```sh\n#!/bin/sh\n").expect("the page has it");
    let (script, _) = script.split_once("```").expect("it ends");
    let (binary, url) = (binary(), world.served.url());
    let program = format!("{first}\nexec {binary} \"$@\" --policy {policy} --provider-url {url}\n");
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (file, text) in [("bootstrap", script), ("tollgate", &program), ("tollgate.toml", config)] {
        let text =
            if file.ends_with(".toml") { text.to_owned() } else { format!("#!/bin/sh\n{text}") };
        let options = SimpleFileOptions::default().unix_permissions(0o755);
        zip.start_file(file, options).expect("it is a file");
        zip.write_all(text.as_bytes()).expect("it is written");
    }
    zip.finish().expect("it is whole").into_inner()
}

/// Keeps a job for others to work on.
fn kept(world: &World, file: &str) -> String {
    let (code, kept) = world.folder.json(&world.make(&format!("{file} --yes --detach")));
    assert_eq!(code, 0, "{kept}");
    kept["id"].as_str().expect("an id").to_owned()
}

/// Whether the execution ended by itself with the job in `state`.
fn judged(ended: &Executed, state: &str) -> Result<(), String> {
    let output = &ended.output;
    if ended.status == "SUCCEEDED" && output["next"] == "end" && output["state"] == state {
        return Ok(());
    }
    Err(format!("{ended:?}"))
}

/// Executes `template` for the job `id`, and kills a function while ten are at a provider that answers no call before that.
fn executed_with_a_death(
    stage: &Stage,
    clock: &ManualClock,
    name: &str,
    template: &str,
    id: &str,
) -> (Executed, Vec<Value>) {
    let world = &stage.world;
    let began = format!("echo $$ >> {}", world.folder.path().join(name).display());
    let calls = world.fake.tally().calls;
    let execution = stage.execute(name, template, "wide", &began, id);
    eventually(|| (world.fake.tally().calls == calls + PLACES).then_some(())).expect("ten call");
    let functions = world.read(name);
    let first = functions.lines().next().expect("one began");
    assert!(Command::new("kill").args(["-9", first]).status().expect("kill runs").success());
    // A minute later its lease is over.
    let over = "UPDATE tollgate.translate_chunks SET lease_until = 0";
    let over = format!("{over} WHERE worker LIKE '{first}-%' RETURNING 'one'");
    assert_eq!(stage.server.psql(&stage.database, &over).expect("psql runs"), "one");
    let ended = eventually(|| {
        clock.advance(LATENCY);
        stage.cloud.ended(&execution)
    });
    let history = stage.cloud.history(&execution);
    let failed = history.iter().filter(|event| event["type"] == "TaskFailed");
    let failed = failed.map(|event| event["taskFailedEventDetails"]["error"].clone()).collect();
    (ended.expect("it ends"), failed)
}

/// R003.2, R003.5, R003.10, R003.11: ten chunks at once and never more; a function is killed with a call at the provider, another call is
/// refused, and both chunks are taken up; nothing else is paid twice, and the document is the one that a single process makes. Without retries
/// the death is the end.
#[test]
fn r003_2_r003_11_the_state_machine_translates_ten_chunks_at_once_though_a_function_is_killed() {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let troubles = vec![Trouble::new(Fault::Overloaded, When::Call(PLACES + 2))];
    let held = Settings { latency: LATENCY, troubles, ..Settings::default() };
    let stage = Stage::new(|tables| World::by(Arc::new(clock.clone()), held, tables), 0.05);
    let world = &stage.world;
    let (ended, failed) = executed_with_a_death(&stage, &clock, "book", TEMPLATE, &stage.id);
    judged(&ended, "completed").expect("it ends so");
    assert_eq!(failed, ["Runtime.ExitError"]);
    let tally = world.fake.tally();
    assert_eq!(tally.at_once_max, PLACES);
    // The killed one's call is answered or not, and no process reads it.
    assert!(tally.repeated <= 1, "{tally:?}");
    assert_eq!(tally.calls, tally.translated - tally.repeated + 2, "{tally:?}");
    assert_eq!(tally.faults.len(), 1);
    assert_eq!(world.resume(&stage.id, "").code, 0);
    let alone = World::new(Settings::default());
    alone.folder.write("book.txt", &stage.text);
    assert_eq!(alone.run(&alone.make("book.txt --yes")).code, 0);
    let written = world.read("book.fr.txt");
    assert_eq!(written, expected(&stage.text, Layout::Translation));
    assert_eq!(written, alone.read("book.fr.txt"));

    world.folder.write("other.txt", &stage.text.replace("river", "ocean"));
    let (other, frail) =
        (kept(world, "other.txt"), mistaken("\"MaxAttempts\": 8", "\"MaxAttempts\": 0"));
    let (ended, _) = executed_with_a_death(&stage, &clock, "frail", &frail, &other);
    assert_eq!(
        (ended.status.as_str(), &ended.output["Error"]),
        ("FAILED", &"Runtime.ExitError".into())
    );
}

/// R003.11: an execution that needs an operator fails with the reason, so an alarm on failed executions hears of it: a key that is refused, and
/// chunks that were given up.
#[test]
fn r003_11_an_execution_that_needs_an_operator_fails_with_the_reason() {
    let of = |fault, word: &str| Trouble::new(fault, When::Contains(word.to_owned()));
    let troubles = vec![of(Fault::BadKey, "keyhole"), of(Fault::Blocked, "forbidden")];
    let stage = Stage::new(|tables| World::on(troubled(troubles), tables), 0.001);
    let world = &stage.world;
    let rows = [
        ("locked", "keyhole", "paused", "API key"),
        ("blocked", "forbidden", "completed_with_errors", "--retry-failed tries them again"),
    ];
    for (name, word, state, why) in rows {
        let file = format!("{name}.txt");
        world.folder.write(&file, &prose(8).replacen("river", word, 1));
        let id = kept(world, &file);
        let ended = stage.end(&stage.execute(name, TEMPLATE, "wide", "", &id));
        assert_eq!((&*ended.status, &ended.output["Error"]), ("FAILED", &state.into()), "{name}");
        let cause = ended.output["Cause"].as_str().expect("a cause");
        assert!(cause.contains(why), "{name}: {cause}");
    }
}

/// The template with one mistake.
fn mistaken(right: &str, wrong: &str) -> String {
    assert!(TEMPLATE.contains(right), "{right}");
    TEMPLATE.replace(right, wrong)
}

/// How often each place asked while it should wait, against how often it may have: once, and once for each wait that is over.
fn impatience(stage: &Stage, execution: &str, share: f64) -> Result<u64, String> {
    let mut waits = Vec::new();
    for event in stage.cloud.history(execution) {
        let output = event["taskSucceededEventDetails"]["output"].as_str().unwrap_or("null");
        let answer: Value = serde_json::from_str(output).expect("JSON");
        let at = event["timestamp"].as_f64().expect("a time");
        if let Some(until) = answer["Payload"]["until"].as_str() {
            let until: Timestamp = until.parse().expect("a time");
            waits.push((at, (until.as_micros() as f64 / 1e6 - at) * share));
        }
    }
    if waits.is_empty() {
        return Ok(0);
    }
    let shortest = waits.iter().map(|(_, wait)| *wait).fold(f64::INFINITY, f64::min);
    // The order of the list need not be that of the times.
    let first = waits.iter().map(|(at, _)| *at).fold(f64::INFINITY, f64::min);
    let last = waits.iter().map(|(at, _)| *at).fold(0.0, f64::max);
    // Times are rounded, so a wait may look a little shorter than it was.
    let most = PLACES as f64 * (1.0 + ((last - first) / (0.9 * shortest)).floor());
    if waits.len() as f64 <= most {
        return Ok(waits.len() as u64);
    }
    Err(format!("{} answers to wait where {most} may be", waits.len()))
}

/// R003.3: a daily quota is a wait of the state machine in which nothing is called, and a job that is cancelled meanwhile ends it.
#[test]
fn r003_3_the_state_machine_waits_for_the_next_day_and_calls_nothing_meanwhile() {
    // A day is less than two seconds.
    let share = 2e-5;
    let stage = Stage::new(|tables| World::on(slow(0), tables), share);
    let execution = stage.execute("day", TEMPLATE, "three", "", &stage.id);
    let patient = eventually(|| {
        let asked = impatience(&stage, &execution, share).expect("it waits");
        (3 * PLACES <= asked).then_some(())
    });
    patient.expect("it asks again after each wait");
    assert_eq!(stage.world.fake.tally().calls, 3);
    // One that does not wait is seen.
    let wait = "\"Type\": \"Wait\", \"TimestampPath\": \"$.until\"";
    let hasty = mistaken(wait, "\"Type\": \"Pass\"");
    let other = stage.execute("hasty", &hasty, "three", "", &stage.id);
    eventually(|| impatience(&stage, &other, share).err()).expect("it does not wait");
    assert_eq!(stage.world.run(&format!("translate cancel {}", stage.id)).code, 0);
    for execution in [&execution, &other] {
        judged(&stage.end(execution), "cancelled").expect("it ends so");
    }
}

/// A definition that is wrong in one place is seen to be; the right one is not.
#[test]
fn r003_11_mistakes_in_the_definition_are_seen() {
    let stage = Stage::new(|tables| World::on(slow(0), tables), 0.001);
    let mistakes = [
        ("right", "\"Next\": \"Which\"", "\"Next\": \"Which\""),
        ("next", "\"Next\": \"Which\"", "\"Next\": \"Whither\""),
        (
            "selector",
            "\"ItemSelector\": { \"jobId.$\": \"$.jobId\", \"chunk.$\": \"$$.Map.Item.Value\" },",
            "",
        ),
        ("result", "\"ResultPath\": null,", ""),
        ("payload", "\"OutputPath\": \"$.Payload\",", ""),
        ("choice", "\"StringEquals\": \"chunks\"", "\"StringEquals\": \"more\""),
    ];
    for (name, right, wrong) in mistakes {
        let file = format!("{name}.txt");
        stage.world.folder.write(&file, &prose(8));
        let id = kept(&stage.world, &file);
        let execution = stage.execute(name, &mistaken(right, wrong), "wide", "", &id);
        let judged = judged(&stage.end(&execution), "completed");
        assert_eq!(judged.is_ok(), name == "right", "{name}: {judged:?}");
    }
}

/// R003.2, R003.11: the tables that the template makes hold the jobs and the quota, no PostgreSQL is there, and the parameter says how
/// many chunks are at the provider at once.
#[test]
fn r003_2_r003_11_the_template_translates_on_its_own_tables() {
    let cloud = Cloud::start(0.05);
    let place = format!("region = \"us-east-1\"\nendpoint = \"{}\"\n", cloud.endpoint());
    let tables = format!(
        "[store]\nkind = \"dynamodb\"\ntable = \"quota\"\n{place}[translate]\njobs = \"dynamodb\"\ntable = \"books\"\n{place}"
    );
    // Long enough that more calls would be seen beside each other, if more were made.
    let world = World::on(slow(1_000), &tables);
    cloud.keep("keys", &json!({ "gemini_key": "project.key" }));
    cloud.put("packages", "own.zip", &package(&world, &(tables + POLICIES), "wide", ""));
    let parameters = [
        ("CodeBucket", "packages"),
        ("CodeKey", "own.zip"),
        ("SecretName", "keys"),
        ("GateTable", "quota"),
        ("JobsTable", "books"),
        ("Concurrency", "4"),
    ];
    let machine = cloud.deploy("own", TEMPLATE, &parameters, "StateMachineArn");
    let text = prose(60);
    world.folder.write("book.txt", &text);
    let id = kept(&world, "book.txt");
    let execution = cloud.execute(&machine, &json!({ "jobId": id }));
    let ended = eventually(|| cloud.ended(&execution)).expect("it ends");
    judged(&ended, "completed").expect("it ends so");
    let tally = world.fake.tally();
    assert_eq!((tally.at_once_max, tally.repeated), (4, 0), "{tally:?}");
    // A function that is sent no chunk attempts none.
    let history = cloud.history(&execution);
    let attempted = history.iter().filter(|event| {
        let output = event["taskSucceededEventDetails"]["output"].as_str().unwrap_or("null");
        let answer: Value = serde_json::from_str(output).expect("JSON");
        answer["Payload"] == json!({ "next": "chunk", "jobId": id })
    });
    assert_eq!(attempted.count() as u64, tally.calls);
    let (_, standing) = world.folder.json("standing wide project");
    assert_eq!(standing["limits"][0]["used"], tally.calls, "the quota is in the table: {standing}");
    assert_eq!(world.resume(&id, "").code, 0);
    assert_eq!(world.read("book.fr.txt"), expected(&text, Layout::Translation));
}
