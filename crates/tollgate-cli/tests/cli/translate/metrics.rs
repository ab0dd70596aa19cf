//! The page of metrics of a worker.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Child;

use tollgate_telemetry::{Kind, METRICS};
use tollgate_testkit::fakes::gemini::Settings;
use tollgate_testkit::servers::{Append, Redis, eventually};

use super::{World, kill, prose};
use crate::running::{get, get_with};

/// A worker with a page, and where that is.
struct Worker {
    child: Child,
    url: String,
}

impl Worker {
    fn start(world: &World) -> Self {
        let metrics = "--metrics 127.0.0.1:0";
        let mut child = world.start(&format!("translate worker {metrics} {}", world.provided()));
        let mut err = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut line = String::new();
        err.read_line(&mut line).expect("it says where the page is");
        // The rest is not read, which must not stop it.
        std::thread::spawn(move || err.read_to_string(&mut String::new()));
        let (_, url) = line.trim().split_once("metrics at ").expect("the address");
        let url = url.strip_suffix("/metrics").expect("the path of the broker").to_owned();
        Self { child, url }
    }

    fn page(&self) -> String {
        let answer = get(&self.url, "/metrics");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}

fn number(page: &str, sample: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.map(|value| value.trim().parse().expect("a number"))
}

/// R003.9, R000.15: a worker publishes every series of translations from its start, counts what the indicators are made of, and
/// what the store of the quota took.
#[test]
fn r003_9_r000_15_a_worker_has_a_page_for_prometheus() {
    let redis = Redis::start_with(Append::Always, "").expect("a server");
    let world = World::on(Settings::default(), &redis.snippet());
    let worker = Worker::start(&world);
    let page = worker.page();
    for metric in METRICS.iter().filter(|metric| metric.name.starts_with("tollgate_translation_")) {
        let sample = match metric.kind {
            Kind::Counter | Kind::Gauge => metric.prometheus(),
            _ => format!("{}_count", metric.name),
        };
        let is_it = |line: &str| line.starts_with(&sample);
        assert!(page.lines().any(is_it), "{sample} is not in\n{page}");
    }
    let text = prose(40);
    world.folder.write("book.txt", &text);
    assert_eq!(world.run(&world.make("book.txt --yes --detach")).code, 0);
    let completed = "tollgate_translation_jobs_total{end=\"completed\"}";
    let page =
        eventually(|| Some(worker.page()).filter(|page| number(page, completed) == Some(1.0)));
    let page = page.expect("the job is translated");
    let calls = world.fake.tally().calls as f64;
    let of = |sample| number(&page, sample);
    assert_eq!(of("tollgate_translation_calls_total{outcome=\"answered\"}"), Some(calls));
    assert_eq!(of("tollgate_translation_calls_total{outcome=\"failed\"}"), Some(0.0));
    let words = text.split_whitespace().count() as f64;
    assert_eq!(of("tollgate_translation_words_total"), Some(words));
    assert_eq!(of("tollgate_translation_duration_seconds_count"), Some(1.0));
    assert!(of("tollgate_translation_duration_seconds_sum").is_some_and(|sum| 0.0 < sum), "{page}");
    let tries = of("tollgate_store_tries_total{policy=\"wide\",result=\"answered\"}");
    assert!(tries.is_some_and(|tries| calls <= tries), "{page}");
}

/// The page is the broker's: with its keys, and without its calls.
#[test]
fn r003_9_the_page_of_a_worker_asks_for_the_keys_of_a_broker_and_serves_nothing_else() {
    let made = World::new(Settings::default()).run("keys new scraper --scope inspect");
    let key = made.out.lines().next().expect("the key").to_owned();
    let table = &made.out[made.out.find("[[key]]").expect("the table")..];
    let world = World::on(Settings::default(), table);
    let worker = Worker::start(&world);
    assert!(get(&worker.url, "/metrics").starts_with("HTTP/1.1 401"));
    let with_key = format!("authorization: Bearer {key}\r\n");
    assert!(get_with(&worker.url, "/metrics", &with_key).starts_with("HTTP/1.1 200"));
    assert!(get(&worker.url, "/healthz").starts_with("HTTP/1.1 200"));
    for path in ["/v1/acquire", "/v1/policies", "/"] {
        let answer = get_with(&worker.url, path, &with_key);
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
        assert!(
            answer.contains("this is not a broker, and serves /metrics and /healthz"),
            "{answer}"
        );
    }
    let asked = world.folder.run_as(&key, &format!("acquire wide u1 --server {}", worker.url));
    assert!(asked.code == 2 && asked.err.contains("this is not a broker"), "{}", asked.err);
    let open = World::new(Settings::default());
    for (address, what) in [
        ("0.0.0.0:0", "others than this machine can reach 0.0.0.0:0, and there is no [[key]]"),
        ("here", "--metrics \"here\" is not an address and port, as in 127.0.0.1:9464"),
    ] {
        let ran = open.run(&format!("translate worker --metrics {address} {}", open.provided()));
        assert!(ran.code == 2 && ran.err.contains(what), "{}", ran.err);
    }
}
