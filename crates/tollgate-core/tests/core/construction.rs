//! Goal: a policy that cannot be kept is refused when it is built, with what is wrong and what would be right.
//! Method: one row per mistake; each message must name the policy, the limit, the number and the way out.

use tollgate_core::bounds::{FINE_CAPACITY_MAX, NUMBER_MAX, SLOTS_MAX, SPAN_MAX};
use tollgate_core::{
    Ask, CalendarWindow, Concurrency, Entry, Error, ErrorKind, Headroom, Known, Limit, Period,
    Policy, RollingWindow, Rule, Span, Timestamp, TokenBucket, decide,
};

fn limit(rule: impl Into<Rule>) -> Limit {
    Limit::new("l", "requests", rule)
}

fn built(limit: Limit) -> Result<Policy, Error> {
    Policy::new("p", [limit])
}

fn bucket() -> TokenBucket {
    TokenBucket::per_second(10)
}

/// Each message holds every one of these fragments.
fn says(result: Result<Policy, Error>, fragments: &[&str]) {
    let error = result.expect_err("it should be refused");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = error.to_string();
    for fragment in fragments {
        assert!(text.contains(fragment), "{text:?} does not say {fragment:?}");
    }
    assert!(!text.ends_with('.'), "{text:?}");
}

#[test]
fn names_are_checked() {
    says(Policy::new("", [limit(bucket())]), &["policy name \"\"", "1 to 64 letters"]);
    says(Policy::new("a b", [limit(bucket())]), &["policy name \"a b\"", "letters, digits"]);
    let long = "x".repeat(65);
    says(Policy::new(&long, [limit(bucket())]), &["must be 1 to 64"]);
    assert!(Policy::new("x".repeat(64), [limit(bucket())]).is_ok());
    says(built(Limit::new("l/m", "requests", bucket())), &["policy \"p\"", "limit name \"l/m\""]);
    says(built(Limit::new("l", "", bucket())), &["limit \"l\"", "unit \"\""]);
}

#[test]
fn a_policy_needs_limits_of_different_names_and_few_units() {
    says(Policy::new("p", []), &["policy \"p\"", "has 0 limits", "1 to 16"]);
    let many = |count: usize| {
        (0..count).map(|place| Limit::new(format!("l{place}"), "requests", bucket()))
    };
    says(Policy::new("p", many(17)), &["has 17 limits"]);
    assert!(Policy::new("p", many(16)).is_ok());
    let twice = [limit(bucket()), limit(bucket())];
    says(Policy::new("p", twice), &["two limits called \"l\"", "its own name"]);
    let units = |count: usize| {
        (0..count).map(|place| Limit::new(format!("l{place}"), format!("u{place}"), bucket()))
    };
    says(Policy::new("p", units(9)), &["counts 9 units", "at most 8"]);
    assert!(Policy::new("p", units(8)).is_ok());
}

#[test]
fn numbers_have_bounds_on_both_sides() {
    let zero = "must be between 1 and";
    says(built(limit(bucket().burst(0))), &["limit \"l\"", "capacity 0", zero]);
    says(built(limit(TokenBucket::per_second(0).burst(5))), &["refill 0", zero]);
    says(built(limit(TokenBucket::per(5, Span::ZERO))), &["refill period 0s", "1us"]);
    says(built(limit(RollingWindow::new(0, Span::from_secs(1)))), &["limit 0", zero]);
    says(built(limit(RollingWindow::new(5, Span::ZERO))), &["window 0s", "between 1us and"]);
    says(built(limit(CalendarWindow::new(0, Period::Day))), &["limit 0", zero]);
    says(built(limit(Concurrency::new(0, Span::from_secs(1)))), &["limit 0", zero]);
    says(built(limit(Concurrency::new(5, Span::ZERO))), &["ttl 0s", "between 1us and"]);
    let largest = RollingWindow::new(NUMBER_MAX, SPAN_MAX);
    assert!(built(limit(largest)).is_ok());
    says(built(limit(RollingWindow::new(NUMBER_MAX + 1, SPAN_MAX))), &["9007199254740992"]);
    let longer = SPAN_MAX.plus(Span::from_micros(1));
    says(built(limit(RollingWindow::new(5, longer))), &["window", "must be between"]);
    says(
        built(limit(Concurrency::new(SLOTS_MAX + 1, Span::from_secs(1)))),
        &["limit 10001", "10000"],
    );
    assert!(built(limit(Concurrency::new(SLOTS_MAX, Span::from_secs(1)))).is_ok());
    let fine = |slots| limit(RollingWindow::new(5, Span::from_secs(1)).resolution(slots));
    says(built(fine(0)), &["resolution 0", "between 1 and 1000"]);
    says(built(fine(1_001)), &["resolution 1001"]);
    assert!(built(fine(1_000)).is_ok());
}

/// A store that counts in doubles must hold a full bucket and as much debt exactly.
#[test]
fn a_bucket_finer_than_every_store_can_hold_is_refused() {
    let period = Span::from_secs(10);
    let most = FINE_CAPACITY_MAX / period.as_micros();
    assert!(built(limit(TokenBucket::per(1, period).burst(most))).is_ok());
    let finer = built(limit(TokenBucket::per(1, period).burst(most + 1)));
    says(
        finer,
        &["limit \"l\"", "at 1 per 10s", "at most 2^52", "a smaller capacity, a rounder rate"],
    );
    // The same numbers at a rounder rate are fine.
    assert!(built(limit(TokenBucket::per(10, period).burst(most + 1))).is_ok());
}

