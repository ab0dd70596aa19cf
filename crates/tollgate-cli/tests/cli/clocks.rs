//! Clocks that are set, seen from outside: the binary under a wall clock of its own (libfaketime), and `tollgate repair`.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};
use tollgate::clock::{ManualClock, SystemClock};
use tollgate::{Ask, Clock as _, Decision, Gate, GateExt, Limit, Policy, RollingWindow, Span};
use tollgate_testkit::servers::{DynamoDb, Postgres, Redis};

use crate::folder::{Folder, Ran};
use crate::running::Broker;
use crate::stores::{on, on_dynamodb};

const DAY_MS: u64 = 24 * 3_600_000;

/// Runs `command` with a wall clock that is off by what the file `clock` says. The boot-time clock stays as it is.
fn with_clock<'a>(command: &'a mut Command, clock: &Path) -> &'a mut Command {
    command
        .env("LD_PRELOAD", "/usr/$LIB/faketime/libfaketimeMT.so.1")
        .env("FAKETIME_TIMESTAMP_FILE", clock)
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
}

/// Runs the binary with a wall clock that is off by `offset`, as in `+400d`.
fn run_at(folder: &Folder, offset: &str, arguments: &str) -> Ran {
    folder.write("clock", offset);
    let clock = folder.path().join("clock");
    with_clock(&mut folder.command(arguments), &clock).output().expect("the binary starts").into()
}

fn json_at(folder: &Folder, offset: &str, arguments: &str) -> (i32, Value) {
    let ran = run_at(folder, offset, &format!("{arguments} --json"));
    (ran.code, serde_json::from_str(&ran.out).expect("--json prints JSON"))
}

/// A command whose clock is 400 days ahead for a moment admits no more than fits, and locks no subject.
#[test]
fn a_command_400_days_ahead_neither_makes_room_nor_locks() {
    let folder = on("");
    assert_eq!(folder.run("acquire video-requests u1").code, 0);
    let (code, admitted) = json_at(&folder, "+400d", "acquire video-requests u1");
    assert_eq!((code, &admitted["limits"][0]["used"]), (0, &json!(2)), "{admitted}");
    for offset in ["+0", "+400d", "-400d", "+400d", "-400d"] {
        run_at(&folder, offset, "acquire video-requests u1");
    }
    for offset in ["+400d", "+0"] {
        let (code, denied) = json_at(&folder, offset, "acquire video-requests u1");
        assert_eq!(code, 1, "{denied}");
        assert!(denied["retry_after_ms"].as_u64() <= Some(DAY_MS), "{denied}");
    }
}

/// Where the first command of a folder had a wrong clock, later ones say so and name the repair, which shows what it would
/// do and then does it.
#[test]
fn a_folder_from_the_future_is_refused_until_it_is_repaired() {
    let folder = on("");
    let (code, report) = folder.json("repair");
    assert_eq!((code, &report["exists"], &report["entries"]), (0, &json!(false), &json!([])));
    let ran = folder.run("repair");
    assert!(ran.out.contains("tollgate-data: there is no such folder yet"), "{}", ran.out);
    let (code, _) = json_at(&folder, "+400d", "acquire video-requests u1");
    assert_eq!(code, 0);
    let ran = folder.run("acquire video-requests u1");
    assert_eq!(ran.code, 2);
    for words in ["ahead of this machine's clock", "Check the clock first", "`tollgate repair`"] {
        assert!(ran.err.contains(words), "{}", ran.err);
    }
    let ran = folder.run("repair --config tollgate.toml");
    assert_eq!((ran.code, &*ran.err), (0, ""));
    for words in [
        "data folder ",
        "video-requests  u1",
        "400d",
        "nothing was changed",
        "Check the clock first",
        "\n  tollgate repair --config tollgate.toml --yes --clock-is-right\n",
    ] {
        assert!(ran.out.contains(words), "{words:?} is not in {}", ran.out);
    }
    // The folder saw a later time than the clock shows, and the user did not say which is right.
    let ran = folder.run("repair --yes");
    assert!(ran.code == 2 && ran.err.contains("nothing was changed"), "{ran:?}");
    assert_eq!(folder.run("acquire video-requests u1").code, 2);
    let ran = folder.run("repair --yes --clock-is-right");
    assert!(ran.code == 0 && ran.out.contains("1 rewritten as used up now"), "{ran:?}");
    let (code, denied) = folder.json("acquire video-requests u1");
    assert!(code == 1 && denied["retry_after_ms"].as_u64() <= Some(DAY_MS), "{denied}");
    assert_eq!(folder.run("acquire video-requests u2").code, 0);
}

/// A clock that is set back makes healthy entries seem to be from the future. They are refused and not rewritten, and are
/// as before once the clock is right.
#[test]
fn a_clock_that_is_set_back_leads_to_the_clock_and_not_to_a_repair() {
    let folder = on("");
    assert_eq!(folder.run("acquire video-requests u1").code, 0);
    let ran = run_at(&folder, "-1h", "acquire video-requests u1");
    assert!(ran.code == 2 && ran.err.contains("Check the clock first"), "{ran:?}");
    let ran = run_at(&folder, "-1h", "repair --yes");
    assert!(ran.code == 2 && ran.err.contains("If it is behind, set it"), "{ran:?}");
    let (code, standing) = folder.json("standing video-requests u1");
    assert_eq!((code, &standing["limits"][0]["used"]), (0, &json!(1)), "{standing}");
    let ran = folder.run("repair");
    assert!(
        ran.code == 0 && ran.out.contains("tollgate-data: no entry is more than 5m ahead"),
        "{ran:?}"
    );
    let ran = folder.run("repair --help");
    assert!(!ran.out.contains("--server") && ran.out.contains("--config"), "{}", ran.out);
}

