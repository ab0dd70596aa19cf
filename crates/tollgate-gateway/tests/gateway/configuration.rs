//! Configurations that cannot work are refused when they are loaded.

use std::sync::Arc;

use tollgate::clock::SystemClock;
use tollgate::policy::Policies;
use tollgate::{Costs, Limit, Memory, Policy, TokenBucket};
use tollgate_gateway::{ChargeTemplate, Gateway, GatewayKey, GatewayOptions, Upstream};
use tollgate_providers::{Dialect, UsageMap};
use tollgate_server::App;
use tollgate_server::keys::KeyHash;

use crate::support::{Setup, per_minute};

fn app() -> Arc<App> {
    let unit = |name: &str, unit: &str| {
        Policy::new(name, [Limit::new("limit", unit, TokenBucket::per_minute(10))]).unwrap()
    };
    let policies = [
        per_minute("user", 10, 1_000),
        per_minute("provider", 10, 1_000),
        unit("money", "usd_micros"),
        unit("jobs", "jobs"),
    ];
    let policies = Policies::new(policies).unwrap();
    let clock = Arc::new(SystemClock);
    Arc::new(App::new(Arc::new(Memory::new()), policies, [7; 32], clock).unwrap())
}

fn options() -> GatewayOptions {
    let mut options = Setup::new(Dialect::OpenAi).options;
    options.upstreams.push(Upstream::new("up-1", Dialect::OpenAi, "k"));
    options
}

#[test]
fn a_working_configuration_is_accepted() {
    Gateway::check(&app(), &options()).unwrap();
    Gateway::new(app(), options()).unwrap();
}

#[test]
fn a_configuration_that_cannot_work_says_what_is_wrong() {
    type Change = fn(&mut GatewayOptions);
    let rows: &[(&str, Change)] = &[
        ("no upstream \"nowhere\"; there are up-1", |options| {
            options.routes[0].upstreams = vec!["nowhere".to_owned()];
        }),
        ("speaks openai and \"up-2\" speaks gemini", |options| {
            options.upstreams.push(Upstream::new("up-2", Dialect::Gemini, "k"));
            options.routes[0].upstreams.push("up-2".to_owned());
        }),
        ("1 to 16 upstreams", |options| {
            options.routes[0].upstreams = (0..17).map(|n| format!("up-{n}")).collect();
        }),
        ("1 to 16 upstreams", |options| options.routes[0].upstreams.clear()),
        ("names upstream \"up-1\" twice", |options| {
            options.routes[0].upstreams.push("up-1".to_owned());
        }),
        ("two upstreams called \"up-1\"", |options| {
            options.upstreams.push(options.upstreams[0].clone());
        }),
        ("two routes called \"all\"", |options| options.routes.push(options.routes[0].clone())),
        ("needs models", |options| options.routes[0].models.clear()),
        ("\"nothing\"", |options| options.routes[0].charges[0].policy = "nothing".to_owned()),
        ("1 to 8 charges", |options| options.routes[0].charges.clear()),
        ("unknown placeholder {user}", |options| {
            options.routes[0].charges[0].subject = "{user}".to_owned();
        }),
        ("twice", |options| {
            let charge = options.routes[0].charges[0].clone();
            options.routes[0].charges.push(charge);
        }),
        ("no key is trusted", |options| {
            options.routes[0].charges[0].subject = "{header.x-user}".to_owned();
        }),
        ("needs the price of model \"m-1\"", |options| {
            options.routes[0].charges.push(ChargeTemplate::new("money", "{key.subject}"));
        }),
        ("limits \"jobs\", which no call costs", |options| {
            options.routes[0].charges.push(ChargeTemplate::new("jobs", "{key.subject}"));
        }),
        ("has no unit \"tokns\"", |options| {
            options.routes[0].charges[0].costs = Some(Costs::new().with("tokns", 1));
        }),
        ("limits \"tokens\", which no call costs", |options| {
            options.upstreams[0].usage =
                UsageMap::parse([("input_tokens", "prompt_tokens")]).unwrap();
        }),
        ("max_wait", |options| {
            options.routes[0].max_wait = std::time::Duration::from_secs(3_600);
        }),
        ("is not like \"https://api.openai.com", |options| {
            options.upstreams[0].url = "api.openai.com".to_owned();
        }),
        ("must not hold credentials", |options| {
            options.upstreams[0].url = "https://user:secret@host".to_owned();
        }),
        ("key is empty", |options| {
            options.upstreams[0] = Upstream::new("up-1", Dialect::OpenAi, "");
        }),
        ("PEM", |options| {
            options.upstreams[0].authority = Some(b"nonsense".to_vec());
        }),
        ("two gateway keys called \"caller\"", |options| {
            options.keys.push(GatewayKey::new("caller", KeyHash::from_key("b")));
        }),
        ("hash of another key", |options| {
            options.keys.push(GatewayKey::new("b", options.keys[0].hash.clone()));
        }),
        ("no route \"none\"; there are all", |options| {
            options.keys[0].routes = vec!["none".to_owned()];
        }),
        ("has no team", |options| {
            options.routes[0].charges[0].subject = "{key.team}".to_owned();
            options.keys[0].routes = vec!["all".to_owned()];
        }),
        ("queue_bytes_max", |options| options.queue_bytes_max = 1),
        ("queue_calls_max must be at least 1", |options| options.queue_calls_max = 0),
    ];
    for (expected, change) in rows {
        let mut options = options();
        change(&mut options);
        let error = Gateway::check(&app(), &options).expect_err(expected).to_string();
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
        assert!(!error.contains("secret"), "{error}");
    }
}

/// A unit that only a charge's own costs fill.
#[test]
fn a_charge_may_have_costs_of_its_own() {
    let mut options = options();
    let costs = Some(Costs::new().with("jobs", 1));
    let charge = ChargeTemplate { costs, ..ChargeTemplate::new("jobs", "{key.subject}") };
    options.routes[0].charges.push(charge);
    Gateway::check(&app(), &options).unwrap();
}
