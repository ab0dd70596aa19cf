//! Who waits for which batch, without a writer and without time.

use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use super::*;
use crate::row::Key;

fn poll(wait: Pin<&mut impl Future<Output = Result<(), Error>>>) -> Poll<Result<(), Error>> {
    wait.poll(&mut Context::from_waker(Waker::noop()))
}

fn push(pipeline: &Pipeline, now: Timestamp) -> u64 {
    pipeline.push(now, Changed { hash: 0, key: Key::new("p", "s") }).unwrap()
}

const START: Timestamp = Timestamp::from_secs(1_700_000_000);

/// The bound of what a crash may forget does not depend on how fast the writer is: here there is none.
#[test]
fn a_relaxed_answer_waits_once_the_oldest_change_is_too_old() {
    let pipeline = Pipeline::new(Durability::Relaxed);
    let first = push(&pipeline, START);
    assert!(poll(pin!(pipeline.durable_enough(first, START))).is_ready());
    let limit = START + RELAXED_LOSS_MAX;
    let second = push(&pipeline, limit);
    assert!(poll(pin!(pipeline.durable_enough(second, limit))).is_ready());
    let late = limit + Span::from_micros(1);
    let third = push(&pipeline, late);
    let mut wait = pin!(pipeline.durable_enough(third, late));
    assert!(poll(wait.as_mut()).is_pending());
    let batch = pipeline.take().unwrap();
    assert!(poll(wait.as_mut()).is_pending(), "it is in flight, and not durable");
    pipeline.complete(batch.number);
    assert!(poll(wait).is_ready());
}

#[test]
fn a_relaxed_answer_waits_for_a_writer_that_is_far_behind() {
    let pipeline = Pipeline::new(Durability::Relaxed);
    let mut answered = 0;
    loop {
        let batch = push(&pipeline, START);
        if poll(pin!(pipeline.durable_enough(batch, START))).is_pending() {
            break;
        }
        answered += 1;
    }
    let backlog = usize::try_from(BACKLOG_BATCHES_MAX).unwrap();
    assert_eq!(answered, backlog * BATCH_ROWS_MAX);
}

/// An answer waits for its own batch at most: waiting for the one after it may be for ever.
#[test]
fn nobody_waits_for_a_batch_that_may_never_be() {
    let pipeline = Pipeline::new(Durability::Relaxed);
    let batch = push(&pipeline, START);
    let late = START + Span::from_secs(9);
    assert_eq!(pipeline.waits_for(batch, late), Some(batch));
    let taken = pipeline.take().unwrap();
    pipeline.complete(taken.number);
    assert_eq!(pipeline.waits_for(batch, late), None);
}

#[test]
fn a_strict_answer_waits_for_its_batch_and_a_stop_ends_every_wait() {
    let pipeline = Pipeline::new(Durability::Strict);
    let first = push(&pipeline, START);
    let taken = pipeline.take().unwrap();
    let second = push(&pipeline, START);
    let (mut one, mut two) =
        (pin!(pipeline.durable_enough(first, START)), pin!(pipeline.durable_enough(second, START)));
    assert!(poll(one.as_mut()).is_pending() && poll(two.as_mut()).is_pending());
    pipeline.complete(taken.number);
    assert!(matches!(poll(one), Poll::Ready(Ok(()))));
    assert!(poll(two.as_mut()).is_pending());
    pipeline.fail(&closed());
    assert!(matches!(poll(two), Poll::Ready(Err(_))));
    assert!(pipeline.push(START, Changed { hash: 0, key: Key::new("p", "s") }).is_err());
}
