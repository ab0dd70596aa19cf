//! Overrides at run time: by command and by API, on every store, seen by every broker, and there when one starts.

use serde_json::Value;
use tollgate_testkit::servers::{DynamoDb, Postgres, Redis};

use crate::folder::Folder;
use crate::running::Broker;

const POLICIES: &str = r#"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "rolling-window", limit = 2, window = "1h" }]
overrides = [{ subject = "carol", limits = [{ name = "burst", limit = 9 }] }]
"#;

/// How often the test looks before it fails because a change never came; each look is a process.
const LOOKS_MAX: usize = 5_000;

/// The subjects with other numbers as `arguments` lists them, with the limit and the source of each.
fn listed(folder: &Folder, arguments: &str) -> Vec<(String, u64, String)> {
    let (code, body) = folder.json(&format!("policies {arguments}"));
    assert_eq!(code, 0, "{body}");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let overridden = body["policies"][0]["overridden"].as_array().expect("a list").clone();
    let row = |of: &Value| {
        let limit = of["limits"][0]["limit"].as_u64().expect("a number");
        (text(&of["subject"]), limit, text(&of["source"]))
    };
    overridden.iter().map(row).collect()
}

fn from_file() -> (String, u64, String) {
    ("carol".to_owned(), 9, "file".to_owned())
}

fn of_alice(limit: u64) -> Vec<(String, u64, String)> {
    vec![("alice".to_owned(), limit, "api".to_owned()), from_file()]
}

/// Looks until the broker lists `expected`.
fn until(folder: &Folder, broker: &Broker, expected: &[(String, u64, String)]) {
    let at = format!("--server {}", broker.url);
    let seen = (0..LOOKS_MAX).any(|_| listed(folder, &at) == expected);
    assert!(seen, "{expected:?} never came, but {:?}", listed(folder, &at));
}

fn admitted(folder: &Folder, at: &str, asks: usize) -> usize {
    let run = |_: &usize| folder.run(&format!("acquire api alice {at}")).code == 0;
    (0..asks).filter(run).count()
}

/// One broker takes an override, the others have it soon, a command without a broker has it too, and so has a broker that
/// starts later. What was used stays used.
fn follows(folder: &Folder, brokers: usize) {
    let start = || -> Vec<Broker> { (0..brokers).map(|_| Broker::start(folder, "")).collect() };
    let all = start();
    let (first, last) = (&all[0], &all[brokers - 1]);
    let at = format!("--server {}", first.url);
    assert_eq!(admitted(folder, &at, 3), 2);
    let ran = folder.run(&format!("policies override api alice --set burst.limit=5 {at}"));
    assert_eq!(
        ran.out, "alice (made at run time)\n  burst: requests, 5 in any 1h\n",
        "{}",
        ran.err
    );
    assert_eq!(listed(folder, &at), of_alice(5), "it is in force at once where it was made");
    until(folder, last, &of_alice(5));
    assert_eq!(admitted(folder, &format!("--server {}", last.url), 5), 3);
    // On the store itself, while brokers run.
    let (code, body) = folder.json("policies override api alice --set burst.limit=6");
    assert_eq!((code, &body["limits"][0]["limit"]), (0, &6.into()), "{body}");
    for broker in &all {
        until(folder, broker, &of_alice(6));
    }
    for broker in all {
        assert_eq!(broker.end("-TERM").0, Some(0));
    }
    assert_eq!(listed(folder, ""), of_alice(6));
    assert_eq!(admitted(folder, "", 3), 1, "a command decides by it too");

    let all = start();
    let at = format!("--server {}", all[0].url);
    assert_eq!(listed(folder, &at), of_alice(6), "it is there from the start");
    let ran = folder.run(&format!("policies override api alice --remove {at}"));
    let removed = "removed: alice has the numbers of the configuration under api\n";
    assert_eq!((ran.code, &*ran.out), (0, removed), "{}", ran.err);
    for broker in &all {
        until(folder, broker, &[from_file()]);
    }
    let ran = folder.run("policies override api alice --remove");
    assert!(ran.out.starts_with("nothing to remove: alice has no override of api"), "{}", ran.out);
}

