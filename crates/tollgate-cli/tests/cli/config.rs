//! Which file is read, and what is said about a broken one.

use crate::folder::Folder;

const RPM: &str =
    r#"{ name = "rpm", unit = "requests", rule = "rolling-window", limit = 5, window = "1m" }"#;

/// A file with one policy, whose limit stands on line 4.
fn with_limit(limit: &str) -> String {
    format!("[[policy]]\nname = \"api\"\nlimits = [\n  {limit},\n]\n")
}

/// A file with `tables` in front of a good policy.
fn with_tables(tables: &str) -> String {
    format!("{tables}\n{}", with_limit(RPM))
}

/// A broken file is refused by every command with the file, the line, what is wrong, what would be right, and the
/// line itself with a mark below what is meant.
fn assert_refused(text: &str, message: &str, shown: &str, marked: &str) {
    let folder = Folder::with(text);
    for arguments in ["policies check tollgate.toml", "acquire api u1", "serve", "policies"] {
        let ran = folder.run(arguments);
        assert_eq!((ran.code, &*ran.out), (2, ""), "{text}");
        let mut lines = ran.err.lines();
        assert_eq!(lines.next(), Some(&*format!("tollgate.toml:{message}")), "{text}");
        let number = message.split(':').next().expect("a message starts with its line");
        assert_eq!(lines.next(), Some(&*format!("{} |", " ".repeat(number.len()))));
        assert_eq!(lines.next(), Some(&*format!("{number} | {shown}")), "{text}");
        let before = shown.find(marked).expect("what is marked is shown");
        let marks = format!("{}{}", " ".repeat(before), "^".repeat(marked.len()));
        assert_eq!(
            lines.next(),
            Some(&*format!("{} | {marks}", " ".repeat(number.len()))),
            "{text}"
        );
        assert_eq!(lines.next(), None);
    }
    assert!(!folder.path().join("tollgate-data").exists());
}

#[test]
fn a_broken_limit_is_shown_with_what_would_be_right() {
    let fields = "name, unit, rule, limit, window, resolution, capacity, refill, mode, period, time_zone, ttl, headroom, margin";
    let rows = [
        (
            r#"{ name = "rpm", unit = "requests", rule = "rolling-window", limit = 5 }"#,
            "4: limit \"rpm\": rolling-window needs window, as in window = \"1m\"".to_owned(),
            r#"{ name = "rpm", unit = "requests", rule = "rolling-window", limit = 5 }"#,
        ),
        (
            r#"{ name = "rpm", unit = "requests", rule = "rolling-window", limit = 5, window = "1 minute" }"#,
            "4: limit \"rpm\": window \"1 minute\" is not a length of time; write a whole number and a unit \
             (us, ms, s, m, h, d), as in 30s or 1h30m"
                .to_owned(),
            r#""1 minute""#,
        ),
        (
            r#"{ name = "rpm", unit = "requests", rule = "rolling-window", limit = 5, windw = "1m" }"#,
            format!("4: there is no \"windw\" here; did you mean window? known: {fields}"),
            "windw",
        ),
        (
            r#"{ name = "rpm", unit = "requests", rule = "rolling-window", limit = "five", window = "1m" }"#,
            "4: invalid type: string \"five\", expected a whole number from 0 on".to_owned(),
            r#""five""#,
        ),
        (
            r#"{ name = "rpm", unit = "requests", rule = "rolling-window", limit = -5, window = "1m" }"#,
            "4: invalid value: integer `-5`, expected a whole number from 0 on".to_owned(),
            "-5",
        ),
        (
            r#"{ name = "rpm", unit = "requests", rule = "rolling-window", limit = 0, window = "1m" }"#,
            "4: limit \"rpm\": limit 0 must be between 1 and 9007199254740991".to_owned(),
            r#"{ name = "rpm", unit = "requests", rule = "rolling-window", limit = 0, window = "1m" }"#,
        ),
        (
            r#"{ name = "rpm", unit = "requests", rule = "fixed-window", limit = 5, window = "1m" }"#,
            "4: limit \"rpm\": there is no rule \"fixed-window\"; known: token-bucket, rolling-window, \
             calendar-window, concurrency"
                .to_owned(),
            r#""fixed-window""#,
        ),
        (
            r#"{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 20, refill = "fast" }"#,
            "4: limit \"burst\": refill \"fast\" is not a rate; write how many in which time, as in \"10/s\", \
             \"5/1m\" or \"1000/d\""
                .to_owned(),
            r#""fast""#,
        ),
        (
            r#"{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 20, refill = "1/s", window = "9m" }"#,
            "4: limit \"burst\": token-bucket takes no window; it takes capacity, refill, mode, headroom, margin"
                .to_owned(),
            r#""9m""#,
        ),
        (
            r#"{ name = "rpd", unit = "requests", rule = "calendar-window", limit = 5, period = "day", time_zone = "Mars/Olympus" }"#,
            "4: limit \"rpd\": \"Mars/Olympus\" is not a time zone; use an IANA name such as UTC, Europe/Berlin or \
             America/Los_Angeles"
                .to_owned(),
            r#"{ name = "rpd", unit = "requests", rule = "calendar-window", limit = 5, period = "day", time_zone = "Mars/Olympus" }"#,
        ),
    ];
    for (limit, message, marked) in rows {
        assert_refused(&with_limit(limit), &message, &format!("  {limit},"), marked);
    }
}

