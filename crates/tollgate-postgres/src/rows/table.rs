//! Table and columns, as the catalogue describes them.

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use tollgate::{Error, ErrorKind};

use super::{Rows, Zone};
use crate::pool::Pool;
use crate::quote;

const DOING: &str = "could not look at the table";

/// Equality of types in `pg_catalog`.
pub(super) const EQUALS: &str = "=";

/// The columns of a table, with the names that their types and operators have on any search path.
///
/// A type compares by the operator of its default B-tree operator class; a domain, as its base type does. A type is hashed
/// by value if equal values may have different texts, or the text depends on a setting of the session.
const COLUMNS: &str = "\
    WITH RECURSIVE base (place, type) AS ( \
        SELECT attnum, atttypid FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped \
         UNION ALL SELECT b.place, t.typbasetype FROM base b JOIN pg_type t ON t.oid = b.type WHERE t.typtype = 'd'), \
    class AS ( \
        SELECT c.opcintype AS type, m.amname, n.nspname, o.oprname FROM pg_opclass c JOIN pg_am m ON m.oid = c.opcmethod \
          LEFT JOIN pg_amop a ON a.amopfamily = c.opcfamily AND a.amoplefttype = c.opcintype \
               AND a.amoprighttype = c.opcintype AND a.amopstrategy = 3 \
          LEFT JOIN pg_operator o ON o.oid = a.amopopr LEFT JOIN pg_namespace n ON n.oid = o.oprnamespace \
         WHERE c.opcdefault) \
    SELECT a.attname::text, format_type(a.atttypid, NULL), a.attnum, tn.nspname::text, t.typname::text, \
           e.nspname::text, e.oprname::text, \
           (collisdeterministic IS FALSE OR bt.typtype <> 'e' AND bt.typname NOT IN \
            ('int2', 'int4', 'int8', 'text', 'varchar', 'bpchar', 'uuid')) \
           AND EXISTS (SELECT FROM class h WHERE h.type = bt.oid AND h.amname = 'hash'), \
           CASE WHEN NOT collisdeterministic THEN format('%I.%I', cn.nspname, k.collname) END \
      FROM pg_attribute a \
      JOIN pg_type t ON t.oid = a.atttypid JOIN pg_namespace tn ON tn.oid = t.typnamespace \
      JOIN base b ON b.place = a.attnum JOIN pg_type bt ON bt.oid = b.type AND bt.typtype <> 'd' \
      LEFT JOIN class e ON e.type = bt.oid AND e.amname = 'btree' \
      LEFT JOIN pg_collation k ON k.oid = a.attcollation LEFT JOIN pg_namespace cn ON cn.oid = k.collnamespace \
     WHERE a.attrelid = $1 ORDER BY a.attnum";

/// A table as the catalogue describes it.
#[derive(Debug)]
pub(crate) struct Table {
    /// Its quoted name, with its schema.
    pub(crate) name: String,
    /// Its name without quotes or schema.
    pub(crate) plain_name: String,
    /// Its number in the catalogue.
    pub(crate) number: u32,
    /// Whether the time column has no zone.
    pub(crate) is_local: bool,
    columns: Vec<Column>,
}

#[derive(Debug)]
pub(crate) struct Column {
    name: String,
    /// The type as people write it, on the search path of the installer.
    kind: String,
    /// The type, quoted, with its schema.
    pub(crate) type_name: String,
    /// The operator for equality, with its schema unless that is `pg_catalog`.
    pub(crate) equals: String,
    /// Whether a lock on a value is a lock on its hash, and not on that of its text.
    pub(crate) locked_by_value: bool,
    /// The collation, if different texts may be equal under it.
    pub(crate) collation: Option<String>,
    place: i16,
}

