//! When a fault happens, and how often.

/// When a fault happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// At every n-th call.
    Every(u64),
    /// At the n-th call, from 1.
    Call(u64),
    /// If the text of the request contains this.
    Contains(String),
    /// If the text to translate has more than so many segments.
    LongerThan(usize),
}

/// A fault, when it happens, and how often at most.
#[derive(Clone, Debug)]
pub struct Trouble<F> {
    pub fault: F,
    pub when: When,
    pub times: u64,
}

impl<F> Trouble<F> {
    /// A fault without a bound on its count.
    pub const fn new(fault: F, when: When) -> Self {
        Self { fault, when, times: u64::MAX }
    }

    /// Bounds how often the fault happens.
    #[must_use]
    pub const fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// Returns whether the fault happens to this call, and counts it.
    pub(super) fn happens(&mut self, number: u64, text: &str, segments: usize) -> bool {
        let is_time = match &self.when {
            When::Every(n) => number.is_multiple_of(*n),
            When::Call(n) => number == *n,
            When::Contains(part) => text.contains(part),
            When::LongerThan(most) => *most < segments,
        };
        if !is_time || self.times == 0 {
            return false;
        }
        self.times -= 1;
        true
    }
}
