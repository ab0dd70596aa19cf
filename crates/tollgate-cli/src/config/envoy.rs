//! `[[envoy]]`: the policy and the subject of each descriptor of Envoy. As a table, `[envoy]` names a configuration of
//! envoyproxy/ratelimit, and the rules are `[[envoy.rule]]`.

use std::path::PathBuf;

use serde::Deserialize;
use tollgate::core::REQUESTS;
use tollgate::internal::Step;
use tollgate::policy::{Policies, Rule};
use tollgate::{Limit, Policy};
use tollgate_config::{Diagnostic, Document};
use tollgate_protocol::protobuf::envoy::service::discovery::v3::DiscoveryResponse;
use tollgate_ratelimit_config::{ConfigError, DomainFile, Options, RateLimitConfig, Windows};
use tollgate_server::{EnvoyAnswer, EnvoyMap, EnvoyRule, RateLimitOptions, RateLimits};

use super::xds::{XdsConfig, XdsTable};

/// What descriptors of Envoy mean.
#[derive(Debug, Default)]
pub(crate) struct EnvoyConfig {
    /// The rules, and the configuration of envoyproxy/ratelimit, unless a management server sends it.
    pub(crate) map: EnvoyMap,
    /// The policies of that configuration.
    pub(super) policies: Vec<Policy>,
    /// The file or folder of that configuration.
    pub(crate) folder: Option<PathBuf>,
    /// Lines of it that have no effect.
    pub(crate) warnings: Vec<String>,
    /// The management server that sends that configuration instead.
    pub(crate) pushed: Option<PushedLimits>,
}

/// Limits that a management server sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PushedLimits {
    /// The server.
    pub(crate) server: XdsConfig,
    options: Options,
    answers: RateLimitOptions,
}

impl EnvoyConfig {
    /// Returns the rules, and `limits` if a management server has sent them.
    pub(crate) fn map_with(&self, limits: Option<&RateLimitConfig>) -> EnvoyMap {
        match (&self.pushed, limits) {
            (Some(pushed), Some(limits)) => {
                let limits = RateLimits::new(limits.clone(), pushed.answers.clone());
                self.map.clone().rate_limits(limits)
            }
            _ => self.map.clone(),
        }
    }
}

impl PushedLimits {
    /// Decodes and checks what the server sent.
    pub(crate) fn check(
        &self,
        response: &DiscoveryResponse,
    ) -> Result<RateLimitConfig, ConfigError> {
        RateLimitConfig::new(DomainFile::from_resources(&response.resources)?, self.options)
    }
}

/// Returns `policies`, and those of `limits`.
///
/// # Errors
/// If a policy has the name of a limit.
pub(crate) fn with_limits(
    policies: &Policies,
    limits: Option<&RateLimitConfig>,
) -> Result<Policies, String> {
    let limits = || limits.into_iter().flat_map(RateLimitConfig::policies);
    if let Some(limit) = limits().find(|limit| policies.get(limit.name()).is_ok()) {
        let name = limit.name();
        return Err(format!("the policy {name:?} is the name of a limit, too; rename the policy"));
    }
    policies.with_policies(limits().cloned()).map_err(|error| error.to_string())
}

/// One rule as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvoyTable {
    domain: String,
    descriptor: Vec<EntryTable>,
    policy: Option<String>,
    subject: Option<String>,
    unit: Option<String>,
    always: Option<String>,
    #[serde(default)]
    legacy_fields: bool,
}

/// One entry of a descriptor.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryTable {
    key: String,
    value: Option<String>,
}

/// The section as a table.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettingsTable {
    ratelimit_config: Option<String>,
    xds: Option<XdsTable>,
    merge_domains: Option<bool>,
    windows: Option<String>,
    calendar_months: Option<bool>,
    near_limit_per_mille: Option<u32>,
    shadow: Option<bool>,
    quota: Option<bool>,
    response_headers: Option<[String; 3]>,
    request_headers: Option<[String; 3]>,
    dynamic_metadata: Option<bool>,
    unmatched: Option<String>,
    #[serde(default)]
    rule: Vec<EnvoyTable>,
}

