//! `/v1/translations` of a broker, with workers in processes of their own.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Child;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Request;
use serde_json::{Value, json};
use tollgate::Timestamp;
use tollgate_testkit::fakes::gemini::Settings;
use tollgate_testkit::servers::{DynamoDb, Postgres, eventually};
use tollgate_translate::Layout;

use super::{SIZE, World, expected, kill, prose};
use crate::http::{Http, post_json};
use crate::keys::new_key;
use crate::running::Broker;

const EMBEDDED: &str = "[translate]\njobs = \"embedded\"\n";

/// What came back.
struct Answer {
    status: u16,
    retry_after: Option<String>,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).expect("JSON")
    }

    /// The status and the kind of a problem.
    fn problem(&self) -> (u16, String) {
        (self.status, self.json()["kind"].as_str().expect("a kind").to_owned())
    }
}

/// A caller of a broker, with a key.
struct Caller {
    http: Http,
    url: String,
    key: String,
}

impl Caller {
    fn of(broker: &Broker, key: &str) -> Self {
        Self { http: Http::new(), url: broker.url.clone(), key: key.to_owned() }
    }

    fn post(&self, body: &Value) -> Answer {
        self.send(post_json(&format!("{}/v1/translations", self.url), &self.key, body.to_string()))
    }

    fn get(&self, path: &str) -> Answer {
        let request = Request::get(format!("{}/v1/translations/{path}", self.url))
            .header("authorization", format!("Bearer {}", self.key));
        self.send(request.body(String::new()).expect("a request"))
    }

    /// The newest jobs.
    fn list(&self) -> Value {
        let request = Request::get(format!("{}/v1/translations", self.url));
        self.send(request.body(String::new()).expect("a request")).json()
    }

    fn cancel(&self, id: &str) -> Answer {
        let url = format!("{}/v1/translations/{id}/cancel", self.url);
        self.send(post_json(&url, &self.key, "{}"))
    }

    fn send(&self, request: Request<String>) -> Answer {
        let answer = self.http.send(request);
        let retry_after = answer.headers().get("retry-after");
        let retry_after = retry_after.map(|value| value.to_str().expect("digits").to_owned());
        Answer { status: answer.status().as_u16(), retry_after, text: answer.into_body() }
    }

    /// Creates a job, and returns its id.
    fn create(&self, body: &Value) -> String {
        let answer = self.post(body);
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["id"].as_str().expect("an id").to_owned()
    }

    /// The job, once it is in `state`.
    fn wait_for(&self, id: &str, state: &str) -> Value {
        let job = || Some(self.get(id).json()).filter(|job| job["state"] == state);
        eventually(job).expect("the worker translates it")
    }
}

/// The whole answer to a document of `length` bytes, before any of them is sent.
fn declared(url: &str, length: usize) -> String {
    let address = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).expect("the broker listens");
    let head = format!(
        "POST /v1/translations HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("the broker reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the broker answers with text");
    answer
}

/// A worker that is killed with the test.
struct Worker(Child);

impl Worker {
    /// One that asks `gate` for the quota.
    fn start(world: &World, gate: &str) -> Self {
        let (url, flags) = (world.served.url(), "--key-file gemini.key");
        Self(world.start(&format!("translate worker {gate} {flags} --provider-url {url}")))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        kill(&mut self.0);
    }
}

fn order(text: &str) -> Value {
    json!({
        "policy": "wide", "subject": "project", "to": "fr", "format": "txt", "document": text, "chunk_tokens": SIZE,
    })
}

