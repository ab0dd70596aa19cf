//! The windows of policies are never looser than fixed windows that are aligned to the epoch.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::core::Verdict;
use tollgate::policy::{Period, Rule};
use tollgate::{Ask, Clock as _, Memory, Span};
use tollgate_ratelimit_config::{DomainFile, Options, RateLimitConfig, Unit, Windows, policy_name};

const UNITS: [(Unit, u64); 7] = [
    (Unit::Second, 1),
    (Unit::Minute, 60),
    (Unit::Hour, 3_600),
    (Unit::Day, 86_400),
    (Unit::Week, 604_800),
    (Unit::Month, 2_592_000),
    (Unit::Year, 31_536_000),
];

#[test]
fn no_fixed_window_gets_more_than_the_limit() {
    let mut admitted_in_all = 0;
    for windows in [Windows::Fixed, Windows::Rolling] {
        for (unit, secs) in UNITS {
            let text = format!(
                "domain: d\ndescriptors: [{{key: a, rate_limit: {{unit: {unit}, requests_per_unit: 7}}}}]"
            );
            let file = DomainFile::parse("t.yaml", &text).unwrap();
            let options = Options { windows, ..Options::default() };
            let config = RateLimitConfig::new(vec![file], options).unwrap();
            let policy = config.policies().next().unwrap().clone();
            let clock = Arc::new(ManualClock::new());
            clock.advance(Span::from_secs(1_700_000_000));
            let gate = Memory::with(Arc::clone(&clock) as _, 100);
            let mut windows_seen: HashMap<u64, u64> = HashMap::new();
            let mut seed = 7_u64;
            for _ in 0..2_000 {
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                // Often close together, and on average five asks a window.
                let step = (seed >> 33) % (secs * 400_000);
                clock.advance(Span::from_micros(step));
                if let Verdict::Admitted(_) = gate.try_acquire(&Ask::new(&policy, "x")).unwrap() {
                    let window = clock.now().as_micros() / 1_000_000 / secs;
                    *windows_seen.entry(window).or_default() += 1;
                    admitted_in_all += 1;
                }
            }
            let most = windows_seen.values().max().unwrap();
            assert!(*most <= 7, "{unit} {windows:?}: {most}");
        }
    }
    assert!(4_000 < admitted_in_all, "{admitted_in_all}: the test admits something");
}

#[test]
fn minutes_hours_and_days_have_the_borders_of_the_original() {
    for (unit, period) in
        [(Unit::Minute, Period::Minute), (Unit::Hour, Period::Hour), (Unit::Day, Period::Day)]
    {
        let Rule::CalendarWindow(window) = Windows::Fixed.rule(5, unit, false) else {
            panic!("{unit}")
        };
        assert_eq!((window.period, window.zone.as_str()), (period, "UTC"));
        assert!(matches!(Windows::Rolling.rule(5, unit, false), Rule::RollingWindow(_)));
    }
    for unit in [Unit::Second, Unit::Week, Unit::Month, Unit::Year] {
        assert!(matches!(Windows::Fixed.rule(5, unit, false), Rule::RollingWindow(_)), "{unit}");
    }
    let Rule::CalendarWindow(month) = Windows::Rolling.rule(5, Unit::Month, true) else { panic!() };
    assert_eq!(month.period, Period::Month);
}

#[test]
fn names_of_policies_are_valid_and_different() {
    let name = |parts: &[&str]| {
        policy_name(&parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(name(&["shop", "remote_address"]), "envoy.shop.remote_address");
    let long = "x".repeat(100);
    let names = [
        name(&["shop", "path_/api/*"]),
        name(&["shop", "path_-api--"]),
        name(&["shop", "ip_10.0", "a"]),
        name(&["shop", "ip_10", "0", "a"]),
        name(&["shop", &long]),
        name(&["shop", &format!("{long}y")]),
        name(&["läden", "a"]),
    ];
    for (index, name) in names.iter().enumerate() {
        assert!(name.len() <= 64 && name.starts_with("envoy."), "{name}");
        assert!(!names[..index].contains(name), "{name}");
    }
}
