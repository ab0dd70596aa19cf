//! Settings that are each right and do not go together, such as a strategy without what it needs. Said before anything is
//! opened, with the line.

use super::{RPM, with_limit};
use crate::folder::Folder;

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
