//! A store that cannot write admits nothing, and says so.

use std::pin::Pin;
use std::process::Command;
use std::task::{Context, Poll, Waker};

use tollgate::{Ask, Clock, Decision, ErrorKind, GateExt, Timestamp};
use tollgate_embedded::{Durability, Embedded};

use crate::child::{Child, Job, block_on};
use crate::{TestFolder, admitted, daily, used};

const FAIL: &str = "CREATE TRIGGER fail BEFORE INSERT ON entries WHEN NEW.value IS NOT NULL
                    BEGIN SELECT RAISE(ABORT, 'the disk is on fire'); END";

async fn assert_stopped(gate: &Embedded, why: &str) {
    let policy = daily(10);
    let asked = gate.acquire(&Ask::new(&policy, "p")).await.unwrap_err();
    let looked = gate.standing(&policy, "p").await.unwrap_err();
    let reset = gate.reset(&policy, "p").await.unwrap_err();
    for error in [asked, looked, reset] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[tokio::test]
async fn a_failed_commit_stops_the_store() {
    let folder = TestFolder::new();
    let policy = daily(10);
    let gate = folder.open();
    assert!(admitted(&gate, &policy, "p").await);
    folder.database().execute_batch(FAIL).unwrap();
    let waiting = gate.acquire(&Ask::new(&policy, "p")).await.unwrap_err();
    assert_eq!(waiting.kind(), ErrorKind::Unavailable);
    let text = waiting.to_string();
    assert!(text.contains("entries.sqlite") && text.contains("open the store again"), "{text}");
    assert_stopped(&gate, "the disk is on fire").await;
    let closed = gate.shutdown(Timestamp::MAX).await.unwrap_err();
    assert!(closed.to_string().contains("the disk is on fire"));
    drop(gate);
    folder.database().execute_batch("DROP TRIGGER fail").unwrap();
    let gate = folder.open();
    assert_eq!(used(&gate, &policy, "p").await, 1, "only what was answered");
    assert!(admitted(&gate, &policy, "p").await);
}

#[tokio::test]
async fn a_failed_commit_stops_a_relaxed_store() {
    let folder = TestFolder::new();
    let policy = daily(10);
    let gate = folder.try_open(folder.options().durability(Durability::Relaxed)).unwrap();
    folder.database().execute_batch(FAIL).unwrap();
    assert!(admitted(&gate, &policy, "p").await, "does not wait");
    let closed = gate.shutdown(Timestamp::MAX).await.unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Unavailable);
    assert_stopped(&gate, "the disk is on fire").await;
}

/// While the disk takes its time, who relies on a change waits for it, and who relies on none does not.
#[test]
fn answers_that_rely_on_an_unwritten_change_wait_for_it() {
    let folder = TestFolder::new();
    let policy = daily(2);
    let gate = folder.open();
    let permit = block_on(gate.acquire(&Ask::new(&policy, "p"))).unwrap().into_permit().unwrap();
    for _ in 0..2 {
        assert!(block_on(admitted(&gate, &policy, "full")));
    }
    let busy = folder.database();
    busy.execute_batch("BEGIN IMMEDIATE").unwrap();
    let ask = Ask::new(&policy, "p").id("order-1");
    let mut first = Box::pin(gate.acquire(&ask));
    assert!(poll(&mut first).is_pending(), "its own change");
    let mut repeat = Box::pin(gate.acquire(&ask));
    assert!(poll(&mut repeat).is_pending(), "the change of the first");
    let other = Ask::new(&policy, "p");
    let mut denied = Box::pin(gate.acquire(&other));
    assert!(poll(&mut denied).is_pending(), "the charge of the first");
    let stored = Ask::new(&policy, "full");
    let at_once = poll(&mut Box::pin(gate.acquire(&stored)));
    assert!(matches!(at_once, Poll::Ready(Ok(Decision::Denied(_)))), "relies on nothing unwritten");
    assert!(poll(&mut Box::pin(gate.standing(&policy, "p"))).is_ready(), "relies on nothing");
    let mut release = Box::pin(gate.release(&permit));
    assert!(poll(&mut release).is_pending(), "its own change");
    let mut again = Box::pin(gate.release(&permit));
    assert!(poll(&mut again).is_pending(), "the change of the first release");
    busy.execute_batch("COMMIT").unwrap();
    assert!(!block_on(denied).unwrap().is_admitted());
    assert_eq!(block_on(first).unwrap().into_permit(), block_on(repeat).unwrap().into_permit());
    assert!(block_on(release).unwrap() && !block_on(again).unwrap());
}

/// A denial that counts a charge whose write fails would be wrong: the charge never happened.
#[test]
fn a_denial_fails_with_the_charge_that_it_counts() {
    let folder = TestFolder::new();
    let policy = daily(1);
    let gate = folder.open();
    let busy = folder.database();
    busy.execute_batch("BEGIN IMMEDIATE").unwrap();
    let ask = Ask::new(&policy, "p");
    let (mut charged, mut denied) = (Box::pin(gate.acquire(&ask)), Box::pin(gate.acquire(&ask)));
    assert!(poll(&mut charged).is_pending());
    assert!(poll(&mut denied).is_pending());
    busy.execute_batch(FAIL).unwrap();
    busy.execute_batch("COMMIT").unwrap();
    for answer in [block_on(charged), block_on(denied)] {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unavailable);
    }
}

fn poll<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test]
async fn a_closed_store_answers_unavailable() {
    let folder = TestFolder::new();
    let gate = folder.open();
    assert!(admitted(&gate, &daily(10), "p").await);
    gate.shutdown(Timestamp::MAX).await.unwrap();
    gate.shutdown(Timestamp::MAX).await.unwrap();
    assert_stopped(&gate, "is closed").await;
}

#[tokio::test]
async fn a_shutdown_ends_at_its_deadline_and_the_writer_goes_on() {
    let folder = TestFolder::new();
    let policy = daily(10);
    let gate = folder.try_open(folder.options().durability(Durability::Relaxed)).unwrap();
    let busy = folder.database();
    busy.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(admitted(&gate, &policy, "p").await);
    let error = gate.shutdown(folder.clock.now()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    busy.execute_batch("COMMIT").unwrap();
    drop(gate);
    assert_eq!(used(&folder.open(), &policy, "p").await, 1);
}

/// A disk that takes no more: a process whose files may not grow beyond a few hundred kilobytes.
#[test]
fn a_full_disk_forgets_nothing_that_was_admitted() {
    let folder = TestFolder::new();
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 400; exec \"$0\" \"$@\""]);
    let lines = Child::start_in(shell, Job::Fill, &folder.path()).finish();
    let admitted: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix("admitted ")).collect();
    let stopped = lines.iter().find(|line| line.starts_with("stopped ")).expect("never stopped");
    assert!(stopped.contains("Unavailable") && stopped.contains("entries.sqlite"), "{stopped}");
    assert!(10 < admitted.len(), "stopped after {}", admitted.len());
    // The child's clock is the machine's.
    let gate = folder.try_open(tollgate_embedded::Options::new()).unwrap();
    for subject in admitted {
        let used = block_on(used(&gate, &daily(1), subject));
        assert_eq!(used, 1, "{subject} was admitted and forgotten");
    }
}
