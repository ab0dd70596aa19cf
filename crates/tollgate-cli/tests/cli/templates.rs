//! Alarms, rules and dashboards in `deploy/`: every series that one of them names is one that a program publishes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;
use tollgate::Timestamp;
use tollgate_drs::metrics::{METRICS as DRS, NAMESPACE as DRS_NAMESPACE};
use tollgate_telemetry::{Kind, METRICS, Meters, Metric, dimension};

/// Labels that Prometheus adds.
const ADDED: [&str; 3] = ["le", "instance", "job"];

/// A series that a template names: the sample or metric, and its labels or dimensions with the values that are asked for.
type Named = (String, Vec<(String, Option<String>)>);

/// Every file in `deploy/` that ends with `suffix`, with its name.
fn files(suffix: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let paths =
        fs::read_dir(folder).expect("it is there").map(|entry| entry.expect("a file").path());
    let named = paths.map(|path| (path.display().to_string(), path));
    named
        .filter(|(name, _)| name.ends_with(suffix))
        .map(|(name, path)| (name, fs::read_to_string(path).expect("it is text")))
        .collect()
}

/// The rest of `text` after each `mark`.
fn after<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(mark).map(move |(at, _)| &text[at + mark.len()..])
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    &text[..end.unwrap_or(text.len())]
}

/// The values that a label has, where a process that translates knows all of them from its start.
fn values(metric: &Metric, label: &str) -> Option<BTreeSet<String>> {
    let meters = Meters::new();
    let _ = meters.translation();
    let place = metric.labels.iter().position(|other| *other == label)?;
    let series = meters.snapshot(Timestamp::EPOCH).series.into_iter();
    let same = series.filter(|series| series.metric.name == metric.name);
    let values: BTreeSet<String> = same.map(|series| series.labels[place].to_string()).collect();
    (!values.is_empty()).then_some(values)
}

/// The samples in a query of Prometheus, each with the labels that it is selected by.
fn samples(query: &str) -> Vec<Named> {
    let all = after(query, "tollgate_").map(|rest| {
        let name = word(rest);
        let selector = rest[name.len()..].strip_prefix('{').and_then(|rest| rest.split('}').next());
        let labels = selector.unwrap_or_default().split(',').filter(|part| !part.is_empty());
        let labels = labels.map(|part| {
            let (label, value) = part.split_once('=').expect("a label and its value");
            let exact = value.strip_prefix('"').map(|value| value.trim_end_matches('"').to_owned());
            (label.trim().to_owned(), exact)
        });
        (format!("tollgate_{name}"), labels.collect())
    });
    all.collect()
}

/// The metric that has a sample called `name` on the page of Prometheus.
fn of_sample(name: &str) -> Option<&'static Metric> {
    let has = |metric: &&&Metric| match metric.kind {
        Kind::Counter | Kind::Gauge => metric.prometheus() == name,
        Kind::Duration | Kind::JobDuration | Kind::CallDuration | Kind::Attempts => {
            ["bucket", "count", "sum"].iter().any(|part| format!("{}_{part}", metric.name) == name)
        }
    };
    METRICS.iter().find(has).copied()
}

/// Every text in `value`.
fn texts(value: &Value, all: &mut Vec<String>) {
    match value {
        Value::String(text) => all.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, all)),
        Value::Object(members) => members.values().for_each(|item| texts(item, all)),
        _ => {}
    }
}

/// The queries of a file with rules: the text after `expr:`, until the next key.
fn queries(rules: &str) -> Vec<String> {
    let is_key = |line: &str| {
        let line = line.trim_start_matches([' ', '-']);
        line.starts_with('#') || line.split(' ').next().is_some_and(|first| first.ends_with(':'))
    };
    let query = |rest: &str| {
        let mut lines = rest.lines();
        let first = lines.next().unwrap_or_default().to_owned();
        lines.take_while(|line| !is_key(line)).fold(first, |all, line| format!("{all} {line}"))
    };
    after(rules, "expr:").map(query).collect()
}

#[test]
fn r000_13_r003_9_every_rule_and_panel_names_series_that_are_published() {
    let mut asked: Vec<(String, String)> = Vec::new();
    for (file, text) in files("rules.yaml") {
        asked.extend(queries(&text).into_iter().map(|query| (file.clone(), query)));
    }
    for (file, text) in files(".json") {
        let mut all = Vec::new();
        texts(&serde_json::from_str(&text).expect("JSON"), &mut all);
        asked.extend(all.into_iter().map(|query| (file.clone(), query)));
    }
    let mut count = 0;
    for (file, query) in asked {
        let named = samples(&query);
        count += named.len();
        let mut labels: BTreeSet<&str> = ADDED.into();
        for (name, selected) in &named {
            let metric =
                of_sample(name).unwrap_or_else(|| panic!("{file}: {name} is not published"));
            labels.extend(metric.labels);
            for (label, value) in selected {
                let is_own = metric.labels.contains(&label.as_str()) || label == "le";
                assert!(is_own, "{file}: {name} has no label {label}");
                if let (Some(value), Some(known)) = (value, values(metric, label)) {
                    assert!(known.contains(value), "{file}: {label} of {name} is never {value}");
                }
            }
        }
        for by in after(&query, "by (").filter(|_| !named.is_empty()) {
            for label in by.split(')').next().unwrap_or_default().split(", ") {
                assert!(labels.contains(label), "{file}: nothing in {query} has the label {label}");
            }
        }
    }
    assert!(40 < count, "{count}: the queries are not read");
}

