//! Every bound of the server, by name.

use tollgate::Span;

use crate::token::TOKEN_CHARS_MAX;

/// The largest body of a request, in bytes: a full batch of long asks fits.
pub const BODY_BYTES_MAX: usize = 256 * 1_024;

/// The largest body of `POST /v1/translations`, in bytes.
pub const TRANSLATION_BYTES_MAX: usize = 16 << 20;

/// The longest that such a body may take to arrive.
pub const TRANSLATION_WAIT_MAX: Span = Span::from_mins(5);

/// The most such bodies at once, which bounds the memory that they take.
pub const TRANSLATIONS_AT_ONCE: usize = 4;

/// The longest `x-request-id` that is taken over from a caller, in bytes.
pub const REQUEST_ID_BYTES_MAX: usize = 128;

/// The most asks in one batch.
pub const BATCH_ASKS_MAX: usize = 100;

/// The longest that an ask may wait for room.
pub const WAIT_MAX: Span = Span::from_secs(300);

/// The most overrides that are made by API, for all policies of a store together.
pub const OVERRIDES_MAX: usize = 1_000;

/// How often a broker looks whether another changed the overrides: what one takes, all have after so long and a read.
pub const OVERRIDES_EVERY: Span = Span::from_secs(2);

/// How often a change of the overrides is tried again because somebody else was faster.
pub const OVERRIDE_TRIES_MAX: usize = 16;

/// The most overrides of one policy that are listed.
pub const OVERRIDES_SHOWN_MAX: usize = 1_000;

/// The most connections at once on all listeners together, if [`Listeners::connections`](crate::Listeners::connections)
/// says no less; further ones wait in the backlog.
pub const CONNECTIONS_MAX: usize = 49_152;

/// Each listener keeps one of so many connections for itself, whatever comes to the others.
pub const CONNECTIONS_SHARE: usize = 8;

/// The longest that a connection may be idle, or take to send the head of a request; in the Redis protocol, to send a
/// request that it began.
pub const HEAD_WAIT_MAX: Span = Span::from_secs(75);

/// The largest head of a request, in bytes.
pub const HEAD_BYTES_MAX: usize = 32 * 1_024;

/// The most requests at once on one connection of HTTP/2.
pub const STREAMS_MAX: u32 = 128;

/// The most proxies that one in front of the server may stand behind.
pub const HOPS_MAX: usize = 16;

/// The longest that a handshake of TLS may take.
pub const HANDSHAKE_WAIT_MAX: Span = Span::from_secs(10);

/// The longest that the body of a request may take to arrive.
pub const BODY_WAIT_MAX: Span = Span::from_secs(30);

/// How long an answer about readiness counts; the store is asked at most this often.
pub const READY_EVERY: Span = Span::from_secs(1);

/// The most watchers of the health over gRPC.
pub const WATCHERS_MAX: usize = 256;

/// How old a connection of gRPC becomes, unless the settings say otherwise.
pub const CONNECTION_AGE_MAX: Span = Span::from_hours(1);

/// How many bits of an IPv4 address make a subject, unless the settings say otherwise.
pub const IPV4_PREFIX: u8 = 32;

/// The same for IPv6.
pub const IPV6_PREFIX: u8 = 64;

/// The longest that readiness waits for the store.
pub const READY_WAIT_MAX: Span = Span::from_secs(2);

/// How often a watcher of the health over gRPC has the store asked; it is told of changes alone.
pub const HEALTH_EVERY: Span = Span::from_secs(5);

/// The longest that requests in flight may take to finish once the server stops, or no longer trusts their client.
pub const DRAIN_MAX: Span = Span::from_secs(10);

/// How long the server waits after it could not accept a connection, as when it has no file descriptor left.
pub const ACCEPT_PAUSE: Span = Span::from_millis(100);

/// The most calls at once on one connection of gRPC; further ones wait at the client.
pub const CALLS_MAX: u32 = 256;

/// The most bytes of header fields that a call of gRPC may have.
pub const CALL_HEAD_BYTES_MAX: u32 = 16 * 1_024;

/// The longest that a connection of gRPC may take to answer a ping, which it gets when nothing else comes.
pub const PING_WAIT_MAX: Span = Span::from_secs(20);

/// The longest that a call of gRPC may take from its head to its answer: to arrive, and to wait for room.
pub const CALL_MAX: Span = WAIT_MAX.plus(BODY_WAIT_MAX);

/// The most descriptors in one question of Envoy's.
pub const DESCRIPTORS_MAX: usize = 100;

/// The most words of one request of the Redis protocol.
pub const ARGS_MAX: usize = 64;

/// The longest word of a request of the Redis protocol: a permit at its longest.
pub const ARG_BYTES_MAX: usize = TOKEN_CHARS_MAX;

/// The longest request of the Redis protocol: as many words as it may have, a few of them permits.
pub const FRAME_BYTES_MAX: usize = 32 * 1_024;

/// How much is read at once from a connection of the Redis protocol that sends little.
pub const READ_BYTES_MIN: usize = 512;

/// How much is read at once from a connection of the Redis protocol that sends much.
pub const READ_BYTES_MAX: usize = 16 * 1_024;

/// How much may be read ahead from a connection of the Redis protocol while an ask of its waits for room.
pub const AHEAD_BYTES_MAX: usize = 64 * 1_024;

/// Answers to pipelined requests are written at the latest when there are this many bytes of them.
pub const WRITE_BYTES_MAX: usize = 64 * 1_024;

/// The longest that a client may take to take its answers.
pub const WRITE_WAIT_MAX: Span = Span::from_secs(30);

/// How long a client that still sends when the server ends its connection of the Redis protocol may take to notice.
pub const LINGER_MAX: Span = Span::from_secs(1);

/// The longest that a connection of the Redis protocol may send nothing.
pub const IDLE_MAX: Span = Span::from_mins(60);

/// The most sets of numbers of `CL.THROTTLE` whose policies are kept.
pub const THROTTLES_MAX: usize = 10_000;

/// The most records of the audit that wait to be written; further ones are dropped and counted.
pub const AUDIT_QUEUE_MAX: usize = 16_384;

/// The most records that are written at once.
pub const AUDIT_BATCH_MAX: usize = 1_024;

/// The records that a server keeps in memory beside a log, for when that cannot be read.
pub const AUDIT_RECENT_MAX: usize = 1_000;

/// What is beyond the bounds of the audit is forgotten at the latest after this time.
pub const AUDIT_TRIM_EVERY: Span = Span::from_mins(10);

/// The longest that a question to the audit, or the end of the server, waits for records to be written.
pub const AUDIT_WAIT_MAX: Span = Span::from_secs(5);

/// How often the audit records callers without a right key; metrics count each of them.
pub const REFUSED_EVERY: Span = Span::from_secs(1);

/// The counters for the subjects that are limited most often.
pub const TOP_SUBJECTS_MAX: usize = 1_000;

/// The turn of these counters; an answer covers one to two of them.
pub const TOP_TURN: Span = Span::from_mins(30);

/// The policies that are counted apart; answers under further names are counted together.
pub const COUNTED_POLICIES_MAX: usize = 1_024;
