//! The commands on Redis: `[store] kind = "redis"`.

use std::process::{Child, Stdio};

use tollgate_testing::servers::{Append, Redis};

use crate::folder::Folder;

const PROCESSES: usize = 200;

const POLICIES: &str = r#"
[[policy]]
name = "video-requests"
limits = [{ name = "daily", unit = "requests", rule = "rolling-window", limit = 5, window = "24h" }]

[[policy]]
name = "llm"
limits = [
  { name = "rpm", unit = "requests", rule = "rolling-window", limit = 5, window = "1h" },
  { name = "tpm", unit = "tokens", rule = "token-bucket", capacity = 10_000, refill = "1/h" },
]
"#;

/// A folder whose configuration has `store` as its store.
fn folder(store: &str) -> Folder {
    Folder::with(&format!("[store]\nkind = \"redis\"\n{store}\n{POLICIES}"))
}

/// R000.8 and promise 1: however many processes ask at once, exactly the limit is admitted, and nobody fails.
#[test]
fn r000_8_two_hundred_processes_on_redis_admit_exactly_the_limit() {
    let redis = Redis::start().expect("a server");
    let folder = folder(&format!("url = \"{}\"", redis.url()));
    let start = |_| -> Child {
        let mut command = folder.command("acquire video-requests u1 --json");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
    };
    let children: Vec<Child> = (0..PROCESSES).map(start).collect();
    let mut codes = [0; 3];
    for child in children {
        let output = child.wait_with_output().expect("the binary ends");
        let code = output.status.code().and_then(|code| usize::try_from(code).ok());
        let code = code.expect("it ends by itself");
        assert!(code < 2, "{}", String::from_utf8_lossy(&output.stderr));
        codes[code] += 1;
    }
    assert_eq!(codes, [5, PROCESSES - 5, 0]);
    let (_, body) = folder.json("standing video-requests u1");
    assert_eq!(body["limits"][0]["used"], 5);
}

/// A permit of one process is settled by another: they share the key that seals it.
#[test]
fn a_permit_is_settled_by_another_process() {
    let redis = Redis::start().expect("a server");
    let folder = folder(&format!("url = \"{}\"", redis.url()));
    let (code, body) = folder.json("acquire llm p7 --cost tokens=4000");
    assert_eq!((code, &body["limits"][1]["remaining"]), (0, &6_000.into()));
    let permit = body["permit"].as_str().expect("a permit");
    assert_eq!(folder.run(&format!("settle {permit} --actual tokens=1000")).code, 0);
    let (_, body) = folder.json("standing llm p7");
    assert_eq!(body["limits"][1]["remaining"], 9_000);
    assert_eq!(folder.run("reset llm p7").code, 0);
    let (_, body) = folder.json("standing llm p7");
    assert_eq!(body["limits"][1]["remaining"], 10_000);
}

/// The password comes from the environment or a file, and no message shows it.
#[test]
fn a_secret_url_is_read_from_outside_and_never_shown() {
    let redis = Redis::start_with(Append::Never, "--requirepass s3cret").expect("a server");
    let place = redis.url().replace("redis://", "");
    let by_file = folder("url_file = \"redis-url\"");
    let write = |text: String| std::fs::write(by_file.path().join("redis-url"), text);
    write(format!("redis://:s3cret@{place}\n")).expect("a file");
    assert_eq!(by_file.run("acquire llm p7").code, 0);
    write(format!("redis://:s3cret-too@{place}\n")).expect("a file");
    let ran = by_file.run("acquire llm p7");
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("password is wrong") && !ran.err.contains("s3cret"), "{}", ran.err);
    let by_variable = folder("url_env = \"TOLLGATE_TEST_REDIS\"");
    let mut command = by_variable.command("acquire llm p7");
    command.env("TOLLGATE_TEST_REDIS", format!("redis://:s3cret@{place}"));
    assert_eq!(command.output().expect("the binary runs").status.code(), Some(0));
    let ran = by_variable.run("acquire llm p7");
    assert!(ran.code == 2 && ran.err.contains("TOLLGATE_TEST_REDIS"), "{}", ran.err);
}
