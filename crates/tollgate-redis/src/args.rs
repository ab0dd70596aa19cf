//! Arguments of scripts: words of seven bytes, which a script reads without a table.
//!
//! Lua hashes every byte of its strings, so the eighth byte, which is always zero, would cost time.

use tollgate::core::{Amounts, Derived};
use tollgate::{Policy, Timestamp};

/// The bytes of a word.
pub(crate) const WORD: usize = 7;

/// The offset of the limits in the first argument: after the time and four numbers of the script.
pub(crate) const LIMITS_AT: usize = 5 * WORD;

/// Returns the bytes of a limit in the first argument.
pub(crate) const fn width(kind: u8) -> usize {
    1 + WORD * if kind == 4 { 9 } else { 4 }
}

/// Returns the code of a rule.
pub(crate) const fn kind(derived: &Derived) -> u8 {
    match derived {
        Derived::Continuous { .. } => 1,
        Derived::Interval { .. } => 2,
        Derived::Window { .. } => 3,
        Derived::Calendar { .. } => 4,
        Derived::Slots { .. } => 5,
        // An unknown rule, which scripts refuse.
        _ => 0,
    }
}

/// Hashes the layout `version` and the shape of `policy` to one number for scripts: not zero, and below 2^53. All programs
/// must agree on it.
pub(crate) fn digest(policy: &Policy, version: u8) -> u64 {
    let mixed = policy.shape_bytes().chunks(8).fold(u64::from(version), |hash, chunk| {
        let mut bytes = [0; 8];
        bytes.iter_mut().zip(chunk).for_each(|(byte, given)| *byte = *given);
        let hash = (hash ^ u64::from_le_bytes(bytes)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ hash >> 29
    });
    (mixed >> 11).max(1)
}

/// The times that a script gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// The deciding time; `None` for the server's.
    pub(crate) test: Option<Timestamp>,
    /// The estimated server time, for calendar windows.
    pub(crate) windows_at: Timestamp,
    /// The time of the permit to settle.
    pub(crate) given_at: Option<Timestamp>,
}

/// Encodes the first argument: the time, four numbers of the script, and the limits of `policy` with their costs.
pub(crate) fn limits(
    policy: &Policy,
    amounts: &Amounts,
    times: Times,
    numbers: [u64; 4],
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LIMITS_AT + width(4) * policy.limits().len());
    put(&mut bytes, &[times.test.map_or(0, Timestamp::as_micros)]);
    put(&mut bytes, &numbers);
    let mut windows = policy.windows_at(times.windows_at);
    let mut given = times.given_at.map(|given_at| policy.windows_at(given_at));
    for (derived, place) in policy.derived().zip(policy.unit_indexes()) {
        let cost = amounts.at(place);
        let windows = windows.next().flatten();
        let given = given.as_mut().and_then(Iterator::next).flatten();
        bytes.push(kind(&derived));
        match derived {
            Derived::Continuous { capacity, token, rate } => {
                put(&mut bytes, &[cost, capacity, token, rate]);
            }
            Derived::Interval { capacity, refill, period } => {
                put(&mut bytes, &[cost, capacity, refill, period.as_micros()]);
            }
            Derived::Window { limit, window, slot } => {
                put(&mut bytes, &[cost, limit, window.as_micros(), slot.as_micros()]);
            }
            Derived::Calendar { limit, margin } => {
                let [open, next] = windows.map_or([(0, 0); 2], |windows| {
                    windows.map(|window| (window.start.as_micros(), window.end.as_micros()))
                });
                let given = given.map_or(0, |[window, _]| window.end.as_micros());
                put(&mut bytes, &[cost, limit, margin.as_micros(), 0]);
                put(&mut bytes, &[open.0, open.1, next.0, next.1, given]);
            }
            Derived::Slots { limit, ttl } => {
                put(&mut bytes, &[cost, limit, ttl.as_micros(), 0]);
            }
            _ => put(&mut bytes, &[cost, 0, 0, 0]),
        }
    }
    bytes
}

/// Encodes the first argument of a script without limits.
pub(crate) fn bare(times: Times, numbers: [u64; 4]) -> Vec<u8> {
    words([times.test.map_or(0, Timestamp::as_micros)].into_iter().chain(numbers))
}

/// Encodes numbers as words.
pub(crate) fn words(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    numbers.into_iter().for_each(|number| put(&mut bytes, &[number]));
    bytes
}

/// Appends words below 2^53.
fn put(bytes: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        let [low @ .., _] = number.to_le_bytes();
        bytes.extend_from_slice(&low);
    }
}

/// Reads a word, and returns the rest.
pub(crate) fn first_word(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let ([b0, b1, b2, b3, b4, b5, b6], rest) = bytes.split_first_chunk::<WORD>()?;
    Some((u64::from_le_bytes([*b0, *b1, *b2, *b3, *b4, *b5, *b6, 0]), rest))
}
