//! Which limit a descriptor gets: the behaviours that the original describes in its manual and tests.

use tollgate_ratelimit_config::{
    DomainFile, Match, Options, Quantity, RateLimitConfig, Resolved, Unit,
};

fn config(text: &str) -> RateLimitConfig {
    let file = DomainFile::parse("t.yaml", text).expect("the test is right");
    RateLimitConfig::new(vec![file], Options::default()).expect("the test is right")
}

fn limit(config: &RateLimitConfig, entries: &[(&str, &str)]) -> Option<u32> {
    config.find("d", entries).map(|found| match found.rule.quantity {
        Quantity::PerUnit(requests, _) => requests,
        Quantity::Blocked(_) => 0,
        Quantity::Unlimited => u32::MAX,
    })
}

fn subject(config: &RateLimitConfig, entries: &[(&str, &str)]) -> String {
    config.find("d", entries).expect("the test is right").subject
}

fn stats(config: &RateLimitConfig, entries: &[(&str, &str)]) -> String {
    config.find("d", entries).expect("the test is right").stats.join(".")
}

const MESSAGES: &str = "
domain: d
descriptors:
  - key: kind
    value: marketing
    descriptors:
      - key: number
        rate_limit: { unit: day, requests_per_unit: 5 }
      - key: number
        value: 911
        rate_limit: { unit: day, requests_per_unit: 0 }
  - key: number
    rate_limit: { unit: DAY, requests_per_unit: 100 }
  - key: internal
    rate_limit: { unlimited: true }
  - key: placeholder
";

#[test]
fn the_most_specific_descriptor_of_the_same_depth_applies() {
    let config = config(MESSAGES);
    for (entries, expected) in [
        (&[("number", "1")][..], Some(100)),
        (&[("kind", "marketing"), ("number", "1")], Some(5)),
        // A value before the key alone.
        (&[("kind", "marketing"), ("number", "911")], Some(0)),
        // Placeholders have no limit.
        (&[("kind", "marketing")], None),
        (&[("placeholder", "x")], None),
        (&[("kind", "news"), ("number", "1")], None),
        // More entries than levels, and none.
        (&[("number", "1"), ("kind", "marketing")], None),
        (&[("kind", "marketing"), ("number", "1"), ("x", "y")], None),
        (&[], None),
        // Keys and values are case-sensitive.
        (&[("Number", "1")], None),
        (&[("internal", "ldap")], Some(u32::MAX)),
    ] {
        assert_eq!(limit(&config, entries), expected, "{entries:?}");
    }
    assert!(config.find("other", &[("number", "1")]).is_none());
    assert!(config.has_domain("d") && !config.has_domain("other"));
}

#[test]
fn each_combination_of_values_has_its_own_count() {
    let config = config(MESSAGES);
    let marketing = |number| subject(&config, &[("kind", "marketing"), ("number", number)]);
    assert_eq!(marketing("1"), "marketing|1");
    assert_ne!(marketing("1"), marketing("2"));
    let text = "domain: d\ndescriptors: [{key: a, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]}]";
    let pairs = self::config(text);
    let of = |a, b| subject(&pairs, &[("a", a), ("b", b)]);
    assert_ne!(of("x|y", "z"), of("x", "y|z"), "a separator in a value");
    assert_ne!(of("x%7Cy", "z"), of("x|y", "z"), "an escape in a value");
}

