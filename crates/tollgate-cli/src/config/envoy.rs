//! What Envoy's descriptors mean: `[[envoy]]`.

use serde::Deserialize;
use tollgate::core::REQUESTS;
use tollgate::spec::Step;
use tollgate::{Limit, Policies, Policy, Rule};
use tollgate_server::{EnvoyMap, EnvoyRule};

use super::Blame;
use super::place::Text;

/// One kind of descriptor, as it is written.
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

/// Every block, checked against the policies.
pub(super) fn resolve(
    text: &Text<'_>,
    tables: &[EnvoyTable],
    policies: &Policies,
) -> Result<EnvoyMap, Blame> {
    let one = |(index, table): (usize, &EnvoyTable)| {
        rule_of(table, policies)
            .map_err(|(key, what)| text.blame_element("envoy", index, &[Step::Field(key)], what))
    };
    tables.iter().enumerate().map(one).collect()
}

fn rule_of(table: &EnvoyTable, policies: &Policies) -> Result<EnvoyRule, (&'static str, String)> {
    let policy = policies.get(&table.policy).map_err(|error| ("policy", error.to_string()))?;
    if let Some(limit) = slots_of(policy) {
        let what = format!(
            "policy {:?} counts what runs at the same time (limit {limit:?}), and Envoy does not say when a request \
             ends; name a policy without",
            table.policy
        );
        return Err(("policy", what));
    }
    let unit = table.unit.as_deref().unwrap_or(REQUESTS);
    if !policy.units().any(|known| known == unit) {
        let known = policy.units().collect::<Vec<_>>().join(", ");
        let what = format!("policy {:?} does not count {unit:?}; known: {known}", table.policy);
        return Err((if table.unit.is_some() { "unit" } else { "policy" }, what));
    }
    let entries = table.descriptor.iter().map(|entry| (&*entry.key, entry.value.as_deref()));
    let key = if table.descriptor.is_empty() { "descriptor" } else { "subject" };
    let rule = EnvoyRule::new(&table.domain, entries, &table.policy, &table.subject);
    let rule = rule.map_err(|error| (key, error.to_string()))?;
    Ok(rule.unit(unit).legacy_fields(table.legacy_fields))
}

fn slots_of(policy: &Policy) -> Option<&str> {
    let mut limits = policy.limits();
    limits.find(|limit| matches!(limit.rule(), Rule::Concurrency(_))).map(Limit::name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Config;

    const POLICIES: &str = r#"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 20, refill = "10/s" }]
[[policy]]
name = "jobs"
limits = [{ name = "slots", unit = "requests", rule = "concurrency", limit = 2, ttl = "1m" }]
"#;

    fn parse(block: &str) -> Result<Config, String> {
        let source = format!("{POLICIES}[[envoy]]\n{block}\n");
        let file = Some(Path::new("t.toml"));
        Config::parse(file, &source).map_err(|blame| blame.to_string())
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
