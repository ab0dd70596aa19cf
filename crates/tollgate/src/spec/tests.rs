//! Specs and their policies, both ways, and every kind of mistake.

use super::fault::{Fault, Step, reword_serde_error};
use super::rate::{parse_rate, print_rate};
use super::{HeadroomSpec, LimitSpec, OverrideSpec, PolicySpec};
use crate::internal::nearest;
use crate::policy::{Period, Refill, Rule};
use crate::{Policy, Span};

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn limit(name: &str, rule: &str) -> LimitSpec {
    LimitSpec {
        name: name.to_owned(),
        unit: text("requests"),
        rule: text(rule),
        ..LimitSpec::default()
    }
}

fn rolling() -> LimitSpec {
    LimitSpec { limit: Some(5), window: text("1m"), ..limit("rpm", "rolling-window") }
}

fn bucket() -> LimitSpec {
    LimitSpec { capacity: Some(20), refill: text("10/s"), ..limit("burst", "token-bucket") }
}

fn calendar() -> LimitSpec {
    LimitSpec { limit: Some(25), period: text("day"), ..limit("rpd", "calendar-window") }
}

fn slots() -> LimitSpec {
    LimitSpec { limit: Some(3), ttl: text("5m"), ..limit("jobs", "concurrency") }
}

fn policy(limits: Vec<LimitSpec>) -> PolicySpec {
    PolicySpec { name: "p".to_owned(), limits, ..PolicySpec::default() }
}

fn only_rule(limit: LimitSpec) -> Rule {
    let policy = policy(vec![limit]).resolve().unwrap();
    policy.limits().next().unwrap().rule().clone()
}

fn fault(limit: LimitSpec) -> Fault {
    policy(vec![limit]).resolve().unwrap_err()
}

#[test]
fn the_four_rules_resolve() {
    let Rule::TokenBucket(rule) = only_rule(bucket()) else { panic!("not a bucket") };
    assert_eq!((rule.capacity, rule.refill, rule.period), (20, 10, Span::from_secs(1)));
    let Rule::RollingWindow(rule) = only_rule(rolling()) else { panic!("not a rolling window") };
    assert_eq!((rule.limit, rule.window, rule.resolution), (5, Span::from_mins(1), None));
    let Rule::CalendarWindow(rule) = only_rule(calendar()) else { panic!("not a calendar") };
    assert_eq!((rule.limit, rule.period, &*rule.zone), (25, Period::Day, "UTC"));
    let Rule::Concurrency(rule) = only_rule(slots()) else { panic!("not slots") };
    assert_eq!((rule.limit, rule.ttl), (3, Span::from_mins(5)));
}

/// Conflict 7 of the requirements: both ways of refilling are a setting.
#[test]
fn a_bucket_refills_as_its_mode_says() {
    for (mode, refill) in [
        (None, Refill::Continuous),
        (text("continuous"), Refill::Continuous),
        (text("interval"), Refill::Interval),
    ] {
        let Rule::TokenBucket(rule) = only_rule(LimitSpec { mode, ..bucket() }) else {
            panic!("not a bucket")
        };
        assert_eq!(rule.mode, refill);
    }
}

#[test]
fn rates_parse_and_print_back() {
    let rows = [
        ("10/s", 10, Span::from_secs(1), "10/s"),
        ("5/1m", 5, Span::from_mins(1), "5/m"),
        ("7/m", 7, Span::from_mins(1), "7/m"),
        ("250_000 / h", 250_000, Span::from_hours(1), "250000/h"),
        ("3/10s", 3, Span::from_secs(10), "3/10s"),
        ("1/90s", 1, Span::from_secs(90), "1/90s"),
        ("1000/d", 1_000, Span::from_hours(24), "1000/d"),
        ("2/1h30m", 2, Span::from_mins(90), "2/90m"),
    ];
    for (given, amount, period, printed) in rows {
        assert_eq!(parse_rate(given).unwrap(), (amount, period), "{given}");
        assert_eq!(print_rate(amount, period), printed);
        assert_eq!(parse_rate(printed).unwrap(), (amount, period));
    }
    for bad in ["", "10", "/s", "10/", "10/fortnight", "-1/s", "1.5/s", "10/s/s"] {
        assert!(parse_rate(bad).is_err(), "{bad:?} was accepted");
    }
}

