//! `tollgate postgres install` and `tollgate audit history`: commands on the database itself.

use std::path::Path;

use serde::Serialize;
use serde_json::json;
use tollgate::clock::SystemClock;
use tollgate::internal::edge::environment;
use tollgate::{Clock, Error, ErrorKind, Span, Timestamp};
use tollgate_postgres::rows::{ColumnTypes, Grants, Installed, Quota, Rows};
use tollgate_postgres::{FORMATS, Options, Postgres, SCHEMA_DEFAULT, install_sql};

use crate::args::{AuditHistory, Database, PostgresInstall};
use crate::config;
use tollgate_config::StoreConfig;
use tollgate_config::open;
use tollgate_terminal::Failure;
use tollgate_terminal::output::{self, OutputFormat};

/// Makes the tables of the store, or the functions of a quota over a table.
pub(crate) async fn install(
    flags: PostgresInstall,
    config: Option<&Path>,
    format: OutputFormat,
) -> Result<(), Failure> {
    if flags.print {
        return print(&flags, config, format);
    }
    let options = options(&flags.database, config)?;
    let Some(table) = &flags.table else {
        let version = Postgres::open(options).await?.format();
        #[derive(Serialize)]
        struct Ready {
            ready: bool,
            version: u8,
        }
        return output::print(format, &Ready { ready: true, version }, || {
            format!("the tables and functions of the store are there, of version {version}")
        });
    };
    let made = rows(table, &flags)?.install(&options).await?;
    let Installed { table, schema, indexes_made, owner, grants, warnings } = &made;
    let Grants { consume, read, replay } = grants;
    let value = json!({
        "table": table, "schema": schema, "indexes_made": indexes_made, "owner": owner,
        "grants": { "consume": consume, "read": read, "replay": replay }, "warnings": warnings,
    });
    output::print(format, &value, || {
        let indexes = match made.indexes_made.as_slice() {
            [] => "were there".to_owned(),
            names => format!("made {}", names.join(", ")),
        };
        let lines =
            |lines: &[String]| lines.iter().map(|line| format!("\n  {line}")).collect::<String>();
        let mut text = format!(
            "quota over {table}: at most {} rows per user in {}\n\
             \x20 functions  {schema}.consume, check, remaining, info, history\n\
             \x20 run as     {owner}\n\
             \x20 indexes    {indexes}\n\
             Try it:\n\
             \x20 SELECT {schema}.consume('alice');\n\
             Let a role consume, and nothing else:{}\n\
             Let it read what a user has left, too:{}\n\
             Let it record what it admitted while the database was unavailable, even beyond the limit:{}",
            flags.limit,
            flags.window,
            lines(consume),
            lines(read),
            lines(replay)
        );
        if !warnings.is_empty() {
            text.push_str(&format!("\nWarnings:{}", lines(warnings)));
        }
        text
    })
}

/// Prints what an install would run. Nothing is connected to.
fn print(
    flags: &PostgresInstall,
    config: Option<&Path>,
    format: OutputFormat,
) -> Result<(), Failure> {
    let sql = match &flags.table {
        Some(table) => {
            let types = ColumnTypes { user: flags.user_type.clone(), key: flags.key_type.clone() };
            rows(table, flags)?.print(&types)?
        }
        None => install_sql(&printed_schema(config)?)?,
    };
    output::print(format, &json!({ "sql": sql }), || sql.trim_end().to_owned())
}

/// The schema of the store that a printed script makes.
fn printed_schema(config: Option<&Path>) -> Result<String, Failure> {
    match config::load(config)?.store {
        StoreConfig::Postgres(postgres) => match postgres.format {
            Some(format) if FORMATS.last().is_some_and(|newest| format < *newest) => {
                Err(Failure::new(
                    ErrorKind::Invalid,
                    format!(
                        "format = {format} in [store] leaves the tables as they are, so there is nothing to print; remove it to \
                     print the upgrade"
                    ),
                ))
            }
            _ => Ok(postgres.schema.unwrap_or_else(|| SCHEMA_DEFAULT.to_owned())),
        },
        _ => Ok(SCHEMA_DEFAULT.to_owned()),
    }
}