#[test]
fn zones_headroom_and_margins_are_checked() {
    let mars = CalendarWindow::new(5, Period::Day).in_zone("Mars/Olympus");
    says(built(limit(mars)), &["\"Mars/Olympus\" is not a time zone", "Europe/Berlin"]);
    says(built(limit(bucket()).headroom(Headroom::Percent(100))), &["headroom must be below 100%"]);
    says(
        built(limit(bucket()).headroom(Headroom::Units(10))),
        &["nothing is left to issue", "of 10 the headroom takes 10", "raise the limit"],
    );
    assert!(built(limit(bucket()).headroom(Headroom::Units(9))).is_ok());
    let day = limit(CalendarWindow::new(5, Period::Day)).margin(Span::from_secs(61));
    says(built(day), &["calendar-window", "at most 60s", "not 61s"]);
    let slots = limit(Concurrency::new(5, Span::from_secs(1))).margin(Span::from_secs(1));
    says(built(slots), &["concurrency has no window", "remove it"]);
}

/// Design, section 4: a policy with B − r·τ < 1 is refused, and what is left is shown.
#[test]
fn what_margin_and_block_ttl_leave_is_shown_and_must_be_something() {
    let leased = |millis| {
        let block_ttl = Span::from_millis(millis);
        Policy::builder("p").limit(limit(bucket().burst(20))).block_ttl(block_ttl).build()
    };
    let effective = |millis| leased(millis).map(|policy| policy.effective().collect::<Vec<_>>());
    assert_eq!(effective(0), Ok(vec![20]));
    assert_eq!(effective(1_000), Ok(vec![10]));
    assert_eq!(effective(1_001), Ok(vec![9]), "a part of a token counts whole");
    assert_eq!(effective(1_900), Ok(vec![1]));
    says(leased(1_901), &["nothing is left to issue", "block_ttl of 1901ms", "lower one of them"]);
    let too_long = Policy::builder("p").limit(limit(RollingWindow::new(5, Span::from_secs(1))));
    let longer = SPAN_MAX.plus(Span::from_micros(1));
    says(too_long.block_ttl(longer).build(), &["block_ttl must be at most"]);
}

#[test]
fn headroom_in_percent_rounds_up() {
    for (of, percent, issued) in [(100, 20, 80), (10, 1, 9), (10, 99, 0), (101, 50, 50), (7, 0, 7)]
    {
        let rule = RollingWindow::new(of, Span::from_secs(1));
        let policy = built(limit(rule).headroom(Headroom::Percent(percent)));
        match policy {
            Ok(policy) => assert_eq!(policy.effective().collect::<Vec<_>>(), [issued]),
            Err(error) => assert_eq!(issued, 0, "{error}"),
        }
    }
}

#[test]
fn overrides_must_have_the_limits_of_the_policy() {
    let over = |subject: &str, limits| {
        Policy::builder("p").limit(limit(bucket())).override_for(subject, limits).build()
    };
    says(over("vip", vec![]), &["override for \"vip\"", "the policy's own limits (l)"]);
    says(over("", vec![limit(bucket())]), &["a subject must be 1 to 256 bytes long, not 0"]);
    let bad = vec![limit(bucket().burst(NUMBER_MAX + 1))];
    says(over("vip", bad), &["override for \"vip\"", "limit \"l\""]);
    let twice = Policy::builder("p")
        .limit(limit(bucket()))
        .override_for("vip", vec![limit(bucket())])
        .override_for("vip", vec![limit(bucket())]);
    says(twice.build(), &["\"vip\" is there twice", "keep one"]);
    let raised = over("vip", vec![limit(bucket().burst(50))]).expect("a right override");
    assert_eq!(raised.for_subject("vip").effective().collect::<Vec<_>>(), [50]);
    assert_eq!(raised.for_subject("other").effective().collect::<Vec<_>>(), [10]);
    let blocked = over("vip", vec![limit(bucket().burst(0))]).expect("a block");
    assert_eq!(blocked.for_subject("vip").effective().collect::<Vec<_>>(), [0]);
}

#[test]
fn a_wrong_ask_is_an_error_that_says_what_would_be_right() {
    let policy = built(limit(bucket())).expect("a right policy");
    let now = Timestamp::from_secs(1);
    let entry = Entry::fresh(&policy, now);
    let long = "x".repeat(300);
    let rows = [
        (Ask::new(&policy, "s").cost("words", 1), "has no limit on \"words\"; it counts requests"),
        (
            Ask::new(&policy, "s").cost("requests", NUMBER_MAX + 1),
            "must be at most 9007199254740991",
        ),
        (Ask::new(&policy, ""), "a subject must be 1 to 256 bytes long, not 0"),
        (Ask::new(&policy, long.as_str()), "not 300"),
        (Ask::new(&policy, "s").id(""), "an id must be 1 to 128 bytes long, not 0"),
        (Ask::new(&policy, "s").id(long.as_str()), "an id must be 1 to 128 bytes long, not 300"),
    ];
    for (ask, text) in rows {
        let error = decide(&entry, now, &ask, Known::New).expect_err("it should be refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(text), "{error} does not say {text:?}");
    }
}
