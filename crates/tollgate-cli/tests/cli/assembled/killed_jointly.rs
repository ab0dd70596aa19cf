//! A broker that is killed again and again under asks with four charges and ids: no charge is ever there without the others.
//!
//! After each start, the asks whose answer was lost are sent again under their ids, one after the other, and the standings of all
//! four charges are compared before and after: each changed by its cost, or none did. At the end the standings are the sums of
//! what was admitted, so a refused ask left nothing, and a lost answer is counted once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tollgate::clock::SystemClock;
use tollgate::{Clock as _, Span};
use tollgate_testkit::servers::Redis;

use crate::folder::Folder;
use crate::killed::Connection;
use crate::running::{Broker, get};

/// How often the broker is killed.
const LIVES: u64 = 12;

/// Asks that are answered in a life before the broker is killed.
const ANSWERS: u64 = 60;

/// How long a life may last on a slow machine.
const LIFE_MAX: Span = Span::from_secs(60);

/// The callers; some of them use the Redis protocol.
const CALLERS: u64 = 6;

/// The tokens of each ask.
const TOKENS: u64 = 3;

/// What the smaller team may use, in tokens: its callers are refused before the end.
const TEAM: u64 = 20 * TOKENS;

/// A charge: the policy, the subject, and the cost of an ask in the unit of its limit.
type Charge = (&'static str, String, u64);

struct Client {
    number: u64,
    asked: u64,
    /// The id whose answer was lost.
    lost: Option<String>,
    /// The last id that was admitted.
    admitted: Option<String>,
    admissions: u64,
    refusals: u64,
}

impl Client {
    const fn new(number: u64) -> Self {
        Self { number, asked: 0, lost: None, admitted: None, admissions: 0, refusals: 0 }
    }

    /// A user of its own, one of two teams, one of two deployments, and the account of all.
    fn charges(&self) -> [Charge; 4] {
        let number = self.number;
        [
            ("user", format!("u{number}"), 1),
            ("team", format!("t{}", number % 2), TOKENS),
            ("deployment", format!("d{}", number / 2 % 2), 1),
            ("account", "all".to_owned(), TOKENS),
        ]
    }

    fn connect(&self, broker: &Broker) -> Connection {
        match self.number / 2 % 2 {
            0 => Connection::http(broker),
            _ => Connection::resp(broker),
        }
    }

    fn send(&self, line: &mut Connection, id: &str) -> Option<bool> {
        let charges = self.charges();
        let body = charges
            .iter()
            .map(|(policy, subject, _)| json!({ "policy": policy, "subject": subject }));
        let body =
            json!({ "charges": body.collect::<Value>(), "costs": { "tokens": TOKENS }, "id": id });
        let words = charges.map(|(policy, subject, _)| format!("{policy} {subject}"));
        let words = words.join(" AND ").replacen(" AND", &format!(" COST tokens {TOKENS} AND"), 1);
        line.send(&body, &format!("TG.ACQUIRE {words} ID {id}"))
    }

    /// Asks until the broker is gone.
    fn load(&mut self, broker: &Broker, answered: &AtomicU64) {
        let mut line = self.connect(broker);
        loop {
            let id = format!("{}-{}", self.number, self.asked);
            self.asked += 1;
            match self.send(&mut line, &id) {
                Some(is_admitted) => self.note(is_admitted, id),
                None => {
                    self.lost = Some(id);
                    return;
                }
            }
            answered.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn note(&mut self, is_admitted: bool, id: String) {
        if is_admitted {
            self.admissions += 1;
            self.admitted = Some(id);
        } else {
            self.refusals += 1;
        }
    }

    /// Repeats the ask of `id` while no other caller asks. Returns whether it is admitted, and whether that charged anything: all
    /// of its charges, or none.
    fn repeat(&self, broker: &Broker, id: &str) -> (bool, bool) {
        let standings =
            || self.charges().map(|(policy, subject, _)| used(broker, policy, &subject));
        let before = standings();
        let is_admitted = self.send(&mut self.connect(broker), id).expect("the broker answers");
        let after = standings();
        let costs = self.charges().map(|(.., cost)| cost);
        let is_charged = after != before;
        for index in 0..4 {
            let expected = before[index] + if is_charged { costs[index] } else { 0 };
            assert_eq!(after[index], expected, "{id}: {before:?} {after:?}, charge {index}");
        }
        assert!(is_admitted || !is_charged, "{id} was refused, and charged");
        (is_admitted, is_charged)
    }
}

fn used(broker: &Broker, policy: &str, subject: &str) -> u64 {
    let answer = get(&broker.url, &format!("/v1/standing?policy={policy}&subject={subject}"));
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let body: Value = serde_json::from_str(body).expect("JSON");
    body["limits"][0]["used"].as_u64().expect("a number")
}

fn folder(store: &str) -> Folder {
    let policy = |name: &str, unit: &str, limit: u64| {
        format!(
            "[[policy]]\nname = \"{name}\"\nlimits = [{{ name = \"all\", unit = \"{unit}\", rule = \"rolling-window\", \
             limit = {limit}, window = \"24h\" }}]\n"
        )
    };
    let team = format!(
        "overrides = [{{ subject = \"t1\", limits = [{{ name = \"all\", limit = {TEAM} }}] }}]\n"
    );
    Folder::with(&format!(
        "{store}{}{}{team}{}{}",
        policy("user", "requests", 1_000_000),
        policy("team", "tokens", 1_000_000),
        policy("deployment", "requests", 1_000_000),
        policy("account", "tokens", 1_000_000),
    ))
}

/// Kills the broker of `folder` under load, [`LIVES`] times, and checks every lost ask and all sums.
fn killed_again_and_again(folder: &Folder) {
    let mut clients: Vec<Client> = (0..CALLERS).map(Client::new).collect();
    // Lost asks that were refused, had been charged, and were charged by the repeat.
    let mut repeated = [0_u64; 3];
    for life in 0..=LIVES {
        let broker = Broker::start(folder, "");
        for client in &mut clients {
            if let Some(id) = &client.admitted {
                assert_eq!(client.repeat(&broker, id), (true, false), "{id} was answered before");
            }
            if let Some(id) = client.lost.take() {
                let (is_admitted, is_charged) = client.repeat(&broker, &id);
                repeated[usize::from(is_admitted) + usize::from(is_charged)] += 1;
                assert_eq!(client.repeat(&broker, &id), (is_admitted, false), "{id}, again");
                client.note(is_admitted, id);
            }
        }
        if life == LIVES {
            check_sums(&broker, &clients);
            break;
        }
        let answered = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(|| client.load(&broker, &answered));
            }
            let until = SystemClock.monotonic().plus(LIFE_MAX);
            // Not always after the same number, so that each life ends elsewhere in a commit.
            while answered.load(Ordering::SeqCst) < ANSWERS + 7 * life
                && SystemClock.monotonic() < until
            {
                std::thread::yield_now();
            }
            broker.kill();
        });
    }
    assert!(clients.iter().any(|client| 0 < client.refusals), "the smaller team was refused");
    let [refused, kept, new] = repeated;
    assert!(LIVES <= refused + kept + new, "asks in flight: {refused}, {kept} and {new}");
}

/// Each standing is the sum of what was admitted, and within its limit.
fn check_sums(broker: &Broker, clients: &[Client]) {
    let mut sums: BTreeMap<(&str, String), u64> = BTreeMap::new();
    for client in clients {
        for (policy, subject, cost) in client.charges() {
            *sums.entry((policy, subject)).or_default() += cost * client.admissions;
        }
    }
    for ((policy, subject), expected) in &sums {
        assert_eq!(used(broker, policy, subject), *expected, "{policy} {subject}");
    }
    assert_eq!(sums[&("team", "t1".to_owned())], TEAM, "never over, and nothing lost");
}

#[test]
fn a_killed_broker_on_a_strict_folder_keeps_all_charges_or_none() {
    killed_again_and_again(&folder("[store]\nkind = \"embedded\"\ndurability = \"strict\"\n"));
}

#[test]
fn a_killed_broker_on_redis_keeps_all_charges_or_none() {
    let redis = Redis::start().expect("a server");
    killed_again_and_again(&folder(&redis.snippet()));
}
