//! Clocks that jump: the server's, which decides, and those that wrote rows before.

use std::sync::{Arc, Mutex};

use tollgate::clock::{ManualClock, SystemClock};
use tollgate::internal::steps::{SERVER_AHEAD_MAX, STEP_STABLE_AFTER};
use tollgate::observe::{Event, Observer};
use tollgate::repair::{AHEAD_MAX_DEFAULT, list_future, repair_entry};
use tollgate::{Ask, Clock, ErrorKind, GateExt, Limit, Policy, RollingWindow, Span};
use tollgate_postgres::Postgres;

use crate::TestDatabase;

const HOUR: Span = Span::from_hours(1);

/// At most `limit` requests in any 24 hours.
fn daily(limit: u64) -> Policy {
    let rule = RollingWindow::new(limit, Span::from_hours(24));
    Policy::new("daily", [Limit::new("rpd", "requests", rule)]).unwrap()
}

async fn admitted(gate: &Postgres, policy: &Policy, subject: &str) -> bool {
    gate.acquire(&Ask::new(policy, subject)).await.unwrap().is_admitted()
}

/// A server whose time jumps between two replies is an error, whatever the answer; it is believed once it has been steady
/// for a minute. Drift and a time that falls back are no errors.
#[tokio::test]
async fn a_server_that_jumps_ahead_is_an_error() {
    let (database, clock, policy) = (TestDatabase::new(), ManualClock::new(), daily(2));
    let gate = database.gate_by(&clock).await;
    assert!(admitted(&gate, &policy, "s").await);
    clock.step(clock.now() + SERVER_AHEAD_MAX);
    assert!(admitted(&gate, &policy, "s").await);
    clock.step(clock.now() - HOUR);
    assert!(!admitted(&gate, &policy, "s").await);
    clock.step(clock.now() + HOUR);
    assert!(!admitted(&gate, &policy, "s").await);

    clock.step(clock.now() + Span::from_hours(48));
    for subject in ["s", "fresh"] {
        let error = gate.acquire(&Ask::new(&policy, subject)).await.unwrap_err();
        assert!(error.is_unavailable() && error.to_string().contains("jumped ahead"), "{error}");
        gate.standing(&policy, subject).await.unwrap_err();
    }
    clock.advance(STEP_STABLE_AFTER);
    assert!(admitted(&gate, &policy, "other").await);
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

/// A row from the future is used up at the server's time, and an event reports it; until then it would decide at its own.
#[tokio::test]
async fn a_row_from_the_future_is_used_up_now_and_alarmed() {
    let (database, mended) = (TestDatabase::new(), Arc::new(Mended::default()));
    let observer = Arc::clone(&mended) as Arc<dyn Observer>;
    let gate = Postgres::open(database.options().observer(observer)).await.unwrap();
    let ahead = database.gate_by(&ManualClock::at(SystemClock.now() + HOUR)).await;
    for policy in [daily(1), daily(9)] {
        assert!(admitted(&ahead, &policy, "s").await);
        // Looking shows it as used up, and writes nothing.
        let standing = gate.standing(&policy, "s").await.unwrap();
        assert_eq!(standing[0].remaining, 0, "{standing:?}");
        // The same in other numbers.
        let carried = gate.standing(&daily(7), "s").await.unwrap();
        assert_eq!(carried[0].used, standing[0].used, "{carried:?}");
        assert!(mended.0.lock().unwrap().is_empty());
        assert_eq!(list_future(&gate, AHEAD_MAX_DEFAULT).await.unwrap().len(), 1);
        let error = gate.acquire(&Ask::new(&policy, "s")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Contended, "{error}");
        let name = "subject \"s\" under policy \"daily\"";
        assert!(error.to_string().contains(name), "{error}");
        let denial = gate.acquire(&Ask::new(&policy, "s")).await.unwrap().into_denial().unwrap();
        assert!(denial.retry_after() <= Some(Span::from_hours(24)), "{denial:?}");
        assert_eq!(std::mem::take(&mut *mended.0.lock().unwrap()), ["s"]);
        gate.reset(&policy, "s").await.unwrap();
    }
}

#[tokio::test]
async fn rows_from_the_future_are_listed_and_mended() {
    let (database, policy) = (TestDatabase::new(), daily(2));
    let gate = database.gate().await;
    let ahead = database.gate_by(&ManualClock::at(SystemClock.now() + HOUR)).await;
    assert!(admitted(&gate, &policy, "right").await);
    for subject in ["a", "zero\0byte"] {
        assert!(admitted(&ahead, &policy, subject).await);
    }
    let listed = list_future(&gate, AHEAD_MAX_DEFAULT).await.unwrap();
    let names: Vec<_> = listed.iter().map(|entry| (&*entry.policy, &*entry.subject)).collect();
    assert_eq!(names, [("daily", "a"), ("daily", "zero\0byte")]);
    assert!(listed.iter().all(|entry| Span::from_mins(59) < entry.ahead && entry.ahead <= HOUR));
    for entry in &listed {
        assert!(repair_entry(&gate, entry, AHEAD_MAX_DEFAULT).await.unwrap());
        assert!(!repair_entry(&gate, entry, AHEAD_MAX_DEFAULT).await.unwrap(), "a second time");
        assert!(!admitted(&gate, &policy, &entry.subject).await);
    }
    assert_eq!(list_future(&gate, AHEAD_MAX_DEFAULT).await.unwrap(), []);
}
