//! Every call, as people and as programs read it, and its exit status.

use serde_json::Value;

use crate::folder::Folder;

/// Slots and a limit that is not requests, which the sample does not have.
const JOBS: &str = r#"
[[policy]]
name = "jobs"
limits = [{ name = "running", unit = "jobs", rule = "concurrency", limit = 2, ttl = "1h" }]

[[policy]]
name = "shadow"
shadow = true
limits = [{ name = "few", unit = "requests", rule = "rolling-window", limit = 1, window = "1h" }]

[[policy]]
name = "quick"
limits = [{ name = "one", unit = "requests", rule = "rolling-window", limit = 1, window = "200ms" }]

[[policy]]
name = "hourly"
limits = [{ name = "one", unit = "requests", rule = "rolling-window", limit = 1, window = "1h" }]
"#;

/// Policies of a user, a team and an account.
const PARTIES: &str = r#"
[[policy]]
name = "user"
limits = [{ name = "rph", unit = "requests", rule = "rolling-window", limit = 10, window = "1h" }]

[[policy]]
name = "team"
limits = [{ name = "tph", unit = "tokens", rule = "rolling-window", limit = 1_000, window = "1h" }]

[[policy]]
name = "account"
limits = [{ name = "tph", unit = "tokens", rule = "rolling-window", limit = 700, window = "1h" }]
"#;

/// Several subjects in one ask: all or none, as people and as programs read it.
#[test]
fn several_subjects_are_decided_together() {
    let folder = Folder::with(PARTIES);
    let used = |policy: &str, subject: &str| {
        let (_, body) = folder.json(&format!("standing {policy} {subject}"));
        body["limits"][0]["used"].as_u64().expect("a number")
    };
    let ask = "acquire user:u1 team:t7 account:all --cost tokens=400";
    let ran = folder.run(ask);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    let expected = "admitted\n  user:u1\n    rph: 9 of 10 requests left\n  team:t7\n    tph: 600 of 1000 tokens left\n  \
                    account:all\n    tph: 300 of 700 tokens left\npermit ";
    assert!(ran.out.starts_with(expected), "{}", ran.out);
    let permit = ran.out.split("permit ").nth(1).unwrap().trim().to_owned();

    let (code, body) = folder.json(ask);
    assert_eq!((code, &body["policy"], &body["charge"]), (1, &"account".into(), &2.into()));
    assert_eq!((used("user", "u1"), used("team", "t7"), used("account", "all")), (1, 400, 400));
    let both = "acquire user:u1 team:t7 account:all --cost tokens=650";
    let ran = folder.run(both);
    assert!(
        ran.out.starts_with("denied by tph of team:t7: 600 of 1000 left, asked for 650, "),
        "{}",
        ran.out
    );
    assert!(
        ran.out.contains("\n  also denied by tph of account:all, which has room in "),
        "{}",
        ran.out
    );

    let settle = format!("settle {permit} --actual tokens=300 --actual 2:tokens=100");
    assert_eq!(folder.run(&settle).out, "settled\n");
    assert_eq!((used("user", "u1"), used("team", "t7"), used("account", "all")), (1, 300, 100));
    // One in the same form.
    assert_eq!(folder.run("acquire user:u2").code, 0);
    // A subject may have a colon.
    assert_eq!(folder.run("acquire user ip:::1").code, 0);
    assert_eq!(folder.run("acquire user:ip:::1 team:t7").code, 0);
    assert_eq!(used("user", "ip:::1"), 2);
    let ran = folder.run("acquire user:u1 team");
    assert_eq!(ran.code, 2);
    assert!(
        ran.err.contains("write api alice for one, and user:u1 team:t7 for several"),
        "{}",
        ran.err
    );
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().expect("the member is text")
}

