//! The broker as it is shipped, with a fault of its store or its surroundings, or under attack: what callers, the operator
//! and the log see. One file for each; docs/reliability.md lists the same.

mod accountability;
mod connection_age;
mod credentials;
mod drain;
mod formats;
mod full_disk;
mod host;
mod keyspace;
mod killed_jointly;
mod locked_row;
mod log;
mod readiness;
mod redis_data;
mod redis_failover;
mod revoked;
mod sentinel;
mod stall;
mod throttled_item;
mod upstream;
mod violations;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::folder::Folder;
use crate::http::{Http, post_json};
use crate::running::{Broker, get};
use crate::strategies::Caller;

/// The limit of the policy `five`.
const FIVE: u64 = 5;

/// A broker on a store, with a small limit that opens when the store fails, a large one that does, and one that does not.
struct Assembled {
    folder: Folder,
    broker: Broker,
}

/// How often each answer came: the status, and the kind if it is an error, or `degraded` if the store was not asked.
type Answers = BTreeMap<(u16, String), u64>;

impl Assembled {
    fn start(store: &str) -> Self {
        let folder = Self::folder(&format!("{store}[fallback]\ninstances = 1\n"));
        let broker = Broker::start(&folder, "");
        Self { folder, broker }
    }

    fn folder(store: &str) -> Folder {
        let policy = |name: &str, limit: u64, action: &str| {
            format!(
                "[[policy]]\nname = \"{name}\"\non_store_failure = \"{action}\"\nlimits = [{{ name = \"all\", \
                 unit = \"requests\", rule = \"token-bucket\", capacity = {limit}, refill = \"1/h\" }}]\n"
            )
        };
        Folder::with(&format!(
            "{store}{}{}{}",
            policy("five", FIVE, "open"),
            policy("open", 1_000_000, "open"),
            policy("closed", 1_000_000, "closed"),
        ))
    }

    fn ask(&self, policy: &str, subject: &str) -> (u16, Value) {
        ask(&Caller::of(&self.broker), policy, subject)
    }

    /// Asks under `open` for `hot`, which is refused as contended; returns the body of the answer.
    fn is_contended(&self) -> Value {
        let ask = json!({ "policy": "open", "subject": "hot" });
        let (status, retry_after, body) =
            post_full(&self.broker.url, "/v1/acquire", "", &ask.to_string());
        assert_eq!((status, &body["kind"]), (503, &"contended".into()), "{body}");
        assert_eq!(retry_after.as_deref(), Some("1"), "{body}");
        body
    }

    /// Callers that ask until `work` is done: the answers about `hot` under `open` by `hot` callers, and those about a new
    /// subject each time under `closed` by two.
    fn crowd(&self, hot: usize, work: impl FnOnce()) -> (Answers, Answers) {
        let (is_over, hots, others) = (AtomicBool::new(false), Mutex::default(), Mutex::default());
        std::thread::scope(|scope| {
            let caller = |name: String, policy: &'static str, answers| {
                let is_over = &is_over;
                scope.spawn(move || {
                    let caller = Caller::of(&self.broker);
                    for number in 0.. {
                        if is_over.load(Ordering::SeqCst) {
                            return;
                        }
                        let subject = match policy {
                            "closed" => format!("{name}-{number}"),
                            _ => "hot".to_owned(),
                        };
                        note(answers, &ask(&caller, policy, &subject));
                    }
                });
            };
            for _ in 0..hot {
                caller("hot".to_owned(), "open", &hots);
            }
            for number in 0..2 {
                caller(format!("other-{number}"), "closed", &others);
            }
            let _over = Over(&is_over);
            work();
        });
        (hots.into_inner().expect("no panic"), others.into_inner().expect("no panic"))
    }

    /// Asks for a subject under `five` until it refuses: never more than the limit, and never without the store.
    fn admits_five(&self, subject: &str) {
        let mut admitted = 0;
        for _ in 0..2 * FIVE {
            let (status, body) = self.ask("five", subject);
            assert!([200, 429].contains(&status), "{body}");
            assert_eq!(body["degraded"], false, "{body}");
            admitted += u64::from(status == 200);
        }
        assert_eq!(admitted, FIVE);
    }

    /// The status of `/readyz`, and its body.
    fn ready(&self) -> (u16, String) {
        let answer = get(&self.broker.url, "/readyz");
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.expect("a status"), answer)
    }

    /// Ends the broker; its log.
    fn log(self) -> String {
        self.broker.end("-TERM").2
    }
}

fn ask(caller: &Caller, policy: &str, subject: &str) -> (u16, Value) {
    let ask = json!({ "policy": policy, "subject": subject });
    caller.post("/v1/acquire", &ask).expect("every ask is answered in time")
}

/// The permit of an ask that was admitted.
fn permit_of(answer: Option<(u16, Value)>) -> String {
    let (status, body) = answer.expect("an answer");
    assert_eq!(status, 200, "{body}");
    body["permit"].as_str().expect("a permit").to_owned()
}

/// Ends the callers of a crowd, also when the work beside them panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn note(answers: &Mutex<Answers>, (status, body): &(u16, Value)) {
    let kind = if body["degraded"] == true { "degraded" } else { "" };
    let kind = body["kind"].as_str().unwrap_or(kind).to_owned();
    *answers.lock().expect("no panic").entry((*status, kind)).or_default() += 1;
}

/// Whether callers only got `expected`, and got them at all.
fn only(answers: &Answers, expected: &[(u16, &str)]) -> bool {
    !answers.is_empty()
        && answers.keys().all(|(status, kind)| expected.contains(&(*status, kind.as_str())))
}

/// How many lines of `log` are at `level`.
fn lines(log: &str, level: &str) -> usize {
    log.lines().filter(|line| line.contains(&format!(" {level} "))).count()
}

/// Sends `body` to `path` of the broker at `url`, with `key` if it is not empty; the status and the answer.
pub(crate) fn post(url: &str, path: &str, key: &str, body: &str) -> (u16, Value) {
    let (status, _, answer) = post_full(url, path, key, body);
    (status, answer)
}

/// The same with the field `Retry-After` between them.
fn post_full(url: &str, path: &str, key: &str, body: &str) -> (u16, Option<String>, Value) {
    let answer = Http::new().send(post_json(&format!("{url}{path}"), key, body));
    let retry_after = answer.headers().get("retry-after");
    let retry_after = retry_after.map(|value| value.to_str().expect("text").to_owned());
    let body = serde_json::from_str(answer.body()).expect("JSON");
    (answer.status().as_u16(), retry_after, body)
}
