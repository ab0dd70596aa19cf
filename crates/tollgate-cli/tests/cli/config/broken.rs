//! A broken file: the line, what is wrong there, and what would be right.

use super::{RPM, with_limit};
use crate::folder::Folder;

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
            "4: invalid type: string \"five\", expected an unsigned whole number".to_owned(),
            r#""five""#,
        ),
        (
            r#"{ name = "rpm", unit = "requests", rule = "rolling-window", limit = -5, window = "1m" }"#,
            "4: invalid value: integer `-5`, expected an unsigned whole number".to_owned(),
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
            "2: the policy name \"cl.throttle\" is reserved for the keys of the command CL.THROTTLE; \
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
            "2: there is no store \"disk\"; use memory, embedded, dynamodb, postgres, redis or broker",
            "\"disk\"",
        ),
        (
            "[store]\nkind = \"memory\"\nkeys_max = 0",
            "3: keys_max must be 1 to 100000000, not 0",
            "0",
        ),
        (
            "[store]\nkind = \"memory\"\nids_max = 200000000",
            "3: ids_max must be 1 to 100000000, not 200000000",
            "200000000",
        ),
        (
            "[store]\nids_max = 10",
            "2: an embedded store takes no ids_max; remove it, or use kind = \"memory\"",
            "10",
        ),
        (
            "[store]\nformat = 3",
            "2: an embedded store takes no format; remove it; it is for stores that brokers of two versions share",
            "3",
        ),
        (
            "[store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1/\"\nformat = 2",
            "4: format 2 is not one of 3, 4; without it the newest is written",
            "2",
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
            "[store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1/\"\n[fallback]\nstart = \"full\"",
            "5: start \"full\" is neither \"used\" nor \"share\": what this process's share counts as when the store goes away",
            "\"full\"",
        ),
        (
            "[backoff]\nbase = \"10s\"\nmax = \"8s\"",
            "3: max must be at least base, which is 10s",
            "\"8s\"",
        ),
        ("[backoff]\njitter = 101", "2: jitter 101 must be between 0 and 100, in percent", "101"),
        (
            "[translate]\npatience = \"5m\"",
            "2: patience is for jobs = \"postgres\"; remove it, or use that",
            "\"5m\"",
        ),
        (
            "[translate]\njobs = \"redis\"",
            "2: unknown kind of jobs \"redis\"; use \"embedded\", \"postgres\" or \"dynamodb\"",
            "\"redis\"",
        ),
        (
            "[translate]\nschema = \"s\"",
            "2: schema is for jobs = \"postgres\"; remove it, or use that",
            "\"s\"",
        ),
        (
            "[translate]\njobs = \"postgres\"\ntable = \"t\"",
            "3: table is for jobs = \"dynamodb\"; remove it, or use that",
            "\"t\"",
        ),
        (
            "[translate]\nlease = \"5s\"",
            "2: lease is for jobs = \"postgres\" or jobs = \"dynamodb\"; remove it, or use that",
            "\"5s\"",
        ),
        (
            "[translate]\njobs = \"postgres\"",
            "2: a database of jobs needs a url; add url, url_env (a variable) or url_file (a file)",
            "\"postgres\"",
        ),
        (
            "[sever]\nhttp = \"127.0.0.1:1\"",
            "1: there is no \"sever\" here; did you mean server? known: server, store, strategy, fallback, backoff, telemetry, key, jwt, audit, translate, policy, plan, envoy, gateway, upstream, route, prices",
            "sever",
        ),
    ];
    for (tables, message, marked) in rows {
        let line: usize = message[..1].parse().unwrap();
        let shown = tables.lines().nth(line - 1).unwrap();
        assert_refused(&with_tables(tables), message, shown, marked);
    }
}

/// The bound on a continuous bucket is where docs/configuration.md says it is.
#[test]
fn a_bucket_that_is_too_fine_is_refused() {
    for (refill, most) in [("7/d", 52_124_u64), ("1000/d", 52_124_995)] {
        let check = |capacity: u64| {
            let config = format!(
                "[[policy]]\nname = \"api\"\nlimits = [{{ name = \"burst\", unit = \"requests\", rule = \"token-bucket\", \
                 capacity = {capacity}, refill = \"{refill}\" }}]\n"
            );
            Folder::with(&config).run("policies check tollgate.toml")
        };
        assert_eq!(check(most).code, 0, "{refill}");
        let ran = check(most + 1);
        assert!(ran.code == 2 && ran.err.contains("must be at most 2^52"), "{}", ran.err);
    }
}

/// `[telemetry]` is refused with the line, like everything else.
#[test]
fn wrong_telemetry_is_refused_with_its_line() {
    let rows = [
        ("log = \"loud\"", "unknown severity"),
        ("incident_file = \"\"", "incident_file is empty"),
        ("cloudwatch = { interval = \"10ms\" }", "must be between 1s and 1h"),
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
