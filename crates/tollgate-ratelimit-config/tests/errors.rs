//! What is refused, with the line and what would be right.

use std::fs;

use tollgate_ratelimit_config::{DomainFile, Options, RateLimitConfig, files, limitador};

fn load(texts: &[&str], merge_domains: bool) -> Result<RateLimitConfig, String> {
    let parse = |(index, text): (usize, &&str)| DomainFile::parse(&format!("{index}.yaml"), text);
    let files = texts.iter().enumerate().map(parse).collect::<Result<Vec<_>, _>>();
    let files = files.map_err(|error| error.to_string())?;
    let options = Options { merge_domains, ..Options::default() };
    RateLimitConfig::new(files, options).map_err(|error| error.to_string())
}

fn refused(text: &str) -> String {
    load(&[text], false).map(|_| ()).expect_err(text)
}

#[test]
fn an_error_names_the_line_and_what_would_be_right() {
    let head = "domain: d\ndescriptors:\n";
    for (text, expected) in [
        ("", "0.yaml: the file is empty"),
        ("# nothing\n", "0.yaml: the file is empty"),
        ("descriptors: []", "0.yaml: domain is missing"),
        (
            "domain: d\ndescriptor: []",
            "0.yaml:2: the file has no key \"descriptor\"; did you mean descriptors?",
        ),
        ("domain: [d]", "0.yaml:1: domain must be a text, not a list"),
        ("- domain: d", "0.yaml:1: the file must be a map"),
        ("domain: d\ndescriptors: {key: a}", "0.yaml:2: descriptors must be a list, not a map"),
        ("domain: d\ndescriptors:\n  - a", "0.yaml:3: a descriptor must be a map"),
        ("domain: d\ndomain: e", "0.yaml:2: \"domain\" is given twice, first in line 1"),
        ("domain: d\n4: e", "0.yaml:2: the key \"4\" is not text"),
        ("domain: 'd", "0.yaml:1: not valid YAML"),
        ("domain: d\n---\ndomain: e", "0.yaml:2: a second YAML document"),
        ("domain: d\n<<: {a: b}", "0.yaml:2: merge keys"),
    ] {
        assert!(refused(text).starts_with(expected), "{text}: {}", refused(text));
    }
    for (descriptor, expected) in [
        (
            "  - key: a\n    ratelimit: {}",
            "0.yaml:4: a descriptor has no key \"ratelimit\"; did you mean rate_limit?",
        ),
        ("  - value: a", "0.yaml:3: a descriptor needs key"),
        (
            "  - key: a\n    rate_limit: { unit: fortnight }",
            "0.yaml:4: unit \"fortnight\" is none of second, minute",
        ),
        ("  - key: a\n    rate_limit: { requests_per_unit: 5 }", "0.yaml:4: rate_limit needs unit"),
        (
            "  - key: a\n    rate_limit: { unit: day, unlimited: true }",
            "0.yaml:4: unlimited: true has no unit",
        ),
        (
            "  - key: a\n    rate_limit: { unit: day, requests_per_unit: -1 }",
            "0.yaml:4: requests_per_unit must be a whole",
        ),
        (
            "  - key: a\n    rate_limit: { unit: day, requests_per_unit: 4294967296 }",
            "0.yaml:4: requests_per_unit must be",
        ),
        (
            "  - key: a\n    rate_limit: { unit: day, requests_per_unit: '5' }",
            "0.yaml:4: requests_per_unit must be",
        ),
        ("  - key: a\n    shadow_mode: maybe", "0.yaml:4: shadow_mode must be true or false"),
        (
            "  - key: a\n    share_threshold: true",
            "0.yaml:3: share_threshold is for values with a wildcard",
        ),
        ("  - key: a\n  - key: a", "0.yaml:4: the descriptor d.a is given twice"),
        (
            "  - { key: a, value: b }\n  - { key: a_b }",
            "0.yaml:4: the descriptor d.a_b is given twice",
        ),
        (
            "  - key: a\n    rate_limit: { unit: day, replaces: [{}] }",
            "0.yaml:3: an element of replaces needs name",
        ),
        (
            "  - key: a\n    rate_limit: { unit: day, name: n, replaces: [{name: n}] }",
            "0.yaml:3: the limit \"n\" replaces itself",
        ),
        ("  - key: a\n    metadata: 5", "0.yaml:4: metadata must be a map"),
    ] {
        let text = format!("{head}{descriptor}");
        assert!(refused(&text).starts_with(expected), "{text}: {}", refused(&text));
    }
}

