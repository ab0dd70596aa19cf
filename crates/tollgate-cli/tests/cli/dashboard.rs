//! The dashboard in a real browser, driven by a script of node: `dashboard.mjs` says what is looked at.

use std::path::Path;
use std::process::Command;

use tollgate_testkit::servers::{Append, Redis};

use crate::clients::redis_cli;
use crate::folder::Folder;
use crate::running::Broker;

const POLICIES: &str = r#"
[[policy]]
name = "api"
on_store_failure = "open"
limits = [{ name = "burst", unit = "requests", rule = "rolling-window", limit = 2, window = "1h" }]
"#;

/// Looks at `broker` as a scenario says, with what it needs.
pub(crate) fn look(broker: &Broker, scenario: &[&str]) {
    look_at(&broker.url, scenario);
}

/// Looks at the broker at `url` as a scenario says, with what it needs.
pub(crate) fn look_at(url: &str, scenario: &[&str]) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let modules = here.join("../../target/servers/browser/node_modules");
    let ran = Command::new("node")
        .arg(here.join("tests/cli/dashboard.mjs"))
        .args([modules.as_os_str(), url.as_ref()])
        .args(scenario)
        .output()
        .expect("node runs; cargo xtask test installs it");
    let err = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{scenario:?}: {err}");
}

/// A broker for each, because all of them count.
fn look_at_memory(scenario: &str) {
    let folder = Folder::with(&format!("[store]\nkind = \"memory\"\n{POLICIES}"));
    look(&Broker::start(&folder, ""), &[scenario]);
}

/// R000.13: the live dashboard.
#[test]
fn r000_13_the_dashboard_updates_live_and_finds_a_subject() {
    look_at_memory("live");
}

#[test]
fn the_dashboard_is_usable_by_keyboard() {
    look_at_memory("keyboard");
}

#[test]
fn the_dashboard_fits_a_phone_in_light_and_dark() {
    look_at_memory("phone");
}

#[test]
fn the_dashboard_acts_after_a_confirmation() {
    look_at_memory("actions");
}

#[test]
fn the_dashboard_shows_hostile_subjects_as_text() {
    look_at_memory("hostile");
}

#[test]
fn the_dashboard_shows_one_of_several_brokers() {
    let redis = Redis::start_with(Append::Always, "").expect("a server");
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    let folder = Folder::with(&format!("{store}{POLICIES}"));
    look(&Broker::start(&folder, ""), &["brokers"]);
}

#[test]
fn the_dashboard_lists_overrides() {
    look_at_memory("overrides");
}

/// Tenants of two weights, and an account that all of them share.
pub(crate) const SEVERAL: &str = r#"
[[policy]]
name = "user"
limits = [{ name = "day", unit = "requests", rule = "rolling-window", limit = 100, window = "1h" }]

[[policy]]
name = "vip"
weight = 5
limits = [{ name = "day", unit = "requests", rule = "rolling-window", limit = 100, window = "1h" }]

[[policy]]
name = "account"
limits = [{ name = "slots", unit = "requests", rule = "concurrency", limit = 2, ttl = "10m" }]
"#;

#[test]
fn the_dashboard_shows_which_charge_refused_and_which_tenants_wait() {
    let folder = Folder::with(&format!("[store]\nkind = \"memory\"\n{SEVERAL}"));
    look(&Broker::start(&folder, ""), &["several"]);
}

#[test]
fn the_dashboard_says_when_the_broker_is_away() {
    look_at_memory("lost");
}

#[test]
fn the_dashboard_offers_no_lookup_of_a_key_of_cl_throttle() {
    let folder = Folder::with(&format!("[store]\nkind = \"memory\"\n{POLICIES}"));
    let broker = Broker::start(&folder, "");
    let port = broker.resp.as_ref().expect("it is on").rsplit(':').next().expect("a port");
    for limited in ["0\n1\n0\n", "1\n1\n0\n"] {
        let answer = redis_cli(port, "CL.THROTTLE cell 0 1 3600");
        assert!(answer.starts_with(limited), "{answer}");
    }
    look(&broker, &["throttle"]);
}

/// Promise 7: degradation is visible.
#[test]
fn the_dashboard_shows_degradation() {
    let mut redis = Redis::start_with(Append::Always, "").expect("a server");
    let folder = Folder::with(&format!(
        "[store]\nkind = \"redis\"\nurl = \"{}\"\nattempt_timeout = \"200ms\"\n{POLICIES}",
        redis.url()
    ));
    let broker = Broker::start(&folder, "");
    redis.process().kill().expect("it is killed");
    let (code, body) = folder.json(&format!("acquire api alice --server {}", broker.url));
    assert_eq!((code, &body["degraded"]), (0, &true.into()), "{body}");
    look(&broker, &["degraded"]);
    let denials = folder.run(&format!("audit denials --outcome degraded --server {}", broker.url));
    assert!(denials.out.contains("admitted (degraded)"), "{}", denials.out);
    let top = folder.run(&format!("top --once --server {}", broker.url));
    assert!(top.out.contains("store redis DEGRADED since 20"), "{}", top.out);
}
