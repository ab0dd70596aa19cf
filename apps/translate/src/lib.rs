#![doc = include_str!("../README.md")]

pub mod cache;
pub mod chunk;
#[cfg(feature = "command")]
pub mod command;
mod document;
mod error;
pub mod estimate;
mod glossary;
pub mod job;
mod language;
mod marker;
pub mod pipeline;
pub mod plan;
mod prompt;
pub mod provider;
mod script;
pub mod verify;

pub use chunk::Chunk;
pub use document::{
    Chapters, DOCUMENT_BYTES_MAX, Document, FAILED_MARK, Filling, Format, Layout, Marker, Segment,
    Warning,
};
pub use error::{Error, ErrorKind, Result};
pub use estimate::Calibration;
pub use glossary::{Glossary, TERMS_MAX, Term};
pub use language::Language;
pub use marker::numbered;
pub use plan::Plan;
pub use prompt::{Estimate, PROMPT_VERSION, Prompt, Task};
pub use verify::{Checked, Fault, Finding, verify};