/// A broker on DynamoDB whose clock is set an hour ahead while it runs, and back, decides at the time of the service.
#[test]
fn a_broker_an_hour_ahead_for_a_moment_neither_overfills_nor_locks() {
    let server = DynamoDb::start().expect("a server");
    let folder = on_dynamodb(&server);
    folder.write("clock", "+0");
    let clock = folder.path().join("clock");
    let mut command = folder.command("serve --http 127.0.0.1:0 --resp 127.0.0.1:0 --grpc off");
    let broker = Broker::of(with_clock(&mut command, &clock));
    let mut admitted = 0;
    let mut ask = |times: u32| {
        let call = format!("acquire llm p --server {}", broker.url);
        for _ in 0..times {
            admitted += u32::from(folder.run(&call).code == 0);
        }
    };
    ask(2);
    folder.write("clock", "+1h");
    ask(8);
    folder.write("clock", "+0");
    ask(2);
    assert_eq!(admitted, 5);
    // Others see what the rule says, an hour and its slot, and not an hour more.
    let (code, denied) = folder.json("acquire llm p");
    let most = Span::from_mins(65).as_millis_ceil();
    assert!(code == 1 && denied["retry_after_ms"].as_u64() <= Some(most), "{denied}");
    assert_eq!(folder.json("repair").1["entries"], json!([]));
    let (_, _, log) = broker.end("-TERM");
    assert!(log.contains("clock stepped"), "{log}");
}

/// At most five a day, as in the configuration.
fn daily() -> Policy {
    let rule = RollingWindow::new(5, Span::from_hours(24));
    Policy::new("video-requests", [Limit::new("daily", "requests", rule)]).expect("right numbers")
}

async fn admit(gate: &dyn Gate) {
    let decision = gate.acquire(&Ask::new(&daily(), "u1")).await.expect("the server decides");
    assert!(matches!(decision, Decision::Admitted(_)));
}

/// Entries that are an hour ahead are listed and mended on every store on a server.
#[test]
fn every_store_is_repaired() {
    let redis = Redis::start().expect("a server");
    let postgres = Postgres::start().expect("a server");
    let dynamodb = DynamoDb::start().expect("a server");
    let folders = [on(&redis.snippet()), on(&postgres.snippet()), on_dynamodb(&dynamodb)];
    let clock = Arc::new(ManualClock::at(SystemClock.now() + Span::from_hours(1)));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let options = tollgate_redis::Options::single(redis.url()).test_clock(clock.clone());
        admit(&tollgate_redis::Redis::open(options).await.expect("it is there")).await;
        let options = tollgate_postgres::Options::new(&postgres.url("postgres")).expect("a url");
        let options = options.test_clock(clock.clone());
        admit(&tollgate_postgres::Postgres::open(options).await.expect("it is there")).await;
        let options = tollgate_dynamodb::Options::new("tollgate").region("eu-central-1");
        let options = options.endpoint(dynamodb.endpoint()).credentials("test", "test");
        let options = options.skew_max(None).clock(clock);
        let store = tollgate_dynamodb::DynamoDb::open(options).await.expect("it is there");
        admit(&store).await;
    });
    for folder in &folders {
        for (arguments, applied) in [("repair", false), ("repair --yes", true)] {
            let (code, report) = folder.json(arguments);
            assert_eq!((code, &report["applied"]), (0, &json!(applied)));
            let [entry] = report["entries"].as_array().expect("a list").as_slice() else {
                unreachable!("one entry is ahead: {report}");
            };
            assert_eq!(
                (&entry["policy"], &entry["subject"]),
                (&json!("video-requests"), &json!("u1"))
            );
            assert_eq!(entry["mended"], applied);
            let ahead = entry["ahead_ms"].as_u64().expect("a number");
            assert!((3_500_000..=3_600_000).contains(&ahead), "{entry}");
        }
        let (_, report) = folder.json("repair --yes");
        assert_eq!(report["entries"], json!([]));
        assert!(!report["store"].as_str().expect("a name").contains("s3cret"), "{report}");
        let (code, denied) = folder.json("acquire video-requests u1");
        assert!(code == 1 && denied["retry_after_ms"].as_u64() <= Some(DAY_MS), "{denied}");
    }
}

/// What repair cannot do is said with what would be right.
#[test]
fn mistakes_of_repair_are_explained() {
    let memory = on("[store]\nkind = \"memory\"\n");
    let broker = on("[store]\nkind = \"broker\"\nurl = \"http://127.0.0.1:9\"\n");
    let folder = on("");
    for (folder, arguments, words) in [
        (&memory, "repair", "memory, which ends with the broker"),
        (&broker, "repair", "run repair with the configuration of that one"),
        (&folder, "repair --server http://127.0.0.1:9", "leave --server out"),
        (&folder, "repair --ahead soon", "\"soon\" is not a length of time"),
        (&folder, "repair --ahead -5m", "as in --ahead 5m"),
    ] {
        let ran = folder.run(arguments);
        assert_eq!((ran.code, &*ran.out), (2, ""), "{arguments}");
        assert!(ran.err.contains(words), "{arguments}: {}", ran.err);
    }
}
