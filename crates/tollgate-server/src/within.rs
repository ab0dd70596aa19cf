//! Work that may take so long and no longer, by the server's clock.
//!
//! Nearly all of it is done at once: what a client sent has arrived, and it takes its answers. An alarm is made only for
//! the rest, because making one costs more than many a decision.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use tollgate::{Clock, Span};

/// What `work` comes to within `span`; nothing, if it takes longer.
pub(crate) async fn within<T>(
    clock: &dyn Clock,
    span: Span,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    match poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await {
        Poll::Ready(output) => Some(output),
        Poll::Pending => tokio::select! {
            biased;
            output = work => Some(output),
            () = clock.sleep_until(clock.now() + span) => None,
        },
    }
}
