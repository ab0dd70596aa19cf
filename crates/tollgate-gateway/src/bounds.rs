//! Every bound of the gateway, by name. Those that are options are the defaults.

use tollgate::Span;

/// The largest request body, in bytes.
pub const BODY_BYTES_MAX: usize = 32 << 20;

/// The most calls that wait for admission.
pub const QUEUE_CALLS_MAX: usize = 10_000;

/// The most bytes of request bodies at once.
pub const QUEUE_BYTES_MAX: usize = 256 << 20;

/// The most calls at upstreams at once.
pub const IN_FLIGHT_MAX: usize = 4_096;

/// How long a connection to an upstream may take to open.
pub const CONNECT_TIMEOUT: Span = Span::from_secs(10);

/// How long an upstream may take to send the head of its response: as long as the SDKs of providers wait.
pub const FIRST_BYTE_TIMEOUT: Span = Span::from_mins(10);

/// How long an upstream may be silent within a response.
pub const IDLE_TIMEOUT: Span = Span::from_mins(5);

/// How long calls in flight may take to finish at shutdown.
pub const DRAIN: Span = Span::from_mins(10);

/// The longest `max_wait` of a route.
pub const WAIT_MAX: Span = Span::from_mins(10);

/// The longest pause between two parts of a request body.
pub const BODY_IDLE_MAX: Span = Span::from_secs(30);

/// How long a request body may take to arrive.
pub const BODY_WAIT_MAX: Span = Span::from_mins(10);

/// How much of a model's name is repeated in an error.
pub const SHOWN_CHARS_MAX: usize = 64;

/// How much of the body of a refused request is read, so that its client reads the refusal.
pub const REFUSED_BODY_BYTES_MAX: usize = 1 << 20;

/// The longest pause of a client within the body of a refused request; a longer one is not waited for.
pub const REFUSED_BODY_IDLE_MAX: Span = Span::from_secs(1);

/// The largest response whose usage is read, unless it is a stream; a larger one is passed on and keeps the estimate.
pub const RESPONSE_BYTES_MAX: usize = 32 << 20;

/// The largest error body of a provider that is read.
pub const ERROR_BYTES_MAX: usize = 64 * 1_024;

/// How long the error body of a provider may take to arrive.
pub const ERROR_BODY_WAIT_MAX: Span = Span::from_secs(5);

/// The most times that one call is sent.
pub const ATTEMPTS_MAX: u32 = 8;

/// The longest wait after which a client is told to retry.
pub const RETRY_MAX: Span = Span::from_secs(60);

/// The shortest time that an overloaded or unreachable upstream is left alone; it doubles with each further failure.
pub const PAUSE_MIN: Span = Span::from_millis(500);

/// The longest such time without a hint of the provider.
pub const PAUSE_MAX: Span = Span::from_secs(30);

/// How long an idle connection to an upstream is kept.
pub const IDLE_CONNECTION_MAX: Span = Span::from_secs(60);

/// The most idle connections to one upstream.
pub const IDLE_CONNECTIONS_MAX: usize = 1_024;

/// The assumed output of a call that declares no maximum, before any was observed, in tokens.
pub const OUTPUT_DEFAULT: u64 = 4_096;

/// The read buffer of a connection, in bytes.
pub const BUFFER_BYTES_MAX: usize = 64 * 1_024;
