//! `tollgate export` and `tollgate import`: state that moves between stores, by the binary on real servers.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use serde_json::{Value, json};
use tollgate_testkit::servers::{DynamoDb, Postgres, Redis, RedisCluster};

use crate::folder::{Folder, Ran};
use crate::running::Broker;

/// Every rule, slow enough that nothing comes back while the test runs.
const POLICIES: &str = r#"
[[policy]]
name = "all"
limits = [
  { name = "bucket", unit = "tokens", rule = "token-bucket", capacity = 10_000, refill = "1/h" },
  { name = "interval", unit = "tokens", rule = "token-bucket", capacity = 10_000, refill = "1/3650d", mode = "interval" },
  { name = "log", unit = "requests", rule = "rolling-window", limit = 100, window = "24h" },
  { name = "grid", unit = "tokens", rule = "rolling-window", limit = 10_000, window = "24h", resolution = 12 },
  { name = "month", unit = "requests", rule = "calendar-window", limit = 100, period = "month" },
  { name = "running", unit = "jobs", rule = "concurrency", limit = 8, ttl = "1h" },
]

[[policy]]
name = "other"
limits = [{ name = "daily", unit = "requests", rule = "rolling-window", limit = 5, window = "24h" }]
"#;

/// Subjects that a careless format, pattern or query would trip over.
const SUBJECTS: [&str; 6] = [
    "plain",
    "a/b//c",
    "日本 \u{1f600}",
    "two\nlines\r\n{\"end\":1}",
    "\"quoted\\\" '%_*[?]",
    "{brace}:}",
];

fn on(store: &str) -> Folder {
    Folder::with(&format!("{store}{POLICIES}"))
}

fn on_dynamodb(server: &DynamoDb) -> Folder {
    let folder = on(&server.snippet());
    assert_eq!(folder.run("dynamodb create-table").code, 0);
    folder
}

fn done(ran: &Ran) -> Value {
    assert_eq!((ran.code, &*ran.err), (0, ""), "{ran:?}");
    let document = serde_json::from_str(&ran.out);
    assert!(document.is_ok(), "{ran:?}");
    document.unwrap_or_default()
}

fn permit(folder: &Folder, subject: &str) -> String {
    let costs = ["--cost", "tokens=100", "--cost", "jobs=1", "--json"];
    let given = done(&folder.run_with(&[&["acquire", "all", subject], &costs[..]].concat()));
    given["permit"].as_str().expect("a permit").to_owned()
}

/// What is used of each limit and when it comes back, for every subject.
fn standing(folder: &Folder) -> Value {
    let of = |subject: &&str| {
        let standing = done(&folder.run_with(&["standing", "all", subject, "--json"]));
        let limits = standing["limits"].as_array().expect("limits").iter().map(|limit| {
            json!([
                limit["name"],
                limit["limit"],
                limit["used"],
                limit["remaining"],
                limit["reset_at"]
            ])
        });
        Value::from(limits.collect::<Vec<_>>())
    };
    SUBJECTS.iter().map(of).collect()
}

fn used(folder: &Folder, policy: &str, subject: &str, limit: usize) -> u64 {
    let standing = done(&folder.run_with(&["standing", policy, subject, "--json"]));
    standing["limits"][limit]["used"].as_u64().expect("a number")
}

/// Moves everything from one store to the other through the file `state`, and says what the import reported.
fn moved(from: &Folder, to: &Folder, flags: &str) -> Value {
    let state = to.path().join("state");
    let state = state.to_str().expect("a name");
    let exported = done(&from.run(&format!("export --to {state} {flags} --json")));
    assert_eq!(exported["permit_key"], flags.contains("key"), "{exported}");
    done(&to.run("import state --yes --json"))
}

fn counts(report: &Value) -> [&Value; 3] {
    ["new", "merged", "unchanged"].map(|count| &report["entries"][count])
}

