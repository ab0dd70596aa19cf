//! The in-process store beside governor's keyed limiter, on one key and on many, with one thread and with two.

use std::hint::black_box;
use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tollgate::policy::Period;
use tollgate::{Ask, CalendarWindow, Limit, Memory, Policy, RollingWindow, Span, TokenBucket};

use crate::measure::{Contender, compare, print_rows};

/// Operations of one thread in one turn: some tens of milliseconds, so that each contender's keys get back into the
/// caches that the others' turns took from it.
const OPERATIONS: usize = 300_000;

/// Limits that never bind, so that every contender does the whole work of admitting.
pub(crate) const AMPLE: u64 = 1_000_000_000;

pub(crate) fn run() {
    println!(
        "\n# In-process store: time per decision, ratio to governor's keyed limiter (one limit)\n"
    );
    for keys in [1_usize, 100_000] {
        for threads in [1_usize, 2] {
            let case = format!("{keys} keys, {threads} threads");
            let subjects: Vec<String> =
                (0..keys).map(|number| format!("subject-{number}")).collect();
            let order = shuffled(keys);
            let governor: DefaultKeyedRateLimiter<String> = RateLimiter::keyed(Quota::per_second(
                NonZeroU32::new(AMPLE as u32).expect("not zero"),
            ));
            let (one, three, rolling) = (one(), three(), rolling());
            let memories = [Memory::new(), Memory::new(), Memory::new()];
            // Keys are made in one order and asked for in another, as in life.
            for subject in &subjects {
                drop(governor.check_key(subject));
                for (memory, policy) in memories.iter().zip([&one, &three, &rolling]) {
                    drop(memory.try_acquire(&Ask::new(policy, subject.as_str())));
                }
            }
            let on_threads =
                |work: &(dyn Fn(&String) + Sync)| in_threads(threads, &subjects, &order, work);
            let mut contenders = [
                Contender::new("governor, one limit", || {
                    on_threads(&|subject| drop(black_box(governor.check_key(subject))))
                }),
                Contender::new("tollgate, one limit", || {
                    on_threads(&|subject| {
                        drop(black_box(memories[0].try_acquire(&Ask::new(&one, subject.as_str()))));
                    })
                }),
                Contender::new("tollgate, three limits (rpm tpm rpd)", || {
                    on_threads(&|subject| {
                        let ask = Ask::new(&three, subject.as_str()).cost("tokens", 3);
                        drop(black_box(memories[1].try_acquire(&ask)));
                    })
                }),
                Contender::new("tollgate, rolling window of 12 slots", || {
                    on_threads(&|subject| {
                        drop(black_box(
                            memories[2].try_acquire(&Ask::new(&rolling, subject.as_str())),
                        ));
                    })
                }),
            ];
            print_rows(&case, &compare(&mut contenders), |name| match name {
                "tollgate, one limit" => Some(1.0),
                "tollgate, three limits (rpm tpm rpd)" => Some(2.0),
                _ => None,
            });
        }
    }
}

fn in_threads(
    threads: usize,
    subjects: &[String],
    order: &[usize],
    work: &(dyn Fn(&String) + Sync),
) -> u64 {
    let run = |first: usize| {
        for place in 0..OPERATIONS {
            work(&subjects[order[(first + place) % order.len()]]);
        }
    };
    if threads == 1 {
        run(0);
    } else {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || run(thread * order.len() / threads));
            }
        });
    }
    // Wall time per operation of one thread, so that perfect scaling shows as the same figure.
    OPERATIONS as u64
}

fn policy(limits: Vec<Limit>) -> Policy {
    Policy::new("bench", limits).expect("the numbers are in bounds")
}

pub(crate) fn one() -> Policy {
    policy(vec![Limit::new("rate", "requests", TokenBucket::per_second(AMPLE))])
}

pub(crate) fn three() -> Policy {
    policy(vec![
        Limit::new("rpm", "requests", TokenBucket::per_minute(AMPLE)),
        Limit::new("tpm", "tokens", TokenBucket::per_minute(1_000 * AMPLE)),
        Limit::new(
            "rpd",
            "requests",
            CalendarWindow::new(1_000 * AMPLE, Period::Day).in_zone("America/Los_Angeles"),
        ),
    ])
}

fn rolling() -> Policy {
    let window = RollingWindow::new(AMPLE, Span::from_mins(1)).resolution(12);
    policy(vec![Limit::new("window", "requests", window)])
}

/// Every key once, in an order that no cache can guess.
pub(crate) fn shuffled(keys: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keys).collect();
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    for place in (1..keys).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(place, state as usize % (place + 1));
    }
    order
}
