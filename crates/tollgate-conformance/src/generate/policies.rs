//! Random policies.

use proptest::prelude::{BoxedStrategy, Just, Strategy, any, prop_oneof};
use tollgate_core::{
    CalendarWindow, Concurrency, Headroom, Limit, Period, Policy, Refill, RollingWindow, Rule,
    Span, TokenBucket,
};

/// Zones with whole and half hours, shifts of an hour, half an hour and at midnight, and none.
const ZONES: [&str; 6] = [
    "UTC",
    "America/Los_Angeles",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "America/St_Johns",
];

fn span() -> impl Strategy<Value = Span> {
    prop_oneof![
        (1_u64..=12).prop_map(Span::from_micros),
        Just(Span::from_micros(999_983)),
        (1_u64..=12).prop_map(Span::from_secs),
        Just(Span::from_secs(60)),
        Just(Span::from_hours(24)),
    ]
}

/// Continuous token buckets, uneven rates included.
pub fn continuous() -> impl Strategy<Value = Rule> {
    (1_u64..=12, 1_u64..=12, span()).prop_map(|(capacity, refill, period)| {
        TokenBucket::per(refill, period).burst(capacity).into()
    })
}

/// Interval token buckets.
pub fn interval() -> impl Strategy<Value = Rule> {
    (1_u64..=12, 1_u64..=12, span()).prop_map(|(capacity, refill, period)| {
        TokenBucket::per(refill, period).burst(capacity).at_boundaries().into()
    })
}

/// Exact rolling windows.
pub fn rolling() -> impl Strategy<Value = Rule> {
    (1_u64..=12, span()).prop_map(|(limit, window)| RollingWindow::new(limit, window).into())
}

/// Rolling windows with a resolution.
pub fn rolling_coarse() -> impl Strategy<Value = Rule> {
    (1_u64..=12, span(), 1_u32..=7).prop_map(|(limit, window, resolution)| {
        RollingWindow::new(limit, window).resolution(resolution).into()
    })
}

/// Calendar windows of every period in many zones.
pub fn calendar() -> impl Strategy<Value = Rule> {
    let periods = [Period::Minute, Period::Hour, Period::Day, Period::Week, Period::Month];
    let (period, zone) =
        (proptest::sample::select(periods.to_vec()), proptest::sample::select(ZONES.to_vec()));
    (1_u64..=12, period, zone)
        .prop_map(|(limit, period, zone)| CalendarWindow::new(limit, period).in_zone(zone).into())
}

/// Concurrency limits.
pub fn slots() -> impl Strategy<Value = Rule> {
    (1_u64..=6, span()).prop_map(|(limit, ttl)| Concurrency::new(limit, ttl).into())
}

/// A policy of one limit by one of `rules`, with headroom, margin and `block_ttl` where they fit.
pub fn policy_of(rules: impl Strategy<Value = Rule> + 'static) -> BoxedStrategy<Policy> {
    (rules, extras(), block_ttl())
        .prop_filter_map("the numbers leave nothing to issue", |(rule, extras, block_ttl)| {
            let limit = with(Limit::new("only", unit_of(&rule, 0), rule), extras);
            Policy::builder("one").limit(limit).block_ttl(block_ttl).build().ok()
        })
        .boxed()
}

/// A policy of one to four limits by any rules, on one to three units.
pub fn policy() -> BoxedStrategy<Policy> {
    policy_named("many")
}

/// As [`policy`], called `name`.
pub fn policy_named(name: &'static str) -> BoxedStrategy<Policy> {
    let rule = prop_oneof![
        continuous().boxed(),
        interval().boxed(),
        rolling().boxed(),
        rolling_coarse().boxed(),
        calendar().boxed(),
        slots().boxed(),
    ];
    let limits = proptest::collection::vec((rule, extras(), any::<bool>()), 1..=4);
    (limits, block_ttl(), proptest::bool::weighted(0.1))
        .prop_filter_map(
            "the numbers leave nothing to issue",
            move |(limits, block_ttl, shadow)| {
                let limits =
                    limits.into_iter().enumerate().map(|(place, (rule, extras, second))| {
                        let unit = unit_of(&rule, usize::from(second));
                        with(Limit::new(format!("limit-{place}"), unit, rule), extras)
                    });
                let builder = Policy::builder(name).limits(limits).block_ttl(block_ttl);
                builder.shadow(shadow).build().ok()
            },
        )
        .boxed()
}

/// What the policy is made of, for messages.
pub fn kind_of_policy(policy: &Policy) -> String {
    let rules: Vec<&str> = policy.limits().map(|limit| limit.rule().name()).collect();
    rules.join(" + ")
}

type Extras = (Headroom, Span);

fn extras() -> impl Strategy<Value = Extras> {
    let headroom = prop_oneof![
        4 => Just(Headroom::Units(0)),
        1 => (1_u64..=3).prop_map(Headroom::Units),
        1 => (1_u8..=40).prop_map(Headroom::Percent),
    ];
    let margin = prop_oneof![
        4 => Just(Span::ZERO),
        1 => (1_u64..=3).prop_map(Span::from_micros),
        1 => (1_u64..=3).prop_map(Span::from_secs),
    ];
    (headroom, margin)
}

fn block_ttl() -> impl Strategy<Value = Span> {
    prop_oneof![
        5 => Just(Span::ZERO),
        1 => (1_u64..=2).prop_map(Span::from_micros),
        1 => (1_u64..=2).prop_map(Span::from_secs),
    ]
}

fn with(limit: Limit, (headroom, margin): Extras) -> Limit {
    // Slots have no window and a refill at boundaries cannot be protected, so a margin would be refused.
    let margin = match limit.rule() {
        Rule::Concurrency(_) => Span::ZERO,
        Rule::TokenBucket(bucket) if bucket.mode == Refill::Interval => Span::ZERO,
        _ => margin,
    };
    limit.headroom(headroom).margin(margin)
}

fn unit_of(rule: &Rule, second: usize) -> &'static str {
    match rule {
        Rule::Concurrency(_) => "jobs",
        _ => ["requests", "tokens"][second],
    }
}
