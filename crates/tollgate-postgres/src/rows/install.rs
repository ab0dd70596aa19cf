//! Installs the functions of a quota and their indexes.

use tokio_postgres::types::Type;
use tollgate::{Error, ErrorKind, Span};

use super::table::{Column, Table};
use super::template::fill;
use super::{Rows, Zone};
use crate::options::Options;
use crate::pool::Pool;
use crate::quote;

const TEMPLATE: &str = include_str!("../sql/rows.sql");

const BEGIN: &str = "BEGIN;
SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog, pg_temp;
SELECT pg_advisory_xact_lock(hashtextextended(@quota_text@, 20251115));
";

const SCHEMA: &str = "DO $schema$ BEGIN
    -- IF NOT EXISTS would need CREATE on the database even if it does.
    IF to_regnamespace(@quota_text@) IS NULL THEN
        EXECUTE format('CREATE SCHEMA %s AUTHORIZATION %I', @quota_text@, @owner_text@);
    END IF;
END $schema$;
";

/// Finds the trigger by its function, so that quotas over one table keep each other's triggers.
const TRIGGER: &str = "
DO $trigger$
DECLARE
    v_name  name;
    v_count int := 1;
BEGIN
    SELECT tgname INTO v_name FROM pg_trigger
     WHERE tgrelid = @table_oid@ AND tgfoid = (@quota_text@ || '.enforce()')::regprocedure;
    IF NOT FOUND THEN
        v_name := 'tollgate_quota';
        WHILE EXISTS (SELECT FROM pg_trigger WHERE tgrelid = @table_oid@ AND tgname = v_name) LOOP
            v_count := v_count + 1;
            v_name := 'tollgate_quota_' || v_count;
        END LOOP;
    END IF;
    EXECUTE format('CREATE OR REPLACE TRIGGER %I BEFORE INSERT OR UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION %s.enforce()',
                   v_name, @table_text@, @quota_text@);
END $trigger$;
";

/// Dropping locks the table, so it happens only if there is a trigger.
const NO_TRIGGER: &str = "
DO $trigger$
DECLARE
    v_name name;
BEGIN
    FOR v_name IN SELECT tgname FROM pg_trigger
                   WHERE tgrelid = @table_oid@ AND tgfoid = (@quota_text@ || '.enforce()')::regprocedure LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', v_name, @table_text@);
    END LOOP;
END $trigger$;
";

/// Fails if the owner of the functions may not read the table, or if row-level security hides rows from it.
const COMMIT: &str = "SET LOCAL row_security = off;\nSELECT FROM @table@ LIMIT 0;\nCOMMIT;";

/// The declaration of every function. Callers control neither the search path nor row-level security; if it would hide rows,
/// counting fails.
const DEFINER: &str =
    "SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET row_security = off";

const DOING: &str = "could not install the quota";

/// The highest limit: a decision reads so many index entries.
const LIMIT_MAX: u32 = 100_000;

/// The most recent requests recorded with a refusal. Recording thousands takes longer than deciding.
const AUDITED_MAX: u32 = 100;

/// The result of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The table, quoted, with its schema.
    pub table: String,
    /// The schema of the functions, quoted.
    pub schema: String,
    /// Indexes that were created.
    pub indexes_made: Vec<String>,
    /// The role of the functions.
    pub owner: String,
    /// The statements that allow other roles to call the functions, which [`Rows::install`] does not run.
    pub grants: Grants,
    /// Roles that can bypass the quota, and triggers that it may break, each with what to do.
    pub warnings: Vec<String>,
}

/// Statements for an operator to run, each for the role [`Grants::ROLE`], to be replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grants {
    /// To consume, and nothing else.
    pub consume: Vec<String>,
    /// To read what a user has left, besides.
    pub read: Vec<String>,
    /// To record requests that were admitted while the database was unavailable, as [`FailOpen`](super::FailOpen) does.
    /// Such a role may exceed the limit and date rows back.
    pub replay: Vec<String>,
}

impl Grants {
    /// Placeholder for the name of a role.
    pub const ROLE: &str = "my_role";

