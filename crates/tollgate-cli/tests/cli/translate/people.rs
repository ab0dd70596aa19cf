//! The messages of the command line, and when they appear.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::Stdio;

use serde_json::Value;
use tollgate_testkit::fakes::gemini::{Fault, Settings, Trouble, When, translated};
use tollgate_translate::Layout;

use super::{World, expected, kill, prose, signal, troubled};
use crate::folder::Ran;

fn ran(command: &mut std::process::Command) -> Ran {
    command.output().expect("the binary starts").into()
}

/// A key that is missing, ill-formed or refused is an error before the plan that names its variable or file.
#[test]
fn the_error_of_a_wrong_key_names_its_source_before_the_plan() {
    let world = World::new(troubled(vec![Trouble::new(Fault::BadKey, When::Every(1))]));
    world.folder.write("book.txt", &prose(6));
    let make = world.make("book.txt --yes").replace("--key-file gemini.key", "");
    let command = |arguments: &str| {
        let mut command = world.folder.command(arguments);
        command.env_remove("GEMINI_API_KEY").env_remove("GOOGLE_API_KEY");
        command
    };
    let missing = ran(&mut command(&make));
    assert_eq!((missing.code, &*missing.out), (2, ""), "no plan is printed");
    assert!(
        missing.err.contains("set the environment variable GEMINI_API_KEY or GOOGLE_API_KEY"),
        "{}",
        missing.err
    );
    let wrong = ran(command(&format!("{make} --key-env MY_KEY")).env("MY_KEY", "two words"));
    assert!(
        wrong.code == 2 && wrong.err.contains("the environment variable MY_KEY: a key is one word"),
        "{}",
        wrong.err
    );
    assert_eq!(world.fake.tally().calls, 0);
    // A plan needs no key.
    assert_eq!(ran(&mut command(&make.replace("--yes", "--plan"))).code, 0);
    let refused = ran(command(&make).env("GOOGLE_API_KEY", "project.key"));
    let origin = "; the key is from the environment variable GOOGLE_API_KEY";
    assert!(refused.code == 1 && refused.out.contains(origin), "{}{}", refused.out, refused.err);
}

const MINUTE: &str = r#"
[[policy]]
name = "minute"
limits = [{ name = "rpm", unit = "requests", rule = "rolling-window", limit = 4, window = "10m" }]
"#;

/// A log is not silent while calls wait for the quota, and its end is that of the quota.
#[test]
fn a_wait_for_the_quota_is_shown_with_its_limit_and_its_end() {
    let world = World::on(Settings::default(), MINUTE);
    world.folder.write("book.txt", &prose(40));
    let make = world.make("book.txt --yes --workers 1").replace("--policy wide", "--policy minute");
    let mut child = world.start(&make);
    let lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let waiting = lines.map_while(Result::ok).find(|line| line.contains("waiting for"));
    let waiting = waiting.expect("it says so");
    kill(&mut child);
    assert!(
        waiting.starts_with("4/") && waiting.contains("; waiting for rpm, next at "),
        "{waiting}"
    );
    assert!(waiting.contains("Z, in 10m, ends") || waiting.contains("Z, in 9m"), "{waiting}");
    // Six calls are left, and four go in each window: the last goes after two of them.
    let (_, end) = waiting.split_once("ends about ").expect("it says when it ends");
    let now = tollgate::Clock::now(&tollgate::clock::SystemClock);
    let end: tollgate::Timestamp = end.parse().expect("a time");
    assert!(tollgate::Span::from_mins(19) < end.since(now), "{waiting}");
}

