//! Keys, from `tollgate keys new` to a broker that asks for them.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use tollgate_testkit::servers::{Program, node, python, run};

use crate::folder::Folder;
use crate::running::Broker;

const POLICY: &str = r#"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 2, refill = "1/h" }]
"#;

/// A new key with these scopes: its text, and its table for the configuration.
pub(crate) fn new_key(name: &str, scopes: &str) -> (String, String) {
    let ran = Folder::new().run(&format!("keys new {name} {scopes}"));
    assert_eq!((ran.code, &*ran.err), (0, ""));
    let key = ran.out.lines().next().expect("the key").to_owned();
    let table = ran.out[ran.out.find("[[key]]").expect("the table")..].to_owned();
    assert!(!table.contains(&key), "the table must not have the key itself");
    (key, table)
}

/// What looks at a broker takes a key that may look, and no other.
#[test]
fn the_audit_and_top_take_a_key() {
    let (worker, worker_table) = new_key("workers", "--scope acquire");
    let (reader, reader_table) = new_key("reader", "--scope inspect");
    let tables = format!("{worker_table}\n{reader_table}");
    let folder = Folder::with(&format!("{tables}\n[store]\nkind = \"memory\"\n{POLICY}"));
    let broker = Broker::start(&folder, "");
    for code in [0, 0, 1] {
        let ask = format!("acquire api alice --server {}", broker.url);
        assert_eq!(folder.run_as(&worker, &ask).code, code);
    }
    for words in ["audit denials", "top --once", "policies"] {
        let words = format!("{words} --server {}", broker.url);
        let ran = folder.run_as(&reader, &words);
        assert_eq!(ran.code, 0, "{words}: {}", ran.err);
        assert!(ran.out.contains(if words.starts_with("policies") { "burst" } else { "alice" }));
        let refused = folder.run(&words);
        assert_eq!(
            refused.err,
            "tollgate: this needs a key; put it into the variable TOLLGATE_KEY\n"
        );
        let refused = folder.run_as(&worker, &words);
        assert!(refused.err.contains("it needs the scope inspect"), "{words}: {}", refused.err);
    }
    let set = format!("policies override api bob --set burst.capacity=9 --server {}", broker.url);
    let refused = folder.run_as(&reader, &set);
    assert!(refused.err.contains("it needs the scope administer"), "{}", refused.err);
}

/// A browser asks its user, and sends what it was given with everything that the page reads.
#[test]
fn the_dashboard_takes_a_key_as_a_password() {
    let (reader, reader_table) = new_key("reader", "--scope inspect");
    let (operator, operator_table) = new_key("operator", "--scope inspect --scope administer");
    let keys = format!("{reader_table}\n{operator_table}");
    let folder = Folder::with(&format!("{keys}\n[store]\nkind = \"memory\"\n{POLICY}"));
    let broker = Broker::start(&folder, "");
    crate::dashboard::look(&broker, &["guarded", &reader, &operator]);
}

#[test]
fn a_key_that_has_expired_is_not_made() {
    let ran = Folder::new().run("keys new old --scope acquire --expires 2020-01-01T00:00:00Z");
    assert_eq!((ran.code, &*ran.out), (2, ""));
    let what = "--expires 2020-01-01T00:00:00Z is not in the future";
    assert!(ran.err.contains(what), "{}", ran.err);
}

