//! Writing the functions of a quota into the database, and the indexes they need.

use tokio_postgres::types::Type;
use tollgate::{Error, ErrorKind, Span};

use super::table::Table;
use super::template::fill;
use super::{Rows, Zone};
use crate::options::Options;
use crate::pool::Pool;
use crate::quote;

const TEMPLATE: &str = include_str!("../sql/rows.sql");
const DOING: &str = "could not install the quota";

/// The most rows that a quota allows in a window: so many index entries are read for a decision.
const LIMIT_MAX: u32 = 100_000;

/// How many of the newest requests are written down with a refusal. Writing thousands takes longer than deciding.
const AUDITED_MAX: u32 = 100;

/// What was installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The table, quoted, with its schema.
    pub table: String,
    /// The schema of the functions, quoted.
    pub schema: String,
    /// Indexes that were made because none did.
    pub indexes_made: Vec<String>,
}

impl Rows {
    /// Writes the functions into the database, again where they are there already, and makes the indexes that are
    /// missing, without locking the table.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a table, column or type that does not fit, with what would; otherwise as every call.
    pub async fn install(&self, options: &Options) -> Result<Installed, Error> {
        let pool = Pool::new(options.clone())?;
        if self.limit == 0 || LIMIT_MAX < self.limit {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("postgres: limit {} must be between 1 and {LIMIT_MAX}", self.limit),
            ));
        }
        let table = Table::find(&pool, self).await?;
        let schema = quote::name(&self.schema)?;
        pool.run(&self.script(&table, &schema)?, DOING).await?;
        let mut indexes_made = Vec::new();
        for index in self.indexes(&table)? {
            if index.make(&pool, &table).await? {
                indexes_made.push(index.name);
            }
        }
        Ok(Installed { table: table.name, schema, indexes_made })
    }

    fn script(&self, table: &Table, schema: &str) -> Result<String, Error> {
        let body = fill(TEMPLATE, &self.values(table, schema)?)?;
        let mut script = format!(
            "BEGIN;\nSET LOCAL client_min_messages = warning;\n\
             SELECT pg_advisory_xact_lock(hashtextextended({}, 20251115));\n\
             CREATE SCHEMA IF NOT EXISTS {schema};\n{body}\n",
            quote::text(schema)
        );
        let name = &table.name;
        script.push_str(&if self.trigger {
            format!(
                "CREATE OR REPLACE TRIGGER tollgate_quota BEFORE INSERT ON {name} FOR EACH ROW \
                 EXECUTE FUNCTION {schema}.enforce();\n"
            )
        } else {
            // Dropping locks the table, so only where there is one.
            format!(
                "DO $drop$ BEGIN IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = {} AND tgname = 'tollgate_quota') THEN \
                 DROP TRIGGER tollgate_quota ON {name}; END IF; END $drop$;\n",
                table.number
            )
        });
        script.push_str("COMMIT;");
        Ok(script)
    }

    fn values(&self, table: &Table, schema: &str) -> Result<Vec<(&'static str, String)>, Error> {
        let (user, time) = (quote::name(&self.user)?, quote::name(&self.time)?);
        let window = interval(self.window);
        let utc = |value: &str| match (self.zone, table.is_local) {
            (Zone::Utc, true) => format!("({value} AT TIME ZONE 'UTC')"),
            _ => value.to_owned(),
        };
        let filter = match &self.filter {
            Some(filter) => format!(" AND {}", filter.sql("r.")?),
            None => String::new(),
        };
        let mut columns = format!("{user}, {time}");
        let (mut key_column, mut key_value, mut key_parameter) = Default::default();
        let (find_key, keep_key) = match (&self.key, &table.key_type) {
            (Some(key), Some(kind)) => {
                let key = quote::name(key)?;
                key_column = format!(", {key}");
                key_value = format!(", p_key::{kind}");
                key_parameter = format!(", $3::{kind}");
                columns.push_str(&key_column);
                let find = format!(
                    "SELECT to_jsonb(r) INTO v_new FROM {} r WHERE r.{user} = p_user AND r.{key} = p_key::{kind};",
                    table.name
                );
                (find, String::new())
            }
            _ => (
                format!(
                    "SELECT NULL::jsonb INTO v_new FROM {schema}.ids i \
                     WHERE i.user_id = p_user AND i.id = p_key AND i.consumed_at > v_now - {window};"
                ),
                format!(
                    "IF p_key IS NOT NULL THEN INSERT INTO {schema}.ids VALUES (p_user, p_key, v_now) \
                     ON CONFLICT (user_id, id) DO UPDATE SET consumed_at = excluded.consumed_at; END IF;"
                ),
            ),
        };
        Ok(vec![
            ("quota", schema.to_owned()),
            ("table", table.name.clone()),
            ("table_text", quote::text(&table.name)),
            ("columns_text", quote::text(&columns)),
            ("user", user),
            ("user_type", table.user_type.clone()),
            ("time", time.clone()),
            ("limit", self.limit.to_string()),
            ("window", window.clone()),
            ("window_text", self.window.to_string()),
            ("window_start", utc(&format!("(p_now - {window})"))),
            ("now_value", utc("v_now")),
            ("row_out", utc(&format!("r.{time}"))),
            ("filter", filter),
            ("key_column", key_column),
            ("key_value", key_value),
            ("key_parameter", quote::text(&key_parameter)),
            ("find_key", find_key),
            ("keep_key", keep_key),
            ("audit", self.audit_sql(schema, &window)),
            ("lock_timeout", format!("{}ms", self.lock_timeout.as_millis_ceil().max(1))),
            ("seed", format!("hashtextextended({}, 0)", quote::text(&table.name))),
        ])
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

    fn indexes(&self, table: &Table) -> Result<Vec<Index>, Error> {
        let (user, time) = (quote::name(&self.user)?, quote::name(&self.time)?);
        let plain = self.table.rsplit('.').next().unwrap_or(&self.table);
        let (user_place, time_place) = table.places(self)?;
        let only = match &self.filter {
            Some(filter) => format!(" WHERE {}", filter.sql("")?),
            None => String::new(),
        };
        let mut all = vec![Index {
            name: index_name(plain, "user_time"),
            on: format!("({user}, {time} DESC){only}"),
            unique: "",
            // One that covers every row serves too, but may read more than it counts.
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
struct Index {
    name: String,
    on: String,
    unique: &'static str,
    /// The columns of any other index that would do.
    served_by: Option<[i16; 2]>,
}

impl Index {
    /// Makes it if there is none; whether it did.
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
        let (unique, name, on) = (self.unique, quote::name(&self.name)?, &self.on);
        let sql = format!(
            "CREATE {unique}INDEX CONCURRENTLY IF NOT EXISTS {name} ON {} {on}",
            table.name
        );
        pool.run(&sql, DOING).await?;
        Ok(true)
    }
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
