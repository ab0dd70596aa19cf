//! Asks that are dropped at every await point take nothing.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Waker};

use serde_json::json;
use tollgate_bindings::{
    AcquireRequest, Batch, Decision, Error, ErrorKind, Gate, Source, Span, runtime,
};

fn source(store: &serde_json::Value) -> Source {
    let limit = json!({ "name": "running", "unit": "requests", "rule": "concurrency", "limit": 1, "ttl": "5m" });
    let policies = json!([{ "name": "jobs", "limits": [limit] }]);
    Source::from_values(&json!({ "store": store, "policy": policies })).unwrap()
}

fn open(source: Source) -> Gate {
    runtime::block_on(Gate::open(source, None)).unwrap().unwrap()
}

fn ask(wait_ms: Option<u64>) -> AcquireRequest {
    let (policy, subject) = ("jobs".to_owned(), "drs".to_owned());
    AcquireRequest { policy, subject, wait_ms, ..AcquireRequest::default() }
}

fn used(gate: &Gate) -> u64 {
    runtime::block_on(gate.standing("jobs".into(), "drs".into())).unwrap().unwrap()[0].used
}

fn eventually(mut condition: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if condition() {
            return;
        }
        std::thread::yield_now();
    }
    unreachable!("it did not happen");
}

/// An ask at the folder is dropped after one poll: the admission that comes anyway is released.
#[test]
fn an_ask_that_is_dropped_at_the_store_is_released() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let gate = open(source(&json!({ "kind": "embedded", "path": path })));
    for _ in 0..20 {
        let mut asking = gate.acquire(ask(None));
        let handle = runtime::handle().unwrap();
        let context = handle.enter();
        let polled = asking.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "a strict store waits for its disk");
        drop(context);
        drop(asking);
        eventually(|| used(&gate) == 0);
        assert!(matches!(
            runtime::block_on(gate.acquire(ask(None))).unwrap().unwrap(),
            Decision::Admitted(_)
        ));
        // Dropped without a claim, it is released, too.
        eventually(|| used(&gate) == 0);
    }
}

#[test]
fn a_result_that_nobody_takes_is_released() {
    let gate = open(source(&json!({ "kind": "memory" })));
    let first = match gate.try_acquire(&ask(None)).unwrap().unwrap() {
        Decision::Admitted(admitted) => admitted.claim(),
        Decision::Denied(denial) => panic!("{denial}"),
    };
    assert!(gate.try_acquire(&ask(Some(60_000))).is_none(), "it has to wait");
    let told = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&told);
    let running =
        runtime::run(gate.acquire(ask(Some(60_000))), move || tell.store(true, Ordering::Release));
    let running = running.unwrap();
    eventually(|| gate.waiting() == 1);
    assert!(runtime::block_on(first.release()).unwrap().unwrap());
    eventually(|| told.load(Ordering::Acquire));
    assert_eq!(used(&gate), 1);
    drop(running);
    eventually(|| used(&gate) == 0);
}

#[test]
fn a_waiter_that_is_dropped_leaves_the_queue() {
    let gate = open(source(&json!({ "kind": "memory" })));
    let Decision::Admitted(first) = gate.try_acquire(&ask(None)).unwrap().unwrap() else {
        panic!("denied")
    };
    let running = runtime::run(gate.acquire(ask(Some(60_000))), || panic!("not wanted")).unwrap();
    eventually(|| gate.waiting() == 1);
    drop(running);
    eventually(|| gate.waiting() == 0);
    drop(first);
    eventually(|| used(&gate) == 0);
}

#[test]
fn a_closed_gate_and_a_wait_that_is_too_long_are_errors() {
    let gate = open(source(&json!({ "kind": "memory" })));
    let long = ask(Some(Span::from_hours(25).as_millis_ceil()));
    let error = gate.try_acquire(&long).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    runtime::block_on(gate.close()).unwrap().unwrap();
    let error = gate.try_acquire(&ask(None)).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    let error = runtime::block_on(gate.acquire(ask(None))).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}

/// A batch, and how often it notified.
fn batch() -> (Batch<Result<Decision, Error>>, Arc<AtomicUsize>) {
    let notified = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&notified);
    let notify = move || {
        count.fetch_add(1, Ordering::AcqRel);
    };
    (Batch::new(notify), notified)
}

/// However many asks finish, the event loop is woken once until it looks.
#[test]
fn a_batch_notifies_once_for_many_results() {
    let folder = tempfile::tempdir().unwrap();
    let gate = open(source(&json!({ "kind": "embedded", "path": folder.path().join("data") })));
    let (batch, notified) = batch();
    let mut ids: Vec<u32> = (0..100).map(|_| batch.submit(gate.acquire(ask(None)))).collect();
    assert_eq!(batch.take().len(), 0, "nothing starts before a flush");
    batch.flush().unwrap();
    let mut done = Vec::new();
    let mut looks = 0;
    eventually(|| {
        if looks < notified.load(Ordering::Acquire) {
            looks += 1;
            done.extend(batch.take());
        }
        done.len() == 100
    });
    assert_eq!(notified.load(Ordering::Acquire), looks);
    let admitted = done.iter().filter(|(_, decided)| matches!(decided, Ok(Decision::Admitted(_))));
    assert_eq!(admitted.count(), 1, "there is one slot");
    ids.sort_unstable();
    let mut finished: Vec<u32> = done.iter().map(|(id, _)| *id).collect();
    finished.sort_unstable();
    assert_eq!(finished, ids);
    drop(done);
    eventually(|| used(&gate) == 0);
}

/// Before the flush, at the store, in the queue, and after the admission.
#[test]
fn a_cancelled_operation_of_a_batch_takes_nothing() {
    let gate = open(source(&json!({ "kind": "memory" })));
    let (batch, notified) = batch();
    batch.cancel(batch.submit(gate.acquire(ask(None))));
    batch.flush().unwrap();
    let admitted = batch.submit(gate.acquire(ask(None)));
    batch.flush().unwrap();
    eventually(|| notified.load(Ordering::Acquire) == 1);
    assert_eq!(used(&gate), 1);
    let waiting = batch.submit(gate.acquire(ask(Some(60_000))));
    batch.flush().unwrap();
    eventually(|| gate.waiting() == 1);
    batch.cancel(waiting);
    eventually(|| gate.waiting() == 0);
    batch.cancel(admitted);
    eventually(|| used(&gate) == 0);
    assert!(batch.take().is_empty());
}

#[test]
fn a_closed_batch_drops_what_waits_and_what_was_not_taken() {
    let gate = open(source(&json!({ "kind": "memory" })));
    let (batch, notified) = batch();
    batch.submit(gate.acquire(ask(None)));
    batch.submit(gate.acquire(ask(Some(60_000))));
    batch.flush().unwrap();
    eventually(|| notified.load(Ordering::Acquire) == 1 && gate.waiting() == 1);
    batch.submit(gate.acquire(ask(Some(60_000))));
    batch.close();
    eventually(|| gate.waiting() == 0 && used(&gate) == 0);
    assert!(batch.take().is_empty());
}
