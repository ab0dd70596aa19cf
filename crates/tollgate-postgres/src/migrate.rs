//! Migrations of the tables and functions.
//!
//! All migrations run in one transaction that holds an advisory lock on the schema's name, so of several processes that start
//! together one migrates. An up-to-date schema is only read.

use tokio_postgres::types::Type;
use tollgate::{Error, ErrorKind};

use crate::options::FORMAT_NEWEST;
use crate::pool::Pool;
use crate::quote;

/// The migrations from each version to the next. Released migrations never change. The functions belong to the last one: it
/// drops those of earlier versions, and renames functions or changes their parameters, so that a broker of an earlier version
/// fails instead of using another layout.
const MIGRATIONS: [&str; FORMAT_NEWEST as usize] = [
    include_str!("sql/1_tables.sql"),
    include_str!("sql/6_audit.sql"),
    include_str!("sql/7_overrides.sql"),
    concat!(
        include_str!("sql/8_beside.sql"),
        include_str!("sql/2_take.sql"),
        include_str!("sql/3_verbs.sql"),
        include_str!("sql/4_settle.sql"),
        include_str!("sql/5_close.sql"),
        include_str!("sql/9_joint.sql"),
    ),
];

const DOING: &str = "could not make the tables";

/// Upgrades the schema to the newest version, unless the options keep an older one. Returns its version.
pub(crate) async fn check(pool: &Pool, schema: &str) -> Result<u8, Error> {
    let version = version(pool, schema).await?;
    let Some(known) = u8::try_from(version).ok().filter(|version| *version <= FORMAT_NEWEST) else {
        return Err(Error::new(
            ErrorKind::Misconfigured,
            format!(
                "postgres: the schema {schema} has version {version}, and this program supports {FORMAT_NEWEST}; use a newer program"
            ),
        ));
    };
    let format = pool.options().format;
    if format <= known {
        return Ok(known);
    }
    if format < FORMAT_NEWEST {
        let found = match version {
            0 => "has no tables yet".to_owned(),
            _ => format!("is of version {version}"),
        };
        return Err(Error::new(
            ErrorKind::Misconfigured,
            format!(
                "postgres: the schema {schema} {found}, and format = {format} is for a schema of the version before; \
                 remove format from [store]"
            ),
        ));
    }
    if !pool.options().migrate {
        return Err(Error::new(
            ErrorKind::Misconfigured,
            format!(
                "postgres: the schema {schema} is of version {version} and must be of version {FORMAT_NEWEST}; run \
                 `tollgate postgres install`"
            ),
        ));
    }
    pool.run(&script(schema), DOING).await?;
    Ok(FORMAT_NEWEST)
}

/// Reads the version of the schema; 0 if there is none.
pub(crate) async fn version(pool: &Pool, schema: &str) -> Result<u32, Error> {
    let table = format!("{schema}.migrations");
    let found =
        pool.query("SELECT to_regclass($1) IS NOT NULL", &[(&table, Type::TEXT)], DOING).await?;
    if !found.first().is_some_and(|row| row.get(0)) {
        return Ok(0);
    }
    let sql = format!("SELECT coalesce(max(version), 0) FROM {table}");
    let rows = pool.query(&sql, &[], DOING).await?;
    let version: i32 = rows.first().map_or(0, |row| row.get(0));
    Ok(u32::try_from(version).unwrap_or(0))
}

/// Returns the script that creates or upgrades the tables and functions in `schema`; `tollgate postgres install` runs it.
///
/// # Errors
/// [`ErrorKind::Invalid`] for an invalid name.
pub fn install_sql(schema: &str) -> Result<String, Error> {
    quote::name(schema).map(|schema| script(&schema))
}

/// Returns the script of all missing migrations.
fn script(schema: &str) -> String {
    let mut sql = format!(
        "BEGIN;\n\
         SET LOCAL client_min_messages = warning;\n\
         SET LOCAL lock_timeout = 0;\n\
         SELECT pg_advisory_xact_lock(hashtextextended({name}, 20251115));\n\
         CREATE SCHEMA IF NOT EXISTS {schema};\n\
         CREATE TABLE IF NOT EXISTS {schema}.migrations (version int PRIMARY KEY, made_at timestamptz NOT NULL DEFAULT now());\n",
        name = quote::text(schema),
    );
    for (place, migration) in MIGRATIONS.iter().enumerate() {
        let version = place + 1;
        let body = migration.replace("@schema@", schema);
        // A separate statement after the lock sees the commit of the process that migrated.
        sql.push_str(&format!(
            "DO $migration$ BEGIN\n\
             IF NOT EXISTS (SELECT FROM {schema}.migrations WHERE version = {version}) THEN\n\
             EXECUTE $body$\n{body}\n$body$;\n\
             INSERT INTO {schema}.migrations (version) VALUES ({version});\n\
             END IF;\nEND $migration$;\n"
        ));
    }
    sql.push_str("COMMIT;");
    sql
}
