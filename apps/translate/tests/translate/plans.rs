//! R003.6: plans, against the table of numbers that are feasible on each tier.

use tollgate_core::{
    CalendarWindow, Headroom, Limit, Period, Policy, RollingWindow, Rule, Span, Timestamp,
    TokenBucket,
};
use tollgate_translate::chunk::{CHUNK_TOKENS, cut};
use tollgate_translate::plan::{Binding, Conditions, Micros, Plan, Prices, size_for_a_day};
use tollgate_translate::{Calibration, Format};

use crate::{prose, read, task};

const MODEL: &str = "gemini-2.5-flash";

fn tier(rpm: u64, rpd: Option<u64>) -> Policy {
    tier_of(rpm, 250_000, rpd)
}

fn tier_of(rpm: u64, tpm: u64, rpd: Option<u64>) -> Policy {
    let minute = Span::from_mins(1);
    let mut limits = vec![
        Limit::new("rpm", "requests", RollingWindow::new(rpm, minute)).margin(Span::from_secs(2)),
        Limit::new("tpm", "tokens", RollingWindow::new(tpm, minute)).margin(Span::from_secs(2)),
    ];
    limits.extend(rpd.map(|rpd| {
        Limit::new(
            "rpd",
            "requests",
            CalendarWindow::new(rpd, Period::Day).in_zone("America/Los_Angeles"),
        )
    }));
    Policy::new("gemini", limits).unwrap()
}

/// Ten in the morning in California.
fn morning() -> Timestamp {
    "2026-11-16T18:00:00Z".parse().unwrap()
}

fn plan(words: usize, policy: Policy, wish: impl Fn(&mut Conditions)) -> Plan {
    plan_of(&prose(words), CHUNK_TOKENS, policy, wish)
}

fn plan_of(text: &str, size: u64, policy: Policy, wish: impl Fn(&mut Conditions)) -> Plan {
    let mut document = read(text, Format::Text);
    let chunks = cut(&mut document, size).unwrap();
    let mut conditions = Conditions::new(MODEL, policy, morning());
    wish(&mut conditions);
    Plan::make(&task("en", "fr"), &document, &chunks, size, &Calibration::default(), &conditions)
        .unwrap()
}

fn minutes(plan: &Plan) -> u64 {
    plan.takes_seconds.unwrap().div_ceil(60)
}

#[test]
fn r003_6_the_free_tier_takes_days_and_the_plan_says_how_many() {
    // Words, requests per day, days at least and at most.
    let rows = [
        (25_000, 25, 1, 1),
        (65_000, 25, 1, 2),
        (65_000, 20, 2, 2),
        (145_000, 25, 3, 3),
        (145_000, 20, 3, 4),
        (400_000, 25, 6, 8),
        (400_000, 20, 8, 10),
    ];
    for (words, rpd, least, most) in rows {
        let plan = plan(words, tier(5, Some(rpd)), |_| {});
        let days = plan.days.unwrap();
        assert!((least..=most).contains(&days), "{words} words at {rpd} a day: {days} days");
        assert_eq!(days, plan.requests.div_ceil(rpd));
        if 1 < days {
            assert!(
                matches!(&plan.binding, Binding::Limit { name, .. } if name == "rpd"),
                "{:?}",
                plan.binding
            );
        }
    }
}

#[test]
fn r003_6_without_a_daily_limit_the_minute_binds() {
    let rows = [(25_000, 1, 3), (65_000, 4, 7), (145_000, 10, 14), (400_000, 30, 42)];
    for (words, least, most) in rows {
        let plan = plan(words, tier(5, None), |_| {});
        assert!((least..=most).contains(&minutes(&plan)), "{words} words: {} min", minutes(&plan));
        assert!(
            matches!(&plan.binding, Binding::Limit { name, .. } if name == "rpm"),
            "{:?}",
            plan.binding
        );
        assert_eq!(plan.days, None);
    }
}

#[test]
fn r003_6_a_tier_of_60_rpm_meets_the_targets_with_ten_workers() {
    let seconds = |words: usize| plan(words, tier(60, None), |_| {}).takes_seconds.unwrap();
    // 10 chunks under 20 s, 60 under 90 s, 143 to 191 in 2.5 to 5 minutes.
    assert!(seconds(22_500) <= 20, "{}", seconds(22_500));
    assert!(seconds(138_000) <= 90, "{}", seconds(138_000));
    let book = plan(400_000, tier(60, None), |_| {});
    assert!((150..=300).contains(&book.takes_seconds.unwrap()), "{book}");
    assert!(book.feasible && book.warnings.is_empty());
}

