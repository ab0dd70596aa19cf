//! The commands on PostgreSQL: `[store] kind = "postgres"`, `tollgate postgres install` and `tollgate audit history`.

use std::process::{Child, Stdio};

use tollgate_testing::servers::Postgres;

use crate::folder::Folder;

const PROCESSES: usize = 200;

const POLICIES: &str = r#"
[[policy]]
name = "video-requests"
limits = [{ name = "daily", unit = "requests", rule = "rolling-window", limit = 5, window = "24h" }]
"#;

/// A folder whose configuration has `store` as its store.
fn folder(store: &str) -> Folder {
    Folder::with(&format!("[store]\nkind = \"postgres\"\n{store}\n{POLICIES}"))
}

/// R000.8 and promise 1: however many processes ask at once, on a database without tables, exactly the limit is admitted. A
/// permit of one process is given back by another.
#[test]
fn r000_8_two_hundred_processes_on_postgres_admit_exactly_the_limit() {
    // Each process has a connection of its own.
    let server = Postgres::start_with("-c max_connections=300").expect("a server");
    let folder = folder(&format!("url = \"{}\"", server.url("postgres")));
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
        assert!(code < 2, "{}", String::from_utf8_lossy(&output.stdout));
        codes[code] += 1;
    }
    assert_eq!(codes, [5, PROCESSES - 5, 0]);
    let (_, body) = folder.json("acquire video-requests u2");
    let permit = body["permit"].as_str().expect("a permit");
    assert_eq!(folder.run(&format!("release {permit}")).code, 0);
    let (_, body) = folder.json("standing video-requests u2");
    assert_eq!(body["limits"][0]["used"], 0);
}

/// R004.10: the walk-through of `docs/postgres.md`, with the url in a variable or in a file.
#[test]
fn r004_10_a_quota_over_a_table_is_installed_and_looked_back_at() {
    let server = Postgres::start().expect("a server");
    let folder = folder("url_file = \"secret.url\"");
    folder.write("secret.url", &format!("{}\n", server.url("postgres")));
    let psql = |sql: &str| server.psql("postgres", sql).expect("psql");
    psql("CREATE TABLE video_requests (user_id text NOT NULL, created_at timestamptz NOT NULL)");
    let (code, body) = folder.json("postgres install --table video_requests --limit 2");
    assert_eq!((code, &body["schema"]), (0, &"\"video_requests_quota\"".into()));
    for _ in 0..3 {
        psql("SELECT video_requests_quota.consume('alice')");
    }
    assert_eq!(psql("SELECT count(*) FROM video_requests"), "2");
    let (code, body) = folder.json("audit history video_requests_quota");
    assert_eq!(
        (code, &body[0]["user_id"], &body[0]["total_requests"]),
        (0, &"alice".into(), &2.into())
    );
    let wrong = folder.run("postgres install --table missing");
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("there is no table \"missing\""), "{}", wrong.err);
}