/// Creates a job over HTTP, has a worker translate it, and fetches its document.
fn posted_and_fetched(world: &World, shares_the_gate: bool) {
    let text = prose(40);
    let broker = Broker::start(&world.folder, "");
    let caller = Caller::of(&broker, "");
    let planned = caller.post(&order(&text));
    assert_eq!(planned.status, 200, "{}", planned.text);
    let planned = planned.json();
    let id = planned["id"].as_str().expect("an id");
    assert_eq!((&planned["state"], &planned["done"]), (&json!("planned"), &json!(0)), "{planned}");
    assert!(id.starts_with("document-fr-"), "{id}");
    assert_eq!(caller.get(id).json(), planned);
    let early = caller.get(&format!("{id}/document"));
    assert_eq!(early.problem(), (409, "conflict".to_owned()), "{}", early.text);

    let gate = if shares_the_gate { format!("--server {}", broker.url) } else { String::new() };
    let _worker = Worker::start(world, &gate);
    let job = caller.wait_for(id, "completed");
    assert_eq!((&job["done"], &job["failed"]), (&planned["chunks"], &json!(0)), "{job}");
    assert_eq!(job["finished"], true);
    assert_eq!(job["calls"], world.fake.tally().calls, "{job}");
    assert_eq!(caller.list(), json!({ "jobs": [job] }));
    crate::dashboard::look(&broker, &["translations"]);
    let document = caller.get(&format!("{id}/document"));
    assert_eq!((document.status, document.text), (200, expected(&text, Layout::Translation)));
    let (_, standing) =
        world.folder.json(&format!("standing wide project --server {}", broker.url));
    assert_eq!(standing["limits"][0]["used"], job["calls"], "counted for the job's subject");
}

/// R003.11: the jobs are in a folder of the broker's machine.
#[test]
fn r003_11_a_document_is_posted_to_a_broker_and_a_worker_translates_it() {
    posted_and_fetched(&World::on(Settings::default(), EMBEDDED), true);
}

/// R003.11: the same with jobs in PostgreSQL.
#[test]
fn r003_11_a_posted_document_is_translated_by_a_worker_on_postgres() {
    let server = Postgres::start().expect("a server");
    let tables = "[translate]\njobs = \"postgres\"\nurl_file = \"jobs.url\"\n";
    let world = World::on(Settings::default(), tables);
    world.folder.write("jobs.url", &server.url(&server.database().expect("a database")));
    posted_and_fetched(&world, true);
}

/// R003.11: the same with jobs and quota in DynamoDB.
#[test]
fn r003_11_a_posted_document_is_translated_by_a_worker_on_dynamodb() {
    let server = DynamoDb::start().expect("a server");
    let store = server.snippet();
    let place = store.splitn(3, '\n').nth(2).expect("lines");
    let tables = format!("{store}[translate]\njobs = \"dynamodb\"\n{place}");
    let world = World::on(Settings::default(), &tables);
    assert_eq!(world.run("dynamodb create-table").code, 0);
    posted_and_fetched(&world, false);
}

/// A repeat is the same job, however it is recognised; a cancelled job is left to itself.
#[test]
fn r003_11_a_repeated_request_is_the_same_job_and_a_cancelled_one_stays_so() {
    let world = World::on(Settings::default(), EMBEDDED);
    let broker = Broker::start(&world.folder, "");
    let caller = Caller::of(&broker, "");
    let (one, other) = (order(&prose(6)), order(&prose(7)));
    let named = |body: &Value, id: &str| {
        let mut body = body.clone();
        body["id"] = json!(id);
        body
    };
    let id = caller.create(&one);
    assert_eq!(caller.create(&one), id);
    let mut encoded = one.clone();
    encoded["document_base64"] = json!(STANDARD.encode(prose(6)));
    encoded.as_object_mut().expect("an object").remove("document");
    assert_eq!(caller.create(&encoded), id);
    assert_ne!(caller.create(&other), id);
    assert_eq!(caller.create(&named(&one, "book")), "book");
    assert_eq!(caller.create(&named(&one, "book")), "book");
    let mut bounded = named(&one, "book");
    bounded["max_cost_micros"] = json!(1_000_000);
    assert_eq!(caller.create(&bounded), "book", "a bound on the cost makes no other job");
    let mut longer = named(&one, "book");
    longer["instructions"] = json!("address the reader informally");
    for body in [named(&other, "book"), longer] {
        let taken = caller.post(&body);
        assert_eq!(taken.problem(), (409, "conflict".to_owned()), "{}", taken.text);
    }
    assert_eq!(world.jobs().len(), 3);

    assert_eq!(caller.cancel(&id).json(), json!({ "changed": true }));
    assert_eq!(caller.cancel(&id).json(), json!({ "changed": false }));
    assert_eq!(caller.get(&id).json()["state"], "cancelled");
    assert_eq!(caller.get(&format!("{id}/document")).status, 409);
    for job in world.jobs() {
        let _ = caller.cancel(job["id"].as_str().expect("an id"));
    }
    let anew = caller.create(&one);
    assert_eq!(anew, format!("{id}-2"));
    let _worker = Worker::start(&world, &format!("--server {}", broker.url));
    let job = caller.wait_for(&anew, "completed");
    assert_eq!(world.fake.tally().calls, job["chunks"], "nothing of the cancelled ones");
    assert_eq!(caller.cancel(&anew).json(), json!({ "changed": false }), "it is over");
    assert_eq!(caller.get(&anew).json()["state"], "completed");
    for missing in [caller.get("none"), caller.get("none/document"), caller.cancel("none")] {
        assert_eq!(missing.problem(), (404, "not-found".to_owned()), "{}", missing.text);
    }
}