#[test]
fn r003_6_a_wish_that_cannot_be_met_names_the_settings_that_would_meet_it() {
    let wish = |conditions: &mut Conditions| conditions.within = Some(Span::from_secs(90));
    let slow = plan(138_000, tier(5, Some(25)), wish);
    assert!(!slow.feasible);
    let remedies: Vec<&str> =
        slow.warnings.iter().flat_map(|warning| &warning.suggestions).map(String::as_str).collect();
    let together = remedies
        .iter()
        .find(|remedy| remedy.starts_with("together: "))
        .expect("several settings at once");
    let number = |name: &str| -> u64 {
        let rest = together.split(&format!("limit {name} of ")).nth(1).expect("the limit is named");
        rest.split(',').next().unwrap().parse().unwrap()
    };
    // With them the wish comes true, and with one less of either it does not.
    let (rpm, rpd) = (number("rpm"), number("rpd"));
    assert!(plan(138_000, tier(rpm, Some(rpd)), wish).feasible);
    assert!(!plan(138_000, tier(rpm - 1, Some(rpd)), wish).feasible);
    assert!(!plan(138_000, tier(rpm, Some(rpd - 1)), wish).feasible);
    // A limit on tokens that binds as well is named as well.
    let starved = plan(138_000, tier_of(5, 20_000, None), wish).to_string();
    assert!(
        starved.contains("together: a limit rpm of ") && starved.contains(", a limit tpm of "),
        "{starved}"
    );
}

#[test]
fn r003_6_a_wish_that_needs_workers_says_how_many() {
    let wish = |workers: usize| {
        move |conditions: &mut Conditions| {
            conditions.within = Some(Span::from_secs(60));
            conditions.workers = workers;
        }
    };
    let ample = || tier(100_000, None);
    let slow = plan(25_000, ample(), wish(1));
    assert_eq!(slow.binding, Binding::Workers { workers: 1 });
    assert_eq!(slow.warnings[0].suggestions, ["2 workers"]);
    assert!(plan(25_000, ample(), wish(2)).feasible);
    let never = plan(25_000, ample(), |conditions| conditions.within = Some(Span::from_secs(5)));
    assert!(
        never.warnings[0].suggestions[0].starts_with("none: one call alone takes 10s"),
        "{never}"
    );
}

/// What a plan proposes is what the flag then does: as many chunks of that size, that many days, and that end.
#[test]
fn r003_6_larger_chunks_do_what_the_plan_says_of_them() {
    let long = prose(60_000).replace('\n', " ");
    // The text, requests per day, the wish in hours, whether larger chunks help, and whether they grant the wish.
    let rows = [
        (prose(65_000), 10, None, true, false),
        (prose(400_000), 25, Some(24), true, true),
        (prose(400_000), 20, Some(24), true, true),
        (prose(400_000), 20, Some(1), true, false),
        (prose(400_000), 5, None, true, false),
        // One paragraph, which is cut differently for each size.
        (long, 8, None, true, false),
        (prose(1_500), 2, None, false, false),
    ];
    for (text, rpd, hours, helps, grants) in rows {
        let wish = |conditions: &mut Conditions| conditions.within = hours.map(Span::from_hours);
        let policy = tier(5, Some(rpd));
        let plan = plan_of(&text, CHUNK_TOKENS, policy.clone(), wish);
        let (task, document) = (task("en", "fr"), read(&text, Format::Text));
        let size = size_for_a_day(&document, &task, &policy).unwrap();
        let fitting = plan_of(&text, size, policy, wish);
        let days = match fitting.days.unwrap() {
            1 => "one day".to_owned(),
            days => format!("{days} days"),
        };
        let takes = fitting.ends_at.unwrap().since(morning()).humanize();
        let digits: String = size.to_string();
        let (thousands, rest) = digits.split_at(digits.len() - 3);
        let said = format!(
            "larger chunks (--fit-rpd): {} of up to {thousands},{rest} tokens, done in {takes}, on {days}",
            fitting.requests
        );
        let of = |breaks: bool| plan.warnings.iter().filter(move |one| one.breaks_a_wish == breaks);
        let says = |breaks| of(breaks).any(|warning| warning.suggestions.contains(&said));
        assert_eq!((says(false), says(true)), (helps, grants), "{said}\n{plan}");
        assert_eq!(plan.to_string().contains("--fit-rpd"), helps, "{plan}");
        assert_eq!(grants, hours.is_some() && fitting.feasible, "{fitting}");
        assert!(!fitting.to_string().contains("--fit-rpd"), "{fitting}");
    }
}

/// A tier that is proposed ends it on one day, and one request less does not; where no tier can, none is proposed.
#[test]
fn r003_6_a_tier_that_is_proposed_was_tried() {
    let slow = plan(145_000, tier(5, Some(20)), |_| {});
    let tiers = |plan: &Plan| {
        let of = |text: &String| {
            text.strip_prefix("a tier with ")?.strip_suffix(" requests per day")?.parse().ok()
        };
        plan.warnings.iter().flat_map(|one| &one.suggestions).find_map(of)
    };
    let rpd: u64 = tiers(&slow).expect("a tier");
    assert_eq!(plan(145_000, tier(5, Some(rpd)), |_| {}).days, Some(1));
    assert_eq!(plan(145_000, tier(5, Some(rpd - 1)), |_| {}).days, Some(2));
    let late = plan(145_000, tier(5, Some(20)), |conditions| {
        conditions.now = "2026-11-17T07:58:00Z".parse().unwrap();
    });
    assert_eq!((tiers(&late), late.warnings.len()), (None, 1), "{late}");
}

