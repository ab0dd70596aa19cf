//! What watching costs: the asynchronous gate in memory, bare and with the counters of every metrics sink on.

use std::hint::black_box;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tollgate::clock::SystemClock;
use tollgate::observe::Observed;
use tollgate::{Ask, Gate, GateExt, Memory, Policy};
use tollgate_telemetry::Meters;

use crate::measure::{Contender, compare, print_rows};
use crate::memory::{one, three};

/// Operations in one turn.
const OPERATIONS: u64 = 300_000;

const WATCHED: &str = "observed, Prometheus on";

pub(crate) fn run() {
    println!("\n# Observation: time per decision in memory, ratio to the same gate unwatched\n");
    for (case, policy) in [("one limit", one()), ("three limits", three())] {
        let bare = Memory::new();
        let meters = Arc::new(Meters::new());
        let watched = Observed::new(Memory::new(), meters, Arc::new(SystemClock));
        let mut contenders = [
            Contender::new("unwatched", || ask_often(&bare, &policy)),
            Contender::new(WATCHED, || ask_often(&watched, &policy)),
        ];
        print_rows(case, &compare(&mut contenders), |name| (name == WATCHED).then_some(1.15));
    }
}

fn ask_often(gate: &dyn Gate, policy: &Policy) -> u64 {
    for _ in 0..OPERATIONS {
        drop(black_box(at_once(gate.acquire(&Ask::new(policy, "alice")))));
    }
    OPERATIONS
}

/// The answer of a gate that never waits.
fn at_once<T>(answer: impl Future<Output = T>) -> Option<T> {
    match std::pin::pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}
