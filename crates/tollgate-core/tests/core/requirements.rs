//! The scenarios of the requirements that the core alone carries, number by number.

use tollgate_conformance::script::{Action, Reply};
use tollgate_core::{
    CalendarWindow, Costs, Headroom, Limit, Period, RollingWindow, Span, TokenBucket,
};

use crate::desk::{Desk, at, just_before, one, policy};

#[test]
fn r000_1_of_5000_tokens_3750_are_taken_and_1250_remain_for_nobody_twice() {
    let mut desk = Desk::new(&one(TokenBucket::per_minute(5_000)));
    desk.admitted(at(0), 3_750);
    assert_eq!(desk.standing(at(0)).remaining, 1_250);
    desk.denied(at(0), 1_251);
    desk.admitted(at(0), 1_250);
    desk.denied(at(0), 1);
}

#[test]
fn r000_2_not_enough_tokens_is_a_denial_and_the_retry_after_refill_succeeds() {
    let mut desk = Desk::new(&one(TokenBucket::per_minute(5_000)));
    desk.admitted(at(0), 4_000);
    // 2,750 are missing, at 5,000 a minute that is 33 s.
    assert_eq!(desk.denied(at(0), 3_750).until, Some(at(33)));
    desk.admitted(at(33), 3_750);
}

#[test]
fn r000_4_a_minute_brings_the_whole_allocation_once_and_on_the_boundary() {
    let mut desk = Desk::new(&policy([
        Limit::new("rpm", "requests", TokenBucket::per_minute(5).at_boundaries()),
        Limit::new("tpm", "tokens", TokenBucket::per_minute(250_000).at_boundaries()),
    ]));
    let costs = Costs::new().with("requests", 5).with("tokens", 250_000);
    let everything = Action::Acquire { costs, id: None };
    assert!(matches!(desk.play(at(59), &everything), Reply::Admitted(_)));
    assert!(matches!(desk.play(just_before(at(60)), &everything), Reply::Denied(_)));
    assert!(matches!(desk.play(at(60), &everything), Reply::Admitted(_)));
    // Asking again and again within the minute credits nothing more.
    for second in 60..120 {
        assert_eq!(desk.standing(at(second)).remaining, 0);
        assert!(matches!(desk.play(at(second), &everything), Reply::Denied(_)));
        assert_eq!(desk.standing(at(second)).refilled_at, Some(at(60)));
    }
    assert_eq!(desk.standing(at(120)).remaining, 5);
}

#[test]
fn r000_4_after_a_minute_a_continuous_bucket_is_full_too() {
    let mut desk = Desk::new(&one(TokenBucket::per_minute(5)));
    desk.admitted(at(17), 5);
    desk.admitted(at(77), 5);
}

#[test]
fn r000_5_thirty_seconds_bring_two_and_a_half_requests_and_125000_tokens() {
    let mut requests = Desk::new(&one(TokenBucket::per_minute(5)));
    requests.admitted(at(0), 5);
    assert_eq!(requests.standing(at(30)).remaining, 2);
    assert_eq!(requests.standing(at(30)).refilled_at, Some(at(30)));
    requests.admitted(at(30), 2);
    // The half that was left is not lost: the next comes after 6 s instead of 12 s.
    assert_eq!(requests.denied(at(30), 1).until, Some(at(36)));
    let mut tokens = Desk::new(&one(TokenBucket::per_minute(250_000)));
    tokens.admitted(at(0), 250_000);
    assert_eq!(tokens.standing(at(30)).remaining, 125_000);
}

