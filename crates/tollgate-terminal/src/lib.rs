#![doc = include_str!("../README.md")]

pub mod confirm;
mod escape;
mod failure;
pub mod files;
mod line_writer;
pub mod output;
mod progress;
pub mod warnings;

pub use escape::escape_controls;
pub use failure::Failure;
pub use line_writer::LineWriter;
pub use output::OutputFormat;
pub use progress::{ProgressDisplay, terminal_width};

/// The exit status of a denial, and of work that was not done completely.
pub const EXIT_DENIED: u8 = 1;

/// The exit status of a failure; clap uses it too.
pub const EXIT_FAILED: u8 = 2;