#[test]
fn what_is_wrong_with_a_limit_is_said_with_its_place() {
    let rows = [
        (
            LimitSpec { window: None, ..rolling() },
            "limit \"rpm\": rolling-window needs window, as in window = \"1m\"",
            None,
        ),
        (
            LimitSpec { window: text("1 fortnight"), ..rolling() },
            "limit \"rpm\": window \"1 fortnight\" is not a length of time; write a whole number and a unit \
             (us, ms, s, m, h, d), as in 30s or 1h30m",
            Some("window"),
        ),
        (
            LimitSpec { limit: Some(5), ..bucket() },
            "limit \"burst\": token-bucket takes no limit; it takes capacity, refill, mode, headroom, margin",
            Some("limit"),
        ),
        (
            LimitSpec { rule: text("sliding-window"), ..rolling() },
            "limit \"rpm\": there is no rule \"sliding-window\"; did you mean rolling-window? known: \
             token-bucket, rolling-window, calendar-window, concurrency",
            Some("rule"),
        ),
        (
            LimitSpec { unit: None, ..rolling() },
            "limit \"rpm\": needs unit, as in unit = \"requests\"",
            None,
        ),
        (
            LimitSpec { refill: text("10 per second"), ..bucket() },
            "limit \"burst\": refill \"10 per second\" is not a rate; write how many in which time, as in \
             \"10/s\", \"5/1m\" or \"1000/d\"",
            Some("refill"),
        ),
        (
            LimitSpec { mode: text("lazy"), ..bucket() },
            "limit \"burst\": mode \"lazy\" is neither \"continuous\" nor \"interval\"",
            Some("mode"),
        ),
        (
            LimitSpec { period: text("year"), ..calendar() },
            "limit \"rpd\": period \"year\" is not a period; use minute, hour, day, week or month",
            Some("period"),
        ),
        (
            LimitSpec { margin: text("2s"), ..slots() },
            "limit \"jobs\": concurrency takes no margin; it takes limit, ttl, headroom",
            Some("margin"),
        ),
        (
            LimitSpec { headroom: Some(HeadroomSpec::Text("a fifth".to_owned())), ..rolling() },
            "limit \"rpm\": headroom \"a fifth\" is neither a whole number of units, as in 1, nor a \
             percentage, as in \"20%\"",
            Some("headroom"),
        ),
        (
            LimitSpec { name: String::new(), ..rolling() },
            "limit number 1: needs name, as in name = \"rpm\"",
            None,
        ),
    ];
    for (spec, text, field) in rows {
        let fault = fault(spec);
        assert_eq!(fault.to_string(), text);
        let mut path = vec![Step::Field("limits"), Step::Element(0)];
        path.extend(field.map(Step::Field));
        assert_eq!(fault.path(), path, "{text}");
    }
}

/// An error of the core is reported at the limit that caused it, without saying the name of the policy twice.
#[test]
fn numbers_out_of_bounds_are_reported_at_their_limit() {
    let spec = policy(vec![bucket(), LimitSpec { limit: Some(0), ..rolling() }]);
    let fault = spec.resolve().unwrap_err();
    assert_eq!(fault.to_string(), "limit \"rpm\": limit 0 must be between 1 and 9007199254740991");
    assert_eq!(fault.path(), [Step::Field("limits"), Step::Element(1)]);
    let error = spec.build().unwrap_err().to_string();
    assert_eq!(
        error,
        "policy \"p\": limit \"rpm\": limit 0 must be between 1 and 9007199254740991"
    );
    let fault = policy(vec![LimitSpec { capacity: Some(0), ..bucket() }]).resolve().unwrap_err();
    let expected = "limit \"burst\": capacity 0 must be between 1 and 9007199254740991";
    assert_eq!(fault.to_string(), expected, "the field as it is written");
}

