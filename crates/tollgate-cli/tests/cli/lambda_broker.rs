//! `tollgate lambda`: the broker as a function, on the runtime interface of Lambda and deployed by `deploy/broker-lambda.yaml`
//! into an emulator.

use std::fs::File;
use std::io::{Cursor, Write as _};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::Request;
use serde_json::{Value, json};
use tollgate_testkit::servers::DynamoDb;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::cloud::Cloud;
use crate::folder::{Folder, binary};
use crate::http::post_json;
use crate::keys::new_key;
use crate::lambda::Runtime;
use crate::stores::on_dynamodb;

const TEMPLATE: &str = include_str!("../../../../deploy/broker-lambda.yaml");
const PAGE: &str = include_str!("../../../../docs/operations.md");

/// A secret that permits are sealed with.
const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// An instance of a function, with a runtime interface of its own.
struct Instance {
    runtime: Runtime,
    process: Child,
}

impl Instance {
    /// Starts one in `folder`, which writes its log of metrics to `out` there.
    fn start(folder: &Folder, out: &str, secret: &str) -> Self {
        let runtime = Runtime::start();
        let words = "lambda --permit-key-env SEAL --allow-anonymous";
        let mut command = folder.command(words);
        command.env("AWS_LAMBDA_RUNTIME_API", &runtime.address).env("SEAL", secret);
        let out = File::create(folder.path().join(out)).expect("a file");
        let process = command.stdout(out).stderr(Stdio::null()).spawn().expect("the binary starts");
        Self { runtime, process }
    }

    fn post(&self, path: &str, body: &Value) -> (u64, Value) {
        let event = json!({
            "version": "2.0", "rawPath": path, "rawQueryString": "",
            "headers": { "host": "x.lambda-url.eu-central-1.on.aws", "content-type": "application/json" },
            "requestContext": { "http": { "method": "POST", "path": path } },
            "body": body.to_string(), "isBase64Encoded": false,
        });
        let answer = self.runtime.invoke(event);
        let answer = &answer["response"];
        let body = answer["body"].as_str().expect("a body");
        let body = serde_json::from_str(body).expect("JSON");
        (answer["statusCode"].as_u64().expect("a status"), body)
    }

    fn ask(&self) -> (u64, Value) {
        self.post("/v1/acquire", &json!({ "policy": "video-requests", "subject": "alice" }))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.process.kill().expect("it was started here");
        self.process.wait().expect("it was started here");
    }
}

/// What is in the log of metrics at `out` under `name`, all lines together.
fn metric(folder: &Folder, out: &str, name: &str) -> f64 {
    let text = std::fs::read_to_string(folder.path().join(out)).expect("a log");
    let values = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let rolled_up =
        values.filter(|line| line.get("Limit").is_none() && line.get("Policy").is_none());
    rolled_up.filter_map(|line| line[name].as_f64()).sum()
}

/// R002.4: instances share nothing but the store, and are exact together. Each settles the permits of the others, as they are
/// sealed with one secret, and only then.
#[test]
fn r002_4_functions_on_one_table_are_one_broker() {
    let server = DynamoDb::start().expect("a server");
    let folder = on_dynamodb(&server);
    let [one, other] = ["one.log", "other.log"].map(|out| Instance::start(&folder, out, SECRET));
    let answers: Vec<(u64, Value)> =
        (0..8).map(|number| if number % 2 == 0 { one.ask() } else { other.ask() }).collect();
    let admitted = answers.iter().filter(|(status, _)| *status == 200).count();
    assert_eq!(admitted, 5, "{answers:?}");
    assert!(answers[5..].iter().all(|(status, _)| *status == 429), "{answers:?}");
    let permit = json!({ "permit": answers[0].1["permit"] });
    let stranger = Instance::start(&folder, "stranger.log", &SECRET.replace('0', "9"));
    assert_eq!(stranger.post("/v1/release", &permit).0, 400, "it has another secret");
    let released = other.post("/v1/release", &permit);
    assert_eq!(released.0, 200, "{released:?}");
    assert_eq!(other.ask().0, 200, "what one admitted and the other released");
    assert_eq!(one.ask().0, 429);
    let wrong = one.runtime.invoke(json!({ "id": "job" }));
    let said = wrong["error"]["errorMessage"].as_str().expect("it says why");
    assert!(said.contains("not a request of a function URL"), "{wrong}");
    assert_eq!(one.post("/v1/nothing", &json!({})).0, 404, "it lives on");
}

/// R002.4: a function may be frozen as soon as it has answered, and never go on: by then its metrics are written.
#[test]
fn r002_4_a_function_has_written_its_metrics_when_it_answers() {
    let server = DynamoDb::start().expect("a server");
    let folder = on_dynamodb(&server);
    let config = std::fs::read_to_string(folder.path().join("tollgate.toml")).expect("a file");
    folder.write("tollgate.toml", &format!("{config}\n[telemetry.emf]\ninterval = \"1h\"\n"));
    let mut function = Instance::start(&folder, "metrics.log", SECRET);
    for admitted in [1.0, 2.0, 3.0] {
        assert_eq!(function.ask().0, 200);
        assert_eq!(metric(&folder, "metrics.log", "RateLimiterTokensAcquired"), admitted);
    }
    function.process.kill().expect("it runs");
    assert_eq!(metric(&folder, "metrics.log", "RateLimiterTokensAcquired"), 3.0);
}

