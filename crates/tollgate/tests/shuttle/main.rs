//! The memory store and the waiting line under a scheduler that tries many interleavings.
//!
//! Empty unless built with `--cfg tollgate_shuttle`, as `cargo xtask test` does. Each check runs once more on a sabotaged
//! version, which must fail: a check that cannot fail shows nothing.
#![cfg(tollgate_shuttle)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::{future, thread};
use tollgate::clock::ManualClock;
use tollgate::core::{Change, Entry, Known, Verdict, apply};
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::policy::Rule;
use tollgate::{
    Ask, Clock, Concurrency, Decision, Error, Gate, GateExt, Limit, Memory, Policy, Queue, Span,
    Timestamp, TokenBucket,
};

const ITERATIONS: usize = 2_000;

fn policy(rule: impl Into<Rule>) -> Policy {
    Policy::new("test", [Limit::new("only", "requests", rule)]).expect("the numbers are in bounds")
}

fn memory() -> Memory {
    Memory::with(Arc::new(ManualClock::new()), 100)
}

/// Whether some interleaving breaks `check`.
fn breaks(check: impl Fn() + Send + Sync + 'static) -> bool {
    let run = AssertUnwindSafe(|| shuttle::check_random(check, ITERATIONS));
    catch_unwind(run).is_err()
}

