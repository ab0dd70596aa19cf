//! `tollgate convert`: the limits of another program as a `tollgate.toml`.
//!
//! The command is not `import`, which writes the state of a store: this one only prints, and opens nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use tollgate::core::bounds::{LIMITS_MAX, NUMBER_MAX, SPAN_MAX};
use tollgate::policy::Rule;
use tollgate::{ErrorKind, Span};
use tollgate_ratelimit_config::limitador::{self, Condition, is_key};
use tollgate_ratelimit_config::{
    Descriptor, DomainFile, Options, Pattern, Quantity, RateLimitConfig, Windows, files,
    policy_name,
};
use tollgate_terminal::Failure;
use tollgate_terminal::output;

use crate::args::{Convert, ConvertCommand, ConvertEnvoy};

/// A converted configuration, and what it does not express.
#[derive(Debug, Default)]
struct Converted {
    text: String,
    notes: Vec<String>,
}

/// Prints the converted configuration, and on standard error what could not be expressed.
pub(crate) fn run(args: &Convert) -> Result<(), Failure> {
    let converted = match &args.command {
        ConvertCommand::EnvoyRatelimit(args) => envoy_ratelimit(args)?,
        ConvertCommand::Limitador { file } => limitador(file)?,
    };
    for note in &converted.notes {
        output::print_error(note);
    }
    output::print_bytes(converted.text.as_bytes())
}

fn invalid(error: &impl ToString) -> Failure {
    Failure::new(ErrorKind::Invalid, error.to_string())
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::new(ErrorKind::Invalid, format!("{}: {error}", path.display())))
}

/// Converts the files of an envoyproxy/ratelimit configuration.
fn envoy_ratelimit(args: &ConvertEnvoy) -> Result<Converted, Failure> {
    let mut domains = Vec::new();
    for path in files(&args.path).map_err(|error| invalid(&error))? {
        let name = path.display().to_string();
        domains.push(DomainFile::parse(&name, &read(&path)?).map_err(|error| invalid(&error))?);
    }
    let windows = if args.rolling { Windows::Rolling } else { Windows::Fixed };
    let options = Options { merge_domains: true, windows, calendar_months: args.calendar_months };
    // Checks names, values and duplicates.
    let config = RateLimitConfig::new(domains.clone(), options).map_err(|error| invalid(&error))?;
    let mut converted = Converted::default();
    converted.notes.extend(config.warnings().iter().map(ToString::to_string));
    converted.text = format!(
        "# Converted from {} by tollgate convert envoy-ratelimit.\n\
         # Check it with: tollgate policies check FILE. Decided together: all descriptors of a request; a refused one charges nothing.\n",
        args.path.display()
    );
    let mut merged: BTreeMap<String, Vec<(String, Descriptor)>> = BTreeMap::new();
    for file in domains {
        let of_domain = merged.entry(file.domain).or_default();
        of_domain.extend(file.descriptors.into_iter().map(|it| (file.source.clone(), it)));
    }
    let mut rules = String::new();
    for (domain, descriptors) in &merged {
        let mut level = Level { domain, converted: &mut converted, rules: &mut rules, options };
        let ordered =
            ordered(descriptors.iter().map(|(source, it)| (source.as_str(), it)).collect());
        level.write(&ordered, &[]);
    }
    converted.text += &rules;
    if rules.is_empty() {
        converted.notes.push(format!("{}: there is no limit to convert", args.path.display()));
    }
    Ok(converted)
}

/// Returns the descriptors of one level in the order in which they are tried: equal values, wildcards, the key alone. The
/// first rule that matches applies.
fn ordered<'a>(mut level: Vec<(&'a str, &'a Descriptor)>) -> Vec<(&'a str, &'a Descriptor)> {
    level.sort_by_key(|(_, descriptor)| match descriptor.value.as_str() {
        "" => 2,
        value if Pattern::new(value).is_wildcard() => 1,
        _ => 0,
    });
    level
}

struct Level<'a> {
    domain: &'a str,
    converted: &'a mut Converted,
    rules: &'a mut String,
    options: Options,
}

