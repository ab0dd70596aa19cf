//! A quota over rows that you already have: at most n rows per user in any window.
//!
//! Where each request is a row of a table anyway, the table itself is the log, and a second store would only disagree
//! with it. [`Rows`] says which table and columns; [`Rows::install`] writes functions into the database that count and
//! insert in one transaction, usable from any language and from `psql` alone; [`Quota`] calls them.
//!
//! # Why a function
//! Counting first and inserting later admits every request that counts before the first insert. So does counting and
//! inserting in one statement, and so does taking a lock inside that statement: a statement sees the rows as they were
//! when it began. The function takes an advisory lock on the user in a statement of its own and counts in the next.
//!
//! # What it promises
//! - Never more than `limit` rows of one user in any window, if every insert goes through `consume` or the trigger.
//! - A refusal inserts no row. It says when the n-th newest row leaves the window, and an ask at that time passes.
//! - All times are UTC instants; a window of 24 hours has 24 hours on every day of the year.
//!
//! # Privileges
//! The functions are `SECURITY DEFINER` with a pinned `search_path`, owned by the owner of the table, and `PUBLIC` may call
//! none of them. A role that was granted `consume` ([`Installed::grants`]) needs no right on a table, and can neither insert
//! directly, nor choose the time of a request, nor delete rejections.

mod install;
mod open;
mod print;
mod quota;
mod review;
mod table;
mod template;

pub use install::{Grants, Installed};
pub use open::{DEGRADED_MESSAGE, FailOpen, SPOOL_MAX};
pub use print::ColumnTypes;
pub use quota::{Limited, Quota};

use tollgate::{Error, Span};

use self::table::{EQUALS, Table};
use crate::quote;

/// Which rows are counted, and how many are allowed.
///
/// ```
/// use tollgate::Span;
/// use tollgate_postgres::rows::Rows;
///
/// let videos = Rows::new("video_requests", 5, Span::from_hours(24))
///     .user_column("user_id")
///     .time_column("created_at");
/// assert_eq!(videos.schema(), "video_requests_quota");
/// ```
#[derive(Clone, Debug)]
pub struct Rows {
    pub(crate) table: String,
    pub(crate) limit: u32,
    pub(crate) window: Span,
    pub(crate) user: String,
    pub(crate) time: String,
    pub(crate) key: Option<String>,
    pub(crate) filter: Option<Filter>,
    pub(crate) schema: String,
    pub(crate) zone: Zone,
    pub(crate) audit: bool,
    pub(crate) trigger: bool,
    pub(crate) lock_timeout: Span,
}

/// What a time without a zone means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zone {
    /// Nothing: such a column is refused.
    Refused,
    /// It is in UTC.
    Utc,
}

/// Which rows count at all.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    pub(crate) column: String,
    pub(crate) values: Vec<String>,
    pub(crate) keeps: bool,
}

impl Rows {
    /// At most `limit` rows of `table` per user in any `window`. The columns are `user_id` and `created_at`, and the
    /// functions are in the schema `<table>_quota`.
    ///
    /// Names of tables, columns and schemas are literal (`Orders` is not folded to lower case), or quoted as in SQL
    /// (`app."Orders"`).
    #[must_use]
    pub fn new(table: &str, limit: u32, window: impl Into<Span>) -> Self {
        let (_, name) = quote::split(table);
        Self {
            table: table.to_owned(),
            limit,
            window: window.into(),
            user: "user_id".to_owned(),
            time: "created_at".to_owned(),
            key: None,
            filter: None,
            schema: format!("{name}_quota"),
            zone: Zone::Refused,
            audit: true,
            trigger: false,
            lock_timeout: crate::LOCK_TIMEOUT_DEFAULT,
        }
    }

    /// The column that says whose row it is, of any type that can be compared.
    #[must_use]
    pub fn user_column(mut self, column: &str) -> Self {
        self.user = quote::plain(column);
        self
    }

    /// The column that says when; its type is `timestamptz`.
    #[must_use]
    pub fn time_column(mut self, column: &str) -> Self {
        self.time = quote::plain(column);
        self
    }

    /// Takes a time column without a zone for UTC, instead of refusing it.
    #[must_use]
    pub const fn times_are_utc(mut self) -> Self {
        self.zone = Zone::Utc;
        self
    }

    /// The column of idempotency keys. Without one, keys and the rows they were admitted with are kept in a table beside.
    #[must_use]
    pub fn key_column(mut self, column: &str) -> Self {
        self.key = Some(quote::plain(column));
        self
    }

    /// Counts only rows whose `column` has one of `values`.
    #[must_use]
    pub fn only<'a>(mut self, column: &str, values: impl IntoIterator<Item = &'a str>) -> Self {
        self.filter = Some(Filter::new(column, values, true));
        self
    }

    /// Counts no row whose `column` has one of `values`.
    #[must_use]
    pub fn except<'a>(mut self, column: &str, values: impl IntoIterator<Item = &'a str>) -> Self {
        self.filter = Some(Filter::new(column, values, false));
        self
    }

    /// Puts the functions into another schema.
    #[must_use]
    pub fn in_schema(mut self, schema: &str) -> Self {
        self.schema = quote::plain(schema);
        self
    }

    /// Keeps no table of rejections; the server's log still has them.
    #[must_use]
    pub const fn without_audit(mut self) -> Self {
        self.audit = false;
        self
    }

    /// Also refuses inserts and updates by others that evade the quota, by a trigger with SQLSTATE `RL429`.
    #[must_use]
    pub const fn with_trigger(mut self) -> Self {
        self.trigger = true;
        self
    }

    /// How long a request waits for another one of the same user.
    #[must_use]
    pub fn lock_timeout(mut self, timeout: impl Into<Span>) -> Self {
        self.lock_timeout = timeout.into();
        self
    }

    /// The schema that the functions are in.
    #[must_use]
    pub fn schema(&self) -> &str {
        &self.schema
    }
}

impl Filter {
    fn new<'a>(column: &str, values: impl IntoIterator<Item = &'a str>, keeps: bool) -> Self {
        let values = values.into_iter().map(str::to_owned).collect();
        Self { column: quote::plain(column), values, keeps }
    }

    /// The condition as SQL on the row called `row` (empty for the table itself).
    pub(crate) fn sql(&self, row: &str, table: &Table) -> Result<String, Error> {
        let column = format!("{row}{}", quote::name(&self.column)?);
        let values: Vec<String> = self.values.iter().map(|value| quote::text(value)).collect();
        let list = if values.is_empty() { "NULL".to_owned() } else { values.join(", ") };
        let (kind, equals) = table.compared(&self.column)?;
        // IN would look for the operator on the search path.
        let any = format!("{column} {equals} ANY (ARRAY[{list}]::{kind}[])");
        // A row without a value is not one of the values, so it counts where these are left out.
        Ok(match (self.keeps, equals == EQUALS) {
            (true, true) => format!("{column} IN ({list})"),
            (true, false) => any,
            (false, true) => format!("({column} IS NULL OR {column} NOT IN ({list}))"),
            (false, false) => format!("({column} IS NULL OR NOT {any})"),
        })
    }
}
