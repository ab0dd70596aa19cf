//! Bodies that nobody reads, as of a call without a key: over HTTP/2 they are taken to their end all the same.
//!
//! Otherwise hyper resets the stream behind the answer. That is allowed, but curl before 8.0 now and then takes the
//! answer for lost then, and with it the text that says what was wrong.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use axum::http::Version;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Frame, SizeHint};
use tollgate::within;

use crate::app::App;
use crate::bounds::{BODY_BYTES_MAX, BODY_WAIT_MAX};

/// A body as it comes from a connection.
pub(crate) trait Arriving:
    HttpBody<Data = Bytes, Error: Into<BoxError> + Send> + Send + Unpin + 'static
{
}

impl<B> Arriving for B where
    B: HttpBody<Data = Bytes, Error: Into<BoxError> + Send> + Send + Unpin + 'static
{
}

/// A body that is taken to its end once it is dropped, within the bounds of one that is read.
pub(super) struct Unread<B: Arriving> {
    /// Nothing once it is dropped.
    body: Option<B>,
    app: Option<Arc<App>>,
}

impl<B: Arriving> Unread<B> {
    pub(super) fn new(body: B, version: Version, app: &Arc<App>) -> Self {
        let app = (version == Version::HTTP_2).then(|| Arc::clone(app));
        Self { body: Some(body), app }
    }
}

impl<B: Arriving> Drop for Unread<B> {
    fn drop(&mut self) {
        let body = self.body.take().filter(|body| !body.is_end_stream());
        if let (Some(body), Some(app)) = (body, self.app.take()) {
            tokio::spawn(async move {
                let mut body = Limited::new(body, BODY_BYTES_MAX);
                let all = async { while let Some(Ok(_)) = body.frame().await {} };
                within(app.clock(), BODY_WAIT_MAX, all).await
            });
        }
    }
}

impl<B: Arriving> HttpBody for Unread<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(HttpBody::size_hint).unwrap_or_default()
    }
}
