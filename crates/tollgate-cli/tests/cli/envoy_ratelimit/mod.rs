//! `tollgate envoy-ratelimit`: the environment variables, ports and pages of envoyproxy/ratelimit; and `[envoy] ratelimit_config`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tollgate_testkit::servers::Port;

use crate::folder::Folder;
use crate::running::Broker;

const LIMITS: &str = "
domain: shop
descriptors:
  - key: client
    rate_limit: { unit: day, requests_per_unit: 2 }
";

/// The longest wait for a reload, which takes two polls of a second.
const RELOAD_WAIT: Duration = Duration::from_secs(60);

/// The process, and its ports.
struct Service {
    child: Child,
    http: u16,
    debug: u16,
    metrics: u16,
}

impl Service {
    fn start(folder: &Folder, more: &[(&str, &str)]) -> Self {
        let ports: Vec<Port> = (0..4).map(|_| Port::free().expect("a free port")).collect();
        let [http, grpc, debug, metrics] = [0, 1, 2, 3].map(|index: usize| ports[index].number());
        drop(ports);
        let mut command = folder.command("envoy-ratelimit");
        command
            .env("HOST", "127.0.0.1")
            .env("GRPC_HOST", "127.0.0.1")
            .env("DEBUG_HOST", "127.0.0.1")
            .env("PORT", http.to_string())
            .env("GRPC_PORT", grpc.to_string())
            .env("DEBUG_PORT", debug.to_string())
            .env("USE_PROMETHEUS", "true")
            .env("PROMETHEUS_ADDR", format!("127.0.0.1:{metrics}"))
            .env("RUNTIME_ROOT", folder.path())
            .env("BACKEND_TYPE", "memory")
            .envs(more.iter().copied());
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the binary starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("it is piped"))
            .read_line(&mut line)
            .expect("it prints text");
        assert_eq!(line, "rate limit service\n");
        Self { child, http, debug, metrics }
    }

    fn json(&self, client: &str) -> (u16, Value) {
        let entry = format!("{{\"key\":\"client\",\"value\":\"{client}\"}}");
        let body = format!("{{\"domain\":\"shop\",\"descriptors\":[{{\"entries\":[{entry}]}}]}}");
        let (status, text) = call(self.http, "POST", "/json", &body);
        (status, serde_json::from_str(&text).expect(&text))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn call(port: u16, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}"
    );
    write!(stream, "{head}\r\n\r\n{body}").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
    (status, body)
}

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
    assert_eq!(call(service.http, "GET", "/healthcheck", ""), (200, "OK".to_owned()));
    let (status, answer) = service.json("a");
    assert_eq!((status, &answer["statuses"][0]["limitRemaining"]), (200, &1.into()));
    assert_eq!(answer["responseHeadersToAdd"][1]["key"], "RateLimit-Remaining");
    assert_eq!(service.json("a").0, 200);
    let (status, answer) = service.json("a");
    assert_eq!((status, &answer["overallCode"]), (429, &"OVER_LIMIT".into()));
    let shown =
        "shop.client: unit=DAY requests_per_unit=2, shadow_mode: false, quota_mode: false\n";
    assert_eq!(call(service.debug, "GET", "/rlconfig", ""), (200, shown.to_owned()));
    let (_, stats) = call(service.debug, "GET", "/stats", "");
    assert!(stats.contains("ratelimit.service.rate_limit.shop.client.over_limit: 1\n"), "{stats}");
    let (_, metrics) = call(service.metrics, "GET", "/metrics", "");
    let hits = "ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"client\"} 3\n";
    assert!(
        metrics.contains(hits) && metrics.contains("ratelimit_service_config_load_success 1\n"),
        "{metrics}"
    );
    // Nothing else of a broker.
    assert_eq!(call(service.http, "GET", "/v1/policies", "").0, 404);
}

/// The file changes twice: to other numbers, which keep what is used, and to a wrong one, which changes nothing.
#[test]
fn changed_files_are_read() {
    let folder = folder();
    let service = Service::start(&folder, &[]);
    assert_eq!(service.json("a").0, 200);
    folder
        .write("config/shop.yaml", &LIMITS.replace("requests_per_unit: 2", "requests_per_unit: 3"));
    let until = |wanted: &str| {
        let began = now();
        while began.elapsed() < RELOAD_WAIT {
            let page = if wanted.starts_with("ratelimit") {
                call(service.metrics, "GET", "/metrics", "").1
            } else {
                call(service.debug, "GET", "/rlconfig", "").1
            };
            if page.contains(wanted) {
                return;
            }
            std::thread::yield_now();
        }
        panic!("{wanted} did not come");
    };
    until("requests_per_unit=3,");
    let (_, answer) = service.json("a");
    assert_eq!(answer["statuses"][0]["limitRemaining"], 1, "one was used before");
    folder.write("config/shop.yaml", "domain: shop\ndescriptor: []\n");
    until("ratelimit_service_config_load_error 1\n");
    assert_eq!(service.json("a").0, 200);
    assert_eq!(service.json("a").0, 429);
}

#[allow(clippy::disallowed_methods, reason = "a bound on the wait for another process")]
fn now() -> Instant {
    Instant::now()
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
    let (_, err) = run(&[("BACKEND_TYPE", "memory"), ("CONFIG_TYPE", "GRPC_XDS_SOTW")]);
    assert!(err.starts_with("tollgate: CONFIG_TYPE: GRPC_XDS_SOTW is not supported yet"), "{err}");
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
