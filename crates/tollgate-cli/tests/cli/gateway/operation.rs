//! How a gateway is operated: what it prints, counts and records, its reload, its drain, and `gateway check`.

use std::io::Read as _;

use serde_json::Value;
use tollgate::Span;
use tollgate_server::keys::KeyHash;
use tollgate_testkit::fakes::llm::{Dialect, Fault, Settings, Trouble, When};
use tollgate_testkit::servers::eventually;

use super::raw::{Raw, read};
use super::{KEY, Provider, Setup, upstream_key, url_of};
use crate::dashboard::look;
use crate::folder::Folder;
use crate::running::{Broker, get};

fn json(broker: &Broker, path: &str) -> Value {
    let answer = get(&broker.url, path);
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).expect("JSON")
}

#[test]
fn a_call_is_in_the_report_the_statistics_and_the_metrics() {
    let assembled = Setup::default().start(Settings::default());
    let broker = &assembled.gateway.broker;
    let line = format!("  gateway    {} (openai, anthropic, gemini)\n", assembled.gateway.url);
    assert!(broker.printed().contains(&line), "{}", broker.printed());
    let call = Raw::say(Dialect::OpenAi, "Say hello.", false);
    assert_eq!(call.through(&assembled.gateway.url, Dialect::OpenAi).status, 200);
    assert_eq!(call.send(&assembled.gateway.url, Dialect::OpenAi, "wrong").status, 401);
    let find = || {
        let stats = json(broker, "/v1/stats");
        let deployments = stats["gateway"]["deployments"].as_array().expect("deployments").clone();
        deployments.into_iter().find(|it| it["upstream"] == "openai" && it["calls"] == 1)
    };
    let counted = eventually(|| find().filter(|it| it["in_flight"] == 0)).expect("it is counted");
    assert_eq!((&counted["dialect"], &counted["model"]), (&"openai".into(), &"gpt*".into()));
    assert!(counted["input_tokens"].as_u64() > Some(0), "{counted}");
    assert_eq!(counted["closed_until"], Value::Null);
    let metrics = get(&broker.url, "/metrics");
    for wanted in [
        "tollgate_gateway_calls_total{upstream=\"openai\",model=\"gpt*\",outcome=\"answered\"} 1\n",
        "tollgate_gateway_first_byte_seconds_count{upstream=\"openai\",model=\"gpt*\"} 1\n",
        "tollgate_gateway_wait_seconds_count{upstream=\"openai\",model=\"gpt*\"} 1\n",
        "reason=\"key\"} 1\n",
        "tollgate_gateway_waiting 0\n",
        "tollgate_gateway_in_flight 0\n",
    ] {
        assert!(metrics.contains(wanted), "{wanted} is not in {metrics}");
    }
    assert!(!metrics.contains(KEY) && !metrics.contains("hello"));
}

/// A broker without a gateway has neither the statistics nor the series.
#[test]
fn a_broker_without_a_gateway_shows_none() {
    let folder = Folder::with(
        "[store]\nkind = \"memory\"\n[[policy]]\nname = \"api\"\nlimits = [{ name = \"a\", unit = \"requests\", rule = \"rolling-window\", limit = 1, window = \"1h\" }]\n",
    );
    let broker = Broker::start(&folder, "");
    assert_eq!(json(&broker, "/v1/stats")["gateway"], Value::Null);
    assert!(!get(&broker.url, "/metrics").contains("tollgate_gateway_waiting 0"));
    assert!(!broker.printed().contains("gateway"));
}

/// The audit names the key of the caller whose call was denied.
#[test]
fn a_denial_names_the_key() {
    let limits = "{ name = \"rate\", unit = \"requests\", rule = \"rolling-window\", limit = 1, window = \"1h\" }";
    let setup = Setup { limits, max_wait: "0s", ..Setup::default() };
    let assembled = setup.start(Settings::default());
    let call = Raw::say(Dialect::OpenAi, "Say hello.", false);
    let statuses = [(); 2].map(|()| call.through(&assembled.gateway.url, Dialect::OpenAi).status);
    assert_eq!(statuses, [200, 429]);
    let audit = json(&assembled.gateway.broker, "/v1/audit");
    let record = &audit["records"][0];
    assert_eq!((&record["outcome"], &record["by"]), (&"denied".into(), &"test".into()), "{audit}");
    assert_eq!((&record["policy"], &record["subject"]), (&"provider".into(), &"openai".into()));
}

