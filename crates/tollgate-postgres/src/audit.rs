//! The audit in PostgreSQL: a table beside the entries, one statement for a batch, and a connection of its own, so that
//! decisions never wait for it.

use serde_json::{Value, json};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use tollgate::audit::{AuditLog, Binding, Outcome, Page, Query, Record, RecordedCharge, Retention};
use tollgate::gate::BoxFuture;
use tollgate::{Error, ErrorKind, Span, Timestamp};

use crate::migrate;
use crate::options::Options;
use crate::pool::{Parameter, Pool};
use crate::quote;
use crate::row::integer;
use crate::version::Version;

const WRITING: &str = "could not write the audit";
const READING: &str = "could not read the audit";
const TRIMMING: &str = "could not clean up the audit";

/// Records in a table.
#[derive(Debug)]
pub struct PostgresAudit {
    pool: Pool,
    /// The schema, quoted.
    schema: String,
    version: Version,
    /// With its schema, quoted.
    table: String,
}

impl PostgresAudit {
    /// Opens the audit beside the tables of the store, which are made or brought to this version if they are not. In tables
    /// that [`Options::format`] leaves at version 3, records have neither the name of a key nor charges.
    ///
    /// # Errors
    /// As [`Postgres::open`](crate::Postgres::open).
    pub async fn open(options: Options) -> Result<Self, Error> {
        let schema = options.quoted_schema()?;
        let pool = Pool::new(options.connections_max(1))?;
        let version = Version::new(migrate::check(&pool, &schema).await?);
        let table = format!("{schema}.audit");
        Ok(Self { pool, schema, version, table })
    }

    async fn write(&self, records: &[Record]) -> Result<(), Error> {
        if records.is_empty() {
            return Ok(());
        }
        let binding = |record: &Record| record.binding.clone();
        let texts = |of: &dyn Fn(&Record) -> String| records.iter().map(of).collect::<Vec<_>>();
        let at: Vec<i64> = records.iter().map(|record| integer(record.at.as_micros())).collect();
        let policies = texts(&|record| record.policy.to_string());
        let subjects = texts(&|record| quote::store(&record.subject));
        let outcomes = texts(&|record| record.outcome.name().to_owned());
        let degraded: Vec<bool> = records.iter().map(|record| record.degraded).collect();
        let of = |text: fn(Binding) -> String| -> Vec<Option<String>> {
            records.iter().map(|record| binding(record).map(text)).collect()
        };
        let (limits, units) =
            (of(|binding| binding.limit.to_string()), of(|binding| binding.unit.to_string()));
        let asked: Vec<Option<i64>> = records
            .iter()
            .map(|record| binding(record).map(|binding| integer(binding.asked)))
            .collect();
        let waits: Vec<Option<i64>> = records
            .iter()
            .map(|record| binding(record)?.retry_after.map(|wait| integer(wait.as_micros())))
            .collect();
        // A table of version 3 has no place for them.
        let newer = match self.is_old().await? {
            true => "",
            false => ", by_key, charges",
        };
        let columns = format!(
            "at_us, policy, subject, outcome, degraded, limit_name, unit, asked, retry_after_us{newer}"
        );
        let sql = format!(
            "INSERT INTO {} ({columns}) SELECT {columns} FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
             r(at_us, policy, subject, outcome, degraded, limit_name, unit, asked, retry_after_us, by_key, charges)",
            self.table
        );
        let by: Vec<Option<&str>> = records.iter().map(|record| record.by.as_deref()).collect();
        let charges: Vec<Option<Value>> =
            records.iter().map(|record| charges_value(&record.charges)).collect();
        let parameters: [Parameter<'_>; 11] = [
            (&at, Type::INT8_ARRAY),
            (&policies, Type::TEXT_ARRAY),
            (&subjects, Type::TEXT_ARRAY),
            (&outcomes, Type::TEXT_ARRAY),
            (&degraded, Type::BOOL_ARRAY),
            (&limits, Type::TEXT_ARRAY),
            (&units, Type::TEXT_ARRAY),
            (&asked, Type::INT8_ARRAY),
            (&waits, Type::INT8_ARRAY),
            (&by, Type::TEXT_ARRAY),
            (&charges, Type::JSONB_ARRAY),
        ];
        self.pool.query(&sql, &parameters, WRITING).await.map(drop)
    }

    /// Returns whether the table is still one of version 3.
    async fn is_old(&self) -> Result<bool, Error> {
        self.version.is_still_old(&self.pool, &self.schema).await
    }

