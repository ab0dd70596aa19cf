//! A right configuration is taken, and each mistake is shown with its line and what would be right.

use std::path::Path;

use super::super::ServeConfig;

/// A gateway with one of everything; its lines are counted in the tests below.
const GOOD: &str = r#"[gateway]
listen = "127.0.0.1:8090"
[[gateway.key]]
name = "alice"
team = "research"
hash = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
[[upstream]]
name = "openai-main"
dialect = "openai"
key = "sk-1"
[[upstream]]
name = "claude"
dialect = "anthropic"
key = "sk-2"
[[route]]
name = "chat"
models = ["gpt-4o*"]
upstreams = ["openai-main"]
charges = [
  { policy = "user", subject = "{key.subject}" },
  { policy = "gpt-4o", subject = "{upstream}" },
]
max_wait = "50s"
[[policy]]
name = "user"
limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 20, refill = "10/s" }]
[[policy]]
name = "gpt-4o"
limits = [{ name = "tpm", unit = "tokens", rule = "rolling-window", limit = 1000, window = "1m" }]
[[policy]]
name = "money"
limits = [{ name = "usd", unit = "usd_micros", rule = "rolling-window", limit = 1000, window = "1m" }]
[[policy]]
name = "pages"
limits = [{ name = "ppm", unit = "pages", rule = "rolling-window", limit = 1000, window = "1m" }]
"#;

fn parse(source: &str) -> Result<ServeConfig, String> {
    ServeConfig::parse(Some(Path::new("t.toml")), source).map_err(|error| error.to_string())
}

/// `GOOD` with `old` replaced by `new`.
fn with(old: &str, new: &str) -> String {
    assert!(GOOD.contains(old), "{old}");
    GOOD.replacen(old, new, 1)
}

#[test]
fn a_gateway_is_read_with_its_defaults() {
    let gateway = parse(GOOD).unwrap().gateway.expect("a gateway");
    assert_eq!(gateway.settings.listen.to_string(), "127.0.0.1:8090");
    assert_eq!(gateway.dialects(), ["openai"]);
    assert_eq!(gateway.warnings, [""; 0]);
    let options = gateway.read().unwrap();
    assert_eq!(options.upstreams[0].url, "https://api.openai.com");
    assert_eq!((&*options.keys[0].subject, options.keys[0].trusted), ("alice", false));
    assert_eq!(options.routes[0].charges.len(), 2);
    assert_eq!(options.body_bytes_max, 32 << 20);
}

#[test]
fn the_sample_of_the_documentation_is_right() {
    let sample = include_str!("../../../../../examples/gateway.toml");
    let gateway = parse(sample).unwrap().gateway.expect("a gateway");
    assert_eq!(gateway.dialects(), ["openai", "anthropic", "gemini"]);
    assert_eq!(gateway.warnings, [""; 0]);
    gateway.read().unwrap();
}