#[test]
fn a_sample_is_shown_before_the_rest_is_paid() {
    let world = World::new(Settings::default());
    let page = "# The river\n\nThe river was *quiet* and `ls` knew.\n\nNobody had seen boats.\n";
    world.folder.write("page.md", page);
    let make = world.make("page.md --sample 2");
    let ran = world.run(&make);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let title = translated("The river");
    let quiet = format!(
        "{} *{}* {} `ls` {}.",
        translated("The river was"),
        translated("quiet"),
        translated("and"),
        translated("knew")
    );
    let shown =
        format!("The river\n  {title}\n\nThe river was *quiet* and `ls` knew.\n  {quiet}\n");
    assert!(ran.out.contains(&shown), "{}", ran.out);
    assert!(!world.folder.path().join("page.fr.md").exists());
    assert_eq!(world.fake.tally().calls, 1);
    let (code, json) = world.folder.json(&make);
    assert_eq!((code, &json["sample"][0]["translation"]), (0, &Value::from(title)), "{json}");
    assert_eq!(world.fake.tally().calls, 1, "the sample is kept");
    assert_eq!(world.run(&world.make("page.md --yes")).code, 0);
    assert!(world.read("page.fr.md").contains(&quiet));
}

#[test]
fn a_document_is_read_from_standard_input() {
    let world = World::new(Settings::default());
    let (page, text) = ("<p>The river was quiet</p>\n", prose(6));
    let pipe = |arguments: &str, input: &str| -> Ran {
        let mut command = world.folder.command(&world.make(arguments));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        // It may refuse before it reads.
        drop(child.stdin.take().expect("it is piped").write_all(input.as_bytes()));
        child.wait_with_output().expect("it ends").into()
    };
    let nameless = pipe("- --yes", &text);
    assert!(
        nameless.code == 2 && nameless.err.contains("name the file to write with --output"),
        "{}",
        nameless.err
    );
    let unknown = pipe("- --yes --output out --format docx", page);
    assert!(
        unknown.code == 2 && unknown.err.contains("use txt, md, html, srt, vtt or epub"),
        "{}",
        unknown.err
    );
    assert_eq!(world.fake.tally().calls, 0);
    assert_eq!(pipe("- --yes --output out.txt", &text).code, 0);
    assert_eq!(world.read("out.txt"), expected(&text, Layout::Translation));
    assert_eq!(pipe("- --yes --output out.html --format html", page).code, 0);
    assert_eq!(world.read("out.html"), format!("<p>{}</p>\n", translated("The river was quiet")));
}

#[test]
fn a_document_in_another_language_than_from_is_warned_of() {
    let world = World::new(Settings::default());
    let german = "Der Fluss war ruhig, und niemand hatte seit dem frühen Morgen Boote gesehen, als der Kapitän am Ufer entlangging.\n";
    world.folder.write("buch.txt", &german.repeat(5));
    let warning =
        "warning: the document seems to be in German, not in English; if so, add --from de";
    let plan = world.run(&world.make("buch.txt --plan"));
    assert!(plan.code == 0 && plan.out.contains(warning), "{}", plan.out);
    let json = world.run(&world.make("buch.txt --plan --json"));
    assert_eq!(json.err.trim_end(), warning);
    assert!(serde_json::from_str::<Value>(&json.out).is_ok(), "{}", json.out);
    let right = world.run(&world.make("buch.txt --plan --from de"));
    assert!(!right.out.contains("warning: the document"), "{}", right.out);
}

#[test]
fn a_worker_prints_a_line_for_each_change() {
    let world = World::new(Settings::default());
    world.folder.write("book.txt", &prose(20));
    assert_eq!(world.run(&world.make("book.txt --yes --detach")).code, 0);
    let (id, chunks) = (world.id(), world.jobs()[0]["chunks"].clone());
    let mut child = world.start(&format!("translate worker --workers 1 {}", world.provided()));
    let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let over = format!("{id}: completed");
    let mut seen: Vec<String> =
        lines.map_while(Result::ok).take_while(|line| *line != over).collect();
    signal(&child, "-INT");
    child.wait().expect("it ends");
    seen.retain(|line| {
        line.starts_with(&format!("{id}: ")) && line.contains(&format!("/{chunks} chunks"))
    });
    assert!(2 <= seen.len(), "{seen:?}");
    assert!(seen[0].starts_with(&format!("{id}: 0/{chunks} chunks")), "{seen:?}");
}