/// The metrics that alarms of a template name, with their dimensions: the namespace, the series and the unit.
fn alarms(template: &str) -> Vec<(String, Named, Option<String>)> {
    // A metric begins at its namespace or its name, whichever is first, and ends where the next one does.
    let stanza = |at: usize| {
        let before = template[..at].rfind("Namespace: ").expect("it has a namespace");
        let rest = &template[at + "MetricName: ".len()..];
        let ends = ["MetricName: ", "Type: AWS::", "- Id: ", "\nOutputs:"];
        let end = ends.iter().filter_map(|mark| rest.find(mark)).min().unwrap_or(rest.len());
        (&template[before + "Namespace: ".len()..], &rest[..end])
    };
    let found = template.match_indices("MetricName: ").map(|(at, _)| {
        let (namespace, stanza) = stanza(at);
        let namespace = namespace.split(['\n', ',']).next().unwrap_or_default().to_owned();
        let dimensions = after(stanza, "Name: ").filter(|rest| rest.contains(", Value: "));
        let dimensions = dimensions.map(|rest| {
            let value = after(rest, "Value: ").next().map(|value| word(value).to_owned());
            (word(rest).to_owned(), value)
        });
        let unit = after(stanza, "Unit: ").next().map(|unit| word(unit).to_owned());
        (namespace, (word(stanza).to_owned(), dimensions.collect()), unit)
    });
    found.collect()
}

/// The metrics on the dashboard of a template, of its own namespace.
fn shown(template: &str) -> Vec<Named> {
    let Some(start) = template.find("DashboardBody: !Sub |\n") else { return Vec::new() };
    let body = template[start..].split_once('\n').expect("the body is below").1;
    let body: String = body.lines().take_while(|line| line.starts_with("        ")).collect();
    let body: Value = serde_json::from_str(&body).expect("the body of the dashboard is JSON");
    let mut all = Vec::new();
    for widget in body["widgets"].as_array().expect("widgets") {
        for metric in widget["properties"]["metrics"].as_array().into_iter().flatten() {
            let words: Vec<&str> =
                metric.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
            if let [namespace, name, dimensions @ ..] = words.as_slice() {
                assert_eq!(*namespace, "${Namespace}");
                let pairs = dimensions.chunks_exact(2);
                let pairs = pairs.map(|pair| (pair[0].to_owned(), Some(pair[1].to_owned())));
                all.push(((*name).to_owned(), pairs.collect()));
            }
            let expression = metric[0]["expression"].as_str().unwrap_or_default();
            if let Some(search) = expression.strip_prefix("SEARCH('{${Namespace},") {
                let (schema, rest) = search.split_once('}').expect("a schema");
                let name = word(after(rest, "MetricName=\"").next().expect("a name")).to_owned();
                let names = schema.split(',').map(|name| (name.to_owned(), None));
                all.push((name, names.collect()));
            }
        }
    }
    all
}

/// CloudWatch finds a metric by its name and exactly its dimensions, so they must be those that are published, or none.
fn check(file: &str, published: &[&Metric], (name, asked): &Named) -> Option<&'static str> {
    let metric =
        published.iter().find(|metric| metric.cloudwatch.is_some_and(|(it, _)| it == name));
    assert!(metric.is_some(), "{file}: {name} is not published");
    let metric = metric?;
    let labels = metric.cloudwatch.map(|(_, labels)| labels).unwrap_or_default();
    let names: Vec<&str> = asked.iter().map(|(name, _)| name.as_str()).collect();
    let own: Vec<String> = labels.iter().map(|label| dimension(label)).collect();
    assert!(
        names.is_empty() || names == own,
        "{file}: {name} is published by {own:?}, not {names:?}"
    );
    for ((_, value), label) in asked.iter().zip(labels) {
        if let (Some(value), Some(known)) = (value, values(metric, label)) {
            assert!(known.contains(value), "{file}: {label} of {name} is never {value}");
        }
    }
    Some(metric.cloudwatch_unit())
}

#[test]
fn r000_13_r003_9_every_alarm_and_widget_names_series_that_are_published() {
    let drs: Vec<&Metric> = DRS.iter().collect();
    let mut count = 0;
    for (file, template) in files(".yaml") {
        for (namespace, named, unit) in alarms(&template) {
            let published = match namespace.as_str() {
                "!Ref Namespace" => METRICS,
                DRS_NAMESPACE => &drs,
                other if other.starts_with("AWS/") => continue,
                other => panic!("{file}: nothing is published to {other}"),
            };
            let own = check(&file, published, &named);
            assert!(unit.is_none() || unit.as_deref() == own, "{file}: {named:?} is in {own:?}");
            count += 1;
        }
        for named in shown(&template) {
            check(&file, METRICS, &named);
            count += 1;
        }
    }
    assert!(30 < count, "{count}: the templates are not read");
}