const WILD: &str = "
domain: d
descriptors:
  - { key: file, value: test1, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: file, value: tes*, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: file, value: test*, rate_limit: { unit: minute, requests_per_unit: 3 } }
  - { key: file, rate_limit: { unit: minute, requests_per_unit: 4 } }
  - { key: path, value: /api/*/v1, rate_limit: { unit: minute, requests_per_unit: 5 } }
  - { key: host, value: '*.example.com', rate_limit: { unit: minute, requests_per_unit: 6 } }
  - key: tenant
    value: t*
    descriptors:
      - { key: op, value: '*write*', rate_limit: { unit: minute, requests_per_unit: 7 } }
";

#[test]
fn wildcards_come_after_equal_values_and_in_the_order_of_the_file() {
    let config = config(WILD);
    for (entries, expected) in [
        (&[("file", "test1")][..], Some(1)),
        (&[("file", "test2")], Some(2)),
        (&[("file", "other")], Some(4)),
        (&[("file", "")], Some(4)),
        (&[("path", "/api/x/y/v1")], Some(5)),
        (&[("path", "/api/v1")], None),
        (&[("host", "a.example.com")], Some(6)),
        (&[("tenant", "t1"), ("op", "overwrite-all")], Some(7)),
        (&[("tenant", "x1"), ("op", "write")], None),
    ] {
        assert_eq!(limit(&config, entries), expected, "{entries:?}");
    }
    let separate = |file| subject(&config, &[("file", file)]);
    assert_ne!(separate("test2"), separate("test3"), "each value has its own count");
}

const SHARED: &str = "
domain: d
descriptors:
  - { key: files, value: files/*, share_threshold: true, rate_limit: { unit: hour, requests_per_unit: 10 } }
  - key: user
    value: user/*
    share_threshold: true
    descriptors:
      - key: res
        value: res/*
        descriptors:
          - { key: act, rate_limit: { unit: hour, requests_per_unit: 20 } }
";

#[test]
fn values_that_share_a_threshold_have_one_count() {
    let config = config(SHARED);
    let file = |value| subject(&config, &[("files", value)]);
    assert_eq!(file("files/a.pdf"), file("files/b.csv"));
    let nested = |user, res, act| subject(&config, &[("user", user), ("res", res), ("act", act)]);
    assert_eq!(nested("user/1", "res/1", "read"), nested("user/2", "res/1", "read"));
    assert_ne!(nested("user/1", "res/1", "read"), nested("user/1", "res/2", "read"), "not shared");
    assert_ne!(nested("user/1", "res/1", "read"), nested("user/1", "res/1", "write"));
}

#[test]
fn a_replaced_limit_does_not_apply() {
    let config = config(
        "
domain: d
descriptors:
  - { key: read, rate_limit: { name: category, unit: second, requests_per_unit: 5 } }
  - { key: endpoint, rate_limit: { replaces: [{ name: category }], unit: second, requests_per_unit: 10 } }
  - { key: free, rate_limit: { replaces: [{ name: category }], unlimited: true } }
  - { key: trusted }
  - { key: other, rate_limit: { name: unrelated, unit: second, requests_per_unit: 1 } }
",
    );
    let resolve = |keys: &[&'static str]| -> Vec<String> {
        let descriptors: Vec<_> = keys.iter().map(|key| vec![(*key, "x")]).collect();
        let name = |resolved: Resolved<'_>| match resolved {
            Resolved::Unmatched => "-".to_owned(),
            Resolved::Exempt => "exempt".to_owned(),
            Resolved::Replaced => "replaced".to_owned(),
            Resolved::Limited(Match { rule, .. }) => rule.path[1].clone(),
        };
        config.resolve("d", &descriptors).into_iter().map(name).collect()
    };
    assert_eq!(resolve(&["read", "other"]), ["read", "other"]);
    assert_eq!(resolve(&["read", "endpoint"]), ["replaced", "endpoint"]);
    assert_eq!(resolve(&["endpoint", "read"]), ["endpoint", "replaced"]);
    assert_eq!(resolve(&["free", "read", "nothing"]), ["free", "replaced", "-"]);
    assert_eq!(resolve(&["trusted"]), ["exempt"]);
}

#[test]
fn metrics_carry_the_values_that_the_file_asks_for() {
    let plain = config(WILD);
    assert_eq!(stats(&plain, &[("file", "test1")]), "d.file_test1");
    assert_eq!(stats(&plain, &[("file", "test2")]), "d.file_tes*");
    assert_eq!(stats(&plain, &[("file", "zzz")]), "d.file");
    let config = config(
        "
domain: d
descriptors:
  - key: route
    value_to_metric: true
    descriptors:
      - key: method
        value: G*
        value_to_metric: true
        descriptors:
          - { key: user, rate_limit: { unit: minute, requests_per_unit: 60 } }
  - { key: detailed, detailed_metric: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - key: api
    value: api/*
    share_threshold: true
    value_to_metric: true
    descriptors:
      - { key: verb, rate_limit: { unit: minute, requests_per_unit: 1 } }
      - { key: full, detailed_metric: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
",
    );
    for (entries, expected) in [
        (&[("route", "web"), ("method", "GET"), ("user", "u1")][..], "d.route_web.method_GET.user"),
        (&[("route", ""), ("method", "GET"), ("user", "u1")], "d.route.method_GET.user"),
        (&[("detailed", "x")], "d.detailed_x"),
        // A shared threshold is one metric.
        (&[("api", "api/v1"), ("verb", "GET")], "d.api_api/*.verb"),
        (&[("api", "api/v1"), ("full", "GET")], "d.api_api/*.full_GET"),
    ] {
        assert_eq!(stats(&config, entries), expected);
    }
}

#[test]
fn modes_and_metadata_belong_to_the_limit() {
    let config = config(
        "
domain: d
descriptors:
  - key: service
    value: one
    quota_mode: true
    shadow_mode: yes
    metadata:
      route: { name: service-1, weight: 3, tags: [a, 'b'] }
    rate_limit: { unit: minute, requests_per_unit: 1_000, name: first }
",
    );
    let rule = config.find("d", &[("service", "one")]).unwrap().rule;
    assert!(rule.quota_mode && rule.shadow_mode);
    assert_eq!(rule.quantity, Quantity::PerUnit(1_000, Unit::Minute));
    assert_eq!(rule.name, "first");
    assert!(rule.policy.as_ref().unwrap().is_shadow());
    let metadata = serde_json::to_string(&rule.metadata).unwrap();
    assert_eq!(metadata, r#"{"route":{"name":"service-1","tags":["a","b"],"weight":3}}"#);
    assert_eq!(
        config.dump(),
        "d.service_one: unit=MINUTE requests_per_unit=1000, shadow_mode: true, quota_mode: true\n"
    );
}

#[test]
fn anchors_and_aliases_are_followed() {
    let text = "
domain: d
descriptors:
  - { key: a, rate_limit: &twenty { unit: minute, requests_per_unit: 20 } }
  - { key: b, rate_limit: *twenty }
";
    assert_eq!(limit(&config(text), &[("b", "x")]), Some(20));
}
