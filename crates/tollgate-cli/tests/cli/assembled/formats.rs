//! Two brokers on one store while they are replaced: one still writes the format that brokers of the version before read.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tollgate_testkit::servers::{DynamoDb, Postgres, Redis};

use crate::folder::Folder;
use crate::running::Broker;
use crate::strategies::Caller;

const LIMIT: u64 = 60;

/// A broker's folder, with a limit that two of them use up, and one that has a grid in the newer format.
fn folder(store: &str, format: &str) -> Folder {
    Folder::with(&format!(
        "{store}{format}\n\
         [[policy]]\nname = \"hot\"\nlimits = [{{ name = \"burst\", unit = \"requests\", rule = \"token-bucket\", \
         capacity = {LIMIT}, refill = \"1/h\" }}]\n\
         [[policy]]\nname = \"llm\"\nlimits = [\n\
         {{ name = \"tpm\", unit = \"tokens\", rule = \"rolling-window\", limit = 90000, window = \"1h\" }},\n\
         {{ name = \"jobs\", unit = \"jobs\", rule = \"concurrency\", limit = 9, ttl = \"1h\" }},\n]\n"
    ))
}

fn permit(caller: &Caller, id: &str) -> String {
    let costs = json!({ "tokens": 4_000, "jobs": 1 });
    let ask = json!({ "policy": "llm", "subject": "alice", "costs": costs, "id": id });
    let (status, body) = caller.post("/v1/acquire", &ask).expect("an answer");
    assert_eq!(status, 200, "{body}");
    body["permit"].as_str().expect("a permit").to_owned()
}

fn settle(caller: &Caller, permit: &str) -> Value {
    let settled = json!({ "permit": permit, "actual": { "tokens": 1_000 } });
    let (status, body) = caller.post("/v1/settle", &settled).expect("an answer");
    assert_eq!(status, 200, "{body}");
    body["changed"].clone()
}

fn used(folder: &Folder, policy: &str) -> Vec<u64> {
    let ran = folder.run(&format!("--json standing {policy} alice"));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let standing: Value = serde_json::from_str(&ran.out).expect("JSON");
    let limits = standing["limits"].as_array().expect("limits");
    limits.iter().map(|limit| limit["used"].as_u64().expect("a number")).collect()
}

/// Starts a broker that writes `format`, and then one that writes the newest format. `used_in_the_end` is what both say of
/// `llm`.
fn share(store: &str, kind: &str, format: u8, used_in_the_end: [u64; 2]) {
    let folders = [folder(store, &format!("format = {format}")), folder(store, "")];
    let mut older = Broker::start(&folders[0], "");
    assert!(older.printed().contains(&format!("the configured {kind} server, in format {format}")));
    // Written before a broker of this version without the setting is there.
    let first = permit(&Caller::of(&older), "first");
    let newer = Broker::start(&folders[1], "");
    assert!(!newer.printed().contains("format"));
    let warning = older.error_line();
    let says = "remove it when every broker on this store is of this version";
    let setting = format!("[store] format = {format}");
    assert!(warning.contains(&setting) && warning.contains(says), "{warning}");

    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for broker in [&older, &newer, &older, &newer] {
            scope.spawn(|| {
                let caller = Caller::of(broker);
                for _ in 0..LIMIT {
                    let (status, body) = caller.ask("hot").expect("an answer");
                    assert!([200, 429].contains(&status) && body["degraded"] == false, "{body}");
                    admitted.fetch_add(u64::from(status == 200), Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), LIMIT);

    let callers = [Caller::of(&older), Caller::of(&newer)];
    assert!(first.starts_with("AQ"), "{first}");
    assert_eq!(settle(&callers[1], &first), true);
    for (given, other, version) in [(0, 1, "AQ"), (1, 0, "Aw")] {
        let permit = permit(&callers[given], &format!("order-{given}"));
        assert!(permit.starts_with(version), "{permit}");
        assert_eq!(settle(&callers[other], &permit), true);
        assert_eq!(settle(&callers[given], &permit), false);
    }
    for folder in &folders {
        assert_eq!(used(folder, "hot"), [LIMIT]);
        assert_eq!(used(folder, "llm"), used_in_the_end);
    }
}

/// The first settle carries the window over to its grid, and gives nothing back; the others do.
#[test]
fn brokers_of_both_formats_share_a_redis() {
    let redis = Redis::start().expect("a server");
    share(&redis.snippet(), "redis", 3, [6_000, 0]);
}

#[test]
fn brokers_of_both_formats_share_a_table_of_dynamodb() {
    let dynamodb = DynamoDb::start().expect("a server");
    let store = dynamodb.snippet();
    assert_eq!(folder(&store, "").run("dynamodb create-table").code, 0);
    share(&store, "dynamodb", 1, [6_000, 0]);
}

/// The second broker upgrades the schema while the first one uses it.
#[test]
fn brokers_of_both_formats_share_a_schema_of_postgres() {
    let postgres = Postgres::start().expect("a server");
    let rows = "../tollgate-postgres/tests/postgres/version_3/rows.sql";
    let rows = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(rows);
    postgres.psql_file("postgres", "postgres", &rows).expect("a schema of version 3");
    let store = postgres.snippet();
    let psql = |sql: &str| postgres.psql("postgres", sql).expect("it runs");
    // Overrides in a newer form may mean something else, so nothing is decided without them.
    psql("UPDATE tollgate.overrides SET document = '{\"form\": 99, \"overrides\": []}'");
    let ran = folder(&store, "format = 3").run("acquire hot alice");
    assert!(
        ran.code == 2 && ran.err.contains("have form 99 and this program reads up to"),
        "{ran:?}"
    );
    psql("DELETE FROM tollgate.overrides");
    share(&store, "postgres", 3, [6_000, 0]);
    assert_eq!(psql("SELECT max(version) FROM tollgate.migrations"), "4");
}
