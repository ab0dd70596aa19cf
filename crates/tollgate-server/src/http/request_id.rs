//! A name for each request, so that a line of the log, an answer and the caller's own log can be put together.
//!
//! The caller's `x-request-id` is kept if it is short and plain, as a proxy in front sends it; otherwise one is made. It comes
//! back with the answer, and stands in every line that is logged while the request is answered.

use axum::http::{HeaderName, HeaderValue, Request, Response};
use futures_util::FutureExt as _;
use tollgate::edge::random;
use tracing::{Instrument as _, Span};

use crate::bounds::REQUEST_ID_BYTES_MAX;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The name of a request.
pub(crate) struct Name {
    id: HeaderValue,
    span: Span,
}

impl Name {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let given = request.headers().get(&REQUEST_ID).filter(|value| is_plain(value)).cloned();
        let id = given.unwrap_or_else(fresh);
        let (text, path) = (id.to_str().unwrap_or_default(), request.uri().path());
        let method = request.method();
        let span = tracing::info_span!("request", request_id = text, %method, path);
        Self { id, span }
    }

    /// Begins `work` under this name.
    pub(crate) fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        self.span.in_scope(work)
    }

    /// `answer`, under this name.
    pub(crate) fn on<R>(
        self,
        answer: impl Future<Output = Response<R>>,
    ) -> impl Future<Output = Response<R>> {
        let Self { id, span } = self;
        answer.instrument(span).map(move |mut response| {
            response.headers_mut().insert(REQUEST_ID, id);
            response
        })
    }
}

/// It ends up in logs, so it is of letters that mean nothing there.
fn is_plain(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(byte);
    (1..=REQUEST_ID_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(is_plain)
}

fn fresh() -> HeaderValue {
    let number = u64::from(random()) << 32 | u64::from(random());
    let digit = |place: usize| b"0123456789abcdef"[(number >> (60 - 4 * place) & 0xf) as usize];
    let digits: [u8; 16] = std::array::from_fn(digit);
    HeaderValue::from_bytes(&digits).unwrap_or(HeaderValue::from_static("none"))
}
