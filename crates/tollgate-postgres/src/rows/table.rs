//! What the database says about the table: whether it and its columns are there, and of which type.

use tokio_postgres::types::Type;
use tollgate::{Error, ErrorKind};

use super::{Rows, Zone};
use crate::pool::Pool;
use crate::quote;

const DOING: &str = "could not look at the table";

/// A table as the catalogue describes it.
#[derive(Debug)]
pub(crate) struct Table {
    /// Its quoted name, with its schema.
    pub(crate) name: String,
    /// Its number in the catalogue.
    pub(crate) number: u32,
    pub(crate) user_type: String,
    pub(crate) key_type: Option<String>,
    /// Whether the time column has no zone.
    pub(crate) is_local: bool,
    columns: Vec<Column>,
}

#[derive(Debug)]
struct Column {
    name: String,
    kind: String,
    place: i16,
}

impl Table {
    /// Looks at the table of `rows` and checks every column.
    pub(crate) async fn find(pool: &Pool, rows: &Rows) -> Result<Self, Error> {
        let path = quote::path(&rows.table)?;
        let found = pool
            .query(
                "SELECT c.oid, format('%I.%I', n.nspname, c.relname) FROM pg_class c \
                 JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)",
                &[(&path, Type::TEXT)],
                DOING,
            )
            .await?;
        let Some(row) = found.first() else {
            return Err(invalid(format!(
                "there is no table {:?} in {}; create it, or name another, with its schema if it is not on the search path",
                rows.table,
                pool.options().place()
            )));
        };
        let (number, name): (u32, String) = (row.get(0), row.get(1));
        let columns = pool
            .query(
                "SELECT attname::text, format_type(atttypid, NULL), attnum FROM pg_attribute \
                 WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                &[(&number, Type::OID)],
                DOING,
            )
            .await?;
        let columns: Vec<Column> = columns
            .iter()
            .map(|row| Column { name: row.get(0), kind: row.get(1), place: row.get(2) })
            .collect();
        let mut table = Self {
            name,
            number,
            user_type: String::new(),
            key_type: None,
            is_local: false,
            columns,
        };
        table.user_type = table.column(&rows.user)?.kind.clone();
        table.key_type = match &rows.key {
            Some(key) => Some(table.column(key)?.kind.clone()),
            None => None,
        };
        if let Some(filter) = &rows.filter {
            table.column(&filter.column)?;
        }
        table.is_local = table.check_time(rows)?;
        Ok(table)
    }

    /// Where the user and time columns stand.
    pub(crate) fn places(&self, rows: &Rows) -> Result<(i16, i16), Error> {
        Ok((self.column(&rows.user)?.place, self.column(&rows.time)?.place))
    }

    fn check_time(&self, rows: &Rows) -> Result<bool, Error> {
        match (self.column(&rows.time)?.kind.as_str(), rows.zone) {
            ("timestamp with time zone", _) => Ok(false),
            ("timestamp without time zone", Zone::Utc) => Ok(true),
            ("timestamp without time zone", Zone::Refused) => Err(invalid(format!(
                "column {:?} of {} is a timestamp without time zone, so nobody can tell which instant it means; change it \
                 with ALTER TABLE {} ALTER COLUMN {} TYPE timestamptz USING {} AT TIME ZONE 'UTC', or say that it is in \
                 UTC (--utc)",
                rows.time,
                self.name,
                self.name,
                quote::name(&rows.time)?,
                quote::name(&rows.time)?
            ))),
            (other, _) => Err(invalid(format!(
                "column {:?} of {} is of type {other}; the time column must be timestamptz",
                rows.time, self.name
            ))),
        }
    }

    fn column(&self, name: &str) -> Result<&Column, Error> {
        self.columns.iter().find(|column| column.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.columns.iter().map(|column| column.name.as_str()).collect();
            invalid(format!(
                "table {} has no column {name:?}; it has {}",
                self.name,
                names.join(", ")
            ))
        })
    }
}

fn invalid(text: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("postgres: {text}"))
}
