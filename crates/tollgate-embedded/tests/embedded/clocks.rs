//! Clocks that are set, while a store is open and between two commands.

use std::sync::{Arc, Mutex};

use tollgate::clock::ManualClock;
use tollgate::entries::EntryStore as _;
use tollgate::internal::steps::STEP_STABLE_AFTER;
use tollgate::observe::{Event, Observer};
use tollgate::repair::{AHEAD_MAX_DEFAULT, FutureEntry, list_future, repair_entry};
use tollgate::{Ask, Clock, Decision, Denial, Gate, GateExt, Policy, Span, Timestamp};
use tollgate_embedded::{AHEAD_MAX, Embedded, Options};

use crate::{TestFolder, admitted, daily, pass, used};

const DAY: Span = Span::from_hours(24);
const FAR: Span = Span::from_hours(400 * 24);

async fn denied(gate: &impl Gate, policy: &Policy) -> Denial {
    match gate.acquire(&Ask::new(policy, "s")).await.unwrap() {
        Decision::Denied(denial) => denial,
        Decision::Admitted(permit) => panic!("admitted: {permit:?}"),
    }
}

/// One reading far ahead neither makes room nor locks the subject.
#[tokio::test]
async fn a_reading_far_ahead_changes_nothing() {
    let (folder, policy) = (TestFolder::new(), daily(2));
    let gate = folder.open();
    assert!(admitted(&gate, &policy, "s").await);
    let now = folder.clock.now();
    folder.clock.step(now + FAR);
    assert!(admitted(&gate, &policy, "s").await);
    assert!(denied(&gate, &policy).await.retry_after() <= Some(Span::from_hours(25)));
    // Idle entries are not cleaned up either.
    assert_eq!(gate.clean_up().await.unwrap(), 0);
    folder.clock.step(now);
    assert_eq!(used(&gate, &policy, "s").await, 2);
    pass(&folder, Span::from_hours(26));
    assert!(admitted(&gate, &policy, "s").await);
}

/// The same from a clock that is behind for a moment: what is charged then counts from the true time.
#[tokio::test]
async fn a_reading_far_behind_charges_at_the_true_time() {
    let (folder, policy) = (TestFolder::new(), daily(2));
    let gate = folder.open();
    let now = folder.clock.now();
    assert!(admitted(&gate, &policy, "other").await);
    folder.clock.step(now - FAR);
    assert!(admitted(&gate, &policy, "s").await && admitted(&gate, &policy, "s").await);
    folder.clock.step(now);
    denied(&gate, &policy).await;
}

/// Each command opens the store anew: the readings are kept with it.
#[tokio::test]
async fn commands_notice_a_step_between_them() {
    let (folder, policy) = (TestFolder::new(), daily(2));
    let now = folder.clock.now();
    for (clock, admits) in [(now, true), (now + FAR, true), (now + FAR, false), (now, false)] {
        folder.clock.step(clock);
        assert_eq!(admitted(&folder.open(), &policy, "s").await, admits, "at {clock}");
    }
    pass(&folder, Span::from_hours(26));
    assert!(admitted(&folder.open(), &policy, "s").await);
}

/// A clock that was really behind, and is set right, counts once it has run steadily for a minute; also if only commands
/// that write nothing else see it.
#[tokio::test]
async fn a_forward_step_counts_after_a_minute() {
    for stays_open in [true, false] {
        let (folder, policy) = (TestFolder::new(), daily(1));
        let mut gate = Some(folder.open());
        let mut asks = async || {
            if !stays_open {
                drop(gate.take());
            }
            admitted(gate.get_or_insert_with(|| folder.open()), &policy, "s").await
        };
        assert!(asks().await);
        folder.clock.step(folder.clock.now() + DAY + DAY);
        for wait in [Span::ZERO, Span::from_secs(59)] {
            pass(&folder, wait);
            assert!(!asks().await);
        }
        pass(&folder, Span::from_secs(1));
        assert!(asks().await, "stays open: {stays_open}");
    }
    assert_eq!(STEP_STABLE_AFTER, Span::from_secs(60));
}

#[derive(Debug, Default)]
struct Mended(Mutex<Vec<Span>>);

impl Observer for Mended {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Repaired { ahead, .. } = event {
            self.0.lock().unwrap().push(*ahead);
        }
    }
}