/// What `keys new` prints works unchanged, on the command line, over HTTP and over the Redis protocol.
#[test]
fn a_key_that_was_pasted_lets_in_and_no_other_does() {
    let (worker, worker_table) =
        new_key("workers", "--scope acquire --expires 2099-01-01T00:00:00Z");
    let (reader, reader_table) = new_key("reader", "--scope inspect --scope administer");
    let folder = Folder::with(&format!(
        "{worker_table}\n{reader_table}\n[store]\nkind = \"memory\"\n{POLICY}"
    ));
    let broker = Broker::start(&folder, "");
    assert!(broker.printed.contains("authorization: Bearer $TOLLGATE_KEY"), "{}", broker.printed);
    let ask = format!("acquire api u1 --server {}", broker.url);
    let standing = format!("standing api u1 --server {}", broker.url);

    let ran = folder.run(&ask);
    assert_eq!(ran.code, 2);
    assert_eq!(ran.err, "tollgate: this needs a key; put it into the variable TOLLGATE_KEY\n");
    assert_eq!(
        folder.run_as("tg_other", &ask).err,
        "tollgate: the key is not one of this server's\n"
    );
    assert_eq!(folder.run_as(&worker, &ask).code, 0);
    let refused = folder.run_as(&worker, &standing);
    assert_eq!(refused.err, "tollgate: the key does not allow this; it needs the scope inspect\n");
    assert_eq!(folder.run_as(&reader, &standing).code, 0);
    assert_eq!(folder.run_as(&reader, &format!("reset api u1 --server {}", broker.url)).code, 0);

    let address = broker.resp.clone().expect("it is on");
    let port = address.rsplit(':').next().expect("a port");
    let cli = |words: &str| {
        let program = Program::new("redis-cli").args("--no-auth-warning -p").arg(port).args(words);
        run(&program).expect("redis-cli runs")
    };
    assert_eq!(cli("CL.THROTTLE k 15 30 60"), "NOAUTH Authentication required.\n\n");
    assert_eq!(cli(&format!("-a {worker} CL.THROTTLE k 15 30 60")), "0\n16\n15\n-1\n2\n");
    let script = r"
import sys, redis
for protocol in (2, 3):
    client = redis.Redis(port=int(sys.argv[1]), username='any', password=sys.argv[2], protocol=protocol)
    assert client.execute_command('CL.THROTTLE', f'py{protocol}', 15, 30, 60) == [0, 16, 15, -1, 2]
try:
    redis.Redis(port=int(sys.argv[1]), password='wrong').ping()
    raise SystemExit('a wrong password was accepted')
except redis.AuthenticationError:
    print('done')
";
    assert_eq!(python(script, &[port, &worker]).expect("the script passes"), "done\n");
    let script = r"
const { createClient } = require('redis');
(async () => {
  const [port, password] = process.argv.slice(1);
  const client = createClient({ url: `redis://127.0.0.1:${port}`, username: 'any', password, RESP: 3 });
  client.on('error', (error) => { throw error; });
  await client.connect();
  console.log((await client.sendCommand(['CL.THROTTLE', 'node', '15', '30', '60'])).join());
  await client.close();
})();
";
    assert_eq!(node(script, &[port, &worker]).expect("the script passes"), "0,16,15,-1,2\n");
    assert_eq!(broker.end("-TERM").0, Some(0));
}

#[test]
fn a_hash_may_be_in_a_variable_or_in_a_file() {
    let (key, table) = new_key("workers", "--scope acquire");
    let hash = table.lines().find_map(|line| line.strip_prefix("hash = ")).expect("a hash");
    let hash = hash.trim_matches('"');
    let head = "[store]\nkind = \"memory\"\n[[key]]\nname = \"workers\"\nscopes = [\"acquire\"]\n";
    for place in ["hash_env = \"WORKERS\"", "hash_file = \"workers.hash\""] {
        let folder = Folder::with(&format!("{head}{place}\n{POLICY}"));
        folder.write("workers.hash", &format!("{hash}\n"));
        let broker = Broker::start_with(&folder, "", &[("WORKERS", hash)]);
        let ask = format!("acquire api u1 --server {}", broker.url);
        assert_eq!(folder.run_as(&key, &ask).code, 0);
        assert_eq!(folder.run(&ask).code, 2);
    }
    let folder = Folder::with(&format!("{head}hash_file = \"workers.hash\"\n{POLICY}"));
    folder.write("workers.hash", "secret");
    let ran = folder.run("serve --http 127.0.0.1:0 --resp off --grpc off");
    assert_eq!(ran.code, 2);
    assert_eq!(
        ran.err,
        "tollgate: the hash of the key \"workers\" is not \"sha256:\" and 64 hexadecimal digits; make a key with tollgate \
         keys new\n"
    );
}

