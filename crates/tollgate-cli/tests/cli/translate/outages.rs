//! Jobs that run while the store of the quota, or the database of the jobs, goes away and comes back.

use std::io::Read as _;
use std::process::Child;
use std::sync::{Arc, Mutex};

use tollgate::Span;
use tollgate::clock::ManualClock;
use tollgate_testkit::fakes::gemini::Settings;
use tollgate_testkit::servers::{Append, Postgres, Redis, eventually};
use tollgate_translate::Layout;

use super::{World, expected, prose, signal};
use crate::folder::Ran;

/// How long a call takes, by a clock that a test moves.
const LATENCY: Span = Span::from_secs(1);

/// A provider that answers while a test says so, and a document.
struct Bench {
    world: World,
    clock: ManualClock,
    text: String,
}

/// A translation that runs, and what it wrote to standard error.
struct Running {
    child: Child,
    err: Arc<Mutex<String>>,
}

impl Running {
    fn says(&self, text: &str) -> bool {
        self.err.lock().expect("no thread panicked").contains(text)
    }
}

impl Bench {
    fn new(tables: &str) -> Self {
        let (clock, settings) =
            (ManualClock::new(), Settings { latency: LATENCY, ..Settings::default() });
        let world = World::by(Arc::new(clock.clone()), settings, tables);
        let text = prose(400);
        world.folder.write("book.txt", &text);
        Self { world, clock, text }
    }

    fn start(&self, arguments: &str) -> Running {
        let mut child = self.world.start(arguments);
        let mut pipe = child.stderr.take().expect("it is piped");
        let err = Arc::new(Mutex::new(String::new()));
        let heard = Arc::clone(&err);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = pipe.read(&mut bytes) {
                heard
                    .lock()
                    .expect("no thread panicked")
                    .push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        });
        Running { child, err }
    }

    /// Starts the translation under `policy`, two chunks at a time.
    fn translate(&self, policy: &str) -> Running {
        let make = self.world.make("book.txt --yes --workers 2");
        let running = self.start(&make.replace("--policy wide", &format!("--policy {policy}")));
        self.until(|| 3 <= self.world.fake.tally().translated);
        running
    }

    /// The provider answers until `done`.
    fn until(&self, done: impl Fn() -> bool) {
        eventually(|| {
            self.clock.advance(LATENCY);
            done().then_some(())
        })
        .expect("it happens in time");
    }

    /// The provider answers until the process ends.
    fn end(&self, mut running: Running) -> (Ran, String) {
        eventually(|| {
            self.clock.advance(LATENCY);
            running.child.try_wait().expect("it was started here")
        })
        .expect("it ends");
        let ran: Ran = running.child.wait_with_output().expect("it ended").into();
        let err = running.err.lock().expect("no thread panicked").clone();
        (ran, err)
    }

    fn is_whole(&self) -> bool {
        self.world.read("book.fr.txt") == expected(&self.text, Layout::Translation)
    }
}

/// On Redis, with a policy of 40 requests a day for each of `open` and `fallback`.
fn on_redis(redis: &Redis) -> Bench {
    let limit = |limit| {
        format!(
            r#"[{{ name = "rpd", unit = "requests", rule = "rolling-window", limit = {limit}, window = "24h" }}]"#
        )
    };
    Bench::new(&format!(
        "{}[fallback]\ninstances = 2\nstart = \"share\"\nprobe_min = \"100ms\"\nprobe_max = \"200ms\"\n\
         [[policy]]\nname = \"open\"\non_store_failure = \"open\"\nlimits = {}\n\
         [[policy]]\nname = \"fallback\"\non_store_failure = \"fallback\"\nlimits = {}\n",
        redis.snippet(),
        limit(100_000),
        limit(40)
    ))
}

fn redis() -> Redis {
    Redis::start_with(Append::Always, "").expect("a server")
}

const IS_BACK: &str = "the store of the quota is available after";

/// R000.10: with `open`, a translation goes on without its store, says so, and posts every call to the store afterwards.
#[test]
fn r000_10_a_translation_goes_on_openly_while_redis_is_away() {
    let mut redis = redis();
    let bench = on_redis(&redis);
    let running = bench.translate("open");
    redis.process().kill().expect("it is killed");
    let before = bench.world.fake.tally().translated;
    bench.until(|| before + 10 <= bench.world.fake.tally().translated);
    assert!(running.says("the store of the quota is unavailable (redis: "));
    assert!(running.says("calls continue without a limit until it is back"));
    redis.process().restart().expect("it starts");
    eventually(|| running.says(IS_BACK).then_some(())).expect("it is noticed");
    let (ran, err) = bench.end(running);
    assert_eq!(ran.code, 0, "{err}");
    assert!(bench.is_whole() && !err.contains("the provider"), "{err}");
    let (_, standing) = bench.world.folder.json("standing open project");
    let (used, calls) = (standing["limits"][0]["used"].as_u64(), bench.world.fake.tally().calls);
    // What was under way when Redis was killed may be counted twice.
    assert!(used.is_some_and(|used| (calls..=calls + 2).contains(&used)), "{used:?} {calls}");
}

