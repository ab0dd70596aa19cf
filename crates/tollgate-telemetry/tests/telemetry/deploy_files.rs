//! The files in `deploy/` and the page of metrics: they refer to existing metrics, and tools accept them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value as Json;
use tollgate_telemetry::{Kind, METRICS, Metric, dimension};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every word of `text` that begins with `prefix`.
fn words(text: &str, prefix: &str) -> BTreeSet<String> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_of_name(c))
        .filter(|word| word.starts_with(prefix) && word.len() != prefix.len())
        .map(str::to_owned)
        .collect()
}

#[test]
fn r000_11_r000_13_the_template_has_the_alarms_and_the_dashboard() {
    let template = read("deploy/cloudformation.yaml");
    // Throttling that persists, fallback and incidents have an alarm; the four metrics of R000.13 are on the dashboard.
    for metric in [
        "RateLimiterStoreThrottled",
        "RateLimiterFallbackActivated",
        "RateLimiterViolations",
        "RateLimiterOverIssue",
    ] {
        assert!(template.contains(&format!("MetricName: {metric}\n")), "{metric} has no alarm");
    }
    let start = template.find("DashboardBody: !Sub |\n").expect("there is a dashboard");
    let body = template[start..].split_once('\n').expect("the body is below").1;
    let body: String = body.lines().take_while(|line| line.starts_with("        ")).collect();
    let body: Json = serde_json::from_str(&body).expect("the body of the dashboard is JSON");
    let dashboard = body.to_string();
    for metric in ["TokensAcquired", "TokensAvailable", "AcquisitionLatency", "AcquisitionFailures"]
    {
        assert!(dashboard.contains(&format!("RateLimiter{metric}")), "{metric} is not shown");
    }
}

/// R002.5: over-issue has an alert and an alarm.
#[test]
fn r002_5_over_issue_is_alarmed() {
    let metric =
        METRICS.iter().find(|metric| metric.name == "tollgate_over_issue").expect("it is emitted");
    let rules = read("deploy/prometheus-rules.yaml");
    assert!(rules.contains(&format!("(increase({}[5m])) > 0", metric.prometheus())));
    let (name, _) = metric.cloudwatch.expect("it is in CloudWatch");
    assert!(read("deploy/cloudformation.yaml").contains(&format!("MetricName: {name}\n")));
}

#[test]
fn r003_9_translations_have_alarms() {
    let template = read("deploy/cloudformation.yaml");
    let rules = words(&read("deploy/prometheus-rules.yaml"), "tollgate_translation_");
    for metric in [
        "RateLimitViolations",
        "TranslationJobs",
        "TranslationSpeed",
        "TranslationPauses",
        "DistributedRateLimiterAcquireFailures",
    ] {
        let is = |known: &&&Metric| known.cloudwatch.is_some_and(|(name, _)| name == metric);
        let known = METRICS.iter().find(is).unwrap_or_else(|| panic!("{metric} is not emitted"));
        assert!(template.contains(&format!("MetricName: {metric}\n")), "{metric} has no alarm");
        let has_rule = rules.iter().any(|named| named.starts_with(known.name));
        assert!(has_rule, "{metric} has no rule");
    }
}

/// Runs a checker of files, which `cargo xtask test` installs.
fn passes(mut command: Command) {
    let output = command.current_dir(root()).output().unwrap_or_else(|error| {
        panic!("{command:?}: {error}; `cargo xtask test` installs what the tests need")
    });
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
}

#[test]
fn the_templates_pass_cfn_lint() {
    let packages = root().join("target/servers/cfn-lint");
    let script = packages.join("bin/cfn-lint");
    let mut command = if script.exists() {
        let mut command = Command::new("python3");
        command.arg(script).env("PYTHONPATH", packages);
        command
    } else {
        Command::new("cfn-lint")
    };
    command.args([
        "deploy/cloudformation.yaml",
        "deploy/drs-lambda.yaml",
        "deploy/translate.yaml",
        "deploy/broker-lambda.yaml",
    ]);
    passes(command);
}

/// ServiceMonitors are of the Prometheus operator, whose schema is not among those of Kubernetes.
#[test]
fn the_manifests_pass_kubernetes_validate() {
    let packages = root().join("target/servers/kubernetes-validate");
    let script = packages.join("bin/kubernetes-validate");
    let mut command = if script.exists() {
        let mut command = Command::new("python3");
        command.arg(script).env("PYTHONPATH", packages);
        command
    } else {
        Command::new("kubernetes-validate")
    };
    command.arg("--strict");
    let mut checked = 0;
    for folder in ["deploy/kubernetes/broker", "deploy/kubernetes/envoy-ratelimit"] {
        let list = std::fs::read_to_string(root().join(folder).join("kustomization.yaml")).unwrap();
        for file in std::fs::read_dir(root().join(folder)).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            assert!(
                name == "kustomization.yaml" || list.contains(&format!("- {name}\n")),
                "{name} is not used"
            );
            let others =
                ["kustomization.yaml", "servicemonitor.yaml", "config.yaml", "tollgate.toml"];
            if !others.contains(&name.as_str()) {
                command.arg(format!("{folder}/{name}"));
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 10);
    passes(command);
}

#[test]
fn the_alert_rules_pass_promtool() {
    let mut command = Command::new("promtool");
    command.args(["check", "rules", "deploy/prometheus-rules.yaml"]);
    passes(command);
}

fn row(metric: &Metric) -> String {
    let kind = match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Duration | Kind::JobDuration | Kind::CallDuration | Kind::Attempts => "histogram",
    };
    let cloudwatch = metric.cloudwatch.map_or("–".to_owned(), |(name, dimensions)| {
        let dimensions: Vec<String> = dimensions.iter().map(|label| dimension(label)).collect();
        format!("`{name}` ({}) {}", metric.cloudwatch_unit(), dimensions.join(", "))
            .trim()
            .to_owned()
    });
    let labels = metric.labels.join(", ");
    let (name, otel, help) = (metric.prometheus(), metric.otel(), metric.help);
    format!("| `{name}` | {kind} | {labels} | {cloudwatch} | `{otel}` | {help} |")
}

/// The page lists every metric under its name in every sink, and no other.
#[test]
fn r000_13_the_page_of_metrics_is_what_is_emitted() {
    let page = read("docs/metrics.md");
    let listed: Vec<&str> = page.lines().filter(|line| line.starts_with("| `tollgate_")).collect();
    let emitted: Vec<String> = METRICS.iter().map(|metric| row(metric)).collect();
    assert_eq!(listed, emitted);
}
