//! Progress on standard error: redrawn in place at a terminal, a line for each change elsewhere.

use std::io::{self, IsTerminal as _, Write as _};

use crate::output::{Reader, legible};

/// What is drawn now.
#[derive(Debug)]
pub(crate) struct View {
    is_on: bool,
    redraws: bool,
    lines: usize,
    last: String,
}

impl View {
    /// A view for `reader`; programs get their answer at the end.
    pub(crate) fn new(reader: Reader) -> Self {
        let redraws = io::stderr().is_terminal();
        Self { is_on: reader == Reader::Person, redraws, lines: 0, last: String::new() }
    }

    /// Shows what changed: all of it where it can be drawn over, `brief` where it cannot.
    pub(crate) fn show(&mut self, whole: impl FnOnce() -> String, brief: impl FnOnce() -> String) {
        if !self.is_on {
            return;
        }
        let text = legible(&if self.redraws { whole() } else { brief() });
        if text == self.last {
            return;
        }
        let clear = match self.lines {
            lines @ 1.. if self.redraws => format!("\x1b[{lines}A\x1b[J"),
            _ => String::new(),
        };
        // Work goes on where progress cannot be shown.
        let _ = io::stderr().write_all(format!("{clear}{text}\n").as_bytes());
        self.lines = text.lines().map(|line| line.chars().count().max(1).div_ceil(width())).sum();
        self.last = text;
    }

    /// Prints a line that stays; what is drawn next is below it.
    pub(crate) fn note(&mut self, line: &str) {
        if self.is_on {
            let _ = io::stderr().write_all(format!("{}\n", legible(line)).as_bytes());
            self.leave();
        }
    }

    /// Prints a line that stays, for programs too.
    pub(crate) fn warn(&mut self, line: &str) {
        // A warning that cannot be printed fails nothing.
        let _ = io::stderr().write_all(format!("{}\n", legible(line)).as_bytes());
        self.leave();
    }

    /// Whether it is drawn over and over, so that the time in it may pass.
    pub(crate) const fn redraws(&self) -> bool {
        self.is_on && self.redraws
    }

    /// What is drawn stays; what comes next is below it.
    pub(crate) const fn leave(&mut self) {
        self.lines = 0;
    }
}

/// How many characters a terminal shows before it goes on in the next line.
pub(crate) fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    match size.map(|size| usize::from(size.ws_col)) {
        // A terminal that does not say how wide it is.
        Ok(0) | Err(_) => usize::MAX,
        Ok(columns) => columns,
    }
}
