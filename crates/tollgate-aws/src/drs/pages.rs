//! Pages: a token and retries for each, one after the other, as far as somebody reads.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use futures_core::Stream;
use tollgate::BoxFuture;

use super::DrsClient;
use crate::error::Error;

/// The items of a page, and where the next one begins.
type Page<T> = (Vec<T>, Option<String>);

type Fetch<T> =
    Arc<dyn Fn(Option<String>) -> BoxFuture<'static, Result<Page<T>, Error>> + Send + Sync>;

/// Pages of a listing. After an error or the last page there is nothing more.
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
    /// The next page; nothing after the last one.
    pub async fn next_page(&mut self) -> Option<Result<Vec<T>, Error>> {
        if self.is_over {
            return None;
        }
        let page = (self.fetch)(self.token.clone()).await;
        Some(self.turn(page))
    }

    /// Everything.
    ///
    /// # Errors
    /// The error of the first page that could not be had.
    pub async fn all(mut self) -> Result<Vec<T>, Error> {
        let mut all = Vec::new();
        while let Some(page) = self.next_page().await {
            all.extend(page?);
        }
        Ok(all)
    }

    /// The items one by one, as a stream that fetches a page when it needs one.
    #[must_use]
    pub fn items(self) -> Items<T> {
        Items { pages: self, at_hand: VecDeque::new(), fetching: None }
    }

    fn turn(&mut self, page: Result<Page<T>, Error>) -> Result<Vec<T>, Error> {
        match page {
            Ok((items, token)) => {
                // A service that gives the same token again would be read for ever.
                self.is_over = token.is_none() || token == self.token;
                self.token = token;
                Ok(items)
            }
            Err(error) => {
                self.is_over = true;
                Err(error)
            }
        }
    }
}

/// Items of a listing as a stream.
pub struct Items<T> {
    pages: Pages<T>,
    at_hand: VecDeque<T>,
    fetching: Option<BoxFuture<'static, Result<Page<T>, Error>>>,
}

impl<T> fmt::Debug for Items<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Items").field("at_hand", &self.at_hand.len()).finish_non_exhaustive()
    }
}

impl<T: Send + Unpin + 'static> Stream for Items<T> {
    type Item = Result<T, Error>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
    ) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(item) = self.at_hand.pop_front() {
                return Poll::Ready(Some(Ok(item)));
            }
            if self.pages.is_over {
                return Poll::Ready(None);
            }
            let this = &mut *self;
            let fetching =
                this.fetching.get_or_insert_with(|| (this.pages.fetch)(this.pages.token.clone()));
            let page = ready!(fetching.as_mut().poll(context));
            this.fetching = None;
            match this.pages.turn(page) {
                Ok(items) => this.at_hand.extend(items),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }
}

impl<T: Send + Unpin + 'static> Items<T> {
    /// The next item; nothing after the last one. The same as the stream's, for those who have no use for streams.
    pub async fn next_item(&mut self) -> Option<Result<T, Error>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl DrsClient {
    /// The pages that `send` gets, each as a call of its own.
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
