//! Overrides that are made at run time, and the seam that keeps them where every broker on a store sees them.
//!
//! They are one small document with a version, changed by compare-and-swap: of two concurrent changes
//! one reads again, and a follower asks only for a newer version. A document is enough because
//! overrides are few and change seldom: what a store has to be able to do stays two calls.

use std::fmt::Debug;

use crate::error::Error;
use crate::gate::BoxFuture;
use crate::sync::{Mutex, lock};

/// The largest document, in bytes: it fits into an item of every store.
pub const DOCUMENT_BYTES_MAX: usize = 300_000;

/// The overrides as they are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// Which one this is; 0 where there never was one. Another document has another version, below 2^53.
    pub version: u64,
    /// The text, at most [`DOCUMENT_BYTES_MAX`] bytes and without NUL.
    pub text: String,
}

/// Keeps one document that all brokers on a store share.
pub trait OverrideStore: Debug + Send + Sync + 'static {
    /// Returns the document, or `None` if its version is still `known`. A missing document is empty.
    fn read(&self, known: u64) -> BoxFuture<'_, Result<Option<Document>, Error>>;

    /// Puts `next` in the place of the document of version `known`, for good. Returns whether it did: not if the
    /// document is of another version by now. Where `next` is there already, it may say so too.
    fn replace<'a>(&'a self, known: u64, next: &'a Document) -> BoxFuture<'a, Result<bool, Error>>;
}

/// The document that ends with the process.
#[derive(Debug, Default)]
pub struct MemoryOverrides(Mutex<Document>);

impl OverrideStore for MemoryOverrides {
    fn read(&self, known: u64) -> BoxFuture<'_, Result<Option<Document>, Error>> {
        let document = Some(lock(&self.0).clone()).filter(|document| document.version != known);
        Box::pin(std::future::ready(Ok(document)))
    }

    fn replace<'a>(&'a self, known: u64, next: &'a Document) -> BoxFuture<'a, Result<bool, Error>> {
        let mut document = lock(&self.0);
        let is_known = document.version == known;
        if is_known {
            document.clone_from(next);
        }
        Box::pin(std::future::ready(Ok(is_known)))
    }
}