/// Conflict 6: 25 per day means 25; headroom 1 reproduces the scenario to the letter.
#[test]
fn r000_6_number_26_is_refused_and_with_headroom_1_number_25_is() {
    let rule = CalendarWindow::new(25, Period::Day).in_zone("America/Los_Angeles");
    let limit = Limit::new("rpd", "requests", rule);
    for (limit, allowed) in [(limit.clone(), 25), (limit.headroom(Headroom::Units(1)), 24)] {
        let mut desk = Desk::new(&policy([limit]));
        for _ in 0..allowed {
            desk.admitted(at(0), 1);
        }
        let refused = desk.denied(at(0), 1);
        assert_eq!(refused.limit, "rpd");
        // 2023-11-14T23:00:00Z is three in the afternoon there; midnight is nine hours away.
        assert_eq!(refused.until, Some(at(9 * 3_600)));
        assert_eq!(desk.standing(at(9 * 3_600)).used, 0);
        assert_eq!(desk.standing(at(0)).limit, 25, "the limit is shown as configured");
    }
}

#[test]
fn r000_8_10000_less_3750_is_exactly_6250() {
    let mut desk = Desk::new(&one(TokenBucket::per_minute(10_000)));
    desk.admitted(at(0), 3_750);
    assert_eq!(desk.standing(at(0)).remaining, 6_250);
}

fn five_a_day() -> Desk {
    Desk::new(&one(RollingWindow::new(5, Span::from_hours(24))))
}

/// Conflict 31: each request leaves 24 h after its own time, and below the limit nobody is blocked.
#[test]
fn r004_3_a_request_leaves_the_window_24_hours_after_its_own_time() {
    let hour = |hours: u64| at(hours * 3_600);
    let mut desk = five_a_day();
    desk.admitted(hour(0), 1);
    desk.admitted(hour(23), 1);
    for hours in [23, 23, 23] {
        desk.admitted(hour(hours), 1);
    }
    assert_eq!(desk.denied(hour(23), 1).until, Some(hour(24)));
    desk.denied(just_before(hour(24)), 1);
    desk.admitted(hour(24), 1);
}

/// Conflict 32: with more than N inside, the N-th newest frees the next place.
#[test]
fn r004_2_the_nth_newest_decides_when_a_place_is_free() {
    let mut desk = five_a_day();
    for second in 0..8 {
        desk.play(at(second), &Action::Charge { costs: Costs::new(), id: None });
    }
    // Of eight, the fifth newest is number 3.
    assert_eq!(desk.denied(at(10), 1).until, Some(at(86_400 + 3)));
    desk.admitted(at(86_400 + 3), 1);
}

#[test]
fn r004_7_looking_at_the_quota_consumes_nothing() {
    let mut desk = five_a_day();
    assert_eq!(desk.standing(at(0)).remaining, 5);
    assert_eq!(desk.entry(), None);
    for used in 1..=5 {
        desk.admitted(at(0), 1);
        let entry = desk.entry();
        assert_eq!(desk.standing(at(1)).remaining, 5 - used);
        assert_eq!(desk.entry(), entry);
    }
    desk.play(at(2), &Action::Charge { costs: Costs::new(), id: None });
    assert_eq!(desk.standing(at(2)).remaining, 0, "six of five are used, and none remains");
}

#[test]
fn r004_8_a_full_quota_says_how_much_when_and_in_words() {
    let mut desk = five_a_day();
    desk.admitted(at(0), 5);
    let now = at(86_400 - (2 * 3_600 + 15 * 60));
    let standing = desk.standing(now);
    assert_eq!((standing.used, standing.limit, standing.remaining), (5, 5, 0));
    assert_eq!(standing.reset_at, Some(at(86_400)));
    let wait = standing.reset_at.expect("it is full").since(now);
    assert_eq!(wait.humanize(), "2h 15m");
}

/// A day of 24 hours, on the day when clocks in many places go forward as on any other.
#[test]
fn r004_11_a_rolling_day_is_24_hours_whatever_the_clocks_on_the_wall_do() {
    let start = "2025-03-09T09:30:00Z".parse().expect("an instant");
    let mut desk = five_a_day();
    desk.admitted(start, 5);
    let until = desk.denied(start, 1).until.expect("it fits one day");
    assert_eq!(until.since(start), Span::from_hours(24));
    assert_eq!(until.to_string(), "2025-03-10T09:30:00Z");
}