/// R000.1, R000.8: five processes are admitted, the remaining numbers are exact, and the sixth denial names the limit
/// binds and until when. The state is in the folder, so it survives from process to process (R004.5).
#[test]
fn r000_1_acquire_admits_five_times_and_then_says_when() {
    let folder = Folder::new();
    let ask = "acquire gemini-free p7 --cost requests=1 --cost tokens=3750";
    for n in 1..=5_u64 {
        let (code, body) = folder.json(ask);
        assert_eq!(code, 0, "{body}");
        assert_eq!(body["admitted"], true);
        assert_eq!(body["degraded"], false);
        let remaining: Vec<u64> =
            (0..3).map(|i| body["limits"][i]["remaining"].as_u64().expect("a number")).collect();
        assert_eq!(remaining, [5 - n, 250_000 - 3_750 * n, 25 - n]);
    }
    let (code, body) = folder.json(ask);
    assert_eq!(code, 1, "{body}");
    assert_eq!(body["admitted"], false);
    assert_eq!(body["limit"], "rpm");
    let wait = body["retry_after_ms"].as_u64().expect("a number");
    assert!((1..=62_000).contains(&wait), "{wait}");
    assert!(text(&body, "reset_at").ends_with('Z'), "{body}");
    // Promise 3: the refusal charged nothing.
    assert_eq!(body["limits"][1]["used"], 5 * 3_750);
    assert_eq!(body["limits"][2]["used"], 5);
}

#[test]
fn people_read_what_is_left_and_when_to_come_back() {
    let folder = Folder::new();
    let ran = folder.run("acquire video-requests u1");
    assert_eq!((ran.code, &*ran.err), (0, ""));
    assert!(ran.out.starts_with("admitted\n  daily: 4 of 5 requests left\npermit "), "{}", ran.out);
    for _ in 0..4 {
        assert_eq!(folder.run("acquire video-requests u1").code, 0);
    }
    let ran = folder.run("acquire video-requests u1");
    assert_eq!((ran.code, &*ran.err), (1, ""));
    let start = "denied by daily: 0 of 5 left, try again in ";
    assert!(ran.out.starts_with(start) && ran.out.ends_with("Z)\n"), "{}", ran.out);
}

/// R004.8, R004.3, R004.11: used, limit, when it resets, and in how long for people; times are UTC. A request leaves
/// the count 24 h after it was made, so the fresh reset is a day away.
#[test]
fn r004_8_standing_says_used_limit_reset_time_and_reset_in() {
    let folder = Folder::new();
    for _ in 0..5 {
        assert_eq!(folder.run("acquire video-requests u1").code, 0);
    }
    let ran = folder.run("standing video-requests u1");
    assert_eq!((ran.code, &*ran.err), (0, ""));
    let mut lines = ran.out.lines();
    assert_eq!(lines.next(), Some("u1 under video-requests"));
    let line = lines.next().expect("a line for the limit");
    let rest = line.strip_prefix("  daily: used 5 of 5, resets in ").expect("reads like R004.8");
    let (reset_in, at) = rest.split_once(" (at ").expect("in how long, and when");
    assert!(reset_in == "1d" || reset_in.starts_with("23h "), "{reset_in}");
    assert!(at.ends_with("Z)"), "{at}");

    let (code, body) = folder.json("standing video-requests u1");
    assert_eq!(code, 0);
    let limit = &body["limits"][0];
    assert_eq!(
        (&limit["used"], &limit["limit"], &limit["remaining"]),
        (&5.into(), &5.into(), &0.into())
    );
    assert!(text(limit, "reset_at").ends_with('Z'));
    assert!(text(limit, "reset_in") == "1d" || text(limit, "reset_in").starts_with("23h "));
}

/// A bucket does not reset: it refills until it is full.
#[test]
fn standing_says_when_a_bucket_is_full() {
    let folder = crate::stores::on("");
    assert_eq!(folder.run("acquire llm p --cost tokens=3").code, 0);
    let ran = folder.run("standing llm p");
    assert!(ran.out.contains("\n  rpm: used 1 of 5, 4 left, resets in 1h"), "{}", ran.out);
    assert!(
        ran.out.contains("\n  tpm: used 3 of 10000, 9997 left, full in 3h (at "),
        "{}",
        ran.out
    );
}