#[test]
fn what_is_wrong_with_a_policy_is_said_with_its_place() {
    let good = || policy(vec![rolling()]);
    let rows = [
        (PolicySpec { name: String::new(), ..good() }, "a policy needs name", vec![]),
        (PolicySpec { limits: vec![], ..good() }, "policy \"p\" needs limits, as in", vec![]),
        (
            PolicySpec { name: "a b".to_owned(), ..good() },
            "policy name \"a b\" must be 1 to 64 letters",
            vec![Step::Field("name")],
        ),
        (
            PolicySpec { on_store_failure: text("panic"), ..good() },
            "on_store_failure \"panic\" is not one of fallback, open or closed",
            vec![Step::Field("on_store_failure")],
        ),
        (
            PolicySpec { block_ttl: text("soon"), ..good() },
            "block_ttl \"soon\" is not a length of time",
            vec![Step::Field("block_ttl")],
        ),
        (
            policy(vec![rolling(), rolling()]),
            "limit \"rpm\": the name is taken",
            vec![Step::Field("limits"), Step::Element(1), Step::Field("name")],
        ),
    ];
    for (spec, start, path) in rows {
        let fault = spec.resolve().unwrap_err();
        assert!(fault.to_string().starts_with(start), "{fault}");
        assert_eq!(fault.path(), path, "{fault}");
    }
}

fn with_override(limits: Vec<LimitSpec>) -> PolicySpec {
    let other = OverrideSpec { subject: "alice".to_owned(), limits, ..OverrideSpec::default() };
    PolicySpec { overrides: vec![other], ..policy(vec![bucket(), rolling()]) }
}

fn change(name: &str) -> LimitSpec {
    LimitSpec { name: name.to_owned(), ..LimitSpec::default() }
}

#[test]
fn an_override_changes_only_what_it_gives() {
    let spec = with_override(vec![LimitSpec { limit: Some(50), ..change("rpm") }]);
    let policy = spec.resolve().unwrap();
    let limits: Vec<u64> =
        policy.for_subject("alice").limits().map(|it| it.rule().limit()).collect();
    assert_eq!(limits, [20, 50]);
    let limits: Vec<u64> = policy.for_subject("bob").limits().map(|it| it.rule().limit()).collect();
    assert_eq!(limits, [20, 5]);
}

#[test]
fn what_is_wrong_with_an_override_is_said_with_its_place() {
    let rows = [
        (
            LimitSpec { limit: Some(50), ..change("rpn") },
            "override for \"alice\": limit \"rpn\": the policy has no such limit; did you mean rpm? \
             known: burst, rpm",
            Some("name"),
        ),
        (
            LimitSpec { rule: text("concurrency"), ..change("rpm") },
            "override for \"alice\": limit \"rpm\": an override keeps the rule of the policy; remove rule",
            Some("rule"),
        ),
        (
            LimitSpec { capacity: Some(9), ..change("rpm") },
            "override for \"alice\": limit \"rpm\": rolling-window takes no capacity; it takes limit, \
             window, resolution, headroom, margin",
            Some("capacity"),
        ),
        (
            LimitSpec { limit: Some(1 << 53), ..change("rpm") },
            "override for \"alice\": limit \"rpm\": limit 9007199254740992 must be between 1 and 9007199254740991",
            None,
        ),
        (
            change("rpm"),
            "override for \"alice\": limit \"rpm\": nothing changes; give a field of the limit, or remove this",
            Some("name"),
        ),
        (
            LimitSpec { capacity: Some(40), ..change("burst") },
            "override for \"alice\": limit \"burst\": the override changes this limit already; keep one of the two",
            Some("name"),
        ),
    ];
    for (changes, text, field) in rows {
        // The wrong one is second, so that the path needs its index.
        let right = LimitSpec { capacity: Some(30), ..change("burst") };
        let fault = with_override(vec![right, changes]).resolve().unwrap_err();
        assert_eq!(fault.to_string(), text);
        let mut path = vec![
            Step::Field("overrides"),
            Step::Element(0),
            Step::Field("limits"),
            Step::Element(1),
        ];
        path.extend(field.map(Step::Field));
        assert_eq!(fault.path(), path, "{text}");
    }
}