/// A clock that was wrong for long enough to be believed leaves entries in the future. Once it has been right for a
/// minute they are used up at the present, and an event reports it.
#[tokio::test]
async fn a_clock_that_was_wrong_for_long_locks_no_subject() {
    let (folder, policy, mended) = (TestFolder::new(), daily(2), Arc::new(Mended::default()));
    let options = folder.options().observer(Arc::clone(&mended) as Arc<dyn Observer>);
    let gate = folder.try_open(options).unwrap();
    let now = folder.clock.now();
    folder.clock.step(now + FAR);
    used(&gate, &policy, "s").await;
    pass(&folder, STEP_STABLE_AFTER);
    assert!(admitted(&gate, &policy, "s").await);
    folder.clock.step(now + STEP_STABLE_AFTER);
    used(&gate, &policy, "s").await;
    pass(&folder, STEP_STABLE_AFTER);
    // Looking shows it as used up, and writes nothing.
    assert_eq!((used(&gate, &policy, "s").await, mended.0.lock().unwrap().len()), (2, 0));
    assert!(denied(&gate, &policy).await.retry_after() <= Some(Span::from_hours(25)));
    let ahead = FAR.as_micros() - STEP_STABLE_AFTER.as_micros();
    assert_eq!(*mended.0.lock().unwrap(), [Span::from_micros(ahead)]);
    drop(gate);
    pass(&folder, Span::from_hours(26));
    assert!(admitted(&folder.open(), &policy, "s").await);
}

/// A folder whose store accepted a step back opens: there is evidence for the new time, and an entry from the future is
/// rewritten when it is next asked for.
#[tokio::test]
async fn a_folder_opens_after_an_accepted_step_back() {
    let (folder, policy) = (TestFolder::new(), daily(2));
    let gate = folder.open();
    assert!(admitted(&gate, &policy, "s").await);
    folder.clock.step(folder.clock.now() - Span::from_hours(2));
    used(&gate, &policy, "s").await;
    pass(&folder, STEP_STABLE_AFTER);
    assert!(admitted(&gate, &policy, "other").await);
    drop(gate);
    let gate = folder.try_open(folder.options()).unwrap();
    assert!(denied(&gate, &policy).await.retry_after() <= Some(Span::from_hours(25)));
}

fn at(now: Timestamp) -> Options {
    // A clock of its own is a boot of its own.
    Options::new().clock(Arc::new(ManualClock::at(now)))
}

/// Stored times that are far ahead keep the folder closed, and the error names the repair, which opens it.
#[tokio::test]
async fn stored_times_far_ahead_refuse_to_open_until_repaired() {
    // Less than the age at which idle entries are removed.
    const AHEAD: Span = Span::from_hours(5 * 24);
    let (folder, policy) = (TestFolder::new(), daily(2));
    let now = folder.clock.now();
    let gate = folder.try_open(at(now + AHEAD_MAX)).unwrap();
    assert!(admitted(&gate, &policy, "s").await);
    drop(gate);
    assert!(admitted(&folder.try_open(at(now)).unwrap(), &policy, "near").await);

    let gate = folder.try_open(at(now + AHEAD)).unwrap();
    assert!(admitted(&gate, &policy, "s").await);
    drop(gate);
    let error = folder.try_open(at(now)).unwrap_err();
    let text = error.to_string();
    assert!(error.is_unavailable() && text.contains("Check the clock first"), "{text}");
    assert!(text.contains(&now.to_string()) && !text.contains("--yes"), "{text}");
    assert!(text.contains("5d ahead"), "{text}");

    // What the folder saw last contradicts the clock.
    let store = Embedded::open_for_repair(&folder.path(), at(now)).unwrap();
    assert_eq!(store.disputed_time(), Some(now + AHEAD));
    drop(store);
    let store = Embedded::open_for_repair(&folder.path(), at(now + AHEAD)).unwrap();
    assert_eq!(store.disputed_time(), None);
    drop(store);
    // Looking changes nothing.
    for _ in 0..2 {
        let store = Embedded::open_for_repair(&folder.path(), at(now)).unwrap();
        let found = list_future(&store, AHEAD_MAX_DEFAULT).await.unwrap();
        let (policy, subject) = ("daily".to_owned(), "s".to_owned());
        assert_eq!(found, [FutureEntry { policy, subject, at: now + AHEAD, ahead: AHEAD }]);
        drop(store);
        assert!(folder.try_open(at(now)).is_err());
    }
    let store = Embedded::open_for_repair(&folder.path(), at(now)).unwrap();
    let [found] = &list_future(&store, AHEAD_MAX_DEFAULT).await.unwrap()[..] else { panic!("one") };
    assert!(repair_entry(&store, found, AHEAD_MAX_DEFAULT).await.unwrap());
    assert!(!repair_entry(&store, found, AHEAD_MAX_DEFAULT).await.unwrap(), "a second time");
    assert_eq!(list_future(&store, AHEAD_MAX_DEFAULT).await.unwrap(), []);
    drop(store);
    let gate = folder.try_open(at(now)).unwrap();
    assert!(denied(&gate, &policy).await.retry_after() <= Some(Span::from_hours(25)));
    drop(gate);
    let gate: Embedded = folder.try_open(at(now + DAY + AHEAD_MAX)).unwrap();
    assert_eq!(used(&gate, &policy, "near").await, 1);
}
