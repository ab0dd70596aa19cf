//! Who waits for which batch, without a writer and without time.

use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use super::*;
use crate::row::Key;

fn poll(wait: Pin<&mut impl Future<Output = Result<(), Error>>>) -> Poll<Result<(), Error>> {
    wait.poll(&mut Context::from_waker(Waker::noop()))
}

fn push(commit: &GroupCommit, now: Timestamp) -> u64 {
    commit.push(now, Changed { hash: 0, key: Key::new("p", "s") }).unwrap()
}

const START: Timestamp = Timestamp::from_secs(1_700_000_000);

/// The bound of what a crash may forget does not depend on how fast the writer is: here there is none.
#[test]
fn a_relaxed_answer_waits_once_the_oldest_change_is_too_old() {
    let commit = GroupCommit::new(Durability::Relaxed);
    let first = push(&commit, START);
    assert!(poll(pin!(commit.durable_enough(first, START))).is_ready());
    let limit = START + RELAXED_LOSS_MAX;
    let second = push(&commit, limit);
    assert!(poll(pin!(commit.durable_enough(second, limit))).is_ready());
    let late = limit + Span::from_micros(1);
    let third = push(&commit, late);
    let mut wait = pin!(commit.durable_enough(third, late));
    assert!(poll(wait.as_mut()).is_pending());
    let batch = commit.take().unwrap();
    assert!(poll(wait.as_mut()).is_pending(), "it is in flight, and not durable");
    commit.complete(batch.number);
    assert!(poll(wait).is_ready());
}

#[test]
fn a_relaxed_answer_waits_for_a_writer_that_is_far_behind() {
    let commit = GroupCommit::new(Durability::Relaxed);
    let mut answered = 0;
    loop {
        let batch = push(&commit, START);
        if poll(pin!(commit.durable_enough(batch, START))).is_pending() {
            break;
        }
        answered += 1;
    }
    let backlog = usize::try_from(BACKLOG_BATCHES_MAX).unwrap();
    assert_eq!(answered, backlog * BATCH_ROWS_MAX);
}

/// An answer waits for its own batch at most: waiting for the one after it may be for ever.
#[test]
fn no_ask_waits_for_a_batch_that_may_never_commit() {
    let commit = GroupCommit::new(Durability::Relaxed);
    let batch = push(&commit, START);
    let late = START + Span::from_secs(9);
    assert_eq!(commit.waits_for(batch, late), Some(batch));
    let taken = commit.take().unwrap();
    commit.complete(taken.number);
    assert_eq!(commit.waits_for(batch, late), None);
}

#[test]
fn a_strict_answer_waits_for_its_batch_and_a_stop_ends_every_wait() {
    let commit = GroupCommit::new(Durability::Strict);
    let first = push(&commit, START);
    let taken = commit.take().unwrap();
    let second = push(&commit, START);
    let (mut one, mut two) =
        (pin!(commit.durable_enough(first, START)), pin!(commit.durable_enough(second, START)));
    assert!(poll(one.as_mut()).is_pending() && poll(two.as_mut()).is_pending());
    commit.complete(taken.number);
    assert!(matches!(poll(one), Poll::Ready(Ok(()))));
    assert!(poll(two.as_mut()).is_pending());
    commit.fail(&closed());
    assert!(matches!(poll(two), Poll::Ready(Err(_))));
    assert!(commit.push(START, Changed { hash: 0, key: Key::new("p", "s") }).is_err());
}