/// A provider that refuses what was admitted is an incident, and so is a limit that differs from the policy.
#[test]
fn refusals_and_different_limits_are_incidents() {
    let mut settings = Settings::default();
    settings.quota.rpm = 50;
    let provider = Provider::start(settings.clone());
    let setup = Setup { max_wait: "0s", ..Setup::default() };
    let folder = Folder::with(&setup.config(&provider.served.url()));
    let broker = Broker::start(&folder, "");
    let url = url_of(&broker);
    let call = Raw::say(Dialect::OpenAi, "Say hello.", false);
    assert_eq!(call.through(&url, Dialect::OpenAi).status, 200);
    settings.troubles.push(Trouble::new(Fault::status(429), When::Every(1)));
    provider.fake.set(settings);
    assert_eq!(call.through(&url, Dialect::OpenAi).status, 429);
    let differs = "openai reports 50 requests for gpt*, and policy provider has 100000";
    let refused = "  provider              openai                ";
    let is_listed = |out: &str| out.contains(differs) && out.contains(refused);
    let listed = eventually(|| is_listed(&folder.run("audit incidents").out).then_some(()));
    assert!(listed.is_some(), "{}", folder.run("audit incidents").out);
    let (_, incidents) = folder.json("audit incidents");
    assert!(incidents.to_string().contains("\"event\":\"limit_differs\""), "{incidents}");
    let metrics = get(&broker.url, "/metrics");
    let refused =
        "tollgate_gateway_provider_refusals_total{upstream=\"openai\",model=\"gpt*\"} 1\n";
    assert!(metrics.contains(refused), "{metrics}");
}

/// Keys and routes are replaced; a wrong file changes nothing.
#[test]
fn a_reload_replaces_keys_and_a_wrong_one_keeps_them() {
    let provider = Provider::start(Settings::default());
    let config = Setup::default().config(&provider.served.url());
    let folder = Folder::with(&config);
    let mut broker = Broker::start(&folder, "");
    let url = url_of(&broker);
    let call = Raw::say(Dialect::OpenAi, "Say hello.", false);
    let status = |key: &str| call.send(&url, Dialect::OpenAi, key).status;
    assert_eq!((status(KEY), status("tg_new")), (200, 401));
    let hash = |key: &str| KeyHash::from_key(key).to_string();
    let replaced = config.replace(&hash(KEY), &hash("tg_new"));
    folder.write("tollgate.toml", &replaced);
    assert_eq!(broker.line(), "reloaded\n");
    assert_eq!((status(KEY), status("tg_new")), (401, 200));
    for (wrong, why) in [
        (
            replaced.replace("upstreams = [\"openai\"]", "upstreams = [\"opnai\"]"),
            "no upstream is called \"opnai\"; did you mean openai?",
        ),
        (replaced.replace("127.0.0.1:0", "127.0.0.1:1"), "[gateway] changed, apart from its keys"),
        (
            replaced.replace(
                &format!("key = \"{}\"", upstream_key(Dialect::OpenAi)),
                "key_env = \"TOLLGATE_NONE\"",
            ),
            "the variable TOLLGATE_NONE",
        ),
    ] {
        folder.write("tollgate.toml", &wrong);
        let line = broker.error_line();
        assert!(
            line.contains("not reloaded, everything stays as it was: ") && line.contains(why),
            "{line}"
        );
        assert_eq!((status(KEY), status("tg_new")), (401, 200));
    }
    // A route that is gone.
    let without = replaced.replace("\"gpt*\", ", "");
    folder.write("tollgate.toml", &without);
    assert_eq!(broker.line(), "reloaded\n");
    assert_eq!(status("tg_new"), 404);
}

/// A stream that runs at SIGTERM goes to its end.
#[test]
fn a_stream_is_drained() {
    let troubles = vec![Trouble::new(Fault::SlowStream(Span::from_millis(100)), When::Every(1))];
    let assembled =
        Setup::default().start(Settings { troubles, length: 30, ..Settings::default() });
    let (gateway, dialect) = (assembled.gateway, Dialect::OpenAi);
    let mut stream = Raw::say(dialect, "Tell me a story.", true).open(&gateway.url, dialect, KEY);
    let mut first = [0; 64];
    stream.read_exact(&mut first).expect("the stream begins");
    gateway.broker.signal("-TERM");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the stream goes to its end");
    assert!(rest.contains("data: [DONE]"), "{rest}");
    let (code, _, err) = gateway.broker.end("-0");
    assert_eq!((code, &*err), (Some(0), ""));
}

/// With a short drain the stream is cut, and a further signal does not wait for a long one.
#[test]
fn a_drain_is_bounded_and_a_further_signal_ends_it() {
    for (drain, signals) in [("drain = \"100ms\"", 1), ("drain = \"10m\"", 2)] {
        let troubles = vec![Trouble::new(Fault::SlowStream(Span::from_secs(10)), When::Every(1))];
        let setup = Setup { gateway: drain, ..Setup::default() };
        let assembled = setup.start(Settings { troubles, length: 30, ..Settings::default() });
        let (gateway, dialect) = (assembled.gateway, Dialect::OpenAi);
        let mut stream =
            Raw::say(dialect, "Tell me a story.", true).open(&gateway.url, dialect, KEY);
        let mut first = [0; 64];
        stream.read_exact(&mut first).expect("the stream begins");
        for _ in 1..signals {
            gateway.broker.signal("-TERM");
            let refuses =
                || std::net::TcpStream::connect(gateway.url.trim_start_matches("http://")).is_err();
            eventually(|| refuses().then_some(())).expect("it accepts nothing more");
        }
        let (code, _, _) = gateway.broker.end("-TERM");
        assert_eq!(code, Some(0), "{drain}");
        drop(read(&mut stream));
    }
}