/// R001.6, promise 1: three threads on a bucket of two.
#[test]
fn memory_admits_exactly_the_capacity_in_every_interleaving() {
    shuttle::check_random(
        || {
            let memory = Arc::new(memory());
            let admitted = Arc::new(AtomicU64::new(0));
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let (memory, admitted) = (Arc::clone(&memory), Arc::clone(&admitted));
                    thread::spawn(move || {
                        let policy = policy(TokenBucket::per_minute(2));
                        if let Ok(Verdict::Admitted(_)) =
                            memory.try_acquire(&Ask::new(&policy, "alice"))
                        {
                            admitted.fetch_add(1, Ordering::SeqCst);
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no thread fails"));
            assert_eq!(admitted.load(Ordering::SeqCst), 2);
        },
        ITERATIONS,
    );
}

/// Three threads ask for three parties in different orders, two of which have room for one ask. `acquire` decides an
/// ask, and says whether it is admitted.
fn cross(acquire: fn(&Memory, &Ask<'_>) -> bool) {
    let memory = Arc::new(memory());
    let admitted = Arc::new(AtomicU64::new(0));
    let named = |name: &str, requests| {
        let limit = Limit::new("only", "requests", TokenBucket::per_minute(requests));
        Policy::new(name, [limit]).expect("the numbers are in bounds")
    };
    let parties = Arc::new([named("user", 1), named("team", 3), named("account", 1)]);
    let threads: Vec<_> = [[0, 1, 2], [2, 1, 0], [1, 2, 0]]
        .into_iter()
        .map(|order| {
            let (memory, admitted) = (Arc::clone(&memory), Arc::clone(&admitted));
            let parties = Arc::clone(&parties);
            thread::spawn(move || {
                let [first, second, third] = order.map(|party| &parties[party]);
                let ask = Ask::new(first, "x").and(second, "x").and(third, "x");
                admitted.fetch_add(u64::from(acquire(&memory, &ask)), Ordering::SeqCst);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no thread fails"));
    assert_eq!(admitted.load(Ordering::SeqCst), 1, "one fits, whatever the others do");
    for party in parties.iter() {
        let used = memory.try_standing(party, "x").expect("it decides")[0].used;
        assert_eq!(used, 1, "{}", party.name());
    }
}

/// Shards are locked in one order, whatever that of the ask is: no interleaving is a deadlock.
#[test]
fn memory_charges_all_or_none_in_every_interleaving() {
    let joint = |memory: &Memory, ask: &Ask<'_>| {
        matches!(memory.try_acquire(ask), Ok(Verdict::Admitted(_)))
    };
    shuttle::check_random(move || cross(joint), ITERATIONS);
}

#[test]
fn the_same_check_catches_charges_that_are_given_back_by_hand() {
    let by_hand = |memory: &Memory, ask: &Ask<'_>| {
        let mut permits = Vec::new();
        for index in 0..3 {
            let part = ask.part(index).expect("it has three charges");
            match future::block_on(memory.acquire(&part)).expect("it decides").into_permit() {
                Some(permit) => permits.push(permit),
                None => {
                    for permit in &permits {
                        future::block_on(memory.release(permit)).expect("it is given back");
                    }
                    return false;
                }
            }
        }
        true
    };
    assert!(breaks(move || cross(by_hand)));
}

/// A store that reads under the lock, decides outside it, and writes under the lock again.
#[derive(Debug, Default)]
struct ReadThenWrite(Mutex<Option<Entry>>);

impl Gate for ReadThenWrite {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            let now = Timestamp::from_secs(1);
            let stored = self.0.lock().expect("never poisoned").clone();
            let mut entry = stored.unwrap_or_else(|| Entry::fresh(operation.policy(), now));
            let applied = apply(&operation, &mut entry, Known::New, now)?;
            if applied.change == Change::Entry {
                *self.0.lock().expect("never poisoned") = Some(entry);
            }
            Ok(applied.outcome)
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}

#[test]
fn the_same_check_catches_a_store_that_reads_and_then_writes() {
    assert!(breaks(|| {
        let gate = Arc::new(ReadThenWrite::default());
        let admitted = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (gate, admitted) = (Arc::clone(&gate), Arc::clone(&admitted));
                thread::spawn(move || {
                    let policy = policy(TokenBucket::per_minute(2));
                    let ask = Ask::new(&policy, "alice");
                    if future::block_on(gate.acquire(&ask)).expect("decides").is_admitted() {
                        admitted.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no thread fails"));
        assert_eq!(admitted.load(Ordering::SeqCst), 2);
    }));
}

type Line = Queue<Memory>;

/// Three tasks take turns at one slot; `hand_back` is how a holder releases it. A lost wake-up is a deadlock.
fn take_turns(hand_back: fn(&Line, &tollgate::Permit)) {
    let clock = Arc::new(ManualClock::new());
    let memory = Memory::with(Arc::clone(&clock) as Arc<dyn Clock>, 100);
    let queue = Arc::new(Queue::new(memory, clock));
    let holders = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let (queue, holders) = (Arc::clone(&queue), Arc::clone(&holders));
            future::spawn(async move {
                let policy = policy(Concurrency::new(1, Span::from_mins(5)));
                let ask = Ask::new(&policy, "alice");
                let decision = queue.acquire_within(&ask, Timestamp::MAX).await.expect("decides");
                let permit = decision.into_permit().expect("there is no deadline");
                assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two hold the one slot");
                future::yield_now().await;
                holders.fetch_sub(1, Ordering::SeqCst);
                hand_back(&queue, &permit);
            })
        })
        .collect();
    future::block_on(async {
        for task in tasks {
            task.await.expect("no task fails");
        }
    });
    assert_eq!(queue.waiting(), 0);
}

#[test]
fn the_line_hands_a_slot_on_in_every_interleaving() {
    shuttle::check_random(
        || take_turns(|queue, permit| drop(future::block_on(queue.release(permit)))),
        ITERATIONS,
    );
}

#[test]
fn the_same_check_catches_a_line_that_calls_nobody() {
    // Releasing at the gate inside the queue frees the slot and tells no one.
    assert!(breaks(|| take_turns(|queue, permit| drop(future::block_on(
        queue.inner().release(permit)
    )))));
}

/// One holds the slot, one waits and gives up after a few polls, one waits patiently. `give_up` is how the quitter ends
/// its wait.
fn give_up_in_line(give_up: fn(BoxFuture<'_, Result<Decision, Error>>)) {
    let clock = Arc::new(ManualClock::new());
    let memory = Memory::with(Arc::clone(&clock) as Arc<dyn Clock>, 100);
    let queue: Arc<Line> = Arc::new(Queue::new(memory, clock));
    let policy = policy(Concurrency::new(1, Span::from_mins(5)));
    let held = future::block_on(queue.acquire(&Ask::new(&policy, "alice")));
    let held = held.expect("decides").into_permit().expect("the slot is free");
    let quitter = future::spawn({
        let (queue, policy) = (Arc::clone(&queue), policy.clone());
        async move {
            let ask = Ask::new(&policy, "alice");
            let mut wait: BoxFuture<'_, _> = Box::pin(queue.acquire_within(&ask, Timestamp::MAX));
            for _ in 0..2 {
                let polled = std::future::poll_fn(|context| {
                    std::task::Poll::Ready(wait.as_mut().poll(context).is_ready())
                });
                if polled.await {
                    return;
                }
                future::yield_now().await;
            }
            give_up(wait);
        }
    });
    let patient = future::spawn({
        let (queue, policy) = (Arc::clone(&queue), policy.clone());
        async move {
            let ask = Ask::new(&policy, "alice");
            let decision = queue.acquire_within(&ask, Timestamp::MAX).await.expect("decides");
            let permit = decision.into_permit().expect("there is no deadline");
            queue.release(&permit).await.expect("releases");
        }
    });
    future::block_on(async {
        queue.release(&held).await.expect("releases");
        quitter.await.expect("the quitter ends");
    });
    // The quitter may have been admitted just before it gave up; its slot expires, which is not the line's part.
    let standing = future::block_on(queue.standing(&policy, "alice")).expect("decides");
    if standing[0].remaining == 1 {
        future::block_on(patient).expect("the patient one is served");
    }
}

#[test]
fn a_waiter_that_gives_up_holds_up_nobody() {
    shuttle::check_random(|| give_up_in_line(|wait| drop(wait)), ITERATIONS);
}

#[test]
fn the_same_check_catches_a_waiter_that_never_leaves_the_line() {
    assert!(breaks(|| give_up_in_line(|wait| std::mem::forget(wait))));
}