impl Level<'_> {
    fn write(&mut self, level: &[(&str, &Descriptor)], parents: &[&Descriptor]) {
        for (index, (source, descriptor)) in level.iter().enumerate() {
            let path: Vec<&Descriptor> = parents.iter().copied().chain([*descriptor]).collect();
            let is_general = |other: &&(&str, &Descriptor)| {
                other.1.key == descriptor.key
                    && (other.1.value.is_empty()
                        || Pattern::new(&other.1.value).matches(&descriptor.value))
            };
            // A general descriptor of this level would otherwise limit what the original leaves alone.
            let mut general = level[index + 1..].iter().filter(is_general);
            if descriptor.rate_limit.is_some() || general.any(|(_, it)| it.rate_limit.is_some()) {
                self.rule(source, &path);
            }
            let nested = ordered(descriptor.descriptors.iter().map(|it| (*source, it)).collect());
            self.write(&nested, &path);
            let general = level[index + 1..].iter().filter(is_general);
            for (_, other) in general {
                self.note_nested(source, descriptor, other);
            }
        }
    }

    /// Notes limits below `general` that also apply below `special`, which the original does not look at twice.
    fn note_nested(&mut self, source: &str, special: &Descriptor, general: &Descriptor) {
        for nested in &general.descriptors {
            if !special.descriptors.iter().any(|it| it.key == nested.key) {
                self.note(
                    source,
                    special,
                    &format!(
                        "requests with {}={} and then {:?} get the limit below {:?}; the original applies none",
                        special.key, special.value, nested.key, general.key
                    ),
                );
            }
        }
    }

    fn note(&mut self, source: &str, descriptor: &Descriptor, text: &str) {
        self.converted.notes.push(format!("{source}:{}: {text}", descriptor.line));
    }

    fn rule(&mut self, source: &str, path: &[&Descriptor]) {
        let Some(last) = path.last() else { return };
        let joined = |it: &&Descriptor| match it.value.as_str() {
            "" => it.key.clone(),
            value => format!("{}_{value}", it.key),
        };
        let parts: Vec<String> =
            std::iter::once(self.domain.to_owned()).chain(path.iter().map(joined)).collect();
        let limit = last.rate_limit.as_ref();
        let quantity =
            match limit.map(|limit| (limit.unlimited, limit.unit, limit.requests_per_unit)) {
                None | Some((true, ..)) => Quantity::Unlimited,
                Some((_, Some(unit), 0)) => Quantity::Blocked(unit),
                Some((_, Some(unit), requests)) => Quantity::PerUnit(requests, unit),
                Some((_, None, _)) => return,
            };
        let origin = format!("# {} ({source}:{})", parts.join("."), last.line);
        let target = match quantity {
            Quantity::Unlimited => "always = \"allow\"".to_owned(),
            // In shadow mode nothing is refused.
            Quantity::Blocked(_) if last.shadow_mode => "always = \"allow\"".to_owned(),
            Quantity::Blocked(_) => "always = \"deny\"".to_owned(),
            Quantity::PerUnit(requests, unit) => {
                let name = policy_name(&parts);
                let rule = self.options.windows.rule(requests, unit, self.options.calendar_months);
                let shadow = if last.shadow_mode { "shadow = true\n" } else { "" };
                let _infallible = writeln!(
                    self.converted.text,
                    "\n{origin}: {requests} per {unit}\n[[policy]]\nname = {}\n{shadow}limits = [{}]",
                    quoted(&name),
                    limit_table(unit.name(), &rule)
                );
                format!(
                    "policy = {}\nsubject = {}",
                    quoted(&name),
                    quoted(&self.subject(source, path))
                )
            }
        };
        let entry = |it: &&Descriptor| match it.value.as_str() {
            "" => format!("{{ key = {} }}", quoted(&it.key)),
            value => format!("{{ key = {}, value = {} }}", quoted(&it.key), quoted(value)),
        };
        let entries: Vec<String> = path.iter().map(entry).collect();
        let _infallible = writeln!(
            self.rules,
            "\n{origin}\n[[envoy]]\ndomain = {}\ndescriptor = [{}]\n{target}",
            quoted(self.domain),
            entries.join(", ")
        );
        self.note_unexpressed(source, last);
    }

    /// Returns the subject: the values that the file does not fix.
    fn subject(&mut self, source: &str, path: &[&Descriptor]) -> String {
        let is_free = |it: &&&Descriptor| {
            it.value.is_empty() || Pattern::new(&it.value).is_wildcard() && !it.share_threshold
        };
        let mut keys: Vec<&str> = Vec::new();
        for descriptor in path.iter().filter(is_free) {
            if path.iter().filter(|it| it.key == descriptor.key).count() == 1 {
                keys.push(&descriptor.key);
            } else {
                let text = format!(
                    "the key {:?} is in the descriptor twice, so a subject cannot name its value: all values share the limit",
                    descriptor.key
                );
                self.note(source, descriptor, &text);
            }
        }
        match keys.as_slice() {
            [] => "all".to_owned(),
            keys => keys.iter().map(|key| format!("{{{key}}}")).collect::<Vec<_>>().join("|"),
        }
    }

    fn note_unexpressed(&mut self, source: &str, descriptor: &Descriptor) {
        let limit = descriptor.rate_limit.clone().unwrap_or_default();
        let fields = [
            (
                descriptor.quota_mode,
                "quota_mode",
                "the limit refuses on its own, not only together with the others",
            ),
            (!limit.replaces.is_empty(), "replaces", "both limits apply"),
            (descriptor.detailed_metric, "detailed_metric", "metrics are by policy"),
            (descriptor.value_to_metric, "value_to_metric", "metrics are by policy"),
            (descriptor.metadata.is_some(), "metadata", "responses have none"),
        ];
        for (is_set, name, instead) in fields {
            if is_set {
                let text = format!(
                    "{name} is not expressed: {instead}; [envoy] ratelimit_config keeps it"
                );
                self.note(source, descriptor, &text);
            }
        }
    }
}