    async fn read(&self, query: &Query) -> Result<Page, Error> {
        let charges = if self.is_old().await? { "NULL::jsonb" } else { "charges" };
        let subject = query.subject.as_deref().map(quote::store);
        let since = query.since.map(|since| integer(since.as_micros()));
        let outcome = query.outcome.map(Outcome::name);
        let before = query.before.map(integer);
        let rows = i64::try_from(query.rows() + 1).unwrap_or(i64::MAX);
        let sql = format!(
            "SELECT number, at_us, policy, subject, outcome, degraded, limit_name, unit, asked, retry_after_us,
                    to_jsonb(a) ->> 'by_key' AS by_key, {charges} AS charges
             FROM {} a
             WHERE (($1::text IS NULL OR policy = $1) AND ($2::text IS NULL OR subject = $2) OR {charges} @> $8)
               AND ($3::int8 IS NULL OR $3 <= at_us) AND ($4::text IS NULL OR outcome = $4)
               AND (NOT $5 OR degraded) AND ($6::int8 IS NULL OR number < $6)
             ORDER BY number DESC LIMIT $7",
            self.table
        );
        let charge = charge_like(query.policy.as_deref(), subject.as_deref());
        let parameters: [Parameter<'_>; 8] = [
            (&query.policy, Type::TEXT),
            (&subject, Type::TEXT),
            (&since, Type::INT8),
            (&outcome, Type::TEXT),
            (&query.degraded, Type::BOOL),
            (&before, Type::INT8),
            (&rows, Type::INT8),
            (&charge, Type::JSONB),
        ];
        let found = self.pool.query(&sql, &parameters, READING).await?;
        Ok(query.page(found.iter().map(record).collect::<Result<_, Error>>()?))
    }

    async fn cut(&self, keep: Retention, now: Timestamp) -> Result<u64, Error> {
        let before = integer(now.as_micros().saturating_sub(keep.age_max.as_micros()));
        let entries = i64::try_from(keep.entries_max).unwrap_or(i64::MAX);
        let table = &self.table;
        let sql = format!(
            "WITH gone AS (DELETE FROM {table} WHERE at_us < $1
                 OR number <= (SELECT number FROM {table} ORDER BY number DESC LIMIT 1 OFFSET $2) RETURNING 1)
             SELECT count(*) FROM gone"
        );
        let parameters: [Parameter<'_>; 2] = [(&before, Type::INT8), (&entries, Type::INT8)];
        let rows = self.pool.query(&sql, &parameters, TRIMMING).await?;
        Ok(rows.first().map_or(0, |row| natural(row.get(0))))
    }
}

impl AuditLog for PostgresAudit {
    fn append<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.write(records))
    }

    fn find<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page, Error>> {
        Box::pin(self.read(query))
    }

    fn trim(&self, keep: Retention, now: Timestamp) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(self.cut(keep, now))
    }
}

fn record(row: &Row) -> Result<Record, Error> {
    let limit: Option<String> = row.get("limit_name");
    let wait: Option<i64> = row.get("retry_after_us");
    Ok(Record {
        number: natural(row.get("number")),
        at: Timestamp::from_micros(natural(row.get("at_us"))),
        policy: row.get::<_, String>("policy").into(),
        subject: quote::restore(row.get("subject")).into(),
        outcome: row.get::<_, &str>("outcome").parse()?,
        binding: limit.map(|limit| Binding {
            limit: limit.into(),
            unit: row.get::<_, Option<String>>("unit").unwrap_or_default().into(),
            asked: natural(row.get::<_, Option<i64>>("asked").unwrap_or(0)),
            retry_after: wait.map(|wait| Span::from_micros(natural(wait))),
        }),
        degraded: row.get("degraded"),
        by: row.get::<_, Option<String>>("by_key").map(Into::into),
        charges: read_charges(row.get("charges"))?,
    })
}

/// Returns the column of `charges`; null if there are none. Subjects are quoted as in their own column.
fn charges_value(charges: &[RecordedCharge]) -> Option<Value> {
    let quoted = |charge: &RecordedCharge| RecordedCharge {
        subject: quote::store(&charge.subject).into(),
        ..charge.clone()
    };
    let charges: Vec<RecordedCharge> = charges.iter().map(quoted).collect();
    (!charges.is_empty()).then(|| json!(charges))
}

fn read_charges(value: Option<Value>) -> Result<Vec<RecordedCharge>, Error> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let charges: Vec<RecordedCharge> = serde_json::from_value(value).map_err(|error| {
        Error::new(ErrorKind::Corrupt, "the charges of a record are unreadable").caused_by(error)
    })?;
    let restored = charges
        .into_iter()
        .map(|charge| RecordedCharge { subject: quote::restore(&charge.subject).into(), ..charge });
    Ok(restored.collect())
}

/// Returns what a list of charges contains if one of them has `policy` and `subject`, as far as they are given.
fn charge_like(policy: Option<&str>, subject: Option<&str>) -> Option<Value> {
    let members = [("policy", policy), ("subject", subject)];
    let members = members.into_iter().filter_map(|(name, text)| Some((name, text?)));
    let members: serde_json::Map<String, Value> =
        members.map(|(name, text)| (name.to_owned(), text.into())).collect();
    (!members.is_empty()).then(|| json!([members]))
}

fn natural(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
