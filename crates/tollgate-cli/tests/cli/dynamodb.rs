//! The commands on DynamoDB: `[store] kind = "dynamodb"`.

use std::process::{Child, Command, Stdio};

use tollgate_testing::servers::DynamoDb;

use crate::folder::{Folder, Ran};

const PROCESSES: usize = 200;

const POLICIES: &str = r#"
[[policy]]
name = "video-requests"
limits = [{ name = "daily", unit = "requests", rule = "rolling-window", limit = 5, window = "24h" }]

[[policy]]
name = "llm"
limits = [
  { name = "rpm", unit = "requests", rule = "rolling-window", limit = 5, window = "1h", resolution = 12 },
  { name = "tpm", unit = "tokens", rule = "token-bucket", capacity = 10_000, refill = "1/h" },
]
"#;

/// A folder whose configuration is on `server`, with its table.
fn folder(server: &DynamoDb) -> Folder {
    let store = format!(
        "kind = \"dynamodb\"\nregion = \"eu-central-1\"\nendpoint = \"{}\"",
        server.endpoint()
    );
    let folder = Folder::with(&format!("[store]\n{store}\n{POLICIES}"));
    let made = run(&folder, "dynamodb create-table");
    assert_eq!((made.code, made.err.as_str()), (0, ""));
    assert!(made.out.starts_with("table tollgate: made"), "{}", made.out);
    folder
}

fn command(folder: &Folder, arguments: &str) -> Command {
    let mut command = folder.command(arguments);
    command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "s3cret");
    command
}

fn run(folder: &Folder, arguments: &str) -> Ran {
    command(folder, arguments).output().expect("the binary starts").into()
}

fn json(folder: &Folder, arguments: &str) -> (i32, serde_json::Value) {
    let ran = run(folder, &format!("{arguments} --json"));
    assert_eq!(ran.err, "", "{arguments}");
    (ran.code, serde_json::from_str(&ran.out).expect("--json prints JSON"))
}

/// R000.8 and promise 1: however many processes ask at once, exactly the limit is admitted, and nobody fails.
#[test]
fn r000_8_two_hundred_processes_on_dynamodb_admit_exactly_the_limit() {
    let server = DynamoDb::start().expect("a server");
    let folder = folder(&server);
    for (policy, processes) in [("llm", PROCESSES), ("video-requests", PROCESSES / 5)] {
        let start = |_| -> Child {
            let mut command = command(&folder, &format!("acquire {policy} u1 --json"));
            command
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the binary starts")
        };
        let children: Vec<Child> = (0..processes).map(start).collect();
        let mut codes = [0; 3];
        for child in children {
            let output = child.wait_with_output().expect("the binary ends");
            let code = output.status.code().and_then(|code| usize::try_from(code).ok());
            let code = code.expect("it ends by itself");
            assert!(code < 2, "{}", String::from_utf8_lossy(&output.stdout));
            codes[code] += 1;
        }
        assert_eq!(codes, [5, processes - 5, 0]);
        let (_, body) = json(&folder, &format!("standing {policy} u1"));
        assert_eq!(body["limits"][0]["used"], 5);
    }
}

/// A permit of one process is settled by another: they share the key that seals it.
#[test]
fn a_permit_of_dynamodb_is_settled_by_another_process() {
    let server = DynamoDb::start().expect("a server");
    let folder = folder(&server);
    let (code, body) = json(&folder, "acquire llm p7 --cost tokens=4000");
    assert_eq!((code, &body["limits"][1]["remaining"]), (0, &6_000.into()));
    let permit = body["permit"].as_str().expect("a permit");
    assert_eq!(run(&folder, &format!("settle {permit} --actual tokens=1000")).code, 0);
    let (_, body) = json(&folder, "standing llm p7");
    assert_eq!(body["limits"][1]["remaining"], 9_000);
    assert_eq!(run(&folder, "reset llm p7").code, 0);
    let (_, body) = json(&folder, "standing llm p7");
    assert_eq!(body["limits"][1]["remaining"], 10_000);
}

/// What is missing is said with the next step, and no message shows a secret.
#[test]
fn a_missing_table_and_a_wrong_endpoint_are_said() {
    let server = DynamoDb::start().expect("a server");
    let place = |endpoint: &str| {
        let store = format!(
            "kind = \"dynamodb\"\nregion = \"eu-central-1\"\ntable = \"quotas\"\nendpoint = \"{endpoint}\""
        );
        Folder::with(&format!("[store]\n{store}\n{POLICIES}"))
    };
    for (endpoint, words) in [
        (server.endpoint().as_str(), ["no table \"quotas\"", "tollgate dynamodb create-table"]),
        ("http://127.0.0.1:9", ["cannot be reached", "check endpoint and region"]),
    ] {
        let ran = run(&place(endpoint), "acquire llm p7");
        assert_eq!(ran.code, 2);
        for word in words {
            assert!(ran.err.contains(word), "{word:?} is not in: {}", ran.err);
        }
        assert!(!ran.err.contains("s3cret"), "{}", ran.err);
    }
}
