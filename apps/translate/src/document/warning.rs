//! Warnings about invalid parts of a document.

use std::fmt;

/// An invalid part of a document, and how it was handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The problem, with its position.
    pub problem: String,
    /// How it was handled.
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

/// A problem at a position of the source.
pub(super) struct Mistake {
    pub(super) offset: usize,
    pub(super) problem: String,
    /// How it is handled.
    pub(super) done: &'static str,
}

/// Computes the lines of ascending positions.
pub(super) struct Lines<'a> {
    source: &'a str,
    offset: usize,
    line: usize,
}

impl<'a> Lines<'a> {
    pub(super) const fn new(source: &'a str) -> Self {
        Self { source, offset: 0, line: 1 }
    }

    /// Returns the line of `offset`, counted from 1.
    pub(super) fn at(&mut self, offset: usize) -> usize {
        let offset = offset.clamp(self.offset, self.source.len());
        let between = &self.source.as_bytes()[self.offset..offset];
        self.line += between.iter().filter(|byte| **byte == b'\n').count();
        self.offset = offset;
        self.line
    }
}
