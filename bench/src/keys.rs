//! Memory per key, and allocations per decision.

use std::sync::Arc;

use tollgate::clock::SystemClock;
use tollgate::{Ask, Memory, Policy};

use crate::memory::{one, three};

const KEYS: usize = 1_000_000;

/// The bound for a million keys with one limit.
const BYTES_MAX: i64 = 256 << 20;

pub(crate) fn run() {
    println!(
        "\n# Memory per key ({KEYS} keys, subjects of about 14 bytes), and allocations per decision\n"
    );
    for (name, policy, bound) in
        [("one limit", one(), Some(BYTES_MAX)), ("three limits", three(), None)]
    {
        // Twice the capacity, since a full store evicts refilled keys.
        let memory = Memory::with(Arc::new(SystemClock), 2 * KEYS);
        let filled = allocation_counter::measure(|| fill(&memory, &policy));
        assert_eq!(memory.keys(), KEYS);
        let bytes = filled.bytes_current;
        let held_to = match bound {
            Some(bound) if bytes <= bound => format!("<= {} MiB  ok", bound >> 20),
            Some(bound) => format!("<= {} MiB  MISSED", bound >> 20),
            None => String::new(),
        };
        let steady = allocation_counter::measure(|| fill(&memory, &policy));
        println!(
            "{name:<14} {:>5} bytes per key, {:>4} MiB in all  {held_to:<18} {} allocations in {KEYS} decisions",
            bytes / KEYS as i64,
            bytes >> 20,
            steady.count_total
        );
    }
}

fn fill(memory: &Memory, policy: &Policy) {
    use std::fmt::Write;
    // The one allocation that a steady run shows is this buffer.
    let mut subject = String::with_capacity(32);
    for number in 0..KEYS {
        subject.clear();
        write!(subject, "subject-{number}").expect("writing to a string");
        memory.try_acquire(&Ask::new(policy, subject.as_str())).expect("there is room");
    }
}
