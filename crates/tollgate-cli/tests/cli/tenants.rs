//! Tenants, weights and violations of asks with several charges, by the command line and a broker.

use crate::folder::Folder;
use crate::keys::new_key;
use crate::running::Broker;

const PARTIES: &str = r#"
[[policy]]
name = "user"
limits = [{ name = "rph", unit = "requests", rule = "rolling-window", limit = 10, window = "1h" }]
overrides = [{ subject = "gold", weight = 3 }]

[[policy]]
name = "account"
limits = [{ name = "tph", unit = "tokens", rule = "rolling-window", limit = 700, window = "1h" }]
"#;

/// `tenants` of a key in the configuration says which tenants its asks may name.
#[test]
fn a_key_names_the_tenants_of_its_table() {
    let (key, table) = new_key("team-a", "--scope acquire");
    let folder = Folder::with(&format!(
        "[store]\nkind = \"memory\"\n{table}\ntenants = [\"team-a/*\"]\n{PARTIES}"
    ));
    let broker = Broker::start(&folder, "");
    let at = &broker.url;
    let ask = |tenant: &str| {
        folder.run_as(&key, &format!("acquire user:u1 account:all --tenant {tenant} --server {at}"))
    };
    assert_eq!(ask("team-a/x").code, 0, "{}", ask("team-a/x").err);
    let ran = ask("team-b/x");
    assert_eq!(ran.code, 2);
    let expected = "the key does not allow tenant \"team-b/x\"; its tenants are team-a/*";
    assert!(ran.err.contains(expected), "{}", ran.err);
    let ran = folder.run("acquire user u1 --tenant t7 --config tollgate.toml");
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("--tenant is for a broker"), "{}", ran.err);
}

#[test]
fn wrong_tenants_and_weights_are_refused_with_their_line() {
    let (_, table) = new_key("team-a", "--scope acquire");
    let many = vec!["\"t\""; 101].join(", ");
    let rows = [
        (
            format!("{table}\ntenants = [{many}]\n{PARTIES}"),
            "has 101 tenants; at most 100 are possible",
        ),
        (format!("{table}\ntenants = \"t\"\n{PARTIES}"), "tenants"),
        (PARTIES.replace("weight = 3", "weight = 0"), "weight must be 1 to 1000"),
    ];
    for (config, expected) in rows {
        let ran = Folder::with(&config).run("policies check tollgate.toml");
        assert_eq!(ran.code, 2, "{expected}");
        assert!(ran.err.contains("tollgate.toml:") && ran.err.contains(expected), "{}", ran.err);
    }
}

/// A weight by override, in the file and at run time, on a store that keeps it.
#[test]
fn an_override_sets_a_weight() {
    let folder = Folder::with(PARTIES);
    let ran = folder.run("policies override user silver --weight 2");
    assert_eq!((ran.code, ran.out.contains("weight 2")), (0, true), "{}{}", ran.out, ran.err);
    let broker = Broker::start(&folder, "");
    let (_, listed) = folder.json(&format!("policies --server {}", broker.url));
    let weights: Vec<_> = listed["policies"][0]["overridden"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|of| (of["subject"].as_str().expect("text"), of["weight"].as_u64()))
        .collect();
    assert_eq!(weights, [("gold", Some(3)), ("silver", Some(2))]);
    let arguments = format!("policies override user silver --weight 2000 --server {}", broker.url);
    let ran = folder.run(&arguments);
    assert!(ran.code == 2 && ran.err.contains("weight must be 1 to 1000"), "{}", ran.err);
}

/// A provider refused the account's limit: its charge is closed, with a broker and without one.
#[test]
fn a_violation_by_permit_closes_the_charge_of_the_limit() {
    let folder = Folder::with(PARTIES);
    let violate = |at: &str| {
        let (_, admitted) =
            folder.json(&format!("acquire user:u1 account:all --cost tokens=5 {at}"));
        let permit = admitted["permit"].as_str().expect("a permit");
        let ran =
            folder.run(&format!("violation --permit {permit} --limit rps --retry-after 1h {at}"));
        let expected = "no charge has a limit \"rps\"; user has rph; account has tph";
        assert!(ran.code == 2 && ran.err.contains(expected), "{}", ran.err);
        let report = format!("violation --permit {permit} --limit tph --retry-after 1h {at}");
        let (code, incident) = folder.json(&report);
        assert_eq!(
            (code, &incident["policy"], &incident["closed"]),
            (0, &"account".into(), &true.into())
        );
        assert_eq!(folder.run(&format!("acquire user u1 {at}")).code, 0);
        assert_eq!(folder.run(&format!("acquire account all --cost tokens=1 {at}")).code, 1);
        assert_eq!(folder.run(&format!("reset account all {at}")).code, 0);
    };
    violate("");
    let broker = Broker::start(&folder, "");
    violate(&format!("--server {}", broker.url));
    let ran = folder.run("violation --limit tph --retry-after 1h");
    assert!(ran.code == 2 && ran.err.contains("<POLICY>"), "{}", ran.err);
}