/// Every rule, with permits in flight, from store to store and back: each standing is as before, each permit settles as at the source,
/// and importing again changes nothing.
#[test]
fn state_with_permits_in_flight_moves_through_every_store_and_back() {
    let first = on("");
    let mut permits = Vec::new();
    for subject in SUBJECTS {
        let mut given: Vec<String> = (0..6).map(|_| permit(&first, subject)).collect();
        let ran = first.run(&format!("settle {} --actual tokens=30 --json", given.remove(0)));
        assert_eq!(done(&ran)["changed"], true);
        permits.push(given);
    }
    let set = ["policies", "override", "all", "a/b//c", "--set", "log.limit=50", "--json"];
    done(&first.run_with(&set));
    done(&first.run_with(&[
        "violation",
        "all",
        "plain",
        "--limit",
        "grid",
        "--retry-after",
        "2h",
        "--json",
    ]));
    done(&first.run("acquire other only --json"));

    let redis = Redis::start().expect("a server");
    let cluster = RedisCluster::start().expect("a cluster");
    let postgres = Postgres::start().expect("a server");
    let dynamodb = DynamoDb::start().expect("a server");
    let hops = [
        ("redis", on(&redis.snippet())),
        ("redis cluster", on(&cluster.snippet())),
        ("postgres", on(&postgres.snippet())),
        ("dynamodb", on_dynamodb(&dynamodb)),
        ("embedded", on("")),
    ];
    let mut from = &first;
    for (hop, (name, to)) in hops.iter().enumerate() {
        let dry = {
            let state = to.path().join("dry");
            done(&from.run(&format!("export --with-permit-key --to {} --json", state.display())));
            done(&to.run("import dry --dry-run --json"))
        };
        assert_eq!(
            (&dry["applied"], counts(&dry)),
            (&json!(false), [7, 0, 0].map(Value::from).each_ref())
        );
        let report = moved(from, to, "--with-permit-key");
        assert_eq!(counts(&report), [7, 0, 0].map(Value::from).each_ref(), "{name}: {report}");
        assert_eq!(report["permit_key"], "adopted", "{name}");
        assert_eq!(report["overrides"], json!({ "added": 1, "kept": 0 }), "{name}");
        assert_eq!(standing(to), standing(&first), "{name}");
        let again = done(&to.run("import state --yes --json"));
        assert_eq!(counts(&again), [0, 0, 7].map(Value::from).each_ref(), "{name}: {again}");
        assert_eq!(again["overrides"], json!({ "added": 0, "kept": 1 }), "{name}");
        // One permit of each subject is settled here and at the source, which stays behind for comparison.
        for given in permits.iter().filter_map(|given| given.get(hop)) {
            for folder in [&first, to] {
                let ran = folder.run(&format!("settle {given} --actual tokens=40 --json"));
                assert_eq!(done(&ran)["changed"], true, "{name}");
            }
            let ran = to.run(&format!("settle {given} --actual tokens=0 --json"));
            assert_eq!(done(&ran)["changed"], false, "{name}");
        }
        assert_eq!(standing(to), standing(&first), "{name}, settled");
        from = to;
    }
    // 6 calls: one settled for 30, five for 40.
    assert_eq!(used(from, "all", "plain", 1), 230);
    assert_eq!(used(from, "other", "only", 0), 1);
}

/// Where both have an entry, neither is forgotten, and no permit gives back what the other side was charged.
#[test]
fn the_strict_side_wins_on_every_store() {
    let source = on("");
    for _ in 0..3 {
        permit(&source, "plain");
    }
    done(&source.run_with(&[
        "policies",
        "override",
        "all",
        "plain",
        "--set",
        "log.limit=50",
        "--json",
    ]));
    let redis = Redis::start().expect("a server");
    let postgres = Postgres::start().expect("a server");
    let dynamodb = DynamoDb::start().expect("a server");
    for target in [on(""), on(&redis.snippet()), on(&postgres.snippet()), on_dynamodb(&dynamodb)] {
        let own: Vec<String> = (0..2).map(|_| permit(&target, "plain")).collect();
        done(&target.run("acquire all plain --cost tokens=900 --json"));
        done(&target.run_with(&[
            "policies",
            "override",
            "all",
            "plain",
            "--set",
            "log.limit=60",
            "--json",
        ]));
        let report = moved(&source, &target, "--with-permit-key");
        assert_eq!(counts(&report), [0, 1, 0].map(Value::from).each_ref(), "{report}");
        assert_eq!(report["permit_key"], "kept", "{report}");
        assert_eq!(report["overrides"], json!({ "added": 0, "kept": 1 }));
        let all = || [0, 1, 2, 3, 4, 5].map(|limit| used(&target, "all", "plain", limit));
        // The target used 1,100 tokens in 3 requests; the source 300 in 3. Slots of both are held.
        assert_eq!(all(), [1_100, 1_100, 3, 1_100, 3, 5]);
        for permit in &own {
            assert_eq!(done(&target.run(&format!("release {permit} --json")))["changed"], true);
        }
        assert_eq!(all(), [1_100, 1_100, 3, 1_100, 3, 3]);
        let standing = done(&target.run("standing all plain --json"));
        assert_eq!(standing["limits"][2]["limit"], 60, "the target's override stays");
        let report = done(&target.run("import state --yes --overwrite-overrides --json"));
        assert_eq!(report["overrides"], json!({ "added": 1, "kept": 0 }));
        let standing = done(&target.run("standing all plain --json"));
        assert_eq!(standing["limits"][2]["limit"], 50);
    }
}

