//! The bounds of everything that is read.

/// The maximum nesting of JSON in a request or an answer.
pub const NESTING_MAX: u32 = 128;

/// The maximum length of a model's name, in bytes.
pub const MODEL_BYTES_MAX: usize = 256;

/// The maximum length of an event in a stream, in bytes. A longer one is passed on and not read.
pub const EVENT_BYTES_MAX: usize = 8 * 1_024 * 1_024;

/// The maximum number of fields in a usage object; further ones are ignored.
pub const USAGE_FIELDS_MAX: usize = 64;

/// The maximum size of a usage object, in bytes; a larger one is ignored.
pub const USAGE_BYTES_MAX: usize = 16 * 1_024;

/// The maximum size of an unstreamed response whose usage a meter reads, in bytes; a larger one keeps its estimate.
pub const RESPONSE_BYTES_MAX: usize = 32 * 1_024 * 1_024;

/// The maximum length of a provider's message in an error, in characters.
pub const MESSAGE_CHARS_MAX: usize = 400;

/// The maximum size of a provider's error that is read, in bytes.
pub const ERROR_BYTES_MAX: usize = 1_024 * 1_024;

/// The maximum length of a path in an error, in characters.
pub const PATH_CHARS_MAX: usize = 200;