    pub(super) fn new(schema: &str, user_type: &str) -> Self {
        let execute =
            |functions: &str| format!("GRANT EXECUTE ON FUNCTION {functions} TO {};", Self::ROLE);
        Self {
            consume: vec![
                format!("GRANT USAGE ON SCHEMA {schema} TO {};", Self::ROLE),
                execute(&format!("{schema}.consume({user_type}, text, jsonb)")),
            ],
            read: vec![execute(&format!(
                "{schema}.check({user_type}), {schema}.remaining({user_type}), {schema}.info({user_type})"
            ))],
            replay: vec![execute(&format!(
                "{schema}.replay({user_type}, text, timestamptz, jsonb)"
            ))],
        }
    }
}

impl Rows {
    /// Installs the functions, replacing those of an earlier install, and creates missing indexes without locking the table.
    ///
    /// The functions run as the owner of the table if the current role is a member of it, and otherwise as the current
    /// role. Nothing is granted; privileges that roles were granted on the functions of an earlier install are kept, those of
    /// `PUBLIC` are revoked.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an unsuitable table, column or type; otherwise as every call.
    pub async fn install(&self, options: &Options) -> Result<Installed, Error> {
        let pool = Pool::new(options.clone())?;
        self.check_limit()?;
        let table = Table::find(&pool, self).await?;
        let schema = quote::name(&self.schema)?;
        let owner = self.owner(&pool, &table).await?;
        pool.run(&self.script(&table, &schema, &quote::text(&owner), "")?, DOING).await?;
        let mut indexes_made = Vec::new();
        for index in self.indexes(&table)? {
            if index.make(&pool, &table).await? {
                indexes_made.push(index.name);
            }
        }
        let grants = Grants::new(&schema, table.column(&self.user)?.shown());
        let warnings = self.review(&pool, &table).await?;
        Ok(Installed { table: table.name, schema, indexes_made, owner, grants, warnings })
    }

