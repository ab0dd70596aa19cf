//! An optimistic instance beside the in-process store: a local decision is held to twice the time of one in memory.
//!
//! Both decide the same asks under the same policies. The instance posts to a store in the same process from threads of
//! its own, as it would to one elsewhere, so what posting costs the deciding thread is in the figure.

use std::hint::black_box;
use std::sync::Arc;

use tollgate::clock::SystemClock;
use tollgate::core::Verdict;
use tollgate::strategy::{Optimistic, OptimisticOptions};
use tollgate::{Ask, Clock, GateExt, Memory, Policy, Span};

use crate::measure::{Contender, compare, print_rows};
use crate::memory::{AMPLE, one, shuffled, three};

const OPERATIONS: usize = 300_000;

/// What a decision may take, as a multiple of one in memory.
const BOUND: f64 = 2.0;

pub(crate) fn run() {
    println!("\n# Optimistic: time per local decision, ratio to the in-process store\n");
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("one thread");
    let _inside = runtime.enter();
    for keys in [1_usize, 1_000, 10_000] {
        for (name, policy) in [("one limit", one()), ("three limits", three())] {
            let subjects: Vec<String> =
                (0..keys).map(|number| format!("subject-{number}")).collect();
            let order = shuffled(keys);
            let memory = Memory::new();
            let gate = Optimistic::new(
                Memory::new(),
                OptimisticOptions::new(AMPLE),
                Arc::new(SystemClock),
            );
            for subject in &subjects {
                let ask = Ask::new(&policy, subject.as_str());
                drop(memory.try_acquire(&ask));
                let first = runtime.block_on(gate.acquire(&ask)).expect("the store is in memory");
                assert!(first.is_admitted(), "the limits never bind");
            }
            let mut contenders = [
                Contender::new("memory", || {
                    each(&policy, &subjects, &order, |ask| {
                        drop(black_box(memory.try_acquire(ask)));
                    })
                }),
                Contender::new("optimistic", || {
                    each(&policy, &subjects, &order, |ask| {
                        let verdict = black_box(gate.try_acquire(ask));
                        assert!(matches!(verdict, Ok(Some(Verdict::Admitted(_)))), "{verdict:?}");
                    })
                }),
            ];
            let case = format!("{keys} keys, {name}");
            print_rows(&case, &compare(&mut contenders), |name| {
                (name == "optimistic").then_some(BOUND)
            });
            let deadline = SystemClock.now() + Span::from_secs(30);
            runtime.block_on(gate.shutdown(deadline)).expect("everything is posted");
        }
    }
}

fn each(policy: &Policy, subjects: &[String], order: &[usize], work: impl Fn(&Ask<'_>)) -> u64 {
    for place in 0..OPERATIONS {
        let subject = &subjects[order[place % order.len()]];
        work(&Ask::new(policy, subject.as_str()).cost("requests", 1));
    }
    OPERATIONS as u64
}
