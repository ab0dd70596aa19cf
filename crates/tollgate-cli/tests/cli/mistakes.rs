//! Questions that are wrong, and what is said about them.

use serde_json::Value;

use crate::folder::Folder;

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().expect("the member is text")
}

/// What is wrong with a question is said with what would be right, and before anything is made on disk.
#[test]
fn mistakes_in_a_question_are_explained() {
    let folder = Folder::new();
    let rows = [
        (
            "acquire video-request u1",
            "unknown-policy",
            "no policy is called \"video-request\"; did you mean video-requests? known: gemini-free, api, video-requests",
        ),
        (
            "acquire api u1 --cost tokens=5",
            "invalid",
            "policy \"api\" has no limit on \"tokens\"; it counts requests",
        ),
        (
            "acquire api u1 --cost tokens",
            "invalid",
            "\"tokens\" is not a cost; write a unit and a whole number, as in tokens=3750",
        ),
        (
            "acquire api u1 --wait soon",
            "invalid",
            "\"soon\" is not a length of time; write a whole number and a unit (us, ms, s, m, h, d), as in 30s or 1h30m",
        ),
        ("acquire api u1 --wait 2d", "invalid", "--wait 2d is too long; at most 1d"),
        (
            "acquire api u1 --wait 9s --backoff=fast",
            "invalid",
            "--backoff=fast is neither a shortest and a longest pause, as in --backoff=2s..8s, nor off",
        ),
        (
            "acquire api u1 --wait 9s --backoff=8s..2s",
            "invalid",
            "--backoff=8s..2s: pauses are 1ms to 1d, the shorter one first",
        ),
        (
            "acquire api u1 --wait 9s --backoff --jitter 101",
            "invalid",
            "--jitter 101 is a percentage, 0 to 100",
        ),
        (
            "standing api u1 --server ftp://broker",
            "invalid",
            "--server \"ftp://broker\" starts with neither http:// nor https://; write it as in http://127.0.0.1:8080",
        ),
        (
            "standing api u1 --server http://broker --authority ca.crt",
            "invalid",
            "--authority is for a broker with TLS; add --server https://…",
        ),
        (
            "standing api u1 --server https://broker --authority ca.crt",
            "invalid",
            "--authority ca.crt cannot be read: No such file or directory (os error 2)",
        ),
        (
            "standing api u1 --server http://127.0.0.1:1",
            "unavailable",
            "no answer from http://127.0.0.1:1: connection refused; start a broker with tollgate serve, or check --server",
        ),
        (
            "serve --server http://127.0.0.1:1",
            "invalid",
            "serve is the broker itself; leave --server out",
        ),
        (
            "violation api u1 --retry-after 0s",
            "invalid",
            "retry_after_ms 0 must be 1 to 2678400000 (31d): how long the provider asked to wait",
        ),
        (
            "audit incidents --server http://127.0.0.1:1",
            "invalid",
            "this reads the file of incidents itself; leave --server out, or ask a broker with audit denials --outcome violated",
        ),
        (
            "serve --http 8080",
            "invalid",
            "--http \"8080\" is not an address and port, as in 127.0.0.1:8080",
        ),
        (
            "serve --resp 6380",
            "invalid",
            "--resp \"6380\" is neither an address and port, as in 127.0.0.1:6380, nor off",
        ),
        (
            "serve --grpc 8081",
            "invalid",
            "--grpc \"8081\" is neither an address and port, as in 127.0.0.1:8081, nor off",
        ),
    ];
    for (arguments, kind, detail) in rows {
        let ran = folder.run(arguments);
        assert_eq!((ran.code, &*ran.out), (2, ""), "{arguments}");
        assert_eq!(ran.err, format!("tollgate: {detail}\n"));
        let (code, problem) = folder.json(arguments);
        assert_eq!(code, 2);
        assert_eq!((text(&problem, "kind"), text(&problem, "detail")), (kind, detail));
    }
    assert!(!folder.path().join("tollgate-data").exists());
}

/// Only an ask makes a store. Without one nothing is used, and no permit can be from it.
#[test]
fn a_question_about_no_store_makes_none() {
    let (folder, other) = (Folder::new(), Folder::new());
    let (_, body) = other.json("acquire api u1");
    let permit = text(&body, "permit");
    let strange =
        "the permit is not one that was given out; send it unchanged, as one piece of text";
    let nowhere = "there is no store at tollgate-data yet, so no permit can be from it; run it where the permit was \
                   given out, or name the broker with --server URL";
    for verb in ["settle", "release", "renew"] {
        for (permit, detail) in [("not/a/permit", strange), (permit, nowhere)] {
            let (code, problem) = folder.json(&format!("{verb} {permit}"));
            assert_eq!((code, text(&problem, "kind")), (2, "invalid"), "{problem}");
            assert_eq!(text(&problem, "detail"), detail);
        }
    }
    for verb in ["standing", "reset"] {
        let ran = folder.run_with(&[verb, "api", ""]);
        assert_eq!((ran.code, &*ran.out), (2, ""));
        assert_eq!(ran.err, "tollgate: a subject must be 1 to 256 bytes long, not 0\n");
    }
    let (code, standing) = folder.json("standing api u1");
    assert_eq!((code, &standing["limits"][0]["used"]), (0, &0.into()));
    let (code, reset) = folder.json("reset api u1");
    assert_eq!((code, &reset["changed"]), (0, &false.into()));
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "something was made");
}

/// A subject is whatever the caller likes, also what a terminal would obey.
#[test]
fn control_characters_in_a_subject_are_not_sent_to_the_terminal() {
    let folder = Folder::new();
    // Of its day nothing is given back while this runs, however slowly.
    let policy = "video-requests";
    let subject = "\u{1b}[2Jü\nx\u{9b}\u{7f}";
    let shown = r"\u{1b}[2Jü\nx\u{9b}\u{7f}";
    let first_line = |ran: &crate::folder::Ran| ran.out.lines().next().map(str::to_owned);
    let ran = folder.run_with(&["standing", policy, subject]);
    assert_eq!(first_line(&ran), Some(format!("{shown} under {policy}")));
    assert_eq!(folder.run_with(&["acquire", policy, subject]).code, 0);
    let ran = folder.run_with(&["reset", policy, subject]);
    assert_eq!(ran.out, format!("reset: {shown} starts with nothing used under {policy}\n"));
    let ran = folder.run_with(&["reset", policy, subject]);
    assert_eq!(
        ran.out,
        format!("nothing to reset: {shown} has nothing on record under {policy}\n")
    );
    let ran = folder.run_with(&["standing", policy, subject, "--json"]);
    let body: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(text(&body, "subject"), subject, "programs get it as it is");
}

/// Permits are sealed: what was not given out here refunds nothing.
#[test]
fn a_forged_permit_is_refused() {
    let (ours, theirs) = (Folder::new(), Folder::new());
    let (_, body) = theirs.json("acquire api u1");
    for permit in [text(&body, "permit"), "nonsense"] {
        for verb in ["settle", "release", "renew"] {
            let (code, problem) = ours.json(&format!("{verb} {permit}"));
            assert_eq!((code, &problem["kind"]), (2, &"invalid".into()), "{problem}");
        }
    }
}