    pub(super) fn check_limit(&self) -> Result<(), Error> {
        let text = if !(1..=LIMIT_MAX).contains(&self.limit) {
            format!("postgres: limit {} must be between 1 and {LIMIT_MAX}", self.limit)
        } else if self.window == Span::ZERO {
            "postgres: a window of 0s holds no row; give one such as 24h".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// Returns the role of the functions. They do not get the rights of a superuser who installs them.
    async fn owner(&self, pool: &Pool, table: &Table) -> Result<String, Error> {
        let found = pool
            .query(
                "SELECT pg_get_userbyid(CASE WHEN pg_has_role(c.relowner, 'MEMBER') THEN c.relowner ELSE coalesce( \
                     (SELECT min(p.proowner) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
                       WHERE n.nspname = $2 AND p.proname = 'consume_at'), current_user::regrole) END)::text \
                   FROM pg_class c WHERE c.oid = $1",
                &[(&table.number, Type::OID), (&self.schema, Type::TEXT)],
                DOING,
            )
            .await?;
        let gone =
            || Error::new(ErrorKind::Invalid, format!("postgres: {} was dropped", table.name));
        found.first().map(|row| row.get(0)).ok_or_else(gone)
    }

    /// Returns one transaction that begins with `first`. `owner` is an expression for the role of the functions.
    pub(super) fn script(
        &self,
        table: &Table,
        schema: &str,
        owner: &str,
        first: &str,
    ) -> Result<String, Error> {
        let trigger = if self.trigger { TRIGGER } else { NO_TRIGGER };
        let template = format!("{BEGIN}{first}{SCHEMA}{TEMPLATE}{trigger}{COMMIT}");
        fill(&template, &self.values(table, schema, owner)?)
    }

    fn values(
        &self,
        table: &Table,
        schema: &str,
        owner: &str,
    ) -> Result<Vec<(&'static str, String)>, Error> {
        let (user, time) = (quote::name(&self.user)?, quote::name(&self.time)?);
        let user_column = table.column(&self.user)?;
        let user_equals = &user_column.equals;
        let window = interval(self.window);
        let utc = |value: &str| match (self.zone, table.is_local) {
            (Zone::Utc, true) => format!("({value} AT TIME ZONE 'UTC')"),
            _ => value.to_owned(),
        };
        let filter = match &self.filter {
            Some(filter) => format!(" AND {}", filter.sql("r.", table)?),
            None => String::new(),
        };
        let counts = |row: &str| match &self.filter {
            Some(filter) => Ok::<_, Error>(format!("coalesce({}, false)", filter.sql(row, table)?)),
            None => Ok("true".to_owned()),
        };
        let mut columns = format!("{user}, {time}");
        let (mut key_column, mut key_value, mut key_parameter) = Default::default();
        let (find_key, keep_key) = match &self.key {
            Some(key) => {
                let (kind, equals) = table.compared(key)?;
                let key = quote::name(key)?;
                key_column = format!(", {key}");
                key_value = format!(", p_key::{kind}");
                key_parameter = format!(", $3::{kind}");
                columns.push_str(&key_column);
                let find = format!(
                    "SELECT to_jsonb(r) INTO v_new FROM {} r \
                     WHERE r.{user} {user_equals} p_user AND r.{key} {equals} p_key::{kind};",
                    table.name
                );
                (find, String::new())
            }
            None => (
                format!(
                    "SELECT i.admitted_row INTO v_new FROM {schema}.ids i \
                     WHERE i.user_id {user_equals} p_user AND i.id = p_key AND i.consumed_at > v_now - {window};"
                ),
                format!(
                    "IF p_key IS NOT NULL THEN INSERT INTO {schema}.ids (user_id, id, consumed_at, admitted_row) \
                     VALUES (p_user, p_key, v_now, v_new) ON CONFLICT (user_id, id) \
                     DO UPDATE SET consumed_at = excluded.consumed_at, admitted_row = excluded.admitted_row; END IF;"
                ),
            ),
        };
        Ok(vec![
            ("quota", schema.to_owned()),
            ("quota_text", quote::text(schema)),
            ("owner_text", owner.to_owned()),
            ("definer", DEFINER.to_owned()),
            ("table", table.name.clone()),
            ("table_oid", format!("{}::regclass", quote::text(&table.name))),
            ("table_text", quote::text(&table.name)),
            ("columns_text", quote::text(&columns)),
            ("user", user),
            ("user_type", user_column.type_name.clone()),
            ("user_type_text", quote::text(&user_column.type_name)),
            ("user_type_oid", format!("{}::regtype", quote::text(&user_column.type_name))),
            ("user_equals", user_equals.clone()),
            ("time", time.clone()),
            ("limit", self.limit.to_string()),
            ("window", window.clone()),
            ("window_text", self.window.to_string()),
            ("window_start", utc(&format!("(p_now - {window})"))),
            ("now_value", utc("v_now")),
            ("row_out", utc(&format!("r.{time}"))),
            ("old_time", utc(&format!("OLD.{time}"))),
            ("new_time", utc(&format!("NEW.{time}"))),
            ("filter", filter),
            ("old_counts", counts("OLD.")?),
            ("new_counts", counts("NEW.")?),
            ("check_row", self.check_row_sql(table)?),
            ("key_column", key_column),
            ("key_value", key_value),
            ("key_parameter", quote::text(&key_parameter)),
            ("find_key", find_key),
            ("keep_key", keep_key),
            ("audit", self.audit_sql(schema, &window)),
            ("lock_timeout", format!("{}ms", self.lock_timeout.as_millis_ceil().max(1))),
            ("lock_key", lock_key(table, user_column)),
        ])
    }

    /// Refuses values of further columns with which the row would not count, so that callers of `consume` cannot evade the
    /// limit.
    fn check_row_sql(&self, table: &Table) -> Result<String, Error> {
        let Some(filter) = &self.filter else { return Ok(String::new()) };
        let column = quote::text(&filter.column);
        // A longer name is truncated, as in a statement.
        Ok(format!(
            "IF EXISTS (SELECT FROM jsonb_object_keys(p_row) k WHERE k::name = {column}::name) AND NOT EXISTS \
             (SELECT FROM jsonb_populate_record(NULL::{}, p_row) n WHERE {}) THEN \
             RAISE EXCEPTION 'a row with % in column % would not count', p_row -> {column}, {column} \
             USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave the column out, or give it a value that the quota counts.'; \
             END IF;",
            table.name,
            filter.sql("n.", table)?
        ))
    }

    fn audit_sql(&self, schema: &str, window: &str) -> String {
        let limit = self.limit;
        let warning = format!(
            "RAISE WARNING 'rate limit: user_id=% request_count=% oldest_request_time=% reset_time=% recent=%', p_user, \
             cardinality(v_recent), v_recent[cardinality(v_recent)], v_recent[{limit}] + {window}, v_recent[:{AUDITED_MAX}];"
        );
        if !self.audit {
            return warning;
        }
        format!(
            "INSERT INTO {schema}.rejections \
             (rejected_at, user_id, request_count, oldest_request_time, reset_time, recent_requests) VALUES \
             (v_now, p_user, cardinality(v_recent), v_recent[cardinality(v_recent)], v_recent[{limit}] + {window}, v_recent[:{AUDITED_MAX}]);\n\
             \x20       {warning}"
        )
    }

    pub(super) fn indexes(&self, table: &Table) -> Result<Vec<Index>, Error> {
        let (user, time) = (quote::name(&self.user)?, quote::name(&self.time)?);
        let plain = &table.plain_name;
        let (user_place, time_place) = table.places(self)?;
        let only = match &self.filter {
            Some(filter) => format!(" WHERE {}", filter.sql("", table)?),
            None => String::new(),
        };
        let mut all = vec![Index {
            name: index_name(plain, "user_time"),
            on: format!("({user}, {time} DESC){only}"),
            unique: "",
            // An index over every row works too, but may read more than it counts.
            served_by: only.is_empty().then_some([user_place, time_place]),
        }];
        if let Some(key) = &self.key {
            let key = quote::name(key)?;
            all.push(Index {
                name: index_name(plain, "user_key"),
                on: format!("({user}, {key}) WHERE {key} IS NOT NULL"),
                unique: "UNIQUE ",
                served_by: None,
            });
        }
        Ok(all)
    }
}