/// A file that was cut off changes nothing, and `--partial` takes what there is of it.
#[test]
fn a_truncated_file_changes_nothing() {
    let (source, target) = (on(""), on(""));
    for subject in SUBJECTS {
        permit(&source, subject);
    }
    done(&source.run("export --to state --json"));
    let whole = std::fs::read(source.path().join("state")).expect("it was written");
    let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    let cut = [&lines[..4].concat(), &lines[4][..20]].concat();
    std::fs::write(target.path().join("cut"), cut).expect("a folder");
    let ran = target.run("import cut --yes");
    assert_eq!((ran.code, &*ran.out), (2, ""));
    assert!(ran.err.contains("is cut off: it ends after 3 entries"), "{}", ran.err);
    assert!(ran.err.contains("--partial"), "{}", ran.err);
    assert!(!target.path().join("tollgate-data").exists(), "not even a folder was made");
    let report = done(&target.run("import cut --yes --partial --json"));
    assert_eq!(counts(&report), [3, 0, 0].map(Value::from).each_ref());
}

/// An entry that does not decode stops no export: it is named and left out, and the exit status says that the export is not
/// whole.
#[test]
fn an_entry_that_does_not_decode_is_left_out_by_name() {
    let redis = Redis::start().expect("a server");
    let (source, target) = (on(&redis.snippet()), on(""));
    for subject in ["good", "bad"] {
        done(&source.run_with(&["acquire", "other", subject, "--json"]));
    }
    done(&source.run("acquire all good --json"));
    let key = redis.command(&["--raw", "KEYS", "*{other/bad}"]).expect("a key");
    redis.command(&["HSET", key.trim(), "p", "no shape"]).expect("a field");
    let state = target.path().join("state");
    for flags in ["", "--policy other"] {
        let ran = source.run(&format!("export --to {} {flags}", state.display()));
        assert_eq!(ran.code, 2, "{ran:?}");
        for words in [
            "warning: other bad is left out: ",
            "1 entries do not decode and are not in the export",
        ] {
            assert!(ran.err.contains(words), "{words}: {}", ran.err);
        }
        let ran = source.run(&format!("export --to {} {flags} --json", state.display()));
        let report: Value = serde_json::from_str(&ran.out).expect("a report");
        assert_eq!((ran.code, &report["left_out"]), (2, &json!(1)));
    }
    done(&target.run("import state --yes --json"));
    let subjects = ["good", "bad"].map(|subject| used(&target, "other", subject, 0));
    assert_eq!(subjects, [1, 0]);
    done(&source.run("export --policy all --to whole --json"));
    // Nor does the key of another program in the place of an entry.
    redis.command(&["DEL", key.trim()]).expect("an answer");
    redis.command(&["SET", key.trim(), "text"]).expect("an answer");
    let ran = source.run(&format!("export --to {}", state.display()));
    assert_eq!(ran.code, 2, "{ran:?}");
    let words = "warning: other bad is left out: ";
    assert!(
        ran.err.contains(words) && ran.err.contains("belongs to another program"),
        "{}",
        ran.err
    );
}