#[test]
fn every_mistake_is_shown_with_its_line_and_what_would_be_right() {
    let policies = &GOOD[GOOD.find("[[policy]]").unwrap()..];
    let user = r#"{ policy = "user", subject = "{key.subject}" }"#;
    let charge = |charge: &str| with(user, charge);
    let key =
        "hash = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"\n";
    let twice = |table: &str| {
        let start = GOOD.find(table).unwrap();
        let end = GOOD[start + 2..].find("[[").unwrap() + start + 2;
        format!("{}{}{}", &GOOD[..end], &GOOD[start..end], &GOOD[end..])
    };
    let rows: Vec<(String, &str)> = vec![
        // The sections together.
        (
            format!("[[upstream]]\nname = \"a\"\n{policies}"),
            "t.toml:1: upstream belongs to a gateway; add [gateway]",
        ),
        (format!("[gateway]\n{policies}"), "t.toml:1: a gateway needs an [[upstream]] with name"),
        (
            with("[[gateway.key]]", "[gateway.key]"),
            "t.toml:3: a key of the gateway is written with two brackets, as in [[gateway.key]]",
        ),
        (with("[[route]]", "[route]"), "t.toml:15: a route is written with two brackets"),
        (with("listen", "listn"), "t.toml:2: there is no \"listn\" here; did you mean listen?"),
        (
            with("127.0.0.1:8090", "8090"),
            "t.toml:2: listen \"8090\" is not an address and port, as in \"127.0.0.1:8090\"",
        ),
        (
            with("[[gateway.key]]", "body_bytes_max = 1\n[[gateway.key]]"),
            "t.toml:3: body_bytes_max 1 must be between 1024 and",
        ),
        (
            with("[[gateway.key]]", "queue_bytes_max = 5\n[[gateway.key]]"),
            "t.toml:3: queue_bytes_max 5 must be at least body_bytes_max",
        ),
        (
            with("[[gateway.key]]", "drain = \"2d\"\n[[gateway.key]]"),
            "t.toml:3: drain 2d must be between 0s and",
        ),
        (
            with("[[gateway.key]]", "idle_timeout = \"soon\"\n[[gateway.key]]"),
            "t.toml:3: idle_timeout \"soon\" is not a length of time",
        ),
        // Keys.
        (
            with(key, ""),
            "t.toml:4: a key needs a hash; add hash, hash_env (a variable) or hash_file (a file); tollgate keys new alice --gateway makes one",
        ),
        (
            with(key, "hash = \"secret\"\n"),
            "t.toml:6: hash is not \"sha256:\" and 64 hexadecimal digits; make a key with tollgate keys new --gateway",
        ),
        (with("name = \"alice\"", "name = \"alice\"\nexpires = \"soon\""), "t.toml:5: "),
        (
            with("name = \"alice\"", "name = \"alice\"\nsubject = \"\""),
            "t.toml:5: subject must be 1 to 256 bytes long, not 0",
        ),
        (
            with("name = \"alice\"", "name = \"alice\"\nroutes = [\"cat\"]"),
            "t.toml:5: no route is called \"cat\"; did you mean chat? known: chat",
        ),
        (
            twice("[[gateway.key]]"),
            "t.toml:8: two keys are called \"alice\"; give each its own name",
        ),
        // Upstreams.
        (
            with("\"openai\"", "\"azure\""),
            "t.toml:9: unknown dialect \"azure\"; use \"openai\", \"anthropic\" or \"gemini\"",
        ),
        (
            with("name = \"openai-main\"", "name = \"open ai\""),
            "t.toml:8: the name of an upstream \"open ai\" must be 1 to 64 letters",
        ),
        (
            with("name = \"claude\"", "name = \"openai-main\""),
            "t.toml:12: two upstreams are called \"openai-main\"",
        ),
        (
            with("key = \"sk-1\"\n", ""),
            "t.toml:8: an upstream needs a key; add key, key_env (a variable) or key_file (a file), as in key_env = \"OPENAI_API_KEY\"",
        ),
        (
            with("key = \"sk-1\"", "key = \"a\"\nkey_env = \"B\""),
            "t.toml:8: key, key_env and key_file exclude each other; keep one",
        ),
        (
            with("key = \"sk-1\"", "key = \"a\"\nurl = \"api.openai.com\""),
            "t.toml:11: url \"api.openai.com\" must have http or https",
        ),
        (
            with("key = \"sk-1\"", "key = \"a\"\nurl = \"https://x/v1\""),
            "t.toml:11: url \"https://x/v1\" ends with the version of the API, which is part of the path of every call; write \"https://x\"",
        ),
        (
            with("key = \"sk-1\"", "key = \"a\"\nusage = { input_token = \"prompt_tokens\" }"),
            "t.toml:11: usage has no unit \"input_token\"; did you mean input_tokens? known: tokens, input_tokens, output_tokens",
        ),
        (with("key = \"sk-1\"", "key = \"a\"\nusage = { tokens = \"a * b\" }"), "t.toml:11: "),
        (
            with("key = \"sk-1\"", "key = \"a\"\nmodels = { \"a*\" = \"b\" }"),
            "t.toml:11: models \"a*\" = \"b\" must be two names of models",
        ),
        // Routes.
        (
            with("name = \"chat\"\n", "name = \"a b\"\n"),
            "t.toml:16: the name of a route \"a b\" must be",
        ),
        (with("[\"gpt-4o*\"]", "[]"), "t.toml:17: a route has 1 to 1000 models"),
        (with("[\"gpt-4o*\"]", "[\"gpt 4\"]"), "t.toml:17: \"gpt 4\" is not the name of a model"),
        (
            twice("[[route]]").replacen("name = \"chat\"", "name = \"talk\"", 1),
            "t.toml:26: the route \"talk\" has \"gpt-4o*\" already, and the first route that matches serves a call",
        ),
        (
            with("[\"openai-main\"]", "[\"openai-mian\"]"),
            "t.toml:18: no upstream is called \"openai-mian\"; did you mean openai-main? known: openai-main, claude",
        ),
        (
            with("[\"openai-main\"]", "[\"openai-main\", \"claude\"]"),
            "t.toml:18: upstream \"claude\" speaks anthropic, and \"openai-main\" before it openai",
        ),
        (
            with("[\"openai-main\"]", "[\"claude\", \"claude\"]"),
            "t.toml:18: upstream \"claude\" is in the list twice",
        ),
        (
            with("max_wait = \"50s\"", "max_wait = \"1h\""),
            "t.toml:23: max_wait 1h must be at most 10m",
        ),
        (
            charge(r#"{ policy = "usr", subject = "a" }"#),
            "t.toml:20: no policy is called \"usr\"; did you mean user?",
        ),
        (
            charge(r#"{ policy = "user", subject = "{key.subjct}" }"#),
            "t.toml:20: subject \"{key.subjct}\" has an unknown placeholder {key.subjct}; did you mean {key.subject}? use {key.subject}, ",
        ),
        (
            charge(r#"{ policy = "user", subject = "{key.subject" }"#),
            "t.toml:20: subject \"{key.subject\" has no closing brace",
        ),
        (charge(r#"{ policy = "user", subject = "" }"#), "t.toml:20: a subject must not be empty"),
        (
            charge(r#"{ policy = "user", subject = "{header.x-user}" }"#),
            "t.toml:20: subject \"{header.x-user}\" is taken from a header, in which the caller could name any subject, and the key \"alice\" is not trusted; add trusted = true",
        ),
        (
            charge(r#"{ policy = "user", subject = "{key.team}" }"#).replacen(
                "team = \"research\"\n",
                "",
                1,
            ),
            "t.toml:19: subject \"{key.team}\" needs a team, and the key \"alice\" has none",
        ),
        (
            charge(r#"{ policy = "pages", subject = "a" }"#),
            "t.toml:20: policy \"pages\" counts \"pages\" (limit \"ppm\"), which calls to the upstream \"openai-main\" do not have; they have requests, ",
        ),
        (
            charge(r#"{ policy = "user", subject = "a", costs = { tokens = 1 } }"#),
            "t.toml:20: policy \"user\" does not count \"tokens\"; known: requests",
        ),
        (
            charge(r#"{ policy = "gpt-4o", subject = "{upstream}" }"#),
            "t.toml:21: the route charges this policy and subject already",
        ),
        (
            charge(r#"{ policy = "money", subject = "a" }"#).replacen("gpt-4o*", "my-model", 1),
            "t.toml:20: policy \"money\" limits usd_micros, and there is no price for \"my-model\"; add it under [prices], as in \"my-model\" = { input =",
        ),
        // Prices.
        (format!("{GOOD}[prices]\nmy-model = {{ input = 1 }}\n"), "t.toml:37: "),
        (format!("{GOOD}[prices]\nmy-model = {{ input = -1, output = 2 }}\n"), "t.toml:37: "),
    ];
    for (source, wanted) in rows {
        let error = parse(&source).map(|_| ()).expect_err(wanted);
        assert!(error.starts_with(wanted), "\n{error}\nwanted:\n{wanted}");
    }
}

#[test]
fn what_is_right_in_spite_of_its_looks_is_taken() {
    let user = r#"{ policy = "user", subject = "{key.subject}" }"#;
    let header = r#"{ policy = "user", subject = "app/{header.x-user}" }"#;
    let trusted =
        with(user, header).replacen("name = \"alice\"", "name = \"alice\"\ntrusted = true", 1);
    parse(&trusted).map(|_| ()).unwrap();
    // A price makes a limit in money possible.
    let money =
        with(user, r#"{ policy = "money", subject = "a" }"#).replacen("gpt-4o*", "my-model", 1);
    let money =
        format!("{money}[prices]\nmy-model = {{ input = 2_500_000, output = 10_000_000 }}\n");
    parse(&money).map(|_| ()).unwrap();
    // A key without a team that is bound to another route.
    let pages = with(user, r#"{ policy = "pages", subject = "a", costs = { pages = 2 } }"#);
    parse(&pages).map(|_| ()).unwrap();
}

#[test]
fn plain_http_beyond_loopback_is_warned_of() {
    let plain = with("key = \"sk-1\"", "key = \"a\"\nurl = \"http://10.0.0.5:8000\"");
    let warnings = parse(&plain).unwrap().gateway.unwrap().warnings;
    let wanted = "t.toml:11: the upstream \"openai-main\" is called over plain http";
    assert!(warnings.len() == 1 && warnings[0].starts_with(wanted), "{warnings:?}");
    let local = with("key = \"sk-1\"", "key = \"a\"\nurl = \"http://localhost:8000\"");
    assert_eq!(parse(&local).unwrap().gateway.unwrap().warnings, [""; 0]);
}

#[test]
fn a_secret_that_cannot_be_used_is_refused_without_showing_it() {
    for (key, wanted) in [
        ("key = \"two words\"", "the key of the upstream \"openai-main\" is not one word of ASCII"),
        ("key_env = \"TOLLGATE_NO_SUCH_KEY\"", "the variable TOLLGATE_NO_SUCH_KEY"),
        ("key_file = \"no-such-file\"", "the file no-such-file"),
    ] {
        let gateway = parse(&with("key = \"sk-1\"", key)).unwrap().gateway.unwrap();
        let error = gateway.read().unwrap_err().to_string();
        assert!(error.starts_with(wanted) && !error.contains("two words"), "{error}");
    }
    assert!(!format!("{:?}", parse(GOOD).unwrap()).contains("sk-1"));
}
