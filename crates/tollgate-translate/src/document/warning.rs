//! What is wrong with a document that is translated all the same.

use std::fmt;

/// A place that is not as the format wants it, and what was done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// What is wrong, and where.
    pub problem: String,
    /// What was done.
    pub done: String,
}

impl Warning {
    pub(super) fn new(problem: impl Into<String>, done: impl Into<String>) -> Self {
        Self { problem: problem.into(), done: done.into() }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.done)
    }
}

/// What is wrong at a place of the source.
pub(super) struct Mistake {
    pub(super) place: usize,
    pub(super) problem: String,
    /// What is done about it.
    pub(super) done: &'static str,
}

/// Counts lines up to places that are asked for in order.
pub(super) struct Lines<'a> {
    source: &'a str,
    place: usize,
    line: usize,
}

impl<'a> Lines<'a> {
    pub(super) const fn new(source: &'a str) -> Self {
        Self { source, place: 0, line: 1 }
    }

    /// The line that has `place`, counted from 1.
    pub(super) fn at(&mut self, place: usize) -> usize {
        let place = place.clamp(self.place, self.source.len());
        let between = &self.source.as_bytes()[self.place..place];
        self.line += between.iter().filter(|byte| **byte == b'\n').count();
        self.place = place;
        self.line
    }
}
