//! Clocks that jump: the server's, which decides, and those that wrote entries before.

use std::sync::{Arc, Mutex};

use tollgate::clock::{ManualClock, SystemClock};
use tollgate::internal::steps::{SERVER_AHEAD_MAX, STEP_STABLE_AFTER};
use tollgate::observe::{Event, Observer};
use tollgate::repair::{AHEAD_MAX_DEFAULT, FutureEntry, list_future, repair_entry};
use tollgate::{Ask, Clock, ErrorKind, GateExt, Policy, Span};
use tollgate_redis::{FORMATS, Options, Redis};
use tollgate_testkit::servers;

use crate::{acquire, connect, daily, open_at, server, slow_bucket, used};

const HOUR: Span = Span::from_hours(1);

/// A server whose time jumps between two replies is an error, whatever the answer; it is believed once it has been steady
/// for a minute. Drift and a time that falls back are no errors.
#[tokio::test]
async fn a_server_that_jumps_ahead_is_an_error() {
    for format in FORMATS {
        jumps_ahead(format).await;
    }
}

async fn jumps_ahead(format: u8) {
    let (server, clock) = (server(), ManualClock::new());
    let gate = open_at(Options::single(server.url()).format(format).unwrap(), &clock).await;
    let policy = daily(2);
    assert!(acquire(&gate, &policy, "s").await.unwrap());
    clock.step(clock.now() + SERVER_AHEAD_MAX);
    assert!(acquire(&gate, &policy, "s").await.unwrap());
    clock.step(clock.now() - HOUR);
    assert!(!acquire(&gate, &policy, "s").await.unwrap());
    clock.step(clock.now() + HOUR);
    assert_eq!(used(&gate, &policy, "s").await, 2);

    clock.step(clock.now() + Span::from_hours(48));
    for subject in ["s", "fresh"] {
        let error = acquire(&gate, &policy, subject).await.unwrap_err();
        assert!(error.is_unavailable() && error.to_string().contains("jumped ahead"), "{error}");
        gate.standing(&policy, subject).await.unwrap_err();
    }
    clock.advance(STEP_STABLE_AFTER);
    assert!(acquire(&gate, &policy, "other").await.unwrap());
}

#[derive(Debug, Default)]
struct Mended(Mutex<Vec<String>>);

impl Observer for Mended {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Repaired { subject, ahead, .. } = event {
            assert!(Span::from_mins(59) < *ahead && *ahead <= HOUR, "{ahead}");
            self.0.lock().unwrap().push((*subject).to_owned());
        }
    }
}

/// Writes an entry an hour ahead of the true time.
async fn write_ahead(options: Options, policy: &Policy, subject: &str) {
    let ahead = ManualClock::at(SystemClock.now() + HOUR);
    assert!(acquire(&open_at(options, &ahead).await, policy, subject).await.unwrap());
}

/// An entry from the future is used up at the server's time, and an event reports it; until then it would decide at its own.
#[tokio::test]
async fn an_entry_from_the_future_is_used_up_now_and_alarmed() {
    for format in FORMATS {
        is_used_up(format).await;
    }
}

async fn is_used_up(format: u8) {
    let (server, mended) = (server(), Arc::new(Mended::default()));
    let observer = Arc::clone(&mended) as Arc<dyn Observer>;
    let options = || Options::single(server.url()).format(format).unwrap();
    let gate = connect(options().observer(observer)).await;
    for (policy, asks) in [(daily(1), 1), (daily(9), 1), (slow_bucket(9), 1)] {
        write_ahead(options(), &policy, "s").await;
        let ask = Ask::new(&policy, "s").cost("requests", asks);
        // Looking shows it as used up, and writes nothing.
        let other_numbers = if policy.name() == "daily" { daily(7) } else { slow_bucket(7) };
        let standing = gate.standing(&policy, "s").await.unwrap();
        assert_eq!(standing[0].remaining, 0, "{standing:?}");
        let carried = gate.standing(&other_numbers, "s").await.unwrap();
        assert_eq!(carried[0].used, standing[0].used, "{carried:?}");
        assert!(mended.0.lock().unwrap().is_empty());
        assert_eq!(list_future(&gate, AHEAD_MAX_DEFAULT).await.unwrap().len(), 1);
        let error = gate.acquire(&ask).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Contended, "{error}");
        let name = format!("subject \"s\" under policy {:?}", policy.name());
        assert!(error.to_string().contains(&name), "{error}");
        let denial = gate.acquire(&ask).await.unwrap().into_denial().unwrap();
        assert!(denial.retry_after() <= Some(Span::from_hours(24)), "{denial:?}");
        assert_eq!(std::mem::take(&mut *mended.0.lock().unwrap()), ["s"]);
        gate.reset(&policy, "s").await.unwrap();
    }
}

async fn repairs(gate: &Redis, options: impl Fn() -> Options) {
    let policy = slow_bucket(5);
    for number in 0..20 {
        let subject = format!("s{number}");
        assert!(acquire(gate, &policy, &subject).await.unwrap());
        if number < 3 {
            write_ahead(options(), &policy, &subject).await;
        }
    }
    let listed = list_future(gate, AHEAD_MAX_DEFAULT).await.unwrap();
    let names = |listed: &[FutureEntry]| -> Vec<String> {
        listed.iter().map(|entry| format!("{}/{}", entry.policy, entry.subject)).collect()
    };
    assert_eq!(names(&listed), ["bucket/s0", "bucket/s1", "bucket/s2"]);
    assert!(listed.iter().all(|entry| Span::from_mins(59) < entry.ahead && entry.ahead <= HOUR));
    for entry in &listed {
        assert!(repair_entry(gate, entry, AHEAD_MAX_DEFAULT).await.unwrap());
        assert!(!repair_entry(gate, entry, AHEAD_MAX_DEFAULT).await.unwrap(), "a second time");
        assert!(!acquire(gate, &policy, &entry.subject).await.unwrap());
    }
    assert_eq!(list_future(gate, AHEAD_MAX_DEFAULT).await.unwrap(), []);
    assert_eq!(used(gate, &policy, "s7").await, 1);
}

#[tokio::test]
async fn entries_from_the_future_are_listed_and_mended() {
    let server = server();
    // What would be a pattern is taken as it is.
    let options = || Options::single(server.url()).prefix("t*[g]?");
    acquire(&connect(Options::single(server.url())).await, &daily(1), "s").await.unwrap();
    let gate = connect(options()).await;
    gate.permit_key([7; 32]).await.unwrap();
    repairs(&gate, options).await;
}

#[tokio::test]
async fn entries_from_the_future_are_found_on_every_node() {
    let cluster = servers::RedisCluster::start().unwrap();
    let options = || Options::cluster(cluster.urls());
    repairs(&connect(options()).await, options).await;
}
