//! Every bound of the server, by name.

use tollgate::Span;

/// The largest body of a request, in bytes: a full batch of long asks fits.
pub const BODY_BYTES_MAX: usize = 256 * 1_024;

/// The most asks in one batch.
pub const BATCH_ASKS_MAX: usize = 100;

/// The longest that an ask may wait for room.
pub const WAIT_MAX: Span = Span::from_secs(300);

/// The most connections at once; further ones wait in the listener's backlog.
pub const CONNECTIONS_MAX: usize = 4_096;

/// The longest that a connection may be idle, or take to send the head of a request.
pub const HEAD_WAIT_MAX: Span = Span::from_secs(60);

/// The longest that the body of a request may take to arrive.
pub const BODY_WAIT_MAX: Span = Span::from_secs(30);

/// The longest that readiness waits for the store.
pub const READY_WAIT_MAX: Span = Span::from_secs(2);

/// The longest that requests in flight may take to finish once the server stops.
pub const DRAIN_MAX: Span = Span::from_secs(10);

/// How long the server waits after it could not accept a connection, as when it has no file descriptor left.
pub const ACCEPT_PAUSE: Span = Span::from_millis(100);