/// The spec of a policy makes the same policy again.
#[test]
fn a_policy_shows_what_made_it() {
    let spec = PolicySpec {
        shadow: true,
        on_store_failure: text("fallback"),
        block_ttl: text("1s"),
        overrides: vec![
            OverrideSpec {
                subject: "alice".to_owned(),
                limits: vec![LimitSpec {
                    capacity: Some(40),
                    refill: text("3/7s"),
                    ..change("burst")
                }],
                weight: Some(5),
                ..OverrideSpec::default()
            },
            OverrideSpec {
                subject: "bob".to_owned(),
                limits: vec![LimitSpec {
                    margin: text("0s"),
                    headroom: Some(HeadroomSpec::Units(0)),
                    ..change("rpm")
                }],
                ..OverrideSpec::default()
            },
        ],
        ..policy(vec![
            bucket(),
            LimitSpec {
                resolution: Some(60),
                margin: text("2s"),
                headroom: Some(HeadroomSpec::Text("20%".to_owned())),
                ..rolling()
            },
            LimitSpec {
                time_zone: text("America/Los_Angeles"),
                headroom: Some(HeadroomSpec::Units(1)),
                ..calendar()
            },
            slots(),
            LimitSpec { name: "ticks".to_owned(), mode: text("interval"), ..bucket() },
        ])
    };
    let policy: Policy = spec.build().unwrap();
    assert_eq!(PolicySpec::from_policy(&policy), spec);
    assert_eq!(PolicySpec::from_policy(&policy).build().unwrap(), policy);
}

#[test]
fn names_that_are_close_are_suggested() {
    let known = ["gemini-free", "api", "video-requests"];
    assert_eq!(nearest("gemni-free", known), Some("gemini-free"));
    assert_eq!(nearest("video_request", known), Some("video-requests"));
    assert_eq!(nearest("API", known), Some("api"));
    assert_eq!(nearest("database", known), None);
    assert_eq!(nearest(&"x".repeat(10_000), known), None);
}

#[test]
fn complaints_of_serde_are_put_into_words() {
    let message = "unknown field `windw`, expected one of `limit`, `window`, `refill`";
    let explained = reword_serde_error(message, "a table");
    assert_eq!(
        explained,
        "there is no \"windw\" here; did you mean window? known: limit, window, refill"
    );
    let message = "unknown field `colour`, expected `limit` or `window`";
    let explained = reword_serde_error(message, "a table");
    assert_eq!(explained, "there is no \"colour\" here; known: limit, window");
    assert_eq!(reword_serde_error("invalid type: string", "a table"), "invalid type: string");
    let message = "invalid type: string \"x\", expected struct LimitSpec";
    assert_eq!(
        reword_serde_error(message, "a table"),
        "invalid type: string \"x\", expected a table"
    );
}

#[test]
fn a_weight_is_kept_and_bounded() {
    let spec = |weight| PolicySpec {
        name: "api".to_owned(),
        limits: vec![bucket()],
        weight,
        ..PolicySpec::default()
    };
    assert_eq!(spec(None).build().unwrap().weight(), 1);
    let gold = spec(Some(3)).build().unwrap();
    assert_eq!((gold.weight(), PolicySpec::from_policy(&gold).weight), (3, Some(3)));
    let raised = gold.with_override("alice", Some(gold.limits().cloned().collect())).unwrap();
    assert_eq!((raised.weight(), raised.for_subject("alice").weight()), (3, 3));
    for weight in [0, 1_001] {
        let error = spec(Some(weight)).build().unwrap_err().to_string();
        assert!(error.contains("weight must be 1 to 1000"), "{error}");
    }
}

/// An override may have a weight without other numbers, and keeps it when another subject is overridden.
#[test]
fn an_override_has_a_weight_of_its_own() {
    let spec = |weight| PolicySpec {
        name: "api".to_owned(),
        limits: vec![bucket()],
        weight: Some(2),
        overrides: vec![OverrideSpec {
            subject: "gold".to_owned(),
            weight: Some(weight),
            ..OverrideSpec::default()
        }],
        ..PolicySpec::default()
    };
    let policy = spec(7).build().unwrap();
    let weights = |policy: &Policy| ["gold", "alice"].map(|it| policy.for_subject(it).weight());
    assert_eq!(weights(&policy), [7, 2]);
    assert_eq!(PolicySpec::from_policy(&policy), spec(7));
    let raised = policy.with_override("bob", Some(policy.limits().cloned().collect())).unwrap();
    assert_eq!(weights(&raised), [7, 2]);
    let fault = spec(1_001).build().unwrap_err().to_string();
    assert!(fault.contains("override for \"gold\"") && fault.contains("1 to 1000"), "{fault}");
}
