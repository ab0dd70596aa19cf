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
            "standing api u1 --server https://broker",
            "invalid",
            "--server \"https://broker\" needs https, which is not available in this version; write it as in http://127.0.0.1:8080",
        ),
        (
            "standing api u1 --server http://127.0.0.1:1",
            "unavailable",
            "no answer from http://127.0.0.1:1: nobody listens there; start a broker with tollgate serve, or check --server",
        ),
        (
            "serve --server http://127.0.0.1:1",
            "invalid",
            "serve is the broker itself; leave --server out",
        ),
        (
            "serve --http 8080",
            "invalid",
            "--http \"8080\" is not an address and port, as in 127.0.0.1:8080",
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