#[test]
fn keys_without_effect_are_warnings() {
    let text = "domain: d\ndescriptors:\n  - key: a\n    unit: day\n    rate_limit:\n      unit: minute\n      shadow_mode: true\n";
    let config = load(&[text], false).unwrap();
    let warnings: Vec<String> = config.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "0.yaml:4: unit has no effect here; it belongs to rate_limit",
            "0.yaml:7: shadow_mode has no effect here; it belongs to a descriptor",
            "0.yaml:6: requests_per_unit is missing, which means 0: every request is refused",
        ]
    );
}

#[test]
fn a_domain_in_two_files_is_merged_when_asked() {
    let [first, second] = ["a", "b"].map(|key| {
        format!("domain: d\ndescriptors: [{{key: {key}, rate_limit: {{unit: day, requests_per_unit: 1}}}}]")
    });
    let error = load(&[&first, &second], false).map(|_| ()).unwrap_err();
    assert!(error.starts_with("1.yaml: the domain \"d\" is in another file, too"), "{error}");
    let config = load(&[&first, &second], true).unwrap();
    assert!(config.find("d", &[("a", "")]).is_some() && config.find("d", &[("b", "")]).is_some());
    let error = load(&[&first, &first], true).map(|_| ()).unwrap_err();
    assert!(error.contains("the descriptor d.a is given twice"), "{error}");
}

/// Each alias stands for ten of the one before.
#[test]
fn a_bomb_of_aliases_and_a_deep_tree_are_refused() {
    let mut text = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..9 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(",");
        text += &format!("a{level}: &a{level} [{aliases}]\n");
    }
    assert!(refused(&text).contains("more than 1000000 values"), "{}", refused(&text));
    assert!(refused(&"[".repeat(100)).contains("nested more than 64"));
    assert!(refused(&"[".repeat(10_000)).contains("0.yaml:1: "));
    assert!(refused("domain: &a [*a]").contains("no end"));
}

#[test]
fn a_folder_is_read_as_kubernetes_mounts_it() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("..data/b.yaml", "domain: d");
    write("b.yaml", "domain: d");
    write("more/a.yml", "domain: e");
    write("README.md", "no limits");
    let names: Vec<_> = files(folder.path()).unwrap();
    let names: Vec<_> =
        names.iter().map(|path| path.strip_prefix(folder.path()).unwrap()).collect();
    assert_eq!(names, ["b.yaml", "more/a.yml"].map(std::path::Path::new));
    let config = RateLimitConfig::read(folder.path(), Options::default()).unwrap();
    assert_eq!(config.domains().collect::<Vec<_>>(), ["d", "e"]);
    let missing = RateLimitConfig::read(&folder.path().join("none.yaml"), Options::default());
    assert!(missing.unwrap_err().to_string().contains("none.yaml: "));
}

#[test]
fn limits_of_limitador_are_read() {
    let text = "
- namespace: shop
  max_value: 10
  seconds: 60
  conditions: [\"method == 'POST'\", \"descriptors[0]['plan'] == \\\"free\\\"\", \"a != 'b'\"]
  variables: [user_id, \"descriptors[0].ip\"]
";
    let limits = limitador::parse("l.yaml", text).unwrap();
    let [limit] = limits.as_slice() else { panic!("{limits:?}") };
    assert_eq!(
        (limit.max_value, limit.seconds, limit.variables.join(",")),
        (10, 60, "user_id,ip".into())
    );
    let equals = |key: &str, value: &str| limitador::Condition::Equals {
        key: key.into(),
        value: value.into(),
    };
    assert_eq!(limit.conditions[..2], [equals("method", "POST"), equals("plan", "free")]);
    assert_eq!(limit.conditions[2], limitador::Condition::Other("a != 'b'".into()));
    let error =
        limitador::parse("l.yaml", "- {namespace: a, max_value: 1}").unwrap_err().to_string();
    assert_eq!(error, "l.yaml:1: a limit needs seconds");
}
