//! The statements of an install as text, for databases that only others may connect to.

use tollgate::{Error, ErrorKind};

use super::table::Table;
use super::template::fill;
use super::{Grants, Rows, Zone};
use crate::quote;

/// Types whose values are equal exactly if their texts are, by what people call them and by their names in `pg_catalog`.
const TYPES: [(&str, &str); 11] = [
    ("text", "text"),
    ("varchar", "varchar"),
    ("character varying", "varchar"),
    ("uuid", "uuid"),
    ("smallint", "int2"),
    ("integer", "int4"),
    ("int", "int4"),
    ("bigint", "int8"),
    ("int2", "int2"),
    ("int4", "int4"),
    ("int8", "int8"),
];

/// Checks the table against what the script was printed for, and finds out which role the functions run as.
const EXPECT: &str = "DO $expect$
DECLARE
    v_table CONSTANT oid := to_regclass(@table_text@);
    v_wrong text;
BEGIN
    IF v_table IS NULL THEN
        RAISE EXCEPTION 'there is no table %; create it, or print the script for another', @table_text@;
    END IF;
    SELECT CASE
               WHEN a.attname IS NULL THEN format('table %s has no column %I', v_table::regclass, e.name)
               WHEN e.type IS NOT NULL AND a.atttypid <> e.type::regtype THEN
                   format('column %I of %s is of type %s, and this script is for %s', e.name, v_table::regclass,
                          format_type(a.atttypid, NULL), format_type(e.type::regtype, NULL))
               ELSE format('column %I of %s compares by rules of its own', e.name, v_table::regclass)
           END
      INTO v_wrong
      FROM (VALUES @expected@) e (name, type)
      LEFT JOIN pg_attribute a ON a.attrelid = v_table AND a.attname = e.name AND a.attnum > 0 AND NOT a.attisdropped
      LEFT JOIN pg_type t ON t.oid = a.atttypid
      LEFT JOIN pg_collation c ON c.oid = a.attcollation
     WHERE a.attname IS NULL OR e.type IS NOT NULL AND a.atttypid <> e.type::regtype OR c.collisdeterministic IS FALSE
        OR EXISTS (SELECT FROM pg_opclass o WHERE o.opcdefault AND o.opcintype IN (t.oid, t.typbasetype)
                      AND o.opcnamespace <> 'pg_catalog'::regnamespace)
     LIMIT 1;
    IF v_wrong IS NOT NULL THEN
        RAISE EXCEPTION '%', v_wrong
            USING HINT = 'Print the script for this table, or run tollgate postgres install without --print, which looks at it.';
    END IF;
    PERFORM set_config('tollgate.owner', pg_get_userbyid(
        CASE WHEN pg_has_role(c.relowner, 'MEMBER') THEN c.relowner ELSE coalesce(
            (SELECT min(p.proowner) FROM pg_proc p WHERE p.pronamespace = to_regnamespace(@quota_text@)
                AND p.proname = 'consume_at'), current_user::regrole) END)::text, true)
       FROM pg_class c WHERE c.oid = v_table;
END $expect$;
";

/// The column types of a table that was not inspected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnTypes {
    /// That of the user column.
    pub user: String,
    /// That of the column of idempotency keys, if the quota has one.
    pub key: String,
}

impl Default for ColumnTypes {
    fn default() -> Self {
        Self { user: "text".to_owned(), key: "text".to_owned() }
    }
}

impl Rows {
    /// The script that [`install`](Self::install) would run, for `psql -v ON_ERROR_STOP=1 -f`; without a connection.
    ///
    /// A table without a schema is taken to be in `public`, and the columns to be of these `types`. The script checks that, and
    /// changes nothing where it is not so. It ends with the statements that make the indexes, which must run outside
    /// of a transaction, and with the grants as comments.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a name or a limit that does not fit, and for a type that only a look at the database can
    /// tell how to compare.
    pub fn print(&self, types: &ColumnTypes) -> Result<String, Error> {
        self.check_limit()?;
        let (schema, plain_name) = quote::split(&self.table);
        let name = format!(
            "{}.{}",
            quote::name(schema.as_deref().unwrap_or("public"))?,
            quote::name(&plain_name)?
        );
        let is_local = self.zone == Zone::Utc;
        let user_type = known_type(&types.user)?;
        let time_type = if is_local { "timestamp" } else { "timestamptz" };
        let mut columns = vec![(self.user.as_str(), user_type), (self.time.as_str(), time_type)];
        if let Some(key) = &self.key {
            columns.push((key, known_type(&types.key)?));
        }
        let mut expected: Vec<String> = columns
            .iter()
            .map(|(name, kind)| format!("({}, 'pg_catalog.{kind}')", quote::text(name)))
            .collect();
        if let Some(filter) = &self.filter {
            expected.push(format!("({}, NULL)", quote::text(&filter.column)));
            if !columns.iter().any(|(name, _)| *name == filter.column) {
                columns.push((&filter.column, "text"));
            }
        }
        let table = Table::assumed((name, plain_name), is_local, &columns);
        let quota = quote::name(&self.schema)?;
        let first = fill(
            EXPECT,
            &[
                ("table_text", quote::text(&table.name)),
                ("quota_text", quote::text(&quota)),
                ("expected", expected.join(", ")),
            ],
        )?;
        let script = self.script(&table, &quota, "current_setting('tollgate.owner')", &first)?;
        let mut text = format!(
            "-- For psql -v ON_ERROR_STOP=1 -f, as the owner of {} or a superuser.\n{script}\n\n\
             -- Not needed where an index on the same columns exists.\n",
            comment(&table.name)
        );
        for index in self.indexes(&table)? {
            text.push_str(&format!("{};\n", index.sql(&table)?));
        }
        let Grants { consume, read, replay } = Grants::new(&quota, user_type);
        for (what, statements) in [
            ("Let a role consume, and nothing else:", consume),
            ("Let it read what a user has left, too:", read),
            (GRANT_REPLAY, replay),
        ] {
            text.push_str(&format!("\n-- {what}\n"));
            for statement in statements {
                text.push_str(&format!("--   {}\n", comment(&statement)));
            }
        }
        Ok(text)
    }
}

const GRANT_REPLAY: &str =
    "Let it record what it admitted while the database was unavailable, even beyond the limit:";

/// A text that stays inside a comment of one line.
fn comment(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

fn known_type(name: &str) -> Result<&'static str, Error> {
    let wanted = name.trim().to_ascii_lowercase();
    let known = TYPES.iter().find(|(people, _)| *people == wanted);
    known.map(|(_, catalog)| *catalog).ok_or_else(|| {
        let text = format!(
            "postgres: a script can be printed for columns of type text, varchar, uuid, smallint, integer or bigint, not {name:?}; \
             for other types install with a connection, which looks at how they compare"
        );
        Error::new(ErrorKind::Invalid, text)
    })
}