#[test]
fn a_wrong_key_table_is_refused_with_its_line() {
    let hash = format!("hash = \"sha256:{}\"", "0".repeat(64));
    let named = format!("[[key]]\nname = \"a\"\n{hash}\n");
    let good = format!("{named}scopes = [\"acquire\"]\n");
    let rows = [
        (
            format!("{named}scopes = [\"ask\"]"),
            "4: unknown scope \"ask\"; known: acquire, inspect, administer",
        ),
        (
            format!("{named}scopes = []"),
            "4: a key needs a scope: \"acquire\", \"inspect\" or \"administer\"",
        ),
        (format!("{good}{good}"), "6: two keys are called \"a\"; give each its own name"),
        (
            format!("{good}{}", good.replace("\"a\"", "\"b\"")),
            "6: this is the key \"a\" already; make another with tollgate keys new",
        ),
        (
            format!("{good}hash_env = \"A\""),
            "2: hash, hash_env and hash_file exclude each other; keep one",
        ),
        (
            "[[key]]\nname = \"a\"\nscopes = [\"acquire\"]".to_owned(),
            "2: a key needs a hash; add hash, hash_env (a variable) or hash_file (a file)",
        ),
        (
            "[[key]]\nname = \"a\"\nscopes = [\"acquire\"]\nhash = \"s3cret\"".to_owned(),
            "4: hash is not \"sha256:\" and 64 hexadecimal digits; make a key with tollgate keys new",
        ),
        (format!("{good}expires = \"soon\""), "5: \"soon\" is not a time"),
        ("[key]\nname = \"a\"".to_owned(), "1: a key is written with two brackets, as in [[key]]"),
        (
            format!("[server]\nanonymous = true\n{good}"),
            "2: anonymous = true lets everyone in, but there are keys; keep one of the two",
        ),
    ];
    for (text, message) in rows {
        let ran = Folder::with(&format!("{text}\n{POLICY}")).run("policies");
        assert_eq!(ran.code, 2, "{text}");
        assert!(ran.err.starts_with(&format!("tollgate.toml:{message}")), "{}", ran.err);
    }
    let ran = Folder::new().run("keys new workers --scope ask");
    assert_eq!(ran.err, "tollgate: unknown scope \"ask\"; known: acquire, inspect, administer\n");
}

/// Beyond this machine no caller is let in by accident.
#[test]
fn an_address_that_others_reach_needs_keys_or_a_word() {
    let folder = Folder::new();
    for flags in [
        "--http 0.0.0.0:0 --resp off --grpc off",
        "--http 127.0.0.1:0 --resp 0.0.0.0:0 --grpc off",
        "--http 127.0.0.1:0 --resp off --grpc 0.0.0.0:0",
    ] {
        let ran = folder.run(&format!("serve {flags}"));
        assert_eq!((ran.code, &*ran.out), (2, ""));
        assert_eq!(
            ran.err,
            "tollgate: others than this machine can reach 0.0.0.0:0, and there is no [[key]]; make one with tollgate keys \
             new, or let everyone in with --allow-anonymous or anonymous = true in [server]\n"
        );
    }
    assert!(!folder.path().join("tollgate-data").exists());
    let said = Folder::with(&format!("[server]\nanonymous = true\n{POLICY}"));
    let (_, table) = new_key("workers", "--scope acquire");
    let keyed = Folder::with(&format!("{table}\n{POLICY}"));
    for (folder, flags) in [(&folder, "--allow-anonymous"), (&said, ""), (&keyed, "")] {
        let mut command =
            folder.command(&format!("serve --http 0.0.0.0:0 --resp off --grpc off --json {flags}"));
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).unwrap();
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(line.contains("http://127.0.0.1:"), "{flags}: {line}");
    }
}