/// R004.7: looking consumes nothing, and a new subject has everything left.
#[test]
fn r004_7_standing_consumes_nothing() {
    let folder = Folder::new();
    folder.run("acquire video-requests u1");
    for _ in 0..10 {
        let ran = folder.run("standing video-requests u1");
        assert!(ran.out.contains("\n  daily: used 1 of 5, 4 left, resets in "), "{}", ran.out);
    }
    assert_eq!(
        folder.run("standing video-requests u2").out,
        "u2 under video-requests\n  daily: used 0 of 5, 5 left\n"
    );
}

/// R000.6: the daily limit of the provider's zone is one of the three, with its reset time.
#[test]
fn r000_6_the_daily_limit_resets_at_midnight_of_its_zone() {
    let folder = Folder::new();
    folder.run("acquire gemini-free p7 --cost tokens=1");
    let (_, body) = folder.json("standing gemini-free p7");
    let rpd = &body["limits"][2];
    assert_eq!(rpd["name"], "rpd");
    let reset_at = text(rpd, "reset_at");
    assert!(reset_at.ends_with("T08:00:00Z") || reset_at.ends_with("T07:00:00Z"), "{reset_at}");
}

#[test]
fn settle_replaces_the_estimate_once() {
    let folder = Folder::new();
    let (_, body) = folder.json("acquire gemini-free p7 --cost tokens=3750");
    let settle = format!("settle {} --actual tokens=3100", text(&body, "permit"));
    let ran = folder.run(&settle);
    assert_eq!((ran.code, &*ran.out), (0, "settled\n"), "{}", ran.err);
    let (_, body) = folder.json("standing gemini-free p7");
    assert_eq!(body["limits"][1]["used"], 3_100);
    let ran = folder.run(&settle);
    assert_eq!(ran.code, 0);
    assert_eq!(
        ran.out,
        "nothing changed: the permit was settled or released before, charged nothing, was given by another broker, which \
         alone can give it back, or in an outage whose charges are posted already\n"
    );
    assert_eq!(folder.json(&settle).1["changed"], false);
}

#[test]
fn release_gives_everything_back() {
    let folder = Folder::new();
    let (_, body) = folder.json("acquire gemini-free p7 --cost tokens=3750");
    let release = format!("release {}", text(&body, "permit"));
    assert_eq!(folder.run(&release).out, "released\n");
    let (_, body) = folder.json("standing gemini-free p7");
    for limit in body["limits"].as_array().expect("a list") {
        assert_eq!(limit["used"], 0, "{limit}");
    }
    assert_eq!(folder.json(&release).1["changed"], false);
}

#[test]
fn renew_keeps_slots_and_release_frees_them() {
    let folder = Folder::with(JOBS);
    let ask = "acquire jobs ci --cost jobs=1";
    let (_, first) = folder.json(ask);
    let permit = text(&first, "permit").to_owned();
    assert_eq!(folder.run(ask).code, 0);
    assert_eq!(folder.run(ask).code, 1);

    let ran = folder.run(&format!("renew {permit}"));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.out.starts_with("renewed: slots expire at 2") && ran.out.contains("Z\npermit "),
        "{}",
        ran.out
    );
    let (_, renewed) = folder.json(&format!("renew {permit}"));
    assert!(text(&first, "expires_at") <= text(&renewed, "expires_at"));

    assert_eq!(folder.run(&format!("release {}", text(&renewed, "permit"))).code, 0);
    assert_eq!(folder.run(ask).code, 0);
}

