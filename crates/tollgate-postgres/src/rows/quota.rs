//! Asking an installed quota from Rust. Every language can ask the same functions.

use serde_json::{Value, json};
use tokio_postgres::types::Type;
use tollgate::{Error, ErrorKind, Timestamp};

use crate::error;
use crate::options::Options;
use crate::pool::{Parameter, Pool};
use crate::quote;

const DOING: &str = "could not decide";

/// An installed quota.
#[derive(Debug)]
pub struct Quota {
    pool: Pool,
    schema: String,
    user_type: String,
    /// Whether this role may call `replay`; `None` if there is no such function, or one that takes no columns.
    replays: Option<bool>,
}

/// A user who reached the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// Who, as text.
    pub user: String,
    /// How many requests they made in the time that was asked for.
    pub total_requests: u64,
    /// When they first had no request left.
    pub first_limited_at: Timestamp,
}

impl Quota {
    /// The quota whose functions [`Rows::install`](super::Rows::install) wrote into `schema`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there is no quota in this schema; otherwise as every call.
    pub async fn open(options: Options, schema: &str) -> Result<Self, Error> {
        let schema = quote::plain(schema);
        let quoted = quote::name(&schema)?;
        let pool = Pool::new(options)?;
        let found = pool
            .query(
                "SELECT format('%I.%I', tn.nspname, t.typname), \
                        (SELECT bool_or(has_function_privilege(r.oid, 'EXECUTE')) FROM pg_proc r \
                          WHERE r.pronamespace = n.oid AND r.proname = 'replay' AND r.pronargs = 4) \
                   FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
                   JOIN pg_type t ON t.oid = p.proargtypes[0] JOIN pg_namespace tn ON tn.oid = t.typnamespace \
                  WHERE n.nspname = $1 AND p.proname = 'consume' AND p.proargnames[1] = 'p_user'",
                &[(&schema, Type::TEXT)],
                DOING,
            )
            .await?;
        let Some(row) = found.first() else {
            let text = format!(
                "postgres: there is no quota in the schema {schema:?}; install one with \
                 `tollgate postgres install --table TABLE`, or name the schema of another"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        };
        let replays = row.get(1);
        Ok(Self { user_type: row.get(0), pool, schema: quoted, replays })
    }

    /// Decides, and inserts the row if there is room. Returns `{allowed, remaining, resetTime, waitSeconds}`, and `row` if
    /// it is allowed. A repeated key returns the row of its first admission with `duplicate: true`, and inserts nothing.
    ///
    /// # Errors
    /// [`Contended`](tollgate::ErrorKind::Contended) if another request of the same user takes too long; otherwise as
    /// every call.
    pub async fn consume(&self, user: &str, key: Option<&str>) -> Result<Value, Error> {
        self.consume_with(user, key, &json!({})).await
    }

    /// As [`consume`](Self::consume), with values of further columns: a JSON object of names and values, such as
    /// `{"title": "holidays"}`. Names are literal, and a value is converted to the type of its column as PostgreSQL converts
    /// JSON. Columns that are left out get their defaults.
    ///
    /// # Errors
    /// As [`consume`](Self::consume); [`Invalid`](ErrorKind::Invalid) if `columns` is not an object, or if the table does not
    /// take the row.
    pub async fn consume_with(
        &self,
        user: &str,
        key: Option<&str>,
        columns: &Value,
    ) -> Result<Value, Error> {
        check_columns(columns)?;
        let call = format!("consume({}, $2, $3)", self.user());
        let parameters =
            [(&user as _, Type::TEXT), (&key as _, Type::TEXT), (columns as _, Type::JSONB)];
        self.value(&call, &parameters).await
    }

    /// Asks the same, consuming nothing.
    ///
    /// # Errors
    /// As every call.
    pub async fn check(&self, user: &str) -> Result<Value, Error> {
        self.value(&format!("check({})", self.user()), &[(&user, Type::TEXT)]).await
    }

    /// Returns the standing of a user: `{quotaUsed, quotaLimit, resetTime, resetIn}`.
    ///
    /// # Errors
    /// As every call.
    pub async fn info(&self, user: &str) -> Result<Value, Error> {
        self.value(&format!("info({})", self.user()), &[(&user, Type::TEXT)]).await
    }

    /// How many more requests would be let through now.
    ///
    /// # Errors
    /// As every call.
    pub async fn remaining(&self, user: &str) -> Result<u32, Error> {
        let sql = format!("SELECT {}.remaining({})", self.schema, self.user());
        let rows = self.pool.query(&sql, &[(&user, Type::TEXT)], DOING).await?;
        let left: i32 = rows.first().map_or(0, |row| row.get(0));
        Ok(u32::try_from(left).unwrap_or(0))
    }

    /// Users who reached the limit in any window that ended from `from` to `to`, the first of them first.
    ///
    /// # Errors
    /// As every call.
    pub async fn history(&self, from: Timestamp, to: Timestamp) -> Result<Vec<Limited>, Error> {
        let sql = format!(
            "SELECT user_id::text, total_requests, (extract(epoch FROM first_limited_at) * 1000000)::bigint \
             FROM {}.history($1::text::timestamptz, $2::text::timestamptz)",
            self.schema
        );
        let (from, to) = (from.to_string(), to.to_string());
        let rows = self.pool.query(&sql, &[(&from, Type::TEXT), (&to, Type::TEXT)], DOING).await?;
        let natural = |number: i64| u64::try_from(number).unwrap_or(0);
        Ok(rows
            .iter()
            .map(|row| Limited {
                user: row.get(0),
                total_requests: natural(row.get(1)),
                first_limited_at: Timestamp::from_micros(natural(row.get(2))),
            })
            .collect())
    }

    /// Checks that this role may record requests that were admitted while the database was unavailable.
    pub(super) fn check_replays(&self) -> Result<(), Error> {
        let schema = &self.schema;
        let text = match self.replays {
            Some(true) => return Ok(()),
            Some(false) => format!(
                "this role may not call {schema}.replay, which records requests that were admitted while the database was \
                 unavailable; GRANT EXECUTE on it, as `tollgate postgres install` prints"
            ),
            None => format!(
                "{schema} has no function replay that takes columns, so an older version installed it; run \
                 `tollgate postgres install` again"
            ),
        };
        Err(Error::new(ErrorKind::Invalid, format!("postgres: {text}")))
    }

    /// The first parameter, in the type of the user column.
    pub(super) fn user(&self) -> String {
        format!("$1::text::{}", self.user_type)
    }

    pub(super) async fn value(
        &self,
        call: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Value, Error> {
        let sql = format!("SELECT {}.{call}", self.schema);
        let rows = self.pool.query(&sql, parameters, DOING).await.map_err(refused_row)?;
        Ok(rows.first().map_or(Value::Null, |row| row.get(0)))
    }
}

/// Distinguishes a row that the table rejects from a database failure: the former never fails open.
fn refused_row(error: Error) -> Error {
    let code = error::refusal(&error).map(|refusal| refusal.code().code().to_owned());
    // Data exceptions, constraints, views with a check option, what triggers raise; columns that are given twice, that have
    // another type, or that are always generated.
    let is_row = |code: &str| {
        ["22", "23", "44", "P0"].iter().any(|class| code.starts_with(class))
            || ["42701", "42804", "428C9"].contains(&code)
    };
    match code {
        Some(code) if error.is_unavailable() && is_row(&code) => {
            Error::new(ErrorKind::Invalid, error.to_string()).caused_by(error)
        }
        _ => error,
    }
}

/// Refuses columns that are not a JSON object.
pub(super) fn check_columns(columns: &Value) -> Result<(), Error> {
    if columns.is_object() {
        return Ok(());
    }
    let found: String = columns.to_string().chars().take(100).collect();
    let text = format!(
        "postgres: the columns of a row must be a JSON object, as in {{\"title\": \"holidays\"}}, and this is: {found}"
    );
    Err(Error::new(ErrorKind::Invalid, text))
}
