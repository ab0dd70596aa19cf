//! What a script is given: one msgpack argument, written without a detour.

use tollgate::core::{Amounts, Derived};
use tollgate::{Policy, Timestamp};

use crate::msgpack::{list, number};

/// The first argument of a script in the making: `{now, limits, ...}`.
#[derive(Debug)]
pub(crate) struct Args {
    bytes: Vec<u8>,
}

/// When a script decides, and the windows it is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// The time to decide at; nothing means the server's.
    pub(crate) told: Option<Timestamp>,
    /// Whose calendar windows are sent: our best guess of the server's time.
    pub(crate) windows_at: Timestamp,
    /// When the permit was given that is to be settled.
    pub(crate) given_at: Timestamp,
}

impl Args {
    /// The arguments for the limits of `policy`, each with what it costs, and room for `more` numbers.
    pub(crate) fn new(policy: &Policy, amounts: &Amounts, times: Times, more: usize) -> Self {
        let mut bytes = Vec::with_capacity(64 + 64 * policy.limits().len());
        list(&mut bytes, 2 + more);
        number(&mut bytes, times.told.map_or(0, Timestamp::as_micros));
        list(&mut bytes, policy.limits().len());
        let windows = policy.windows_at(times.windows_at);
        let given = policy.windows_at(times.given_at);
        let limits = policy.derived().zip(policy.places());
        for (((derived, place), windows), given) in limits.zip(windows).zip(given) {
            let cost = amounts.at(place);
            let mut put = |numbers: &[u64]| {
                list(&mut bytes, numbers.len());
                numbers.iter().for_each(|value| number(&mut bytes, *value));
            };
            match derived {
                Derived::Continuous { capacity, token, rate } => {
                    put(&[1, cost, capacity, token, rate]);
                }
                Derived::Interval { capacity, refill, period } => {
                    put(&[2, cost, capacity, refill, period.as_micros()]);
                }
                Derived::Window { limit, window, slot } => {
                    put(&[3, cost, limit, window.as_micros(), slot.as_micros()]);
                }
                Derived::Calendar { limit, margin } => {
                    let [open, next] = windows.map_or([(0, 0); 2], |windows| {
                        windows.map(|window| (window.start.as_micros(), window.end.as_micros()))
                    });
                    let given = given.map_or(0, |[window, _]| window.end.as_micros());
                    let margin = margin.as_micros();
                    put(&[4, cost, limit, margin, 0, open.0, open.1, next.0, next.1, given]);
                }
                Derived::Slots { limit, ttl } => put(&[5, cost, limit, ttl.as_micros()]),
                // A rule that this crate does not know yet; the script refuses its kind.
                _ => put(&[0, cost]),
            }
        }
        Self { bytes }
    }

    /// Arguments for a script that does not look at limits.
    pub(crate) fn bare(times: Times, more: usize) -> Self {
        let mut bytes = Vec::new();
        list(&mut bytes, 2 + more);
        number(&mut bytes, times.told.map_or(0, Timestamp::as_micros));
        list(&mut bytes, 0);
        Self { bytes }
    }

    pub(crate) fn number(mut self, value: u64) -> Self {
        number(&mut self.bytes, value);
        self
    }

    pub(crate) fn numbers(mut self, values: impl ExactSizeIterator<Item = u64>) -> Self {
        list(&mut self.bytes, values.len());
        values.for_each(|value| number(&mut self.bytes, value));
        self
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}
