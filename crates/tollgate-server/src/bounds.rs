//! Every bound of the server, by name.

use tollgate::Span;

pub use tollgate_protocol::bounds::{ARG_BYTES_MAX, OVERRIDES_SHOWN_MAX};

/// The largest request body, in bytes: a full batch of long asks fits.
pub const BODY_BYTES_MAX: usize = 256 * 1_024;

/// The largest body of `POST /v1/translations`, in bytes.
pub const TRANSLATION_BYTES_MAX: usize = 16 << 20;

/// How long such a body may take to arrive.
pub const TRANSLATION_WAIT_MAX: Span = Span::from_mins(5);

/// The most such bodies at once, which bounds their memory.
pub const TRANSLATIONS_AT_ONCE: usize = 4;

/// The most jobs that `GET /v1/translations` lists.
pub const TRANSLATIONS_SHOWN_MAX: usize = 20;

/// The longest `x-request-id` that is accepted, in bytes.
pub const REQUEST_ID_BYTES_MAX: usize = 128;

/// The most asks in one batch.
pub const BATCH_ASKS_MAX: usize = 100;

/// How long an ask may wait for room.
pub const WAIT_MAX: Span = Span::from_secs(300);

/// The most overrides by API in one store, of all policies together.
pub const OVERRIDES_MAX: usize = 1_000;

/// The most policies that are made by API in one store.
pub const POLICIES_MAX: usize = 100;

/// The most subjects, and patterns of subjects, that are put on a plan by API in one store.
pub const ASSIGNED_MAX: usize = 5_000;

/// How often a broker polls the store for changed overrides.
pub const OVERRIDES_EVERY: Span = Span::from_secs(2);

/// How often a change of the overrides is retried after a lost race.
pub const OVERRIDE_TRIES_MAX: usize = 16;

/// The most connections of all listeners together, unless
/// [`Listeners::connections`](crate::Listeners::connections) sets fewer; further ones wait in the backlog.
pub const CONNECTIONS_MAX: usize = 49_152;

/// Each listener reserves one in this many connections for itself.
pub const CONNECTIONS_SHARE: usize = 8;

/// How long a connection may be idle, or take to send a request head; in the Redis protocol, to send a whole request.
pub const HEAD_WAIT_MAX: Span = Span::from_secs(75);

/// The largest request head, in bytes.
pub const HEAD_BYTES_MAX: usize = 32 * 1_024;

/// The most concurrent requests on one HTTP/2 connection.
pub const STREAMS_MAX: u32 = 128;

/// The largest `hops` of forward-auth.
pub const HOPS_MAX: usize = 16;

/// How long a TLS handshake may take.
pub const HANDSHAKE_WAIT_MAX: Span = Span::from_secs(10);

/// How long a request body may take to arrive.
pub const BODY_WAIT_MAX: Span = Span::from_secs(30);

/// How long a readiness result is cached.
pub const READY_EVERY: Span = Span::from_secs(1);

/// The most watchers of health over gRPC.
pub const WATCHERS_MAX: usize = 256;

/// The default maximum age of a gRPC connection.
pub const CONNECTION_AGE_MAX: Span = Span::from_hours(1);

/// The default prefix length of subjects that are IPv4 addresses.
pub const IPV4_PREFIX: u8 = 32;

/// The default prefix length of subjects that are IPv6 addresses.
pub const IPV6_PREFIX: u8 = 64;

/// How long readiness waits for the store.
pub const READY_WAIT_MAX: Span = Span::from_secs(2);

/// How often the store is queried for a watcher of health over gRPC.
pub const HEALTH_EVERY: Span = Span::from_secs(5);

/// How long requests in flight may take to finish at shutdown, or after their client certificate was revoked.
pub const DRAIN_MAX: Span = Span::from_secs(10);

/// How long the settlements of a mounted protocol may take after its last connection ended.
pub const SETTLE_WAIT_MAX: Span = Span::from_secs(5);