#[test]
fn a_check_says_what_is_wrong_with_each_upstream() {
    let mut settings = Settings::default();
    settings.quota.rpm = 50;
    settings.keys = Dialect::ALL.map(upstream_key).to_vec();
    let provider = Provider::start(settings);
    let config = Setup::default().config(&provider.served.url());
    let folder = Folder::with(&config);
    let ran = folder.run("gateway check");
    assert_eq!((ran.code, &*ran.err), (0, ""), "{}", ran.out);
    for dialect in Dialect::ALL {
        let line = format!("{dialect} ({dialect}, {}): ok, ", provider.served.url());
        assert!(ran.out.contains(&line), "{}", ran.out);
    }
    // Models are listed without a call that counts.
    assert_eq!(provider.fake.tally().at_once, 0);
    let limits = config.replace("models = [\"gpt*\"", "models = [\"gpt-4o-mini\"");
    folder.write("tollgate.toml", &limits);
    let (code, report) = folder.json("gateway check openai --call");
    let limit = &report["upstreams"][0]["limits"][0];
    assert_eq!(
        (code, &limit["unit"], &limit["limit"]),
        (0, &"requests".into(), &50.into()),
        "{report}"
    );
    assert_eq!(limit["policies"][0]["policy"], "provider");
    assert_eq!(limit["policies"][0]["above"], true);

    let key = format!("key = \"{}\"", upstream_key(Dialect::OpenAi));
    let url = format!("url = \"{}\"\n{key}", provider.served.url());
    let rows = [
        (
            config.replace(&key, "key = \"wrong\""),
            "it refuses the key (401); check key, key_env or key_file",
        ),
        (config.replace(&url, &format!("url = \"http://127.0.0.1:1\"\n{key}")), "not reachable: "),
        (
            config.replace(
                &url,
                &format!("url = \"https://{}\"\n{key}", &provider.served.url()[7..]),
            ),
            "it does not speak TLS; check url, or write http://",
        ),
        (
            config.replace(&url, &format!("url = \"{}/nowhere\"\n{key}", provider.served.url())),
            "check dialect and url",
        ),
        (
            config.replace(&url, &format!("url = \"http://no-such-host.invalid\"\n{key}")),
            "its host is not known (DNS); check url",
        ),
    ];
    for (config, wanted) in rows {
        folder.write("tollgate.toml", &config);
        let ran = folder.run("gateway check openai");
        assert_eq!((ran.code, &*ran.err), (1, ""), "{}", ran.out);
        assert!(ran.out.contains(wanted), "{wanted}: {}", ran.out);
        let (code, report) = folder.json("gateway check openai");
        assert_eq!((code, &report["upstreams"][0]["ok"]), (1, &false.into()), "{report}");
        assert!(!ran.out.contains("canary"), "{}", ran.out);
    }
    let ran = folder.run("gateway check opnai");
    assert_eq!(
        (ran.code, &*ran.err),
        (2, "tollgate: no upstream is called \"opnai\"; known: openai, anthropic, gemini\n")
    );
    let ran = Folder::new().run("gateway check");
    assert!(ran.code == 2 && ran.err.contains("the configuration has no [gateway]"), "{}", ran.err);
}

/// What `keys new --gateway` prints is a section that works.
#[test]
fn a_new_key_of_the_gateway_works() {
    let ran = Folder::new().run("keys new carol --gateway --team sales");
    assert_eq!((ran.code, &*ran.err), (0, ""));
    let key = ran.out.lines().next().expect("the key");
    let table = &ran.out[ran.out.find("[[gateway.key]]").expect("the table")..];
    assert!(table.contains("team = \"sales\"") && !table.contains(key), "{table}");
    let provider = Provider::start(Settings::default());
    let config = Setup { more: table, ..Setup::default() }.config(&provider.served.url());
    let broker = Broker::start(&Folder::with(&config), "");
    let call = Raw::say(Dialect::OpenAi, "Say hello.", false);
    assert_eq!(call.send(&url_of(&broker), Dialect::OpenAi, key).status, 200);
    let (code, made) = Folder::new().json("keys new dave --gateway");
    assert_eq!((code, &made["subject"], &made["scopes"]), (0, &"dave".into(), &Value::Null));
    for wrong in [
        "keys new x",
        "keys new x --gateway --scope acquire",
        "keys new x --scope acquire --team y",
    ] {
        assert_eq!(Folder::new().run(wrong).code, 2, "{wrong}");
    }
}

/// A call that waits is on the dashboard, with the calls before it.
#[test]
fn the_dashboard_shows_the_queue() {
    let limits = "{ name = \"rate\", unit = \"requests\", rule = \"rolling-window\", limit = 1, window = \"4m\" }";
    let setup = Setup { limits, max_wait: "5m", ..Setup::default() };
    let assembled = setup.start(Settings::default());
    let (gateway, dialect) = (&assembled.gateway, Dialect::OpenAi);
    let call = Raw::say(dialect, "Say hello.", false);
    assert_eq!(call.through(&gateway.url, dialect).status, 200);
    let _waits = call.open(&gateway.url, dialect, KEY);
    look(&gateway.broker, &["gateway"]);
}
