//! Every bound of the core, by name.
//!
//! A bound that is not named is a surprise in production. The numeric ones are those of the strictest store (a Lua
//! double holds integers below 2^53 exactly), so that a policy accepted once means the same on every store.

use crate::time::Span;

/// The largest number that any store holds exactly: costs, limits and times stay at or below it.
pub const NUMBER_MAX: u64 = (1 << 53) - 1;

/// The largest capacity of a continuous bucket in its own fine units (capacity × reduced period in µs). Half of
/// [`NUMBER_MAX`], so that a full bucket still has as much room again for debt.
pub const FINE_CAPACITY_MAX: u64 = 1 << 52;

/// Stamps from here on mark permits that a strategy gave without the store: out of tokens it had taken in advance, or to be posted
/// afterwards. No store makes such a stamp or settles one: it is above [`NUMBER_MAX`].
pub const LOCAL_STAMPS: u64 = 1 << 63;

/// The most limits one policy may have.
pub const LIMITS_MAX: usize = 16;

/// The most units one policy may name.
pub const UNITS_MAX: usize = 8;

/// The most charges of one ask.
pub const CHARGES_MAX: usize = 8;

/// The most alternatives of one ask.
pub const ALTERNATIVES_MAX: usize = 16;

/// The longest name of a policy, limit or unit, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// The longest subject, in bytes.
pub const SUBJECT_BYTES_MAX: usize = 256;

/// The longest ask id, in bytes.
pub const ID_BYTES_MAX: usize = 128;

/// The most ask ids a store that keeps them in this process remembers, unless configured otherwise; beyond it an ask with a
/// new id is answered with [`Contended`](crate::ErrorKind::Contended).
pub const IDS_MAX: usize = 1_000_000;

/// How long an id that a caller gave makes a repeat recognisable.
pub const ID_HORIZON: Span = Span::from_secs(120);

/// How long after its admission a permit can be settled or released.
pub const PERMIT_TTL: Span = Span::from_secs(3_600);

/// The most runs of settled permits one entry remembers: 100,000 permits in flight leave at most half as many, in any
/// order of settling. From here on a new ask is answered with [`Contended`](crate::ErrorKind::Contended), unless the oldest
/// run is older than [`ABANDONED_AFTER`]: then it is dropped, and permits up to it get nothing back.
pub const SETTLED_RUNS_MAX: usize = 100_000;

/// [`SETTLED_RUNS_MAX`] of stores that rewrite the runs with each settle: Redis, PostgreSQL, DynamoDB.
pub const SETTLED_RUNS_MAX_SHARED: usize = 10_000;

/// The age from which an unsettled permit may lose its refund to [`SETTLED_RUNS_MAX`].
pub const ABANDONED_AFTER: Span = Span::from_secs(60);

/// The most lows that a continuous bucket records for giving back. Beyond it neighbours merge to the strict side.
pub const LOWS_MAX: usize = 64;

/// The largest limit of a rolling window that keeps an exact log, where it also stays within [`EXACT_RATE_MAX`].
pub const EXACT_LIMIT_MAX: u64 = 128;

/// The most per second that a rolling window may issue on average and keep an exact log.
pub const EXACT_RATE_MAX: u64 = 10;

/// The number of slots in the grid of a rolling window that keeps no exact log and configures no `resolution`.
pub const RESOLUTION_DEFAULT: u32 = 64;

/// The most entries of a rolling-window log. Only debt can exceed it; the newest entries then merge to the later time,
/// which errs to the strict side and leaves the older ones where they are.
pub const LOG_ENTRIES_MAX: usize = 1_024;

/// The finest `resolution` of a rolling window.
pub const RESOLUTION_MAX: u32 = 1_000;

/// The most slots of a concurrency limit.
pub const SLOTS_MAX: u64 = 10_000;

/// The estimated wait for a slot while no holding times are known: an ask that fits once every held slot was released.
pub const SLOT_WAIT_DEFAULT: Span = Span::from_secs(1);

/// The shortest estimated wait for a slot: a client that follows short estimates must not ask hundreds of times a second.
pub const SLOT_WAIT_MIN: Span = Span::from_millis(50);

/// The longest window, period or time to live: ten years.
pub const SPAN_MAX: Span = Span::from_secs(10 * 366 * 86_400);

/// The most asks in front of one ask when its wait is forecast.
pub const BEHIND_MAX: usize = 1_024;

/// The most subjects, and patterns of subjects, of one policy that may have an override.
pub const OVERRIDES_MAX: usize = 100_000;

/// The most subjects, and patterns of subjects, on all plans together.
pub const PLAN_SUBJECTS_MAX: usize = 1_000_000;

/// The most patterns of subjects in one list that have the same text before their first `*`: so many are compared with a
/// subject that begins with it.
pub const PATTERNS_PER_PREFIX_MAX: usize = 1_000;