/// A key is for its own policies and subjects, on every protocol, and what is done is recorded under its name.
#[test]
fn a_bound_key_is_refused_elsewhere_and_named_in_the_audit() {
    let bound = "policies = [\"api\", \"cl.throttle\"]\nsubjects = [\"team-a/*\"]\n";
    let all = "--scope acquire --scope inspect --scope administer";
    let (team, team_table) = new_key("team-a", all);
    let (operator, operator_table) = new_key("operator", all);
    let limits = "limits = [{ name = \"burst\", unit = \"requests\", rule = \"token-bucket\", capacity = 5, refill = \"1/h\" }]";
    let policies =
        format!("[[policy]]\nname = \"api\"\n{limits}\n[[policy]]\nname = \"other\"\n{limits}\n");
    let config =
        format!("[store]\nkind = \"memory\"\n{team_table}{bound}{operator_table}{policies}");
    let folder = Folder::with(&config);
    let broker = Broker::start(&folder, "");
    let at = format!("--server {}", broker.url);
    let given = folder.run_as(&operator, &format!("acquire api team-b/bob --json {at}")).out;
    let given: serde_json::Value = serde_json::from_str(&given).expect("JSON");
    let foreign = given["permit"].as_str().expect("a permit");
    for (command, allowed) in [
        ("acquire api team-a/alice".to_owned(), true),
        ("standing api team-a/alice".to_owned(), true),
        ("reset api team-a/alice".to_owned(), true),
        ("policies override api team-a/alice --set burst.capacity=9".to_owned(), true),
        ("acquire api team-b/bob".to_owned(), false),
        ("acquire other team-a/alice".to_owned(), false),
        ("standing api team-b/bob".to_owned(), false),
        ("reset api team-b/bob".to_owned(), false),
        ("policies override api team-b/bob --set burst.capacity=9".to_owned(), false),
        (format!("settle {foreign}"), false),
        (format!("release {foreign}"), false),
        ("policies".to_owned(), false),
        ("audit denials".to_owned(), false),
    ] {
        let ran = folder.run_as(&team, &format!("{command} {at}"));
        assert_eq!(ran.code, if allowed { 0 } else { 2 }, "{command}: {}{}", ran.out, ran.err);
        assert!(allowed || ran.err.contains("key"), "{command}: {}", ran.err);
    }
    let port = broker.resp.as_deref().and_then(|at| at.rsplit(':').next()).expect("a port");
    for (words, allowed) in [
        ("CL.THROTTLE team-a/alice 15 30 60", true),
        ("DEL team-a/alice", true),
        ("TG.ACQUIRE api team-a/alice", true),
        ("CL.THROTTLE team-b/bob 15 30 60", false),
        ("DEL team-b/bob", false),
        ("TG.ACQUIRE api team-b/bob", false),
        ("TG.CHARGE api team-b/bob", false),
    ] {
        let answer = crate::clients::redis_cli(port, &format!("-a {team} {words}"));
        assert_eq!(answer.starts_with("FORBIDDEN"), !allowed, "{words}: {answer}");
    }
    // A policy that does not exist reveals no others.
    let unknown = "no policy is called \"oter\"; known: api";
    let ran = folder.run_as(&team, &format!("acquire oter team-a/alice {at}"));
    assert!(ran.err.contains(unknown) && !ran.err.contains("other"), "{}", ran.err);
    let answer =
        crate::clients::redis_cli(port, &format!("-a {team} TG.ACQUIRE oter team-a/alice"));
    assert!(answer.contains("known: api") && !answer.contains("other"), "{answer}");
    let ran = folder.run_as(&operator, &format!("acquire oter team-a/alice {at}"));
    assert!(ran.err.contains("did you mean other?"), "{}", ran.err);
    crate::clients::redis_cli(port, "-a tg_wrong PING");
    let audit = folder.run_as(&operator, &format!("audit denials --outcome all --json {at}")).out;
    for record in [
        "\"outcome\":\"reset\"",
        "\"outcome\":\"overridden\"",
        "\"by\":\"team-a\"",
        "unauthenticated",
    ] {
        assert!(audit.contains(record), "{record} is missing: {audit}");
    }
    let field = format!("authorization: Bearer {operator}\r\n");
    let metrics = crate::running::get_with(&broker.url, "/metrics", &field);
    let line = "tollgate_administered_total{action=\"overridden\",key=\"team-a\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn a_key_that_is_bound_to_an_unknown_policy_is_refused_with_its_line() {
    let (_, table) = new_key("team-a", "--scope acquire");
    let folder = Folder::with(&format!("{table}policies = [\"apl\"]\n{POLICY}"));
    let ran = folder.run("policies");
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("no policy is called \"apl\"; did you mean api?"), "{}", ran.err);
}