/// Returns a limit in the form of `tollgate.toml`.
fn limit_table(name: &str, rule: &Rule) -> String {
    let head = format!("{{ name = {}, unit = \"requests\"", quoted(name));
    match rule {
        Rule::CalendarWindow(window) => format!(
            "{head}, rule = \"calendar-window\", limit = {}, period = \"{}\", time_zone = {} }}",
            window.limit,
            window.period,
            quoted(&window.zone)
        ),
        Rule::RollingWindow(window) => format!(
            "{head}, rule = \"rolling-window\", limit = {}, window = \"{}\" }}",
            window.limit, window.window
        ),
        other => format!("{head}, limit = {} }}", other.limit()),
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// The entries of a descriptor: keys, and the values that are fixed.
type Entries = Vec<(String, Option<String>)>;

/// Converts the limits file of Limitador.
fn limitador(file: &Path) -> Result<Converted, Failure> {
    let name = file.display().to_string();
    let limits = limitador::parse(&name, &read(file)?).map_err(|error| invalid(&error))?;
    let mut converted = Converted::default();
    // Limits on the same descriptor are decided together, as one policy.
    let mut groups: Vec<(Vec<&limitador::Limit>, Entries)> = Vec::new();
    for limit in &limits {
        let entries = match entries(limit) {
            Ok(entries) => entries,
            Err(why) => {
                converted.notes.push(format!("{name}:{}: not converted: {why}", limit.line));
                continue;
            }
        };
        let is_same = |(group, known): &&mut (Vec<&limitador::Limit>, Vec<_>)| {
            group[0].namespace == limit.namespace && *known == entries && group.len() < LIMITS_MAX
        };
        match groups.iter_mut().find(is_same) {
            Some((group, _)) => group.push(limit),
            None => groups.push((vec![limit], entries)),
        }
    }
    converted.text = format!(
        "# Converted from {name} by tollgate convert limitador.\n\
         # Limitador applies a limit to every descriptor that has its keys; a rule of tollgate matches exactly these entries, in this\n\
         # order. Compare with the actions of Envoy's routes, and add a rule for each descriptor that they make.\n"
    );
    let mut rules = String::new();
    for (group, entries) in &groups {
        write_group(&name, group, entries, &mut converted.text, &mut rules);
    }
    converted.text += &rules;
    if groups.is_empty() {
        converted.notes.push(format!("{name}: there is no limit to convert"));
    }
    Ok(converted)
}

/// Returns the entries of the descriptors that `limit` applies to.
fn entries(limit: &limitador::Limit) -> Result<Entries, String> {
    let mut entries = Vec::new();
    for condition in &limit.conditions {
        match condition {
            Condition::Equals { key, value } if !value.contains('*') => {
                entries.push((key.clone(), Some(value.clone())));
            }
            Condition::Equals { value, .. } => {
                return Err(format!("the value {value:?} has a *, which is a wildcard in a rule"));
            }
            Condition::Other(text) => {
                return Err(format!("the condition {text:?} is not of the form key == 'value'"));
            }
        }
    }
    for variable in &limit.variables {
        if !is_key(variable) {
            return Err(format!("the variable {variable:?} is not the key of a descriptor"));
        }
        if !entries.iter().any(|(key, _)| key == variable) {
            entries.push((variable.clone(), None));
        }
    }
    if entries.is_empty() {
        return Err(
            "it applies to every request of the namespace, and a rule needs at least one key"
                .to_owned(),
        );
    }
    if NUMBER_MAX < limit.max_value
        || SPAN_MAX < Span::from_secs(limit.seconds)
        || limit.seconds == 0
    {
        return Err(format!("{} per {} seconds is out of range", limit.max_value, limit.seconds));
    }
    Ok(entries)
}

fn write_group(
    file: &str,
    group: &[&limitador::Limit],
    entries: &[(String, Option<String>)],
    policies: &mut String,
    rules: &mut String,
) {
    let Some(first) = group.first() else { return };
    let lines = group.iter().map(|limit| limit.line.to_string()).collect::<Vec<_>>().join(", ");
    let origin = format!("# {} ({file}:{lines})", first.namespace);
    let target = if group.iter().any(|limit| limit.max_value == 0) {
        "always = \"deny\"".to_owned()
    } else {
        let part = |(key, value): &(String, Option<String>)| match value {
            Some(value) => format!("{key}_{value}"),
            None => key.clone(),
        };
        let parts: Vec<String> =
            std::iter::once(first.namespace.clone()).chain(entries.iter().map(part)).collect();
        let name = policy_name(&parts);
        let mut limits = Vec::new();
        for (index, limit) in group.iter().enumerate() {
            let window = Span::from_secs(limit.seconds);
            let rule = tollgate::RollingWindow::new(limit.max_value, window).into();
            let own = format!("limit-{}", index + 1);
            limits.push(format!("  {},", limit_table(&own, &rule)));
        }
        let _infallible = writeln!(
            policies,
            "\n{origin}\n[[policy]]\nname = {}\nlimits = [\n{}\n]",
            quoted(&name),
            limits.join("\n")
        );
        let free: Vec<String> = entries
            .iter()
            .filter(|(_, value)| value.is_none())
            .map(|(key, _)| format!("{{{key}}}"))
            .collect();
        let subject = if free.is_empty() { "all".to_owned() } else { free.join("|") };
        format!("policy = {}\nsubject = {}", quoted(&name), quoted(&subject))
    };
    let entry = |(key, value): &(String, Option<String>)| match value {
        Some(value) => format!("{{ key = {}, value = {} }}", quoted(key), quoted(value)),
        None => format!("{{ key = {} }}", quoted(key)),
    };
    let entries = entries.iter().map(entry).collect::<Vec<_>>().join(", ");
    let _infallible = writeln!(
        rules,
        "\n{origin}\n[[envoy]]\ndomain = {}\ndescriptor = [{entries}]\n{target}",
        quoted(&first.namespace)
    );
}
