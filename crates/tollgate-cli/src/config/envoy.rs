//! `[[envoy]]`: the policy and the subject of each descriptor of Envoy.

use serde::Deserialize;
use tollgate::core::REQUESTS;
use tollgate::internal::Step;
use tollgate::policy::{Policies, Rule};
use tollgate::{Limit, Policy};
use tollgate_config::{Diagnostic, Document};
use tollgate_server::{EnvoyMap, EnvoyRule};

/// One block as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EnvoyTable {
    domain: String,
    descriptor: Vec<EntryTable>,
    policy: String,
    subject: String,
    unit: Option<String>,
    #[serde(default)]
    legacy_fields: bool,
}

/// One entry of a descriptor.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EntryTable {
    key: String,
    value: Option<String>,
}

/// Checks every block against the policies.
pub(super) fn resolve(document: &Document, policies: &Policies) -> Result<EnvoyMap, Diagnostic> {
    let tables: Vec<EnvoyTable> = document.section("envoy")?.unwrap_or_default();
    let one = |(index, table): (usize, &EnvoyTable)| {
        rule(table, policies).map_err(|(key, message)| {
            document.element_error("envoy", index, &[Step::Field(key)], message)
        })
    };
    tables.iter().enumerate().map(one).collect()
}

fn rule(table: &EnvoyTable, policies: &Policies) -> Result<EnvoyRule, (&'static str, String)> {
    let policy = policies.get(&table.policy).map_err(|error| ("policy", error.to_string()))?;
    if let Some(limit) = concurrency_limit(policy) {
        let message = format!(
            "policy {:?} counts what runs at the same time (limit {limit:?}), and Envoy does not say when a request \
             ends; name a policy without",
            table.policy
        );
        return Err(("policy", message));
    }
    let unit = table.unit.as_deref().unwrap_or(REQUESTS);
    if !policy.units().any(|known| known == unit) {
        let known = policy.units().collect::<Vec<_>>().join(", ");
        let message = format!("policy {:?} does not count {unit:?}; known: {known}", table.policy);
        return Err((if table.unit.is_some() { "unit" } else { "policy" }, message));
    }
    let entries = table.descriptor.iter().map(|entry| (&*entry.key, entry.value.as_deref()));
    let key = if table.descriptor.is_empty() { "descriptor" } else { "subject" };
    let rule = EnvoyRule::new(&table.domain, entries, &table.policy, &table.subject);
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
