#![doc = include_str!("../README.md")]

pub mod chunk;
mod document;
mod error;
pub mod estimate;
pub mod job;
mod language;
mod marker;
pub mod provider;

pub use chunk::Chunk;
pub use document::{
    DOCUMENT_BYTES_MAX, Document, FAILED_MARK, Filling, Format, Layout, Marker, Segment,
};
pub use error::{Error, ErrorKind};
pub use language::Language;
