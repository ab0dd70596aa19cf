//! The broker while its store is away: real servers that are stopped in their tracks, killed and started again under load.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use tollgate::clock::SystemClock;
use tollgate::{Clock, Span};
use tollgate_testkit::servers::{Append, DynamoDb, Postgres, Redis, eventually, free_ports};

use crate::folder::Folder;
use crate::running::{Broker, get};
use crate::strategies::Caller;

/// How many callers ask at once, and how often each in every phase.
const CALLERS: u64 = 4;
const ASKS: u64 = 6;

/// How often a caller asks before it finds that the store is not back; probes are 100 to 200 ms apart.
const TRIES_MAX: usize = 200;

fn policies(store: &str) -> String {
    let policies = own_policies();
    format!(
        "[store]\n{store}\nattempt_timeout = \"2s\"\n\
         [fallback]\ninstances = 10\nprobe_min = \"100ms\"\nprobe_max = \"200ms\"\n{policies}"
    )
}

fn own_policies() -> String {
    let limits = r#"limits = [{ name = "all", unit = "requests", rule = "token-bucket", capacity = 1000, refill = "1/d" }]"#;
    let policy = |action: &str| {
        format!("[[policy]]\nname = \"{action}\"\non_store_failure = \"{action}\"\n{limits}\n")
    };
    format!("{}{}{}", policy("open"), policy("closed"), policy("fallback"))
}

/// A broker, and how many asks were admitted on the policy that is open.
struct Desk {
    folder: Folder,
    broker: Broker,
    asked: AtomicU64,
}

impl Desk {
    fn new(store: &str) -> Self {
        let folder = Folder::with(&policies(store));
        let broker = Broker::start(&folder, "");
        Self { folder, broker, asked: AtomicU64::new(0) }
    }

    /// Asks under an id of its own.
    fn ask(&self, policy: &str) -> (i32, Value) {
        let id = self.asked.fetch_add(1, Ordering::SeqCst);
        let at = &self.broker.url;
        self.folder.json(&format!("acquire {policy} p7 --id ask-{id} --server {at}"))
    }

    /// Every caller asks, and is admitted; how many of them without the store.
    fn load(&self) -> u64 {
        let degraded = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..CALLERS {
                scope.spawn(|| {
                    for _ in 0..ASKS {
                        let (code, body) = self.ask("open");
                        assert_eq!(code, 0, "{body}");
                        degraded.fetch_add(u64::from(body["degraded"] == true), Ordering::SeqCst);
                    }
                });
            }
        });
        degraded.into_inner()
    }

    /// Asks until the store answers again, and compares what it has with what was admitted.
    fn balances(&self) {
        let asked = (0..TRIES_MAX).find(|_| {
            let (code, body) = self.ask("open");
            assert_eq!(code, 0, "{body}");
            body["degraded"] == false
        });
        assert!(asked.is_some(), "the store was not asked again");
        let at = &self.broker.url;
        let (_, body) = self.folder.json(&format!("standing open p7 --server {at}"));
        assert_eq!(body["limits"][0]["used"], self.asked.load(Ordering::SeqCst), "{body}");
        // It may be over for this subject before it is over, and a failure until then would be no outage of its own.
        let over = || get(at, "/metrics").contains("\ntollgate_fallback_active 0\n").then_some(());
        eventually(over).expect("the outage ends");
    }

    /// The store goes away by `down` and comes back by `up`, under load all the while.
    fn survives(&self, down: impl FnOnce(), up: impl FnOnce()) {
        assert_eq!(self.load(), 0);
        down();
        assert_eq!(self.load(), CALLERS * ASKS, "every answer says that it is degraded");
        let before = self.asked.load(Ordering::SeqCst);
        let (code, problem) = self.ask("closed");
        assert_eq!((code, &problem["kind"]), (2, &"unavailable".into()), "{problem}");
        let (code, body) = self.ask("fallback");
        assert_eq!(
            (code, &body["degraded"]),
            (1, &true.into()),
            "the share counts as used: {body}"
        );
        self.asked.store(before, Ordering::SeqCst);
        up();
        self.balances();
    }
}

/// R000.10 and promise 7 on Redis: paused, killed and started again.
#[test]
fn r000_10_redis_goes_away_and_comes_back() {
    let mut redis = Redis::start_with(Append::Always, "").expect("a server");
    let desk = Desk::new(&format!("kind = \"redis\"\nurl = \"{}\"", redis.url()));
    let process = std::cell::RefCell::new(redis.process());
    desk.survives(
        || process.borrow().pause().expect("it pauses"),
        || process.borrow().resume().expect("it goes on"),
    );
    desk.survives(
        || process.borrow_mut().kill().expect("it is killed"),
        || process.borrow_mut().restart().expect("it starts"),
    );
    // Telemetry reports the attempts at the store too.
    let page = get(&desk.broker.url, "/metrics");
    for line in ["tollgate_fallback_activated_total 2", "tollgate_fallback_active 0"] {
        assert!(page.lines().any(|other| other == line), "{page}");
    }
    let failed = "tollgate_store_tries_total{policy=\"open\",result=\"failed\"} ";
    let failed = page.lines().find_map(|line| line.strip_prefix(failed)).map(str::parse);
    assert!(failed.is_some_and(|count| count.is_ok_and(|count: u64| 2 * 3 <= count)), "{page}");
    let (code, _, err) = desk.broker.end("-TERM");
    assert_eq!(code, Some(0));
    assert_eq!(err.matches("RateLimiterFallbackActivated").count(), 2, "{err}");
    assert_eq!(err.matches("the store is available again").count(), 2, "{err}");
}