/// A key needs the scope `acquire`, and must allow the policy and the subject of the job.
#[test]
fn r003_11_a_key_reaches_the_jobs_of_its_policies_and_subjects() {
    let (mine, mine_table) = new_key("mine", "--scope acquire");
    let (other, other_table) = new_key("other", "--scope acquire");
    let (reader, reader_table) = new_key("reader", "--scope inspect");
    let bound = |table: &str, subject: &str| format!("{table}\nsubjects = [\"{subject}\"]\n");
    let tables = [bound(&mine_table, "project"), bound(&other_table, "other"), reader_table];
    let world = World::on(Settings::default(), &format!("{EMBEDDED}{}\n", tables.join("\n")));
    let broker = Broker::start(&world.folder, "");
    let [mine, other, reader] = [mine, other, reader].map(|key| Caller::of(&broker, &key));
    let mut body = order(&prose(6));
    let id = mine.create(&body);
    let refused = other.post(&body);
    assert_eq!(refused.problem(), (403, "forbidden".to_owned()), "{}", refused.text);
    let document = format!("{id}/document");
    for refused in [other.get(&id), other.get(&document), other.cancel(&id), reader.get(&id)] {
        assert_eq!(refused.problem(), (403, "forbidden".to_owned()), "{}", refused.text);
        assert!(!refused.text.contains("project"), "{}", refused.text);
    }
    assert_eq!(Caller::of(&broker, "wrong").get(&id).status, 401);
    assert_eq!(mine.get(&id).json()["state"], "planned");
    // The same document of another subject is another job.
    body["subject"] = json!("other");
    assert_ne!(other.create(&body), id);
    body["id"] = json!(id);
    assert_eq!(other.post(&body).problem(), (409, "conflict".to_owned()));
    assert_eq!(world.jobs().len(), 2);
}

/// Bad input is refused with what would be right, and nothing is kept.
#[test]
fn r003_11_bad_input_says_what_would_be_right_and_changes_nothing() {
    let world = World::on(Settings::default(), EMBEDDED);
    let broker = Broker::start(&world.folder, "");
    let caller = Caller::of(&broker, "");
    let rows = [
        (400, "format", json!("pdf"), "use txt, md, html, srt, vtt or epub"),
        (400, "to", Value::Null, "to: "),
        (400, "to", json!("klingon"), "to: "),
        (400, "to", json!("en"), "name another language"),
        (400, "document", json!(""), "no text to translate"),
        (400, "document", Value::Null, "either in document or in document_base64"),
        (400, "document_base64", json!("aGk="), "either in document or in document_base64"),
        (404, "policy", json!("none"), "wide"),
        (400, "subject", json!(""), "subject"),
        (400, "chunk_tokens", json!(1), "as in 3500"),
        (400, "provider", json!("bard"), "\"gemini\", \"openai\" or \"anthropic\""),
        (400, "provider", json!("openai"), "name one in model"),
        (400, "id", json!("no/id"), "letters, digits"),
        (400, "name", json!("n".repeat(65)), "1 to 64"),
        (400, "glossary", json!([{ "source": "a", "target": "" }]), "the target is empty"),
        (400, "chapters", json!("x"), "3-5"),
        (400, "documents", json!("a"), "did you mean document?"),
    ];
    for (status, member, value, right) in rows {
        let mut body = order("A text.");
        body[member] = value;
        let answer = caller.post(&body);
        let detail = answer.json()["detail"].as_str().expect("a detail").to_owned();
        assert_eq!(answer.status, status, "{member}: {detail}");
        assert!(detail.contains(right), "{member}: {detail}");
    }
    let length = (16 << 20) + 1;
    let refused = declared(&broker.url, length);
    assert!(
        refused.starts_with("HTTP/1.1 413 ") && refused.contains("16777216 bytes"),
        "{refused}"
    );
    assert_eq!(world.jobs(), Vec::<Value>::new());
    // What a call of another kind may not have, a document may.
    let mut body = order(&"A line of a long book.\n\n".repeat(20_000));
    body["chunk_tokens"] = json!(3_500);
    caller.create(&body);
}