#[test]
fn a_broken_policy_is_shown_with_what_would_be_right() {
    let good = with_limit(RPM);
    let rows = [
        (
            "[[policy]]\nname = \"api\"\n".to_owned(),
            "1: policy \"api\" needs limits, as in limits = [{ name = \"rpm\", unit = \"requests\", rule = \
             \"rolling-window\", limit = 5, window = \"1m\" }]",
            "[[policy]]",
            "[[policy]]",
        ),
        (
            "[policy]\nname = \"api\"\n".to_owned(),
            "1: a policy is written with two brackets, as in [[policy]]",
            "[policy]",
            "[policy]",
        ),
        (
            format!("{good}\n{good}"),
            "8: two policies are called \"api\"; give each its own name",
            "name = \"api\"",
            "\"api\"",
        ),
        (
            good.replace("\"api\"", "\"cl.throttle\""),
            "2: no policy may be called \"cl.throttle\", because the command CL.THROTTLE keeps its keys under it; \
             choose another name",
            "name = \"cl.throttle\"",
            "\"cl.throttle\"",
        ),
        (
            format!("{good}on_store_failure = \"panic\"\n"),
            "6: on_store_failure \"panic\" is not one of fallback, open or closed",
            "on_store_failure = \"panic\"",
            "\"panic\"",
        ),
        (
            format!(
                "{good}\n[[policy.overrides]]\nsubject = \"alice\"\nlimits = [{{ name = \"rpn\", limit = 50 }}]\n"
            ),
            "9: override for \"alice\": limit \"rpn\": the policy has no such limit; did you mean rpm? known: rpm",
            "limits = [{ name = \"rpn\", limit = 50 }]",
            "\"rpn\"",
        ),
        (
            "[[policy]]\nname = \"api\nlimits = []\n".to_owned(),
            "2: invalid basic string, expected `\"`",
            "name = \"api",
            "",
        ),
    ];
    for (text, message, shown, marked) in rows {
        if marked.is_empty() {
            // A syntax error is marked behind the end of its line.
            let ran = Folder::with(&text).run("policies");
            assert_eq!(
                ran.err,
                format!("tollgate.toml:{message}\n  |\n2 | {shown}\n  |            ^\n")
            );
        } else {
            assert_refused(&text, message, shown, marked);
        }
    }
}