/// The pause after a failed accept, as without free file descriptors.
pub const ACCEPT_PAUSE: Span = Span::from_millis(100);

/// The most concurrent calls on one gRPC connection; further ones wait at the client.
pub const CALLS_MAX: u32 = 256;

/// The most bytes of headers of a gRPC call.
pub const CALL_HEAD_BYTES_MAX: u32 = 16 * 1_024;

/// How long a gRPC connection may take to answer a ping.
pub const PING_WAIT_MAX: Span = Span::from_secs(20);

/// How long a gRPC call may take in all: to arrive, and to wait for room.
pub const CALL_MAX: Span = WAIT_MAX.plus(BODY_WAIT_MAX);

/// The most descriptors in one request of Envoy.
pub const DESCRIPTORS_MAX: usize = 100;

/// The most arguments of a command of the Redis protocol: an ask with the most charges, each with a cost in every unit.
pub const ARGS_MAX: usize = 256;

/// The longest request of the Redis protocol, in bytes.
pub const FRAME_BYTES_MAX: usize = 32 * 1_024;

/// The initial read buffer of a connection of the Redis protocol.
pub const READ_BYTES_MIN: usize = 512;

/// The read buffer of a connection of the Redis protocol that sends much.
pub const READ_BYTES_MAX: usize = 16 * 1_024;

/// How much is read ahead from a connection while its ask waits for room.
pub const AHEAD_BYTES_MAX: usize = 64 * 1_024;

/// Replies to pipelined requests are flushed at this many bytes.
pub const WRITE_BYTES_MAX: usize = 64 * 1_024;

/// How long a client may take to accept replies.
pub const WRITE_WAIT_MAX: Span = Span::from_secs(30);

/// How long the input of a closed connection of the Redis protocol is drained.
pub const LINGER_MAX: Span = Span::from_secs(1);

/// How long a connection of the Redis protocol may be idle.
pub const IDLE_MAX: Span = Span::from_mins(60);

/// The most cached policies of `CL.THROTTLE`.
pub const THROTTLES_MAX: usize = 10_000;

/// The most queued audit records; further ones are dropped and counted.
pub const AUDIT_QUEUE_MAX: usize = 16_384;

/// The most audit records in one write.
pub const AUDIT_BATCH_MAX: usize = 1_024;

/// The audit records kept in memory beside a log, for when it cannot be read.
pub const AUDIT_RECENT_MAX: usize = 1_000;

/// The longest interval between trims of the audit log.
pub const AUDIT_TRIM_EVERY: Span = Span::from_mins(10);

/// How long an audit query, or shutdown, waits for queued records.
pub const AUDIT_WAIT_MAX: Span = Span::from_secs(5);

/// The least interval between audit records of failed authentications; metrics count each.
pub const REFUSED_EVERY: Span = Span::from_secs(1);

/// The number of counters for the most limited subjects.
pub const TOP_SUBJECTS_MAX: usize = 1_000;

/// The period of these counters; a query covers one to two of them.
pub const TOP_TURN: Span = Span::from_mins(30);

/// The most policies that are counted separately.
pub const COUNTED_POLICIES_MAX: usize = 1_024;

/// The buckets of ten seconds that the history keeps: an hour, and a minute more.
pub const HISTORY_FINE_BUCKETS_MAX: usize = 366;

/// The buckets of five minutes that the history keeps: a day, and one more.
pub const HISTORY_COARSE_BUCKETS_MAX: usize = 289;

/// The most limits whose refusals the history keeps separately, of all policies together.
pub const HISTORY_LIMITS_MAX: usize = 1_024;

/// The most subjects whose usage is watched.
pub const WATCHED_SUBJECTS_MAX: usize = 32;

/// How long a subject is watched after somebody looked at its history.
pub const WATCH_MAX: Span = Span::from_hours(1);

/// How long a sample of the watched subjects may take.
pub const WATCH_WAIT_MAX: Span = Span::from_secs(5);