/// A job that waits for the quota says why, and when it goes on.
#[test]
fn r003_11_a_paused_job_says_why_and_until_when() {
    let world = World::on(Settings::default(), EMBEDDED);
    let broker = Broker::start(&world.folder, "");
    let caller = Caller::of(&broker, "");
    let mut body = order(&prose(40));
    body["policy"] = json!("three");
    let id = caller.create(&body);
    let _worker = Worker::start(&world, &format!("--server {}", broker.url));
    let job = caller.wait_for(&id, "paused");
    assert_eq!((&job["done"], &job["finished"]), (&json!(3), &json!(false)), "{job}");
    assert!(job["why"].as_str().is_some_and(|why| why.contains("rpd")), "{job}");
    let resumes: Timestamp = job["resume_at"].as_str().expect("a time").parse().expect("a time");
    let created: Timestamp = job["created_at"].as_str().expect("a time").parse().expect("a time");
    assert!(created < resumes, "{job}");
}

/// A job store that is away is a 503 that says when to ask again, from the start of the broker on; asks are decided meanwhile.
#[test]
fn r003_11_a_job_store_that_is_away_is_a_503_until_it_is_back() {
    let mut server = Postgres::start().expect("a server");
    let url = server.url(&server.database().expect("a database"));
    let tables = "[translate]\njobs = \"postgres\"\nurl_file = \"jobs.url\"\n";
    let world = World::on(Settings::default(), tables);
    world.folder.write("jobs.url", &url);
    server.process().kill().expect("it runs");
    let broker = Broker::start(&world.folder, "");
    let caller = Caller::of(&broker, "");
    let body = order(&prose(6));
    let away = |answer: &Answer| {
        assert_eq!(answer.problem(), (503, "unavailable".to_owned()), "{}", answer.text);
        assert_eq!(answer.retry_after.as_deref(), Some("5"));
        assert!(!answer.text.contains("127.0.0.1"), "{}", answer.text);
    };
    away(&caller.post(&body));
    server.restart().expect("it comes back");
    let id = caller.create(&body);
    server.process().kill().expect("it runs");
    // Its children need a moment to notice.
    let gone = || Some(caller.get(&id)).filter(|answer| answer.status != 200);
    away(&eventually(gone).expect("the connection ends"));
    away(&caller.cancel(&id));
    let acquired = world.run(&format!("acquire wide alice --server {}", broker.url));
    assert_eq!(acquired.code, 0, "{}", acquired.err);
    server.restart().expect("it comes back");
    assert_eq!(caller.get(&id).json()["state"], "planned");
}

#[test]
fn r003_11_a_broker_without_the_table_says_what_to_configure() {
    let world = World::new(Settings::default());
    let broker = Broker::start(&world.folder, "");
    let caller = Caller::of(&broker, "");
    for answer in [caller.post(&order("A text.")), caller.get("any"), caller.cancel("any")] {
        assert_eq!(answer.problem(), (404, "not-found".to_owned()));
        assert!(answer.text.contains("[translate]"), "{}", answer.text);
    }
}