#[test]
fn reset_says_what_it_did() {
    let folder = Folder::new();
    folder.run("acquire video-requests u1");
    let ran = folder.run("reset video-requests u1");
    assert_eq!(
        (ran.code, &*ran.out),
        (0, "reset: u1 starts with nothing used under video-requests\n")
    );
    let ran = folder.run("reset video-requests u1");
    assert_eq!(ran.out, "nothing to reset: u1 has nothing on record under video-requests\n");
    assert_eq!(
        folder.json("reset video-requests u1"),
        (0, serde_json::json!({ "changed": false }))
    );
}

/// Promise 5: an ask that is repeated with its id is charged once; with other costs it is a conflict.
#[test]
fn an_id_is_charged_once() {
    let folder = Folder::new();
    let (_, first) = folder.json("acquire gemini-free p7 --cost tokens=100 --id job-1");
    let (_, again) = folder.json("acquire gemini-free p7 --cost tokens=100 --id job-1");
    assert_eq!(first["permit"], again["permit"]);
    assert_eq!(again["limits"][1]["used"], 100);
    let (code, problem) = folder.json("acquire gemini-free p7 --cost tokens=200 --id job-1");
    assert_eq!((code, &problem["kind"]), (2, &"conflict".into()), "{problem}");
}

#[test]
fn a_cost_that_never_fits_says_so() {
    let folder = Folder::new();
    let ask = "acquire gemini-free p7 --cost tokens=300_000";
    let ran = folder.run(ask);
    let text = "denied by tpm: 300000 tokens never fit, at most 250000 at once do; ask for less\n";
    assert_eq!((ran.code, &*ran.out), (1, text));
    let (_, body) = folder.json(ask);
    assert_eq!(body["never"], true);
    assert!(body.get("retry_after_ms").is_none());
    // Waiting would not help, so the ask does not wait.
    assert_eq!(folder.run(&format!("{ask} --wait 5m")).code, 1);
}

#[test]
fn shadow_mode_admits_and_says_what_it_would_have_denied() {
    let folder = Folder::with(JOBS);
    assert_eq!(folder.run("acquire shadow u1").code, 0);
    let ran = folder.run("acquire shadow u1");
    assert_eq!(ran.code, 0);
    assert!(
        ran.out.starts_with("admitted (shadow mode; otherwise denied by few: 0 of 1 left, "),
        "{}",
        ran.out
    );
    let (_, body) = folder.json("acquire shadow u1");
    assert_eq!(body["shadow_denied"]["limit"], "few");
}

/// The wait is the window, a fifth of a second; a wait that cannot end in time is answered at once.
#[test]
fn wait_comes_back_at_the_promised_time() {
    let folder = Folder::with(JOBS);
    assert_eq!(folder.run("acquire quick u1").code, 0);
    let ran = folder.run("acquire quick u1 --wait 5s");
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    // An hour away: the ask fails at once if it cannot be admitted in time.
    assert_eq!(folder.run("acquire hourly u1").code, 0);
    let ran = folder.run("acquire hourly u1 --wait 5m");
    assert_eq!(ran.code, 1);
    assert!(ran.out.starts_with("denied by one: 0 of 1 left, try again in "), "{}", ran.out);
}

#[test]
fn policies_lists_limits_and_what_they_issue() {
    let folder = Folder::new();
    let ran = folder.run("policies");
    assert_eq!(ran.code, 0);
    assert_eq!(
        ran.out,
        "gemini-free\n  \
           rpm: requests, 5 in any 1m, margin 2s; issues at most 5\n  \
           tpm: tokens, 250000 in any 1m, on a grid of 64 slots, margin 2s; issues at most 250000\n  \
           rpd: requests, 25 per day in America/Los_Angeles; issues at most 25\n\
         api\n  \
           burst: requests, 20 at once, 10 back per 1s; issues at most 20\n\
         video-requests\n  \
           daily: requests, 5 in any 1d; issues at most 5\n"
    );
    let (code, body) = folder.json("policies");
    assert_eq!(code, 0);
    assert_eq!(body["policies"].as_array().map(Vec::len), Some(3));
    // Listing opens no store.
    assert!(!folder.path().join("tollgate-data").exists());
}
