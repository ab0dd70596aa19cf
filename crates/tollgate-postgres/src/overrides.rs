//! The overrides: one row of a table.

use tokio_postgres::types::Type;
use tollgate::Error;
use tollgate::gate::BoxFuture;
use tollgate::overrides::{Document, OverrideStore};

use crate::gate::Postgres;
use crate::pool::Parameter;
use crate::row::integer;

const READING: &str = "could not read the overrides";
const WRITING: &str = "could not write the overrides";

impl OverrideStore for Postgres {
    fn read(&self, known: u64) -> BoxFuture<'_, Result<Option<Document>, Error>> {
        Box::pin(async move {
            // The text is sent only if the version differs.
            let sql = format!(
                "SELECT version, CASE WHEN version <> $1 THEN document END FROM {}.overrides",
                self.schema
            );
            let rows = self.pool.query(&sql, &[(&integer(known), Type::INT8)], READING).await?;
            let document = rows.first().map_or_else(Document::default, |row| Document {
                version: u64::try_from(row.get::<_, i64>(0)).unwrap_or(0),
                text: row.get::<_, Option<String>>(1).unwrap_or_default(),
            });
            Ok(Some(document).filter(|document| document.version != known))
        })
    }

    fn replace<'a>(&'a self, known: u64, next: &'a Document) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let table = format!("{}.overrides", self.schema);
            let sql = if known == 0 {
                format!(
                    "INSERT INTO {table} (version, document) SELECT $2, $3 WHERE $1 = 0
                     ON CONFLICT (only_one) DO NOTHING RETURNING 1"
                )
            } else {
                format!(
                    "UPDATE {table} SET version = $2, document = $3 WHERE version = $1 RETURNING 1"
                )
            };
            let parameters: [Parameter<'_>; 3] = [
                (&integer(known), Type::INT8),
                (&integer(next.version), Type::INT8),
                (&next.text, Type::TEXT),
            ];
            Ok(!self.pool.query(&sql, &parameters, WRITING).await?.is_empty())
        })
    }
}