#[test]
fn what_this_version_does_not_have_is_refused_by_name() {
    let rows = [
        (
            "[server]\ngrpc = \"8081\"",
            "2: grpc \"8081\" is neither an address and port, as in \"127.0.0.1:8081\", nor \"off\"",
            "\"8081\"",
        ),
        (
            "[server]\nresp = \"6380\"",
            "2: resp \"6380\" is neither an address and port, as in \"127.0.0.1:6380\", nor \"off\"",
            "\"6380\"",
        ),
        (
            "[server]\nhttp = \"8080\"",
            "2: http \"8080\" is not an address and port, as in \"127.0.0.1:8080\"",
            "\"8080\"",
        ),
        (
            "[store]\nkind = \"disk\"",
            "2: there is no store \"disk\"; this build knows memory, embedded, dynamodb, postgres, redis and broker",
            "\"disk\"",
        ),
        ("[store]\nurl = \"x\"", "2: an embedded store takes no url; remove it", "\"x\""),
        (
            "[store]\ndurability = \"maybe\"",
            "2: durability \"maybe\" is neither \"strict\" nor \"relaxed\"",
            "\"maybe\"",
        ),
        (
            "[strategy]\nkind = \"leased\"",
            "2: this store is inside the process that asks it, so there is no way to save; use \"atomic\"",
            "\"leased\"",
        ),
        (
            "[strategy]\nkind = \"hopeful\"",
            "2: there is no strategy \"hopeful\"; use \"atomic\", \"optimistic\" or \"leased\"",
            "\"hopeful\"",
        ),
        (
            "[strategy]\nunposted_max = 3",
            "2: the atomic strategy takes no unposted_max; remove it",
            "3",
        ),
        (
            "[translate]\njobs = \"redis\"",
            "2: jobs \"redis\" is neither \"embedded\" nor \"postgres\"",
            "\"redis\"",
        ),
        (
            "[translate]\nschema = \"s\"",
            "2: schema is for jobs = \"postgres\"; remove it, or use that",
            "\"s\"",
        ),
        (
            "[translate]\njobs = \"postgres\"",
            "2: a database of jobs needs a url; add url, url_env (a variable) or url_file (a file)",
            "\"postgres\"",
        ),
        (
            "[sever]\nhttp = \"127.0.0.1:1\"",
            "1: there is no \"sever\" here; did you mean server? known: server, store, strategy, fallback, telemetry, key, audit, translate, policy, envoy",
            "sever",
        ),
    ];
    for (tables, message, marked) in rows {
        let line: usize = message[..1].parse().unwrap();
        let shown = tables.lines().nth(line - 1).unwrap();
        assert_refused(&with_tables(tables), message, shown, marked);
    }
}

/// What is wrong about a strategy is said before anything is opened, with the line.
#[test]
fn strategies_are_checked_with_the_rest() {
    let redis = "[store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1/\"\n[strategy]\n";
    let jobs = r#"{ name = "jobs", unit = "jobs", rule = "concurrency", limit = 3, ttl = "5m" }"#;
    let leased_jobs = with_limit(jobs).replace("limits", "block_ttl = \"1s\"\nlimits");
    let rows = [
        (
            format!("{redis}kind = \"optimistic\"\n{}", with_limit(RPM)),
            "4: the optimistic strategy needs unposted_max: each broker may be that far over a limit; as in \
             unposted_max = 25",
        ),
        (
            format!(
                "{redis}kind = \"optimistic\"\nunposted_max = 5\nunposted_max_of = {{ bananas = 3 }}\n{}",
                with_limit(RPM)
            ),
            "7: no policy counts \"bananas\"; name a unit of a limit",
        ),
        (
            format!(
                "{redis}kind = \"optimistic\"\nunposted_max = 5\npost_every = \"1h\"\n{}",
                with_limit(RPM)
            ),
            "7: post_every 1h must be between 1ms and 10s",
        ),
        (
            format!("{redis}kind = \"leased\"\nunposted_max = 5\n{}", with_limit(RPM)),
            "6: the leased strategy takes no unposted_max; remove it",
        ),
        (
            format!(
                "{redis}kind = \"leased\"\nsubjects_max = 0\n{}",
                with_limit(RPM).replace("limits", "block_ttl = \"1s\"\nlimits")
            ),
            "6: subjects_max 0 must be between 1 and 1000000000",
        ),
        (
            format!("{redis}kind = \"leased\"\n{}", with_limit(RPM)),
            "5: no policy can be leased: give one a block_ttl, as in block_ttl = \"250ms\", or use \"atomic\"",
        ),
        (
            format!("{redis}kind = \"leased\"\n{leased_jobs}"),
            "8: a policy with a concurrency limit or in shadow mode is not leased, and no other has a block_ttl; use \
             strategy \"atomic\"",
        ),
    ];
    for (text, message) in rows {
        let ran = Folder::with(&text).run("policies check tollgate.toml");
        assert_eq!(ran.code, 2, "{text}");
        assert_eq!(ran.err.lines().next(), Some(&*format!("tollgate.toml:{message}")), "{text}");
    }
}