/// Prints who reached the limit of a quota.
pub(crate) async fn history(
    flags: AuditHistory,
    config: Option<&Path>,
    format: OutputFormat,
) -> Result<(), Failure> {
    let time = |text: &Option<String>, otherwise: Timestamp| -> Result<Timestamp, Error> {
        Ok(text.as_deref().map(str::parse).transpose()?.unwrap_or(otherwise))
    };
    let (from, to) = (time(&flags.from, Timestamp::EPOCH)?, time(&flags.to, SystemClock.now())?);
    let quota = Quota::open(options(&flags.database, config)?, &flags.schema).await?;
    #[derive(Serialize)]
    struct HistoryRow {
        user_id: String,
        total_requests: u64,
        first_limited_at: String,
    }
    let found = quota.history(from, to).await?.into_iter().map(|one| HistoryRow {
        user_id: one.user,
        total_requests: one.total_requests,
        first_limited_at: one.first_limited_at.to_string(),
    });
    let found: Vec<HistoryRow> = found.collect();
    output::print(format, &found, || {
        if found.is_empty() {
            return "no user reached the limit".to_owned();
        }
        let head = format!("{:<32} {:>14}  first_limited_at", "user_id", "total_requests");
        let lines = found.iter().map(|line| {
            format!("{:<32} {:>14}  {}", line.user_id, line.total_requests, line.first_limited_at)
        });
        std::iter::once(head).chain(lines).collect::<Vec<_>>().join("\n")
    })
}

fn options(database: &Database, config: Option<&Path>) -> Result<Options, Failure> {
    if let Some(name) = &database.url_env {
        let url = environment(name).ok_or_else(|| {
            Failure::new(ErrorKind::Invalid, format!("the variable {name} is not set"))
        })?;
        return Ok(Options::new(&url)?);
    }
    match config::load(config)?.store {
        StoreConfig::Postgres(postgres) => Ok(open::postgres_options(&postgres)?),
        _ => Err(Failure::new(
            ErrorKind::Invalid,
            "the configured store is not postgres; name a database with --url-env VARIABLE, or a configuration with \
             kind = \"postgres\" with --config",
        )),
    }
}

fn rows(table: &str, flags: &PostgresInstall) -> Result<Rows, Error> {
    let window: Span = flags.window.parse()?;
    let mut rows = Rows::new(table, flags.limit, window)
        .user_column(&flags.user_column)
        .time_column(&flags.time_column);
    if let Some(key) = &flags.key_column {
        rows = rows.key_column(key);
    }
    if let Some((column, values)) = condition(&flags.only)? {
        rows = rows.only(column, values);
    }
    if let Some((column, values)) = condition(&flags.except)? {
        rows = rows.except(column, values);
    }
    if let Some(schema) = &flags.schema {
        rows = rows.in_schema(schema);
    }
    if flags.utc {
        rows = rows.times_are_utc();
    }
    Ok(if flags.trigger { rows.with_trigger() } else { rows })
}

/// The one column that `pairs` name, and its values.
fn condition(pairs: &[String]) -> Result<Option<(&str, Vec<&str>)>, Error> {
    let mut found: Option<(&str, Vec<&str>)> = None;
    for pair in pairs {
        let invalid = |what: &str| Error::new(ErrorKind::Invalid, format!("{pair:?} {what}"));
        let (column, value) = pair
            .split_once('=')
            .ok_or_else(|| invalid("is not COLUMN=VALUE, as in status=done"))?;
        match &mut found {
            None => found = Some((column, vec![value])),
            Some((known, values)) if *known == column => values.push(value),
            Some(_) => return Err(invalid("names a second column; a quota looks at one")),
        }
    }
    Ok(found)
}