/// An entry that the target would take for one from the future is refused by name, and nothing is written.
#[test]
fn entries_from_the_future_are_refused_by_name_or_mended() {
    let (source, target) = (on(""), on(""));
    source.write("clock", "+400d");
    let ahead = |arguments: &str| -> Ran {
        source
            .command(arguments)
            .env("LD_PRELOAD", "/usr/$LIB/faketime/libfaketimeMT.so.1")
            .env("FAKETIME_TIMESTAMP_FILE", source.path().join("clock"))
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .output()
            .expect("the binary starts")
            .into()
    };
    done(&ahead("acquire other late --json"));
    let state = target.path().join("state");
    done(&ahead(&format!("export --to {} --json", state.display())));
    let ran = target.run("import state --yes");
    assert_eq!((ran.code, &*ran.out), (2, ""));
    for words in [
        "1 entries are from the future",
        "other late (400d",
        "nothing was imported",
        "--mend-future",
    ] {
        assert!(ran.err.contains(words), "{words}: {}", ran.err);
    }
    assert_eq!(used(&target, "other", "late", 0), 0);
    let report = done(&target.run("import state --yes --mend-future --json"));
    assert_eq!(report["entries"]["mended"], 1, "{report}");
    assert_eq!(used(&target, "other", "late", 0), 5);
}

#[test]
fn an_export_is_piped_into_an_import_and_one_policy_can_be_taken() {
    let (source, target) = (on(""), on(""));
    permit(&source, "plain");
    done(&source.run("acquire other plain --json"));
    let mut export =
        source.command("export --policy other").stdout(Stdio::piped()).spawn().expect("it starts");
    let out = export.stdout.take().expect("a pipe");
    let ran: Ran =
        target.command("import --yes").stdin(out).output().expect("the binary starts").into();
    assert!(export.wait().expect("it ends").success());
    assert_eq!((ran.code, &*ran.err), (0, ""));
    assert!(ran.out.contains("1 new, 0 merged to the strict side, 0 unchanged"), "{}", ran.out);
    assert!(ran.out.contains("not in the export"), "{}", ran.out);
    assert_eq!([used(&target, "other", "plain", 0), used(&target, "all", "plain", 2)], [1, 0]);
    // What says nothing about a permit's key says it plainly.
    let ran = source.run("export --with-permit-key --to state");
    assert!(ran.out.contains("a reader can forge them"), "{}", ran.out);
    let file = std::fs::metadata(source.path().join("state")).expect("it was written");
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
}

#[test]
fn what_cannot_be_moved_says_what_to_do_instead() {
    let memory = Folder::with(&format!("[store]\nkind = \"memory\"\n{POLICIES}"));
    let broker = Folder::with(&format!(
        "[store]\nkind = \"broker\"\nurl = \"http://127.0.0.1:1\"\n{POLICIES}"
    ));
    let held = on("");
    let running = Broker::start(&held, "");
    let empty = on("");
    for folder in [&memory, &broker, &held, &empty] {
        folder.write("nothing", "");
        folder.write("state", "{\"format\":\"tollgate-export\",\"version\":1,\"taken_at\":\"2026-01-01T00:00:00Z\",\"store\":\"redis\"}\n");
    }
    let rows = [
        (&memory, "export", "the configured store is memory"),
        (
            &memory,
            "import state --partial --yes",
            "name a configuration with another store with --config",
        ),
        (&broker, "export", "run export with the configuration of that one"),
        (&held, "export", "to export it, stop whatever holds it"),
        (&held, "import state --partial --yes", "to import it, stop whatever holds it"),
        (&empty, "export", "there is nothing to export"),
        (&empty, "import", "the export is empty"),
        (&empty, "import nothing", "the export is empty"),
        (&empty, "import tollgate.toml", "line 1 is not the first line of an export"),
        (&empty, "import missing", "missing cannot be read"),
        (&empty, "import state --partial", "--yes"),
        (&empty, "import state --server http://127.0.0.1:1", "leave --server out"),
    ];
    for (folder, arguments, what) in rows {
        let ran = folder.run(arguments);
        assert_eq!(ran.code, 2, "{arguments}: {ran:?}");
        assert!(ran.err.contains(what), "{arguments}: {}", ran.err);
    }
    assert!(held.run("export").err.contains(&running.url));
    assert_eq!(running.end("-TERM").0, Some(0));
    let ran = held.run("export --policy al --to kept");
    assert_eq!((ran.code, &*ran.out), (2, ""));
    assert!(ran.err.contains("did you mean all?"), "{}", ran.err);
    let left = ["kept", "kept.part"].map(|file| held.path().join(file).exists());
    assert_eq!(left, [false, false]);
}
