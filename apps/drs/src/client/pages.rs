//! Paginated listings, fetched lazily; each page takes a token and has retries.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use futures_util::stream::{self, Stream, StreamExt as _, TryStreamExt as _};
use tollgate::gate::BoxFuture;

use super::DrsClient;
use crate::error::Error;

/// The items of a page, and the token of the next one.
type Page<T> = (Vec<T>, Option<String>);

type Fetch<T> =
    Arc<dyn Fn(Option<String>) -> BoxFuture<'static, Result<Page<T>, Error>> + Send + Sync>;

/// Pages of a listing. An error ends it.
pub struct Pages<T> {
    fetch: Fetch<T>,
    token: Option<String>,
    is_over: bool,
}

impl<T> fmt::Debug for Pages<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Pages<T> {
    /// Returns the next page; `None` after the last one.
    pub async fn next_page(&mut self) -> Option<Result<Vec<T>, Error>> {
        if self.is_over {
            return None;
        }
        let page = (self.fetch)(self.token.clone()).await;
        // A token that repeats would be a loop without end.
        self.is_over =
            page.as_ref().map_or(true, |(_, token)| token.is_none() || *token == self.token);
        Some(page.map(|(items, token)| {
            self.token = token;
            items
        }))
    }

    /// Returns all items.
    ///
    /// # Errors
    /// The error of the first page that failed.
    pub async fn all(mut self) -> Result<Vec<T>, Error> {
        let mut all = Vec::new();
        while let Some(page) = self.next_page().await {
            all.extend(page?);
        }
        Ok(all)
    }

    /// Returns the items as a stream that fetches pages as it needs them.
    #[must_use]
    pub fn items(self) -> Items<T> {
        let pages = stream::unfold(self, |mut pages| async move {
            let page = pages.next_page().await?;
            Some((page, pages))
        });
        let items = pages.map_ok(|page| stream::iter(page.into_iter().map(Ok))).try_flatten();
        Items(Box::pin(items))
    }
}

/// Items of a listing as a stream.
pub struct Items<T>(Pin<Box<dyn Stream<Item = Result<T, Error>> + Send>>);

impl<T> fmt::Debug for Items<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Items").finish_non_exhaustive()
    }
}

impl<T> Stream for Items<T> {
    type Item = Result<T, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl<T> Items<T> {
    /// Returns the next item; `None` after the last one.
    pub async fn next_item(&mut self) -> Option<Result<T, Error>> {
        self.0.next().await
    }
}

impl DrsClient {
    /// Returns the pages that `send` fetches, each as a call of its own.
    pub(super) fn pages<T, E, F>(
        &self,
        operation: &'static str,
        send: impl Fn(Option<String>) -> F + Send + Sync + 'static,
    ) -> Pages<T>
    where
        T: Send + 'static,
        E: std::error::Error + ProvideErrorMetadata + Send + 'static,
        F: Future<Output = Result<Page<T>, SdkError<E, HttpResponse>>> + Send + 'static,
    {
        let (client, send) = (self.clone(), Arc::new(send));
        let fetch = move |token: Option<String>| -> BoxFuture<'static, Result<Page<T>, Error>> {
            let (client, send) = (client.clone(), Arc::clone(&send));
            Box::pin(async move {
                let context = client.context(operation);
                let attempt = |number| client.attempt(&context, number, send(token.clone()));
                client.call(&context, client.retry(), attempt).await
            })
        };
        Pages { fetch: Arc::new(fetch), token: None, is_over: false }
    }
}