/// What is wrong about fallback is said before anything is opened, with the line.
#[test]
fn fallback_is_checked_with_the_rest() {
    let redis = "[store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1/\"\n";
    let falls_back = |limit: &str| {
        with_limit(limit).replace("limits", "on_store_failure = \"fallback\"\nlimits")
    };
    let jobs = r#"{ name = "jobs", unit = "jobs", rule = "concurrency", limit = 3, ttl = "5m" }"#;
    let rows = [
        (
            format!("[fallback]\ninstances = 2\n{}", with_limit(RPM)),
            "1: this store is inside the process that asks it, so there is nothing to fall back from; remove [fallback]",
        ),
        (
            format!("{redis}attempt_timeout = \"1m\"\n{}", with_limit(RPM)),
            "4: attempt_timeout 1m must be between 10ms and 5s",
        ),
        (
            format!("{redis}{}", falls_back(RPM)),
            "6: fallback divides the limits by the number of instances that share the redis store; say how many, as in \
             [fallback] instances = 10",
        ),
        (
            format!("{redis}[fallback]\ninstances = 0\n{}", falls_back(RPM)),
            "5: instances 0 must be between 1 and 1000000",
        ),
        (
            format!("{redis}[fallback]\ninstances = 2\nprobe_max = \"1s\"\n{}", falls_back(RPM)),
            "6: probe_max must be at least probe_min, which is 5s",
        ),
        (
            format!("{redis}[fallback]\nprobe_min = \"soon\"\n{}", with_limit(RPM)),
            "5: probe_min \"soon\" is not a length of time; write a whole number and a unit (us, ms, s, m, h, d), as in \
             30s or 1h30m",
        ),
        (
            format!("{redis}[fallback]\ninstances = 10\n{}", falls_back(jobs)),
            "8: policy \"api\": limit \"jobs\": 3 slots are less than one for each of 10 instances, and time cannot \
             stretch a slot; raise the limit, lower instances, or use on_store_failure = \"open\" or \"closed\"",
        ),
    ];
    for (text, message) in rows {
        let ran = Folder::with(&text).run("policies check tollgate.toml");
        assert_eq!(ran.code, 2, "{text}");
        assert_eq!(ran.err.lines().next(), Some(&*format!("tollgate.toml:{message}")));
    }
    let good = format!("{redis}[fallback]\ninstances = 3\n{}", falls_back(jobs));
    assert_eq!(Folder::with(&good).run("policies check tollgate.toml").code, 0);
}

#[test]
fn a_file_without_policies_or_no_file_at_all_is_refused() {
    let folder = Folder::with("[server]\nhttp = \"127.0.0.1:8080\"\n");
    let ran = folder.run("policies");
    assert_eq!(ran.code, 2);
    assert!(
        ran.err.starts_with("tollgate.toml: has no policy; add one, as in [[policy]] with "),
        "{}",
        ran.err
    );
    let ran = folder.run("policies --config other.toml");
    assert_eq!(ran.err, "other.toml: there is no such file; name another with --config\n");
    let (code, problem) = folder.json("policies --config other.toml");
    assert_eq!((code, &problem["kind"]), (2, &"invalid".into()));
}

/// A device or a pipe may never end, so only a regular file is read, and no more of it than is allowed.
#[test]
fn what_is_not_a_regular_file_is_refused_at_once() {
    let folder = Folder::with(&with_limit(RPM));
    let made = std::process::Command::new("mkfifo").arg(folder.path().join("pipe")).status();
    assert!(made.unwrap().success());
    for file in ["/dev/zero", "/dev/full", "pipe", "."] {
        for arguments in [format!("policies --config {file}"), format!("policies check {file}")] {
            let ran = folder.run(&arguments);
            let text = "is not a regular file; name one with --config";
            assert_eq!((ran.code, ran.err), (2, format!("{file}: {text}\n")), "{arguments}");
        }
    }
    let large = std::fs::File::create(folder.path().join("large.toml")).unwrap();
    large.set_len((16 << 20) + 1).unwrap();
    let ran = folder.run("policies check large.toml");
    assert_eq!((ran.code, &*ran.err), (2, "large.toml: has more than 16777216 bytes\n"));
}