/// An index that the functions need.
pub(super) struct Index {
    name: String,
    on: String,
    unique: &'static str,
    /// The columns of any other index that would do.
    served_by: Option<[i16; 2]>,
}

impl Index {
    /// Creates it if it is missing. Returns whether it did.
    async fn make(&self, pool: &Pool, table: &Table) -> Result<bool, Error> {
        let found = pool
            .query(
                "SELECT c.relname::text, i.indisvalid, i.indpred IS NULL AND i.indkey[0] = $2 AND i.indkey[1] = $3, \
                        format('%I.%I', n.nspname, c.relname) \
                   FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
                  WHERE i.indrelid = $1",
                &[
                    (&table.number, Type::OID),
                    (&self.served_by.map_or(0, |places| places[0]), Type::INT2),
                    (&self.served_by.map_or(0, |places| places[1]), Type::INT2),
                ],
                DOING,
            )
            .await?;
        for row in &found {
            let (name, valid, serves): (String, bool, bool) = (row.get(0), row.get(1), row.get(2));
            if valid && (name == self.name || serves) {
                return Ok(false);
            }
            if !valid && name == self.name {
                // Left behind by an attempt that failed half way.
                let path: String = row.get(3);
                pool.run(&format!("DROP INDEX CONCURRENTLY IF EXISTS {path}"), DOING).await?;
            }
        }
        pool.run(&self.sql(table)?, DOING).await?;
        Ok(true)
    }

    /// The statement that makes it, outside of a transaction.
    pub(super) fn sql(&self, table: &Table) -> Result<String, Error> {
        let (unique, name, on) = (self.unique, quote::name(&self.name)?, &self.on);
        Ok(format!("CREATE {unique}INDEX CONCURRENTLY IF NOT EXISTS {name} ON {} {on}", table.name))
    }
}

/// The number of the lock of `p_user` on `table`.
fn lock_key(table: &Table, user: &Column) -> String {
    let seed = format!("hashtextextended({}, 0)", quote::text(&table.name));
    if !user.locked_by_value {
        return format!("hashtextextended(p_user::text, {seed})");
    }
    let collate =
        user.collation.as_ref().map_or_else(String::new, |name| format!(" COLLATE {name}"));
    format!("hash_record_extended(ROW(p_user{collate}), {seed})")
}

fn index_name(table: &str, what: &str) -> String {
    let room = quote::NAME_BYTES_MAX - "__tollgate".len() - what.len();
    let end = table
        .char_indices()
        .map(|(at, letter)| at + letter.len_utf8())
        .take_while(|end| *end <= room);
    format!("{}_{what}_tollgate", &table[..end.last().unwrap_or(0)])
}

/// A window as SQL. Hours and microseconds, never days: a day may have 23 or 25 hours.
fn interval(window: Span) -> String {
    let micros = window.as_micros();
    const HOUR: u64 = 3_600_000_000;
    if micros.is_multiple_of(HOUR) {
        format!("interval '{} hours'", micros / HOUR)
    } else {
        format!("interval '{micros} microseconds'")
    }
}