/// R000.10: with `fallback`, a translation goes on within its share and stops there; the documented bound holds.
#[test]
fn r000_10_a_translation_keeps_to_its_share_while_redis_is_away() {
    let mut redis = redis();
    let bench = on_redis(&redis);
    let running = bench.translate("fallback");
    redis.process().kill().expect("it is killed");
    let before = bench.world.fake.tally().calls;
    let is_used = "the store is unavailable, and this process's share of the limit rpd is used up";
    bench.until(|| running.says(is_used));
    assert!(running.says("calls continue within this process's share until it is back"));
    for _ in 0..100 {
        bench.clock.advance(LATENCY);
    }
    let without = bench.world.fake.tally().calls - before;
    // Twenty of forty for one of two, and two that the store had admitted.
    assert!((18..=22).contains(&without), "{without} calls without the store");
    redis.process().restart().expect("it starts");
    bench.until(|| running.says(IS_BACK) && running.says("the limit rpd of fallback is used up"));
    signal(&running.child, "-INT");
    let (ran, err) = bench.end(running);
    assert_eq!(ran.code, 1, "{err}");
    let calls = bench.world.fake.tally().calls;
    assert!(before + without < calls && calls <= 40 + 20, "{calls} calls");
    assert!(!err.contains("the provider"), "{err}");
}

/// R000.10: with `closed`, nothing is called while the store is away, which is not blamed on the provider; then it goes on.
#[test]
fn r000_10_a_translation_waits_for_redis_where_the_policy_is_closed() {
    let mut redis = redis();
    let bench = on_redis(&redis);
    let running = bench.translate("wide");
    redis.process().kill().expect("it is killed");
    let before = bench.world.fake.tally().calls;
    bench.until(|| running.says("no call is made until it is back"));
    for _ in 0..100 {
        bench.clock.advance(LATENCY);
    }
    let calls = bench.world.fake.tally().calls;
    assert!(calls <= before + 2, "{calls} calls, {before} before");
    redis.process().restart().expect("it starts");
    let (ran, err) = bench.end(running);
    assert_eq!(ran.code, 0, "{err}");
    assert!(bench.is_whole() && err.contains(IS_BACK) && !err.contains("the provider"), "{err}");
}

/// Jobs in a database that a process waits `patience` for.
fn on_postgres(patience: &str) -> (Bench, Postgres) {
    let server = Postgres::start().expect("a server");
    let database = server.database().expect("a database");
    let bench = Bench::new(&format!(
        "[translate]\njobs = \"postgres\"\nurl_file = \"jobs.url\"\nlease = \"2s\"\npatience = \"{patience}\"\n"
    ));
    bench.world.folder.write("jobs.url", &server.url(&database));
    (bench, server)
}

const JOBS_AWAY: &str = "the job store is unavailable";

/// R003.5: a database of jobs that is away is waited for, visibly.
#[test]
fn r003_5_a_translation_waits_for_the_database_of_its_jobs() {
    let (bench, mut server) = on_postgres("10m");
    let running = bench.translate("wide");
    server.process().kill().expect("it is killed");
    bench.until(|| running.says(JOBS_AWAY));
    server.restart().expect("it starts");
    let (ran, err) = bench.end(running);
    assert_eq!(ran.code, 0, "{err}");
    assert!(bench.is_whole() && err.contains("the job store is available after"), "{err}");
    assert!(!err.contains("the provider"), "{err}");
}

/// R003.5: when the patience is at its end, the error names the command that goes on, and that command does.
#[test]
fn r003_5_a_translation_that_gives_up_on_its_database_says_how_to_resume() {
    let (bench, mut server) = on_postgres("1s");
    let running = bench.translate("wide");
    server.process().kill().expect("it is killed");
    let (ran, err) = bench.end(running);
    assert_eq!(ran.code, 2, "{err}");
    assert!(
        err.contains(JOBS_AWAY) && err.contains("the jobs in PostgreSQL cannot be used"),
        "{err}"
    );
    let (_, command) = err.split_once("Resume with: tollgate ").expect("the command");
    server.restart().expect("it starts");
    let (ran, err) = bench.end(bench.start(command.lines().next().expect("a line")));
    assert_eq!(ran.code, 0, "{err}");
    assert!(bench.is_whole());
}
