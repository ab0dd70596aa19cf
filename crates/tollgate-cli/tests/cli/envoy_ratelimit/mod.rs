//! `tollgate envoy-ratelimit`: the environment variables, ports and pages of envoyproxy/ratelimit; and `[envoy] ratelimit_config`.

mod behind_envoy;
mod killed;
mod service;
mod xds;

use serde_json::Value;

use crate::folder::Folder;
use crate::running::Broker;
use service::{Service, call};

const LIMITS: &str = "
domain: shop
descriptors:
  - key: client
    rate_limit: { unit: day, requests_per_unit: 2 }
";

fn folder() -> Folder {
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("config")).expect("a folder");
    folder.write("config/shop.yaml", LIMITS);
    folder
}

#[test]
fn the_ports_and_pages_are_those_of_the_original() {
    let folder = folder();
    let service = Service::start(&folder, &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true")]);
    assert_eq!(call(service.http(), "GET", "/healthcheck", ""), (200, "OK".to_owned()));
    let (status, answer) = service.json("a");
    assert_eq!((status, &answer["statuses"][0]["limitRemaining"]), (200, &1.into()));
    assert_eq!(answer["responseHeadersToAdd"][1]["key"], "RateLimit-Remaining");
    assert_eq!(service.json("a").0, 200);
    let (status, answer) = service.json("a");
    assert_eq!((status, &answer["overallCode"]), (429, &"OVER_LIMIT".into()));
    let shown =
        "shop.client: unit=DAY requests_per_unit=2, shadow_mode: false, quota_mode: false\n";
    assert_eq!(service.limits(), shown);
    let (_, stats) = call(service.debug(), "GET", "/stats", "");
    assert!(stats.contains("ratelimit.service.rate_limit.shop.client.over_limit: 1\n"), "{stats}");
    let metrics = service.metrics();
    let hits = "ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"client\"} 3\n";
    assert!(
        metrics.contains(hits) && metrics.contains("ratelimit_service_config_load_success 1\n"),
        "{metrics}"
    );
    // Nothing else of a broker.
    assert_eq!(call(service.http(), "GET", "/v1/policies", "").0, 404);
}

/// The file changes twice: to other numbers, which keep what is used, and to a wrong one, which changes nothing.
#[test]
fn changed_files_are_read() {
    let folder = folder();
    let service = Service::start(&folder, &[]);
    assert_eq!(service.json("a").0, 200);
    folder
        .write("config/shop.yaml", &LIMITS.replace("requests_per_unit: 2", "requests_per_unit: 3"));
    service.until(Service::limits, "requests_per_unit=3,");
    let (_, answer) = service.json("a");
    assert_eq!(answer["statuses"][0]["limitRemaining"], 1, "one was used before");
    folder.write("config/shop.yaml", "domain: shop\ndescriptor: []\n");
    service.until(Service::metrics, "ratelimit_service_config_load_error 1\n");
    assert_eq!(service.json("a").0, 200);
    assert_eq!(service.json("a").0, 429);
}

#[test]
fn a_wrong_variable_or_file_ends_it() {
    let folder = folder();
    let run = |variables: &[(&str, &str)]| {
        let mut command = folder.command("envoy-ratelimit");
        let output = command
            .env("RUNTIME_ROOT", folder.path())
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, err) = run(&[]);
    assert_eq!(code, Some(2));
    assert!(err.starts_with("tollgate: REDIS_URL: is not set"), "{err}");
    let xds = [("BACKEND_TYPE", "memory"), ("CONFIG_TYPE", "GRPC_XDS_SOTW")];
    let (_, err) = run(&[xds[0], xds[1], ("CONFIG_GRPC_XDS_SERVER_URL", "unix:/xds.sock")]);
    assert!(
        err.starts_with("tollgate: CONFIG_GRPC_XDS_SERVER_URL: \"unix:/xds.sock\" is not"),
        "{err}"
    );
    let tls = ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true");
    let (_, err) = run(&[xds[0], xds[1], tls, ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "none.crt")]);
    assert!(err.contains("none.crt cannot be read"), "{err}");
    folder.write("config/shop.yaml", "domain: shop\ndescriptors: [{ kee: a }]\n");
    let (code, err) = run(&[("BACKEND_TYPE", "memory")]);
    assert_eq!(code, Some(2));
    assert!(
        err.contains("config/shop.yaml:2: a descriptor has no key \"kee\"; did you mean key?"),
        "{err}"
    );
}

/// A client that only knows Envoy's service by reflection, on a broker that also has policies of its own.
#[test]
fn a_broker_serves_the_files_beside_its_policies() {
    let folder = folder();
    folder.write(
        "tollgate.toml",
        "[store]\nkind = \"memory\"\n[envoy]\nratelimit_config = \"config\"\n",
    );
    let broker = Broker::start(&folder, "--grpc 127.0.0.1:0");
    let data = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"client","value":"a"}]}]}"#;
    let method = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let codes: Vec<Value> = (0..3)
        .map(|_| {
            crate::grpc_clients::call(&broker, "", data, method)["answer"]["overallCode"].clone()
        })
        .collect();
    assert_eq!(codes, ["OK", "OK", "OVER_LIMIT"]);
    let ran = folder.run(&format!("standing envoy.shop.client a --json --server {}", broker.url));
    let standing: Value = serde_json::from_str(&ran.out).expect(&ran.err);
    assert_eq!(standing["limits"][0]["used"], 2);
}
