//! Brokers with each strategy on one Redis: what they admit together, what a crash costs, what an orderly end gives back.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tollgate_testkit::servers::{Redis, eventually};

use crate::folder::Folder;
use crate::http::{Http, post_json};
use crate::running::{Broker, get};

const LIMIT: u64 = 600;
const UNPOSTED_MAX: u64 = 20;

/// Callers at each broker.
const CALLERS: usize = 3;

/// How often a caller is refused before it goes: by then nothing is released any more.
const REFUSALS: u64 = 30;

pub(crate) const LEASED: &str = "[strategy]\nkind = \"leased\"\n";

pub(crate) fn optimistic() -> String {
    format!("[strategy]\nkind = \"optimistic\"\nunposted_max = {UNPOSTED_MAX}\n")
}

fn config(redis: &Redis, strategy: &str) -> Folder {
    let store = redis.snippet();
    let limit = format!(
        r#"{{ name = "hourly", unit = "requests", rule = "rolling-window", limit = {LIMIT}, window = "1h" }}"#
    );
    Folder::with(&format!(
        "{store}{strategy}[[policy]]\nname = \"hot\"\nblock_ttl = \"30s\"\nlimits = [{limit}]\n"
    ))
}

/// A client that asks a broker over one connection.
pub(crate) struct Caller {
    http: Http,
    url: String,
}

impl Caller {
    pub(crate) fn of(broker: &Broker) -> Self {
        Self { http: Http::new(), url: broker.url.clone() }
    }

    /// The answer; nothing if the broker is gone.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Option<(u16, Value)> {
        let request = post_json(&format!("{}{path}", self.url), "", body.to_string());
        let answer = self.http.try_send(request)?;
        let body = serde_json::from_str(answer.body()).expect("answers are JSON");
        Some((answer.status().as_u16(), body))
    }

    pub(crate) fn ask(&self, policy: &str) -> Option<(u16, Value)> {
        self.post("/v1/acquire", &json!({ "policy": policy, "subject": "alice" }))
    }
}

/// Several callers ask a broker until it refuses for good, or is gone.
fn exhaust(broker: &Broker, admitted: &AtomicU64) {
    std::thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                let (caller, mut refused) = (Caller::of(broker), 0);
                while refused < REFUSALS {
                    match caller.ask("hot") {
                        Some((200, _)) => drop(admitted.fetch_add(1, Ordering::SeqCst)),
                        Some((status, body)) => {
                            assert_eq!(status, 429, "{body}");
                            refused += 1;
                        }
                        None => return,
                    }
                }
            });
        }
    });
}

/// What two brokers admit together.
fn two_brokers(strategy: &str) -> (Redis, Folder, [Broker; 2], u64) {
    let redis = Redis::start().expect("a server");
    let folder = config(&redis, strategy);
    let brokers = [Broker::start(&folder, ""), Broker::start(&folder, "")];
    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for broker in &brokers {
            scope.spawn(|| exhaust(broker, &admitted));
        }
    });
    (redis, folder, brokers, admitted.into_inner())
}

/// What the store has, asked by a command.
fn used(folder: &Folder) -> u64 {
    let (_, body) = folder.json("standing hot alice");
    body["limits"][0]["used"].as_u64().expect("a number")
}

/// Promise 1: leased brokers admit exactly the limit between them.
#[test]
fn two_leased_brokers_admit_exactly_the_limit() {
    let (_redis, folder, brokers, admitted) = two_brokers(LEASED);
    let before = used(&folder);
    for broker in brokers {
        assert_eq!(broker.end("-TERM").0, Some(0));
    }
    assert_eq!((admitted, before, used(&folder)), (LIMIT, LIMIT, LIMIT));
}

/// R002.1: optimistic brokers stay within their bound, and an orderly end posts everything.
#[test]
fn r002_1_two_optimistic_brokers_stay_within_the_bound_and_post_all() {
    let (_redis, folder, brokers, admitted) = two_brokers(&optimistic());
    let bound = LIMIT + tollgate::strategy::over_issue_bound(2, 0, UNPOSTED_MAX);
    assert!((LIMIT..=bound).contains(&admitted), "{admitted} admitted");
    for broker in brokers {
        assert_eq!(broker.end("-TERM").0, Some(0));
    }
    assert_eq!(used(&folder), admitted, "the books balance");
}