/// R002.4: the same where the store is another broker, killed with everything it was doing and started again on its
/// folder.
#[test]
fn r000_10_a_broker_goes_away_and_comes_back() {
    let ports = free_ports(2).expect("free ports");
    let at = |place: usize| format!("127.0.0.1:{}", ports[place].number());
    let behind = Folder::with(&own_policies());
    let serve = || {
        let arguments = format!("--http {} --grpc {} --resp off", at(0), at(1));
        Broker::serve(&behind, &arguments, &[])
    };
    let broker = std::cell::RefCell::new(Some(serve()));
    let (stop, go_on) = (
        || broker.borrow().as_ref().expect("it runs").pause(),
        || broker.borrow().as_ref().expect("it runs").signal("-CONT"),
    );
    let (url, grpc) = (at(0), at(1));
    let desk =
        Desk::new(&format!("kind = \"broker\"\nurl = \"http://{url}\"\ngrpc = \"http://{grpc}\""));
    desk.survives(stop, go_on);
    // It is killed when it is dropped.
    desk.survives(|| drop(broker.take()), || drop(broker.replace(Some(serve()))));
    // The folder of the broker behind has what both admitted.
    let asked = desk.asked.load(Ordering::SeqCst);
    assert_eq!(desk.broker.end("-TERM").0, Some(0));
    let broker = broker.take().expect("it runs");
    assert_eq!(broker.end("-TERM").0, Some(0));
    assert_eq!(behind.json("standing open p7").1["limits"][0]["used"], asked);
}

/// The same on PostgreSQL, killed with everything it was doing.
#[test]
fn r000_10_postgres_goes_away_and_comes_back() {
    let mut postgres = Postgres::start().expect("a server");
    let name = postgres.database().expect("a database");
    let desk = Desk::new(&format!("kind = \"postgres\"\nurl = \"{}\"", postgres.url(&name)));
    let server = std::cell::RefCell::new(&mut postgres);
    desk.survives(
        || server.borrow_mut().process().kill().expect("it is killed"),
        || server.borrow_mut().restart().expect("it starts"),
    );
}

/// The same on DynamoDB, paused and killed.
#[test]
fn r000_10_dynamodb_goes_away_and_comes_back() {
    let mut dynamodb = DynamoDb::start_durable().expect("a server");
    let store = format!(
        "kind = \"dynamodb\"\nregion = \"eu-central-1\"\nendpoint = \"{}\"",
        dynamodb.endpoint()
    );
    let folder = Folder::with(&policies(&store));
    assert_eq!(folder.run("dynamodb create-table").code, 0);
    let desk = Desk::new(&store);
    let process = std::cell::RefCell::new(dynamodb.process());
    desk.survives(
        || process.borrow().pause().expect("it pauses"),
        || process.borrow().resume().expect("it goes on"),
    );
    desk.survives(
        || process.borrow_mut().kill().expect("it is killed"),
        || process.borrow_mut().restart().expect("it starts"),
    );
}

/// Asks for `span`: how many were admitted without the store, and how many by it.
fn admitted_within(caller: &Caller, policy: &str, span: Span) -> (u64, u64) {
    let (until, mut degraded, mut by_store) = (SystemClock.now() + span, 0, 0);
    while SystemClock.now() < until {
        let (status, body) = caller.ask(policy).expect("every ask is answered");
        assert!([200, 429].contains(&status), "{body}");
        match body["degraded"].as_bool() {
            Some(true) => degraded += u64::from(status == 200),
            _ => by_store += u64::from(status == 200),
        }
    }
    (degraded, by_store)
}

/// A bucket of 20 per second is asked as fast as it goes while Redis is away for 5 s: paused, and killed and started again on
/// its data. In the first second after it is back the bucket admits, instead of paying for the outage first.
#[test]
fn r000_10_a_bucket_goes_on_as_soon_as_redis_is_back() {
    let mut redis = Redis::start_with(Append::Always, "").expect("a server");
    let policy = |action: &str| {
        format!(
            "[[policy]]\nname = \"{action}\"\non_store_failure = \"{action}\"\nlimits = [{{ name = \"rate\", \
             unit = \"requests\", rule = \"token-bucket\", capacity = 20, refill = \"20/s\" }}]\n"
        )
    };
    let folder = Folder::with(&format!(
        "{}attempt_timeout = \"400ms\"\n\
         [fallback]\ninstances = 1\nprobe_min = \"100ms\"\nprobe_max = \"200ms\"\n{}{}",
        redis.snippet(),
        policy("open"),
        policy("fallback")
    ));
    let broker = Broker::start(&folder, "");
    let caller = Caller::of(&broker);
    let process = redis.process();
    for (policy, is_killed) in
        [("open", false), ("fallback", false), ("open", true), ("fallback", true)]
    {
        let (_, by_store) = admitted_within(&caller, policy, Span::from_secs(1));
        assert!(0 < by_store);
        if is_killed { process.kill() } else { process.pause() }.expect("it goes away");
        let (without, _) = admitted_within(&caller, policy, Span::from_secs(5));
        assert!(20 < without, "{policy}: {without} in the outage");
        if is_killed { process.restart() } else { process.resume() }.expect("it comes back");
        let is_back = || {
            let (_, body) = caller.ask(policy)?;
            (body["degraded"] != true).then_some(())
        };
        eventually(is_back).expect("the store is asked again");
        let (degraded, by_store) = admitted_within(&caller, policy, Span::from_secs(1));
        assert_eq!(degraded, 0);
        assert!(5 <= by_store, "{policy}, killed {is_killed}: {by_store} in the first second");
    }
}
