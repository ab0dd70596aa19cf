//! The interface to translation jobs. The server checks keys and speaks HTTP, an implementation stores the jobs, and workers
//! call the provider.

use std::fmt::Debug;

use tollgate::gate::BoxFuture;
use tollgate::{Error, Policy};

use tollgate_protocol::json::{Translation, TranslationRequest};

/// Keeps translation jobs.
///
/// Errors of kind [`Unavailable`](tollgate::ErrorKind::Unavailable) are answered 503 with `Retry-After`.
pub trait Translations: Debug + Send + Sync {
    /// Creates the job that `request` describes under `policy`, or returns the job that an equal request created before. Returns `None` if
    /// the id belongs to a job with another document or other settings.
    ///
    /// # Errors
    /// [`Invalid`](tollgate::ErrorKind::Invalid) for bad input, which changes nothing.
    fn create<'a>(
        &'a self,
        policy: &'a Policy,
        request: TranslationRequest,
    ) -> BoxFuture<'a, Result<Option<Translation>, Error>>;

    /// Returns the job `id`, if it exists.
    fn find<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Translation>, Error>>;

    /// Returns the newest jobs, newest first, at most `limit`.
    fn recent(&self, limit: usize) -> BoxFuture<'_, Result<Vec<Translation>, Error>>;

    /// Returns the translated document of the job `id`, which is finished.
    fn document<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<u8>, Error>>;

    /// Cancels the job `id`, which exists. Returns false if it was completed or cancelled before.
    fn cancel<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, Error>>;
}