/// A good file is accepted; the one named is read, else the one here; and its data lie beside it.
#[test]
fn the_file_named_is_read_and_its_data_lie_beside_it() {
    let folder = Folder::with(&with_limit(RPM));
    assert_eq!(
        folder.run("policies check tollgate.toml").out,
        "tollgate.toml: ok, policies: api\n"
    );
    assert_eq!(folder.run("policies").out, "api\n  rpm: requests, 5 in any 1m; issues at most 5\n");

    std::fs::create_dir(folder.path().join("etc")).unwrap();
    let other =
        "[store]\npath = \"state\"\n".to_owned() + &with_limit(RPM).replace("\"api\"", "\"other\"");
    folder.write("etc/other.toml", &other);
    let ran = folder.run("acquire other u1 --config etc/other.toml");
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(folder.path().join("etc/state").exists());
}

/// Per-subject overrides change the numbers of one subject and nothing else.
#[test]
fn an_override_in_the_file_applies_to_its_subject() {
    let folder = Folder::with(&format!(
        "{}\n[[policy.overrides]]\nsubject = \"alice\"\nlimits = [{{ name = \"rpm\", limit = 1 }}]\n",
        with_limit(RPM)
    ));
    assert_eq!(folder.run("acquire api alice").code, 0);
    assert_eq!(folder.run("acquire api alice").code, 1);
    for _ in 0..5 {
        assert_eq!(folder.run("acquire api bob").code, 0);
    }
    assert_eq!(folder.run("acquire api bob").code, 1);
    assert!(folder.run("policies").out.ends_with("\n  other numbers for 1 subject\n"));
}

/// The file that runs when there is none is also what the documentation shows, so it must stay valid.
#[test]
fn the_sample_is_a_valid_file() {
    let folder = Folder::with(include_str!("../../src/config/sample.toml"));
    let ran = folder.run("policies check tollgate.toml");
    assert_eq!(ran.out, "tollgate.toml: ok, policies: gemini-free, api, video-requests\n");
}

/// Every example of the documentation is a valid file, or a limit that makes one.
#[test]
fn the_examples_of_the_documentation_are_valid() {
    let text = include_str!("../../../../docs/configuration.md");
    let blocks: Vec<&str> =
        text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 11);
    for block in blocks {
        let file = if block.starts_with('{') { with_limit(block.trim()) } else { block.to_owned() };
        let ran = Folder::with(&file).run("policies check tollgate.toml");
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
}

/// `[telemetry]` is refused with the line, like everything else.
#[test]
fn wrong_telemetry_is_refused_with_its_line() {
    let rows = [
        ("log = \"loud\"", "none of"),
        ("incident_file = \"\"", "incident_file is empty"),
        ("cloudwatch = { interval = \"10ms\" }", "must be 1s to 1h"),
        ("cloudwatch = { namespace = \"AWS/X\" }", "which is for services of AWS"),
        ("emf = { namespace = \"\" }", "must have 1 to 255 characters"),
        ("sns = { topic = \"alerts\" }", "is not an ARN"),
        ("sns = {}", "sns needs a topic"),
        ("otlp = { endpoint = \"127.0.0.1:4318\" }", "starts with http://"),
        ("otel = {}", "otel"),
    ];
    for (line, expected) in rows {
        let folder = Folder::with(&format!("[telemetry]\n{line}\n"));
        let ran = folder.run("policies check tollgate.toml");
        assert_eq!(ran.code, 2, "{line}");
        assert!(ran.err.starts_with("tollgate.toml:2: "), "{}", ran.err);
        assert!(ran.err.contains(expected), "{}", ran.err);
    }
}
