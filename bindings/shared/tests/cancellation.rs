//! Asks that are dropped at every await point take nothing.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use serde_json::json;
use tollgate_bindings::{AcquireRequest, Decision, ErrorKind, Gate, Source, Span, runtime};

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