/// Checks the section against the policies, and reads the files that it names.
pub(super) fn resolve(document: &Document, policies: &Policies) -> Result<EnvoyConfig, Diagnostic> {
    if !document.is_table(&["envoy"]) {
        let tables: Vec<EnvoyTable> = document.section("envoy")?.unwrap_or_default();
        let at = |index| vec![Step::Element(index)];
        let map = rules(document, &tables, policies, at)?;
        return Ok(EnvoyConfig { map, ..EnvoyConfig::default() });
    }
    if document.keys("envoy").iter().any(|key| key == "domain") {
        let message = "a rule is written with two brackets, as in [[envoy]], or as [[envoy.rule]] beside [envoy]";
        return Err(document.error(&["envoy"], message));
    }
    let mut table: SettingsTable = document.section("envoy")?.unwrap_or_default();
    let at = |index| vec![Step::Field("rule"), Step::Element(index)];
    let mut map = rules(document, &table.rule, policies, at)?;
    if let Some(text) = &table.unmatched {
        map = map.unmatched(answer(text).ok_or_else(|| {
            let message = format!("unmatched {text:?} is neither \"allow\" nor \"deny\"");
            document.error(&["envoy", "unmatched"], message)
        })?);
    }
    let wrong = |key: &str, message: String| document.error(&["envoy", key], message);
    let source = match (&table.ratelimit_config, table.xds.take()) {
        (None, None) => {
            let mut keys = document.keys("envoy").into_iter();
            if let Some(key) = keys.find(|key| key != "rule" && key != "unmatched") {
                let message = format!(
                    "{key} needs ratelimit_config, the folder of an envoyproxy/ratelimit configuration, or xds, the server of one"
                );
                return Err(wrong(&key, message));
            }
            return Ok(EnvoyConfig { map, ..EnvoyConfig::default() });
        }
        (Some(_), Some(_)) => {
            let message = "ratelimit_config and xds exclude each other; limits come from one place";
            return Err(wrong("xds", message.to_owned()));
        }
        (Some(path), None) => LimitsSource::Folder(document.folder().join(path)),
        (None, Some(xds)) => LimitsSource::Server(Box::new(XdsConfig::resolve(document, &xds)?)),
    };
    let (options, answers) = limit_options(document, table)?;
    let folder = match source {
        LimitsSource::Folder(folder) => folder,
        LimitsSource::Server(server) => {
            return Ok(EnvoyConfig {
                map: map.expect_rate_limits(server.readiness),
                pushed: Some(PushedLimits { server: *server, options, answers }),
                ..EnvoyConfig::default()
            });
        }
    };
    let config = RateLimitConfig::read(&folder, options)
        .map_err(|error| wrong("ratelimit_config", error.to_string()))?;
    if config.domains().len() == 0 {
        let message = format!("there is no .yaml file in {}", folder.display());
        return Err(wrong("ratelimit_config", message));
    }
    with_limits(policies, Some(&config)).map_err(|error| wrong("ratelimit_config", error))?;
    Ok(EnvoyConfig {
        policies: config.policies().cloned().collect(),
        warnings: config.warnings().iter().map(ToString::to_string).collect(),
        folder: Some(folder),
        map: map.rate_limits(RateLimits::new(config, answers)),
        pushed: None,
    })
}

/// Where limits of envoyproxy/ratelimit come from.
enum LimitsSource {
    Folder(PathBuf),
    Server(Box<XdsConfig>),
}

/// Returns how limits are counted and requests are answered.
fn limit_options(
    document: &Document,
    table: SettingsTable,
) -> Result<(Options, RateLimitOptions), Diagnostic> {
    let wrong = |key: &str, message: String| document.error(&["envoy", key], message);
    let windows = match table.windows.as_deref() {
        None | Some("fixed") => Windows::Fixed,
        Some("rolling") => Windows::Rolling,
        Some(other) => {
            return Err(wrong(
                "windows",
                format!("windows {other:?} is neither \"fixed\" nor \"rolling\""),
            ));
        }
    };
    let near = table.near_limit_per_mille.unwrap_or(800);
    if 1_000 < near {
        return Err(wrong(
            "near_limit_per_mille",
            format!("near_limit_per_mille {near} must be at most 1000"),
        ));
    }
    let options = Options {
        merge_domains: table.merge_domains.unwrap_or(false),
        windows,
        calendar_months: table.calendar_months.unwrap_or(false),
    };
    let answers = RateLimitOptions {
        near_limit_per_mille: near,
        shadow: table.shadow.unwrap_or(false),
        quota: table.quota.unwrap_or(false),
        response_headers: table.response_headers,
        request_headers: table.request_headers,
        dynamic_metadata: table.dynamic_metadata.unwrap_or(false),
    };
    Ok((options, answers))
}