impl Table {
    /// Reads the table of `rows` and checks every column.
    pub(crate) async fn find(pool: &Pool, rows: &Rows) -> Result<Self, Error> {
        let path = quote::path(&rows.table)?;
        let found = pool
            .query(
                "SELECT c.oid, format('%I.%I', n.nspname, c.relname), n.nspname::text, c.relname::text FROM pg_class c \
                 JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)",
                &[(&path, Type::TEXT)],
                DOING,
            )
            .await?;
        let Some(row) = found.first() else {
            return Err(invalid(format!(
                "there is no table {path} in {}; create it, or name another, with its schema if it is not on the search path",
                pool.options().place()
            )));
        };
        let (number, name, plain_name): (u32, String, String) =
            (row.get(0), row.get(1), row.get(3));
        // Found on the search path, the schema was not in what was given.
        quote::name(row.get(2))?;
        let columns = pool.query(COLUMNS, &[(&number, Type::OID)], DOING).await?;
        let columns = columns.iter().map(Column::read).collect::<Result<Vec<Column>, Error>>()?;
        let mut table = Self { name, plain_name, number, is_local: false, columns };
        table.column(&rows.user)?;
        if let Some(key) = &rows.key {
            table.column(key)?;
        }
        if let Some(filter) = &rows.filter {
            table.column(&filter.column)?;
        }
        table.is_local = table.check_time(rows)?;
        Ok(table)
    }

    /// Assumes a table with columns of these names and types of `pg_catalog`.
    pub(super) fn assumed(
        (name, plain_name): (String, String),
        is_local: bool,
        columns: &[(&str, &str)],
    ) -> Self {
        let columns = columns.iter().map(|(name, kind)| Column::assumed(name, kind)).collect();
        Self { name, plain_name, number: 0, is_local, columns }
    }

    /// Returns the positions of the user and time columns.
    pub(crate) fn places(&self, rows: &Rows) -> Result<(i16, i16), Error> {
        Ok((self.column(&rows.user)?.place, self.column(&rows.time)?.place))
    }

    fn check_time(&self, rows: &Rows) -> Result<bool, Error> {
        match (self.column(&rows.time)?.kind.as_str(), rows.zone) {
            ("timestamp with time zone", _) => Ok(false),
            ("timestamp without time zone", Zone::Utc) => Ok(true),
            ("timestamp without time zone", Zone::Refused) => Err(invalid(format!(
                "column {:?} of {} is a timestamp without time zone, so its instants are ambiguous; change it \
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

    /// Returns the type of a column and its equality operator.
    pub(crate) fn compared(&self, name: &str) -> Result<(&str, &str), Error> {
        self.column(name).map(|column| (column.type_name.as_str(), column.equals.as_str()))
    }

    pub(crate) fn column(&self, name: &str) -> Result<&Column, Error> {
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

impl Column {
    /// Returns the type for messages, valid on any search path.
    pub(crate) fn shown(&self) -> &str {
        if self.type_name.starts_with("\"pg_catalog\".") { &self.kind } else { &self.type_name }
    }

    /// A column of a type of `pg_catalog` whose values are equal only if their texts are.
    fn assumed(name: &str, kind: &str) -> Self {
        Self {
            name: name.to_owned(),
            kind: kind.to_owned(),
            type_name: format!("\"pg_catalog\".\"{kind}\""),
            equals: EQUALS.to_owned(),
            locked_by_value: false,
            collation: None,
            place: 0,
        }
    }

    fn read(row: &Row) -> Result<Self, Error> {
        let path = |schema, name| {
            Ok::<_, Error>(format!("{}.{}", quote::name(schema)?, quote::name(name)?))
        };
        let equals = match (row.get::<_, Option<&str>>(5), row.get::<_, Option<&str>>(6)) {
            (None | Some("pg_catalog"), _) | (_, None) => EQUALS.to_owned(),
            (Some(schema), Some(operator)) => {
                format!("OPERATOR({}.{operator})", quote::name(schema)?)
            }
        };
        Ok(Self {
            name: row.get(0),
            kind: row.get(1),
            place: row.get(2),
            type_name: path(row.get(3), row.get(4))?,
            equals,
            locked_by_value: row.get(7),
            collation: row.get(8),
        })
    }
}

fn invalid(text: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("postgres: {text}"))
}