/// R002.5: the brokers count together what they admitted beyond the limit; what is left when all is posted is exact.
#[test]
fn r002_5_optimistic_brokers_count_what_they_were_over_by() {
    let (_redis, folder, brokers, admitted) = two_brokers(&optimistic());
    let sample = |name: &str| -> Vec<u64> {
        let page = |broker: &Broker| get(&broker.url, "/metrics");
        let value = |page: String| {
            let line = page.lines().find(|line| line.starts_with(name)).map(str::to_owned);
            let number = line.as_deref().and_then(|line| line.rsplit(' ').next());
            number.and_then(|number| number.parse().ok())
        };
        brokers.iter().filter_map(|broker| value(page(broker))).collect()
    };
    let posted = || (sample("tollgate_unposted{") == [0, 0]).then_some(());
    eventually(posted).expect("everything is posted");
    let over = sample("tollgate_over_issue_total{policy=\"hot\",limit=\"hourly\"}");
    assert_eq!((used(&folder), over.iter().sum()), (admitted, admitted - LIMIT));
}

/// R002.5: leased brokers are never over, and their metric says so.
#[test]
fn r002_5_leased_brokers_count_no_over_issue() {
    let (_redis, _folder, brokers, admitted) = two_brokers(LEASED);
    assert_eq!(admitted, LIMIT);
    for broker in &brokers {
        let page = get(&broker.url, "/metrics");
        let zero = "\ntollgate_over_issue_total{policy=\"hot\",limit=\"hourly\"} 0\n";
        assert!(page.contains(zero), "{page}");
    }
}

/// One of two brokers is killed while it admits; what both admitted in all.
fn one_is_killed(strategy: &str) -> (Redis, Folder, Broker, u64) {
    let redis = Redis::start().expect("a server");
    let folder = config(&redis, strategy);
    let [stays, goes] = [Broker::start(&folder, ""), Broker::start(&folder, "")];
    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| exhaust(&goes, &admitted));
        let caller = Caller::of(&stays);
        while admitted.load(Ordering::SeqCst) < LIMIT / 4 {
            if let Some((200, _)) = caller.ask("hot") {
                admitted.fetch_add(1, Ordering::SeqCst);
            }
        }
        goes.kill();
    });
    exhaust(&stays, &admitted);
    (redis, folder, stays, admitted.into_inner())
}

/// Promises 1 and 6: a leased broker that is killed takes its block with it, so less is issued and never more.
#[test]
fn a_leased_broker_that_is_killed_costs_at_most_its_block() {
    let (_redis, folder, broker, admitted) = one_is_killed(LEASED);
    // A block is at most a sixteenth of the limit, and the next one may have been fetched already. Callers may have been
    // cut off before they read what was admitted.
    let least = LIMIT - 2 * LIMIT.div_ceil(16) - CALLERS as u64;
    assert!((least..=LIMIT).contains(&admitted), "{admitted} admitted");
    assert_eq!(broker.end("-TERM").0, Some(0));
    assert!(admitted <= used(&folder));
}

/// R002.1: an optimistic broker that is killed forgets at most `unposted_max`.
#[test]
fn r002_1_an_optimistic_broker_that_is_killed_costs_at_most_unposted_max() {
    let (_redis, folder, broker, admitted) = one_is_killed(&optimistic());
    let bound = LIMIT + tollgate::strategy::over_issue_bound(2, 1, UNPOSTED_MAX);
    assert!((LIMIT - CALLERS as u64..=bound).contains(&admitted), "{admitted} admitted");
    assert_eq!(broker.end("-TERM").0, Some(0));
    assert!(admitted <= used(&folder) + UNPOSTED_MAX, "{admitted} admitted");
}

