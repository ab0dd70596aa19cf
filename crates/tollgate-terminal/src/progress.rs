//! ProgressDisplay on standard error: redrawn in place on a terminal, a line for each change elsewhere.

use std::io::{self, IsTerminal as _, Write as _};

use unicode_width::UnicodeWidthStr as _;

use crate::output::{OutputFormat, escape_lines};

/// The progress of a command.
#[derive(Debug)]
pub struct ProgressDisplay {
    is_shown: bool,
    redraws: bool,
    /// How many lines of the terminal the last text takes.
    lines: usize,
    last: String,
}

impl ProgressDisplay {
    /// Shows progress for people; programs get the result at the end.
    #[must_use]
    pub fn new(format: OutputFormat) -> Self {
        let redraws = io::stderr().is_terminal();
        Self { is_shown: format == OutputFormat::Text, redraws, lines: 0, last: String::new() }
    }

    /// Shows what changed: `whole` on a terminal, in place of the last text, and `brief` elsewhere.
    pub fn update(&mut self, whole: impl FnOnce() -> String, brief: impl FnOnce() -> String) {
        if !self.is_shown {
            return;
        }
        let text = escape_lines(&if self.redraws { whole() } else { brief() });
        if text == self.last {
            return;
        }
        let clear = match self.lines {
            lines @ 1.. if self.redraws => format!("\x1b[{lines}A\x1b[J"),
            _ => String::new(),
        };
        // Work goes on where progress cannot be shown.
        let _ = io::stderr().write_all(format!("{clear}{text}\n").as_bytes());
        let columns = terminal_width();
        self.lines = text.lines().map(|line| line.width().max(1).div_ceil(columns)).sum();
        self.last = text;
    }

    /// Prints a line that stays, for people.
    pub fn note(&mut self, line: &str) {
        if self.is_shown {
            self.warn(line);
        }
    }

    /// Prints a line that stays, for programs too.
    pub fn warn(&mut self, line: &str) {
        // A warning that cannot be printed fails nothing.
        let _ = io::stderr().write_all(format!("{}\n", escape_lines(line)).as_bytes());
        self.keep();
    }

    /// Returns whether the text is redrawn, so that it may show the time.
    #[must_use]
    pub const fn redraws(&self) -> bool {
        self.is_shown && self.redraws
    }

    /// Keeps the last text: the next one goes below it.
    pub const fn keep(&mut self) {
        self.lines = 0;
    }
}

/// Returns the columns of the terminal at standard error; `usize::MAX` if there is none or its size is unknown.
#[must_use]
pub fn terminal_width() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    match size.map(|size| usize::from(size.ws_col)) {
        Ok(0) | Err(_) => usize::MAX,
        Ok(columns) => columns,
    }
}