#[test]
fn an_override_on_a_folder_is_kept_and_followed() {
    follows(&Folder::with(POLICIES), 1);
}

#[test]
fn an_override_on_redis_is_kept_and_followed_by_every_broker() {
    let server = Redis::start().expect("a server");
    follows(&Folder::with(&format!("{}{POLICIES}", server.snippet())), 2);
}

#[test]
fn an_override_on_postgres_is_kept_and_followed_by_every_broker() {
    let server = Postgres::start().expect("a server");
    follows(&Folder::with(&format!("{}{POLICIES}", server.snippet())), 2);
}

#[test]
fn an_override_on_dynamodb_is_kept_and_followed_by_every_broker() {
    let server = DynamoDb::start().expect("a server");
    let folder = Folder::with(&format!("{}{POLICIES}", server.snippet()));
    assert_eq!(folder.run("dynamodb create-table").code, 0);
    follows(&folder, 2);
}

/// A leased and an optimistic broker keep to new numbers, whatever they hold of the old ones.
#[test]
fn brokers_with_a_strategy_keep_to_an_override() {
    let server = Redis::start().expect("a server");
    for (kind, options) in [("leased", ""), ("optimistic", "unposted_max = 20\n")] {
        let policies = POLICIES.replace("name = \"api\"", "name = \"api\"\nblock_ttl = \"1s\"");
        let policies = policies.replace("limit = 2", "limit = 100");
        let prefix = format!("prefix = \"{kind}\"\n");
        let folder = Folder::with(&format!(
            "{}{prefix}[strategy]\nkind = \"{kind}\"\n{options}{policies}",
            server.snippet()
        ));
        let broker = Broker::start(&folder, "");
        let at = format!("--server {}", broker.url);
        assert_eq!(admitted(&folder, &at, 10), 10, "{kind}");
        let put = |limit: u64| {
            let ran =
                folder.run(&format!("policies override api alice --set burst.limit={limit} {at}"));
            assert_eq!(ran.code, 0, "{}", ran.err);
        };
        put(1);
        assert_eq!(admitted(&folder, &at, 3), 0, "{kind}: 10 of 1 are used");
    }
}

#[test]
fn overrides_of_a_memory_store_are_the_brokers_own() {
    let folder = Folder::with(&format!("[store]\nkind = \"memory\"\n{POLICIES}"));
    let set = "policies override api alice --set burst.limit=5";
    let ran = folder.run(set);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("the configured store is memory"), "{}", ran.err);
    assert_eq!(listed(&folder, ""), [from_file()], "the file can be listed");
    let broker = Broker::start(&folder, "");
    let at = format!("--server {}", broker.url);
    assert_eq!(folder.run(&format!("{set} {at}")).code, 0);
    assert_eq!(admitted(&folder, &at, 6), 5);
}

#[test]
fn a_wrong_override_says_what_is_wrong_and_changes_nothing() {
    let folder = Folder::with(POLICIES);
    let broker = Broker::start(&folder, "");
    let rows = [
        (
            "api alice --set burst=5",
            "is not a limit, its field and a value, as in burst.capacity=100",
        ),
        ("api alice --set burst.name=5", "is not a limit, its field and a value"),
        ("api alice --set burst.size=5", "there is no \"size\" here; known: name, "),
        ("api alice --set burst.limit=5 --set burst.limit=6", "--set gives burst.limit twice"),
        ("api alice --set burs.limit=5", "did you mean burst?"),
        ("api alice --set burst.limit=9007199254740992", "limit \"burst\""),
        ("api alice --set burst.window=soon", "window"),
        ("apl alice --set burst.limit=5", "no policy is called \"apl\"; did you mean api?"),
        ("apl alice --remove", "no policy is called \"apl\"; did you mean api?"),
        ("api alice", "--set"),
    ];
    for at in [String::new(), format!("--server {}", broker.url)] {
        for (words, what) in rows {
            let ran = folder.run(&format!("policies override {words} {at}"));
            assert_eq!(ran.code, 2, "{words}");
            assert!(ran.err.contains(what), "{words}: {}", ran.err);
        }
        assert_eq!(listed(&folder, &at), [from_file()]);
    }
}