/// Promise 6: an orderly end gives back what lies unspent in blocks.
#[test]
fn a_leased_broker_gives_its_blocks_back_when_it_ends() {
    let redis = Redis::start().expect("a server");
    let folder = config(&redis, LEASED);
    let broker = Broker::start(&folder, "");
    assert!(broker.printed().contains("\n  strategy   leased: "), "{}", broker.printed());
    let caller = Caller::of(&broker);
    for _ in 0..20 {
        assert_eq!(caller.ask("hot").map(|(status, _)| status), Some(200));
    }
    assert!(20 < used(&folder), "what lies in a block counts as used");
    assert_eq!(broker.end("-TERM").0, Some(0));
    assert_eq!(used(&folder), 20);
}

/// A permit that a broker gave by itself is given back by that broker alone; every other one, and a command on the store,
/// change nothing and say so.
#[test]
fn a_permit_of_one_broker_gives_nothing_back_at_another() {
    for strategy in [LEASED, &optimistic()] {
        let redis = Redis::start().expect("a server");
        let folder = config(&redis, strategy);
        let [one, other] = [Broker::start(&folder, ""), Broker::start(&folder, "")];
        let caller = Caller::of(&one);
        let answers: Vec<Value> = (0..8).filter_map(|_| Some(caller.ask("hot")?.1)).collect();
        let last = &answers[7];
        let permit = last["permit"].as_str().expect("it is admitted");
        for at in [format!("--server {}", other.url), String::new()] {
            let (code, body) = folder.json(&format!("release {permit} {at}"));
            assert_eq!((code, &body["changed"]), (0, &false.into()), "{strategy}{at}: {body}");
        }
        let words = folder.run(&format!("release {permit} --server {}", other.url)).out;
        assert!(words.contains("given by another broker"), "{words}");
        let (code, body) = folder.json(&format!("release {permit} --server {}", one.url));
        assert_eq!((code, &body["changed"]), (0, &true.into()), "{strategy}: {body}");
        for broker in [one, other] {
            assert_eq!(broker.end("-TERM").0, Some(0));
        }
        assert_eq!(used(&folder), 7, "{strategy}");
    }
}

/// Charges that an unavailable store did not take are reported at the end: what was admitted uncounted is a failure, a block
/// that time gives back is not.
#[test]
fn a_broker_that_ends_without_its_store_says_what_it_leaves() {
    for (strategy, code, said) in [
        (LEASED.to_owned(), 0, "what they held comes back as the rule restores it"),
        (optimistic(), 2, "the admissions of 1 subjects could not be posted in time"),
    ] {
        let mut redis = Redis::start().expect("a server");
        let folder = config(&redis, &strategy);
        let broker = Broker::start(&folder, "");
        let caller = Caller::of(&broker);
        for _ in 0..8 {
            assert_eq!(caller.ask("hot").map(|(status, _)| status), Some(200));
        }
        redis.process().kill().expect("it is killed");
        // One more, so that something is unposted whenever the last post was.
        let _ = caller.ask("hot");
        let (ended, _, err) = broker.end("-TERM");
        assert_eq!(ended, Some(code), "{err}");
        assert!(err.contains(said), "{err}");
    }
}

/// Policies that a strategy does not apply to are named, with the reason.
#[test]
fn serve_says_which_policies_pass_through() {
    let redis = Redis::start().expect("a server");
    let rest = r#"
[[policy]]
name = "plain"
limits = [{ name = "rate", unit = "requests", rule = "token-bucket", capacity = 10, refill = "1/s" }]
[[policy]]
name = "jobs"
block_ttl = "1s"
limits = [{ name = "running", unit = "jobs", rule = "concurrency", limit = 3, ttl = "1h" }]
"#;
    let folder = config(&redis, LEASED);
    let text = std::fs::read_to_string(folder.path().join("tollgate.toml")).expect("it is there");
    folder.write("tollgate.toml", &format!("{text}{rest}"));
    let broker = Broker::start(&folder, "");
    for line in [
        "jobs is asked at the store each time: it has a concurrency limit",
        "plain is asked at the store each time: it has no block_ttl",
    ] {
        assert!(broker.printed().contains(line), "{}", broker.printed());
    }
    assert!(!broker.printed().contains("hot is asked"), "{}", broker.printed());
    let policies = folder.run("policies").out;
    assert!(
        policies.contains("block_ttl 1s, never leased: it has a concurrency limit"),
        "{policies}"
    );
}
