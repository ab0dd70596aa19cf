//! Every bound, by name.

use tollgate::Span;

/// The largest file, in bytes.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// The most files of one configuration.
pub const FILES_MAX: usize = 10_000;

/// The deepest nesting of folders.
pub const FOLDERS_DEEP_MAX: usize = 8;

/// The most YAML nodes of one file, repeated aliases included: an alias of an alias can stand for billions.
pub const NODES_MAX: usize = 1_000_000;

/// The deepest nesting of YAML nodes, which is twice that of descriptors.
pub const NODES_DEEP_MAX: usize = 64;

/// The shortest delay before a management server is called again.
pub const RETRY_MIN: Span = Span::from_millis(10);

/// The longest such delay.
pub const RETRY_MAX: Span = Span::from_hours(1);