fn rules(
    document: &Document,
    tables: &[EnvoyTable],
    policies: &Policies,
    at: impl Fn(usize) -> Vec<Step>,
) -> Result<EnvoyMap, Diagnostic> {
    let one = |(index, table): (usize, &EnvoyTable)| {
        rule(table, policies).map_err(|(key, message)| {
            let mut path = at(index);
            path.push(Step::Field(key));
            document.nested_error("envoy", &path, message)
        })
    };
    tables.iter().enumerate().map(one).collect()
}

fn answer(text: &str) -> Option<EnvoyAnswer> {
    match text {
        "allow" => Some(EnvoyAnswer::Allow),
        "deny" => Some(EnvoyAnswer::Deny),
        _ => None,
    }
}

fn rule(table: &EnvoyTable, policies: &Policies) -> Result<EnvoyRule, (&'static str, String)> {
    let entries = table.descriptor.iter().map(|entry| (&*entry.key, entry.value.as_deref()));
    if let Some(text) = &table.always {
        if table.policy.is_some() || table.subject.is_some() || table.unit.is_some() {
            let message = "always needs no policy, subject or unit; keep either it or them";
            return Err(("always", message.to_owned()));
        }
        let answer = answer(text).ok_or_else(|| {
            ("always", format!("always {text:?} is neither \"allow\" nor \"deny\""))
        })?;
        let rule = EnvoyRule::always(&table.domain, entries, answer);
        return rule.map_err(|error| ("descriptor", error.to_string()));
    }
    let (Some(name), Some(subject)) = (&table.policy, &table.subject) else {
        let message = "a rule needs policy and subject, as in policy = \"api\" and subject = \"{remote_address}\"; or always = \
                       \"allow\" or \"deny\"";
        return Err(("domain", message.to_owned()));
    };
    let policy = policies.get(name).map_err(|error| ("policy", error.to_string()))?;
    if let Some(limit) = concurrency_limit(policy) {
        let message = format!(
            "policy {name:?} counts what runs at the same time (limit {limit:?}), and Envoy does not say when a request \
             ends; name a policy without"
        );
        return Err(("policy", message));
    }
    let unit = table.unit.as_deref().unwrap_or(REQUESTS);
    if !policy.units().any(|known| known == unit) {
        let known = policy.units().collect::<Vec<_>>().join(", ");
        let message = format!("policy {name:?} does not count {unit:?}; known: {known}");
        return Err((if table.unit.is_some() { "unit" } else { "policy" }, message));
    }
    let key = if table.descriptor.is_empty() { "descriptor" } else { "subject" };
    let rule = EnvoyRule::new(&table.domain, entries, name, subject);
    let rule = rule.map_err(|error| (key, error.to_string()))?;
    Ok(rule.unit(unit).legacy_fields(table.legacy_fields))
}

