//! Brokers with a strategy while their store is away: every ask is answered, degraded ones say so, and the books balance
//! once the store is back.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_testkit::servers::{Append, DynamoDb, Postgres, Redis};

use crate::folder::Folder;
use crate::running::Broker;
use crate::strategies::{Caller, LEASED, optimistic};

/// How many callers ask at once, and how often each in every phase.
const CALLERS: u64 = 4;
const ASKS: u64 = 20;

/// How often the test asks before it fails because a change never came.
const TRIES_MAX: u32 = 5_000;

/// More than all callers ask for while they wait for a change, so that no ask is denied.
const CAPACITY: u64 = 160_000;

/// The largest block: a sixteenth.
const BLOCK_MAX: u64 = CAPACITY / 16;

fn config(store: &str, strategy: &str) -> Folder {
    let limit = format!(
        r#"{{ name = "all", unit = "requests", rule = "token-bucket", capacity = {CAPACITY}, refill = "1/h" }}"#
    );
    Folder::with(&format!(
        "{store}attempt_timeout = \"400ms\"\n{strategy}\
         [fallback]\ninstances = 2\nprobe_min = \"100ms\"\nprobe_max = \"200ms\"\n\
         [[policy]]\nname = \"open\"\non_store_failure = \"open\"\nblock_ttl = \"1s\"\nlimits = [{limit}]\n"
    ))
}

/// A broker, and what it admitted.
struct Desk {
    folder: Folder,
    broker: Broker,
    admitted: AtomicU64,
    outages: u64,
}

impl Desk {
    fn new(folder: Folder) -> Self {
        let broker = Broker::start(&folder, "");
        Self { folder, broker, admitted: AtomicU64::new(0), outages: 0 }
    }

    /// Whether the answer, which admits, was given without the store.
    fn ask(&self, caller: &Caller) -> bool {
        let (status, body) = caller.ask("open").expect("every ask is answered in time");
        assert_eq!(status, 200, "{body}");
        self.admitted.fetch_add(1, Ordering::SeqCst);
        body["degraded"] == true
    }

    /// Every caller asks until it saw an answer that is `degraded` or not, and some more.
    fn load(&self, degraded: bool) {
        std::thread::scope(|scope| {
            for _ in 0..CALLERS {
                scope.spawn(|| {
                    let caller = Caller::of(&self.broker);
                    let seen = (0..TRIES_MAX).any(|_| self.ask(&caller) == degraded);
                    assert!(seen, "no answer with degraded = {degraded}");
                    for _ in 0..ASKS {
                        self.ask(&caller);
                    }
                });
            }
        });
    }

    /// The store goes away by `down` and comes back by `up`, under load all the while.
    fn survives(&mut self, down: impl FnOnce(), up: impl FnOnce()) {
        self.load(false);
        down();
        self.load(true);
        up();
        self.load(false);
        self.outages += 1;
    }

    /// Nothing that was admitted is missing in the store. It may have more: what was under way when it failed, and `held`
    /// in each outage, which time gives back.
    fn balances(self, held: u64) {
        let (code, _, err) = self.broker.end("-TERM");
        assert_eq!(code, Some(0), "{err}");
        assert!(err.contains("the store is available again"), "{err}");
        let (_, body) = self.folder.json("standing open alice");
        let used = body["limits"][0]["used"].as_u64().expect("a number");
        let admitted = self.admitted.into_inner();
        let most = admitted + self.outages * (CALLERS + held);
        assert!((admitted..=most).contains(&used), "{used} used, {admitted} admitted");
    }
}

/// Redis is paused, and later killed and started again.
fn redis_goes_away(strategy: &str, held: u64) {
    let mut redis = Redis::start_with(Append::Always, "").expect("a server");
    let mut desk = Desk::new(config(&redis.snippet(), strategy));
    let process = RefCell::new(redis.process());
    desk.survives(
        || process.borrow().pause().expect("it pauses"),
        || process.borrow().resume().expect("it goes on"),
    );
    desk.survives(
        || process.borrow_mut().kill().expect("it is killed"),
        || process.borrow_mut().restart().expect("it starts"),
    );
    desk.balances(held);
}

/// R000.10 and promise 6 for leased: what is held when Redis fails are the block at hand, the next one and the one that was
/// asked for.
#[test]
fn r000_10_a_leased_broker_outlives_redis() {
    redis_goes_away(LEASED, 3 * BLOCK_MAX);
}

/// R000.10 for optimistic: nothing that was admitted is dropped from the account.
#[test]
fn r000_10_an_optimistic_broker_outlives_redis() {
    redis_goes_away(&optimistic(), 0);
}

/// The same on PostgreSQL, killed with everything it was doing.
#[test]
fn r000_10_a_leased_broker_outlives_postgres() {
    let mut postgres = Postgres::start().expect("a server");
    let mut desk = Desk::new(config(&postgres.snippet(), LEASED));
    let server = RefCell::new(&mut postgres);
    desk.survives(
        || server.borrow_mut().process().kill().expect("it is killed"),
        || server.borrow_mut().restart().expect("it starts"),
    );
    desk.balances(3 * BLOCK_MAX);
}

/// The same on DynamoDB, paused and killed.
#[test]
fn r000_10_an_optimistic_broker_outlives_dynamodb() {
    let mut dynamodb = DynamoDb::start_durable().expect("a server");
    let folder = config(&dynamodb.snippet(), &optimistic());
    assert_eq!(folder.run("dynamodb create-table").code, 0);
    let mut desk = Desk::new(folder);
    let process = RefCell::new(dynamodb.process());
    desk.survives(
        || process.borrow().pause().expect("it pauses"),
        || process.borrow().resume().expect("it goes on"),
    );
    desk.survives(
        || process.borrow_mut().kill().expect("it is killed"),
        || process.borrow_mut().restart().expect("it starts"),
    );
    desk.balances(0);
}