/// R002.4: what a function admitted while the store was away is posted with the first answer after it, and so is not lost if
/// the function never goes on.
#[test]
fn r002_4_a_function_has_posted_what_it_owes_when_it_answers() {
    let mut server = DynamoDb::start_durable().expect("a server");
    let folder = on_dynamodb(&server);
    let config = std::fs::read_to_string(folder.path().join("tollgate.toml")).expect("a file");
    let open = "name = \"video-requests\"\non_store_failure = \"open\"\n";
    folder.write("tollgate.toml", &config.replace("name = \"video-requests\"\n", open));
    let mut function = Instance::start(&folder, "out.log", SECRET);
    let ask = || function.ask();
    assert_eq!((ask().0, server.process().kill().is_ok()), (200, true));
    for _ in 0..3 {
        let (status, body) = ask();
        assert_eq!((status, &body["degraded"]), (200, &json!(true)), "{body}");
    }
    server.process().restart().expect("it starts");
    let (status, body) = ask();
    assert_eq!(status, 200, "{body}");
    function.process.kill().expect("it runs");
    let (_, standing) = folder.json("standing video-requests alice");
    assert_eq!(standing["limits"][0]["used"], 5, "{standing}");
}

/// What cannot work as a function is refused with what would.
#[test]
fn a_function_refuses_what_cannot_work() {
    let server = DynamoDb::start().expect("a server");
    let folder = on_dynamodb(&server);
    let dynamodb = std::fs::read_to_string(folder.path().join("tollgate.toml")).expect("a file");
    let (_, policies) = dynamodb.split_once("[[policy]]").expect("policies");
    let memory = format!("[store]\nkind = \"memory\"\n[[policy]]{policies}");
    let rows = [
        (dynamodb.clone(), "lambda", "there is no [[key]]"),
        (memory, "lambda --allow-anonymous", "share no memory and no disk"),
        (
            format!("{dynamodb}\n[strategy]\nkind = \"optimistic\"\nunposted_max = 5\n"),
            "lambda --allow-anonymous",
            "remove [strategy]",
        ),
        (
            format!("{dynamodb}\n[telemetry.cloudwatch]\nregion = \"eu-central-1\"\n"),
            "lambda --allow-anonymous",
            "use [telemetry.emf]",
        ),
        (
            dynamodb.clone(),
            "lambda --allow-anonymous --permit-key-env NONE",
            "the variable NONE is not set",
        ),
        (
            dynamodb.clone(),
            "lambda --allow-anonymous --permit-key-env SHORT",
            "fewer than 32 letters",
        ),
    ];
    for (config, words, what) in rows {
        folder.write("tollgate.toml", &config);
        let mut command = folder.command(words);
        command.env("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:1").env("SHORT", "short");
        let ran = command.output().expect("the binary starts");
        let err = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(2), "{words}: {err}");
        assert!(err.contains(what), "{words}: {err}");
    }
    let alone = folder.run("lambda --allow-anonymous");
    assert!(alone.err.contains("AWS_LAMBDA_RUNTIME_API is not set"), "{}", alone.err);
}

/// The package of the function: as on the page, but with a script that starts the binary where it was built, and the
/// emulator as the service.
fn package(endpoint: &str) -> Vec<u8> {
    let page = PAGE.split_once("## A broker on AWS Lambda").expect("the page has it").1;
    let fenced = |fence: &str| {
        let (_, text) = page.split_once(fence).expect("the page has it");
        text.split_once("```").expect("it ends").0.to_owned()
    };
    let config = fenced("```toml\n").replace(
        "kind = \"dynamodb\"\n",
        &format!("kind = \"dynamodb\"\nregion = \"us-east-1\"\nendpoint = \"{endpoint}\"\n"),
    );
    let program = format!("#!/bin/sh\nexec {} \"$@\"\n", binary());
    let files =
        [("bootstrap", fenced("```sh\n")), ("tollgate", program), ("tollgate.toml", config)];
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (file, text) in files {
        let options = SimpleFileOptions::default().unix_permissions(0o755);
        zip.start_file(file, options).expect("it is a file");
        zip.write_all(text.as_bytes()).expect("it is written");
    }
    zip.finish().expect("it is whole").into_inner()
}

/// R002.4: the template, deployed as it is with the package of the page: callers with the key are admitted exactly up to the
/// limit through the function URL, and others are not let in.
#[test]
fn r002_4_a_broker_by_lambda_is_deployed_and_exact() {
    let cloud = Cloud::start(1.0);
    let (key, table) = new_key("callers", "--scope acquire --scope inspect");
    let hash = table.split_once("hash = \"").expect("a hash").1.split_once('"').expect("it ends").0;
    cloud.keep("broker", &json!({ "key_hash": hash, "permit_key": SECRET }));
    cloud.put("packages", "tollgate-broker.zip", &package(&cloud.endpoint()));
    let parameters = [("CodeBucket", "packages"), ("SecretName", "broker")];
    let url = cloud.deploy("broker", TEMPLATE, &parameters, "Url");
    let post = |key: &str, path: &str, body: &Value| {
        cloud.call(&url, post_json(path, key, body.to_string()))
    };
    let ask = json!({ "policy": "api", "subject": "alice" });
    assert_eq!(post("wrong", "/v1/acquire", &ask).0, 401);
    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..8 {
                    match post(&key, "/v1/acquire", &ask) {
                        (200, _) => drop(admitted.fetch_add(1, Ordering::SeqCst)),
                        (status, body) => assert_eq!(status, 429, "{body}"),
                    }
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), 20);
    let request = Request::get("/v1/standing?policy=api&subject=alice");
    let request = request.header("authorization", format!("Bearer {key}"));
    let (status, body) = cloud.call(&url, request.body(String::new()).expect("a request"));
    assert_eq!((status, &body["limits"][0]["used"]), (200, &json!(20)), "{body}");
}