fn concurrency_limit(policy: &Policy) -> Option<&str> {
    let mut limits = policy.limits();
    limits.find(|limit| matches!(limit.rule(), Rule::Concurrency(_))).map(Limit::name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::ServeConfig;

    const POLICIES: &str = r#"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 20, refill = "10/s" }]
[[policy]]
name = "jobs"
limits = [{ name = "slots", unit = "requests", rule = "concurrency", limit = 2, ttl = "1m" }]
"#;

    fn parse(block: &str) -> Result<ServeConfig, String> {
        let source = format!("{POLICIES}[[envoy]]\n{block}\n");
        let file = Some(Path::new("t.toml"));
        ServeConfig::parse(file, &source).map_err(|error| error.to_string())
    }

    #[test]
    fn a_block_says_which_policy_and_subject_a_descriptor_means() {
        let block = "domain = \"shop\"\ndescriptor = [{ key = \"path\", value = \"/login\" }, { key = \"ip\" }]\n\
                     policy = \"api\"\nsubject = \"{ip}\"\nlegacy_fields = true";
        parse(block).unwrap();
    }

    #[test]
    fn a_table_has_rules_and_an_answer_for_the_others() {
        let rule = "[[envoy.rule]]\ndomain = \"shop\"\ndescriptor = [{ key = \"path\", value = \"/health*\" }]";
        let parse = |settings: &str, more: &str| {
            let source = format!("{POLICIES}[envoy]\n{settings}\n{rule}\n{more}\n");
            ServeConfig::parse(Some(Path::new("t.toml")), &source)
                .map_err(|error| error.to_string())
        };
        parse("unmatched = \"deny\"", "always = \"allow\"").unwrap();
        let xds = parse("xds = { server = \"[::1]:18000\" }\nshadow = true", "always = \"allow\"");
        assert!(xds.unwrap().envoy.pushed.is_some());
        for (settings, more, wanted) in [
            (
                "unmatched = \"refuse\"",
                "always = \"allow\"",
                "t.toml:9: unmatched \"refuse\" is neither",
            ),
            ("", "always = \"never\"", "t.toml:13: always \"never\" is neither"),
            ("", "always = \"deny\"\npolicy = \"api\"", "t.toml:13: always needs no policy"),
            ("", "policy = \"api\"", "t.toml:11: a rule needs policy and subject"),
            ("shadow = true", "always = \"deny\"", "t.toml:9: shadow needs ratelimit_config"),
            (
                "ratelimit_config = \"a\"\nxds = { server = \"a:1\" }",
                "always = \"deny\"",
                "t.toml:10: ratelimit_config and xds exclude each other",
            ),
            (
                "xds = { server = \"a\" }",
                "always = \"deny\"",
                "t.toml:9: server \"a\" is not a host and port",
            ),
            ("xds = { server = \"a:1\", retry = \"0s\" }", "always = \"deny\"", "t.toml:9: retry"),
            (
                "xds = { server = \"a:1\", authority = \"ca.crt\" }",
                "always = \"deny\"",
                "t.toml:9: authority is for TLS; add tls = true",
            ),
            (
                "xds = { server = \"a:1\", tls = true, certificate = \"c\" }",
                "always = \"deny\"",
                "t.toml:9: certificate needs key",
            ),
            (
                "xds = { server = \"a:1\", headers = { \"a b\" = \"secret\" } }",
                "always = \"deny\"",
                "t.toml:9: \"a b\" is not the name of a header",
            ),
            (
                "xds = { server = \"a:1\", ready = \"soon\" }",
                "always = \"deny\"",
                "t.toml:9: ready \"soon\" is none of",
            ),
            ("domain = \"shop\"", "always = \"deny\"", "a rule is written with two brackets"),
            (
                "ratelimit_config = \"none.yaml\"",
                "always = \"deny\"",
                "t.toml:9: none.yaml: No such file",
            ),
        ] {
            let fault = parse(settings, more).unwrap_err();
            assert!(fault.contains(wanted), "{fault}");
        }
    }

    #[test]
    fn a_wrong_block_is_refused_with_its_line() {
        let block = |policy: &str, subject: &str, more: &str| {
            let descriptor = "descriptor = [{ key = \"ip\" }]";
            let head = format!("domain = \"shop\"\n{descriptor}\npolicy = {policy:?}");
            parse(&format!("{head}\nsubject = {subject:?}\n{more}")).unwrap_err()
        };
        for (fault, wanted) in [
            (block("apl", "{ip}", ""), "t.toml:11: no policy is called \"apl\"; did you mean api?"),
            (block("jobs", "{ip}", ""), "t.toml:11: policy \"jobs\" counts what runs"),
            (block("api", "{io}", ""), "t.toml:12: subject \"{io}\" names \"io\""),
            (block("api", "{ip}", "unit = \"tokens\""), "t.toml:13: policy \"api\" does not count"),
            (block("api", "{ip}", "limit = 5"), "t.toml:13: "),
        ] {
            assert!(fault.contains(wanted), "{fault}");
        }
    }
}