#[test]
fn a_request_larger_than_a_limit_never_fits_and_says_what_would() {
    let small = |tokens: u64| {
        let window = RollingWindow::new(tokens, Span::from_mins(1));
        Policy::new("small", [Limit::new("tpm", "tokens", window).headroom(Headroom::Percent(10))])
            .unwrap()
    };
    let plan = plan(10_000, small(2_000), |_| {});
    assert_eq!((plan.ends_at, plan.feasible), (None, false));
    assert!(plan.warnings[0].text.contains("never fits the limit tpm"), "{plan}");
    assert!(plan.to_string().contains("ends      never"), "{plan}");
    let [chunks, limit] = &plan.warnings[0].suggestions[..] else { panic!("{plan}") };
    let chunks = chunks.strip_prefix("chunks of ").and_then(|rest| rest.split(' ').next());
    let size: u64 = chunks.unwrap().replace(',', "").parse().unwrap();
    assert!(plan_of(&prose(10_000), size, small(2_000), |_| {}).feasible, "{plan}");
    let limit: u64 = limit.strip_prefix("a limit tpm of ").unwrap().parse().unwrap();
    assert!(self::plan(10_000, small(limit), |_| {}).feasible, "{plan}");
    assert!(!self::plan(10_000, small(limit - 1), |_| {}).feasible, "{plan}");
}

#[test]
fn slots_count_as_workers_and_any_rule_can_be_planned_with() {
    let slots = tollgate_core::Concurrency::new(2, Span::from_mins(5));
    let rules: [Rule; 2] = [slots.into(), TokenBucket::per_minute(1_000).into()];
    for rule in rules {
        let policy = Policy::new("p", [Limit::new("x", "requests", rule.clone())]).unwrap();
        let wish = |conditions: &mut Conditions| conditions.within = Some(Span::from_secs(15));
        let plan = plan(25_000, policy, wish);
        if let Rule::Concurrency(_) = rule {
            assert_eq!(plan.binding, Binding::Workers { workers: 2 });
        }
        assert!(!plan.feasible && !plan.warnings[0].suggestions.is_empty(), "{plan}");
    }
}

#[test]
fn costs_follow_the_table_and_a_maximum_is_kept() {
    let free = plan(65_000, tier(60, None), |_| {});
    let cost = free.cost_micros.unwrap();
    assert_eq!(
        cost.0,
        (free.input_tokens * 300_000 + free.output_tokens * 2_500_000).div_ceil(1_000_000)
    );
    let dear =
        plan(65_000, tier(60, None), |conditions| conditions.max_cost = Some(Micros(cost.0 - 1)));
    assert!(
        !dear.feasible
            && dear.warnings[0].suggestions[1].contains("the model gemini-3.1-flash-lite"),
        "{dear}"
    );
    assert!(plan(65_000, tier(60, None), |conditions| conditions.max_cost = Some(cost)).feasible);
    let unknown = plan(1_000, tier(60, None), |conditions| {
        conditions.price = None;
        conditions.max_cost = Some(cost);
    });
    assert!(unknown.warnings[0].text.starts_with("no price is known"), "{unknown}");
    let prices = Prices::built_in();
    assert_eq!(
        prices.price_for("gemini-2.5-flash-preview-09-2025"),
        prices.price_for("gemini-2.5-flash")
    );
    assert_ne!(prices.price_for("gemini-2.5-flash-lite-001"), prices.price_for("gemini-2.5-flash"));
    assert_eq!(prices.price_for("gemini-2.5-flash-tts"), None);
    assert!(
        Prices::from_json("{}")
            .unwrap_err()
            .to_string()
            .starts_with("prices: missing field `as_of`")
    );
    assert_eq!(
        (Micros(1_234_001).to_string(), Micros(123_401).to_string()),
        ("$1.24".into(), "$0.1235".into())
    );
}

#[test]
fn r003_6_the_plan_of_a_book_reads_like_this() {
    let book = plan(400_000, tier(5, Some(25)), |conditions| {
        conditions.within = Some(Span::from_hours(24));
    });
    let text = book.to_string();
    let expected = include_str!("plan-of-a-book.txt");
    assert_eq!(text, expected, "\n{text}");
    let json = serde_json::to_value(&book).unwrap();
    assert_eq!(json["binding"]["name"], "rpd");
    assert_eq!(json["days"], book.days.unwrap());
    assert_eq!(json["feasible"], false);
}

#[test]
fn a_job_without_workers_is_refused() {
    let document = read("x", Format::Text);
    let mut conditions = Conditions::new(MODEL, tier(5, None), morning());
    conditions.workers = 0;
    let error =
        Plan::make(&task("en", "fr"), &document, &[], 3_500, &Calibration::default(), &conditions)
            .unwrap_err();
    assert!(error.to_string().contains("give 1 to 1000"), "{error}");
}