/// A model of the own network is plain http and wants no key, which needs a flag.
#[test]
fn plain_http_and_no_key_need_a_flag() {
    let world = World::new(Settings::default());
    let text = prose(6);
    world.folder.write("book.txt", &text);
    // This machine by an address that is not loopback.
    let lan = world.served.url().replace("127.0.0.1", "0.0.0.0");
    let make = world.make("book.txt --yes").replace(&world.served.url(), &lan);
    let refused = world.run(&make);
    assert!(refused.code == 2 && refused.err.contains("--plain-http"), "{}", refused.err);
    let keyless = make.replace("--key-file gemini.key", "--no-key");
    let both = world.run(&format!("{make} --no-key"));
    assert!(both.code == 2 && both.err.contains("cannot be used with"), "{}", both.err);
    assert_eq!(world.fake.tally().calls, 0);
    let done = world.run(&format!("{make} --plain-http"));
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    assert_eq!(world.read("book.fr.txt"), expected(&text, Layout::Translation));
    // The fake wants a key, so it hears of none.
    world.folder.write("other.txt", &prose(9));
    let sent = world.run(&format!("{keyless} --plain-http").replace("book.txt", "other.txt"));
    assert!(sent.out.contains("callers without established identity"), "{}", sent.out);
    assert!(
        sent.code == 1 && sent.out.contains(" --plain-http --no-key"),
        "{}{}",
        sent.out,
        sent.err
    );
    assert!(!sent.out.contains("the key is from"), "{}", sent.out);
}

/// A proxy that says no to everything, and what it was asked for.
fn proxy() -> (String, std::sync::mpsc::Receiver<String>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("http://user:word@{}", listener.local_addr().expect("it has an address"));
    let (asked, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream);
            let head: Vec<String> = reader
                .by_ref()
                .lines()
                .map_while(Result::ok)
                .take_while(|line| !line.is_empty())
                .collect();
            drop(
                reader
                    .into_inner()
                    .write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n"),
            );
            if asked.send(head.join("\n")).is_err() {
                return;
            }
        }
    });
    (url, heard)
}

#[test]
fn the_proxy_of_the_environment_is_used_unless_the_host_is_left_out() {
    let world = World::new(Settings::default());
    world.folder.write("book.txt", &prose(6));
    let make =
        world.make("book.txt --yes").replace(&world.served.url(), "https://model.invalid:8443");
    let (url, heard) = proxy();
    let mut child = world
        .folder
        .command(&make)
        .env("HTTPS_PROXY", &url)
        .env_remove("NO_PROXY")
        .env_remove("no_proxy")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let head = heard.recv_timeout(std::time::Duration::from_secs(30));
    kill(&mut child);
    let head = head.expect("the proxy is asked");
    assert!(head.starts_with("CONNECT model.invalid:8443 HTTP/1.1\n"), "{head}");
    assert!(head.to_lowercase().contains("proxy-authorization: basic dxnlcjp3b3jk"), "{head}");
    let secure = ran(world.folder.command(&make).env("HTTPS_PROXY", "https://127.0.0.1:1"));
    assert!(
        secure.code == 2 && secure.err.contains("only proxies that begin with http://"),
        "{}",
        secure.err
    );
    // What is on this machine is called as it is.
    let direct = ran(world
        .folder
        .command(&world.make("book.txt --yes --output direct.txt"))
        .env("HTTPS_PROXY", &url));
    assert_eq!(direct.code, 0, "{}", direct.err);
    while heard.try_recv().is_ok() {}
    world.folder.write("other.txt", &prose(9));
    let left_out =
        world.make("other.txt --yes").replace(&world.served.url(), "https://127.0.0.1:1");
    let mut command = world.folder.command(&left_out);
    command.env("HTTPS_PROXY", &url).env("NO_PROXY", "model.example,127.0.0.1");
    let mut child =
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let refused = lines.map_while(Result::ok).find(|line| line.contains("cannot be reached"));
    kill(&mut child);
    assert!(refused.is_some_and(|line| line.contains("127.0.0.1:1 cannot be reached")));
    assert!(heard.try_recv().is_err(), "the proxy is not asked");
}
