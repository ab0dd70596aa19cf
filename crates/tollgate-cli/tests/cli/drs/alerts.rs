//! Alerts, log, metrics and settings of `tollgate drs`, by flags and by environment variables.

use std::process::Command;

use serde_json::Value;
use tollgate::Span;
use tollgate_testkit::fakes::drs::{FakeDrs, Fault, Settings};
use tollgate_testkit::servers::{Inbox, Ministack, Port, eventually};

use crate::drs::{POLICY, World, quick};
use crate::folder::Ran;

fn world() -> World {
    World::new(Settings { retry_after: Span::ZERO, servers: 2, ..quick() })
}

/// The command with `variables` beside those of every test.
fn command(world: &World, arguments: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = world.folder.command(&world.arguments(arguments));
    command.envs(variables.iter().copied());
    command
}

fn ran(world: &World, arguments: &str, variables: &[(&str, &str)]) -> Ran {
    command(world, arguments, variables).output().expect("the binary starts").into()
}

fn lines(world: &World, file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(world.folder.path().join(file)).expect("it was written");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// A call that fails in all its attempts: the topic has one message, the log every attempt, both with one correlation id, and
/// both name the account of the role. An SNS that does not answer changes neither the error nor the exit status.
#[test]
fn r001_12_r001_13_exhausted_retries_of_a_command_reach_the_topic_and_the_log() {
    let emulator = Ministack::start().expect("an emulator");
    let inbox = Inbox::new(&emulator, "drs-alerts").expect("a topic");
    let world = world();
    let endpoint = emulator.endpoint();
    let variables = [
        ("DRS_ALERTS_TOPIC_ARN", inbox.topic()),
        ("DRS_MAX_RETRIES", "2"),
        ("DRS_BASE_DELAY", "1ms"),
        ("DRS_ROLE_ARN", "arn:aws:iam::210987654321:role/operator"),
        ("DRS_EXTERNAL_ID", "shared-word"),
        ("AWS_ENDPOINT_URL_SNS", &endpoint),
        ("AWS_ENDPOINT_URL_STS", &endpoint),
    ];
    world.fake().inject(None, 3, Fault::Throttled);
    let failed = ran(&world, "servers --log drs.jsonl", &variables);
    assert_eq!(failed.code, 2, "{}", failed.err);
    assert!(failed.err.contains("ThrottlingException"), "{}", failed.err);
    assert_eq!(world.fake().arrivals().all().len(), 3, "max_retries + 1 calls");
    let messages = eventually(|| {
        Some(inbox.take(&emulator).expect("it answers")).filter(|all| !all.is_empty())
    });
    let messages = messages.expect("the topic gets a message");
    assert_eq!(messages.len(), 1);
    let subject = "DRS Rate Limit Escalation - eu-central-1 - DescribeSourceServers";
    assert_eq!(messages[0]["Subject"], subject);
    let log = lines(&world, "drs.jsonl");
    let events: Vec<&str> = log.iter().filter_map(|line| line["event"].as_str()).collect();
    let refused = "rate_limit_error";
    assert_eq!(events, [refused, refused, refused, "retry_exhausted"]);
    let id = log[0]["correlation_id"].as_str().expect("an id");
    assert!(
        log.iter().all(|line| line["correlation_id"] == id && line["account"] == "210987654321")
    );
    let message = messages[0]["Message"].as_str().expect("a text");
    for part in [id, "Attempts: 3", "210987654321"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    drop(emulator);
    world.fake().inject(None, 3, Fault::Throttled);
    // Without a role there is no STS to miss.
    let is_of_role = |name: &str| ["DRS_ROLE_ARN", "DRS_EXTERNAL_ID"].contains(&name);
    let rest: Vec<_> = variables.into_iter().filter(|(name, _)| !is_of_role(name)).collect();
    let silent = ran(&world, "servers", &rest);
    assert_eq!(silent.code, 2, "{}", silent.err);
    assert!(silent.err.contains("ThrottlingException"), "{}", silent.err);
    assert!(
        silent.err.contains("the escalation of exhausted retries was not sent"),
        "{}",
        silent.err
    );
}

/// Metrics that cannot be published for seconds are one warning, and fail nothing.
#[test]
fn r001_10_metrics_that_cannot_be_published_are_warned_of_once() {
    let slow = Settings { running_for: Span::from_secs(3), servers: 2, ..quick() };
    let world = World::new(slow);
    let closed = Port::free().expect("a port");
    let endpoint = format!("http://127.0.0.1:{}", closed.number());
    world.folder.write("tollgate.toml", &cloudwatch(&endpoint, "1s"));
    let recover = "recover --servers servers.txt --yes --poll 200ms";
    let recovered = ran(&world, recover, &[("AWS_MAX_ATTEMPTS", "1")]);
    assert_eq!(recovered.code, 0, "{}", recovered.err);
    let warnings = recovered.err.matches("telemetry is not written").count();
    assert_eq!(warnings, 1, "{}", recovered.err);
    assert!(recovered.err.contains("cloudwatch"), "{}", recovered.err);
}

fn cloudwatch(endpoint: &str, interval: &str) -> String {
    let place = format!("region = \"eu-central-1\"\nendpoint = \"{endpoint}\"");
    format!("[telemetry.cloudwatch]\n{place}\ninterval = \"{interval}\"\n{POLICY}")
}

/// The four counters are in CloudWatch when the command has ended.
#[test]
fn r001_10_the_calls_of_a_command_are_in_cloudwatch_when_it_ends() {
    let emulator = Ministack::start().expect("an emulator");
    let world = world();
    world.folder.write("tollgate.toml", &cloudwatch(&emulator.endpoint(), "1h"));
    world.fake().inject(None, 1, Fault::Throttled);
    let listed = ran(&world, "servers --base-delay 1ms", &[]);
    assert_eq!((listed.code, &*listed.err), (0, ""));
    let (region, operation) = (("Region", "eu-central-1"), ("Operation", "DescribeSourceServers"));
    let throttled = ("ErrorType", "ThrottlingException");
    let sum = |name, dimensions: &[(&str, &str)]| {
        emulator.metric_sum("DRS/RateLimits", name, dimensions).expect("it answers")
    };
    assert_eq!(sum("RateLimitErrors", &[throttled, region, operation]), Some(1.0));
    let succeeded = ("Success", "True");
    assert_eq!(sum("RetryAttempts", &[region, operation, ("Attempt", "1"), succeeded]), Some(1.0));
    assert_eq!(sum("APICallCount", &[region, operation, succeeded]), Some(1.0));
}

/// Flags go before variables, and variables before defaults: counted at the service.
#[test]
fn r001_3_flags_and_variables_set_the_retries() {
    let world = world();
    // One call more would succeed.
    let fails_after = |calls: u32, arguments: &str, variables: &[(&str, &str)]| {
        let before = world.fake().arrivals().all().len();
        world.fake().inject(None, calls, Fault::Throttled);
        let failed = ran(&world, &format!("servers {arguments}"), variables);
        assert_eq!(failed.code, 2, "{}", failed.out);
        assert_eq!(world.fake().arrivals().all().len() - before, calls as usize, "{arguments}");
    };
    let quick = ("DRS_BASE_DELAY", "1ms");
    fails_after(1, "--max-retries 0", &[]);
    fails_after(4, "", &[quick, ("DRS_MAX_RETRIES", "3")]);
    fails_after(2, "--max-retries 1", &[quick, ("DRS_MAX_RETRIES", "3")]);
    fails_after(6, "--base-delay 60s --max-delay 1ms", &[]);
}

#[test]
fn mistakes_in_the_settings_are_named_and_call_nothing() {
    let world = world();
    let unset = ("DRS_RATE", "");
    let cases = [
        ("", ("DRS_RATE", "fast"), "DRS_RATE=fast is not a non-negative integer"),
        ("", ("DRS_BASE_DELAY", "soon"), "DRS_BASE_DELAY=soon is not a duration"),
        ("", ("DRS_ALERTS_TOPIC_ARN", "alerts"), "is not the ARN of an SNS topic"),
        ("", ("DRS_LOG_LEVEL", "loud"), "unknown log level \"loud\"; use info, warning"),
        ("--alerts-topic alerts", unset, "is not the ARN of an SNS topic"),
        ("--rate 0", unset, "a rate of 0 (--rate or DRS_RATE) lets no call through"),
        ("--log-level loud", unset, "unknown log level \"loud\""),
        ("--external-id word", unset, "an external id is for a role"),
        ("--log none/drs.jsonl", unset, "the log none/drs.jsonl cannot be written"),
    ];
    for (flags, variable, wanted) in cases {
        let ran = ran(&world, &format!("servers {flags}"), &[variable]);
        assert_eq!(ran.code, 2, "{flags}: {}", ran.out);
        assert!(ran.err.contains(wanted), "{flags}: {}", ran.err);
    }
    assert_eq!(world.fake().arrivals().all().len(), 0);
    // What a template leaves empty is not set.
    assert_eq!(ran(&world, "servers", &[("DRS_ALERTS_TOPIC_ARN", ""), ("DRS_RATE", "")]).code, 0);
}

/// Each launch configuration is a call within the rate, and is tried again.
#[test]
fn r001_7_launch_configurations_are_read_within_the_rate_and_retried() {
    let world = World::new(Settings {
        retry_after: Span::ZERO,
        servers: 7,
        page_max: 3,
        rate: Some((40, 40)),
        ..quick()
    });
    world.fake().inject(Some("GetLaunchConfiguration"), 2, Fault::Throttled);
    let (code, all) = world.json("launch-configurations --rate 20 --burst 2 --base-delay 1ms");
    assert_eq!(code, 0, "{all}");
    let rows = all["launch_configurations"].as_array().expect("a list");
    let servers: Vec<&str> = rows.iter().filter_map(|row| row["server"].as_str()).collect();
    let expected: Vec<String> = (0..7).map(FakeDrs::server_id).collect();
    assert_eq!(servers, expected);
    assert_eq!((&rows[0]["right_sizing"], &rows[0]["copy_tags"]), (&"BASIC".into(), &true.into()));
    let arrivals = world.fake().arrivals();
    assert_eq!(
        (arrivals.count("GetLaunchConfiguration"), arrivals.count("DescribeSourceServers")),
        (9, 3)
    );
    assert_eq!(arrivals.over(20, 2, Span::from_millis(100)), None);
    let unknown = world.run("launch-configurations s-fffffffffffffffff");
    assert_eq!(unknown.code, 2);
    assert!(unknown.err.contains("s-fffffffffffffffff does not exist"), "{}", unknown.err);
}
