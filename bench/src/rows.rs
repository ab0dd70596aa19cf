//! R004: quotas over the rows of one's own table, with two million rows and a user with ten thousand.

use std::sync::Arc;
use std::time::Duration;

use tollgate::Span;
use tollgate_postgres::Options;
use tollgate_postgres::rows::Rows;
use tollgate_testkit::servers;

use crate::load::{Case, counted, latency, runtime};
use crate::postgres::client;

const WARM_MAX: Duration = Duration::from_millis(5);
const CALLS: usize = 2_000;

const TABLE: &str = "CREATE TABLE video_requests (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
    user_id text NOT NULL, created_at timestamptz NOT NULL DEFAULT now()); \
    INSERT INTO video_requests (user_id, created_at) \
    SELECT 'user-' || n % 50000, now() - n * interval '1 second' FROM generate_series(1, 1990000) n UNION ALL \
    SELECT 'heavy', now() - n * interval '8 seconds' FROM generate_series(1, 10000) n";

pub(crate) fn run() {
    println!(
        "\n# PostgreSQL, one's own rows (R004): 2,000,000 rows, a user with 10,000, one caller, warm\n"
    );
    let server = servers::Postgres::start().expect("a server");
    let database = server.database().expect("a database");
    let psql = |sql: &str| server.psql(&database, sql).expect("psql");
    psql(TABLE);
    let runtime = runtime();
    let options = Options::new(&server.url(&database)).expect("a url");
    let quotas = [(5, "video_requests_quota"), (2_000, "many")];
    for (limit, schema) in quotas {
        let rows = Rows::new("video_requests", limit, Span::from_hours(24)).in_schema(schema);
        runtime.block_on(rows.install(&options)).expect("installs");
    }
    psql("VACUUM ANALYZE video_requests");
    for (limit, schema) in quotas {
        psql("SELECT pg_stat_reset()");
        psql(&format!("SELECT {schema}.consume('heavy'); SELECT pg_stat_force_next_flush()"));
        let read = psql(
            "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'video_requests_user_time_tollgate'",
        );
        let whole =
            psql("SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'video_requests'");
        let number = |text: String| text.parse::<f64>().expect("a number");
        counted(&format!("{limit} per day: index entries read"), number(read), f64::from(limit));
        counted(&format!("{limit} per day: scans of the whole table"), number(whole), 0.0);
    }
    let client = Arc::new(runtime.block_on(client(&server.url(&database))));
    let calls = [
        (
            "consume, 5 per day, refused",
            "SELECT video_requests_quota.consume('heavy' || left($1, 0))",
        ),
        ("consume, 5 per day, admitted", "SELECT video_requests_quota.consume('new-' || $1)"),
        ("check, 5 per day", "SELECT video_requests_quota.check('heavy' || left($1, 0))"),
        ("check, 2000 per day", "SELECT many.check('heavy' || left($1, 0))"),
        ("consume, 2000 per day, refused", "SELECT many.consume('heavy' || left($1, 0))"),
    ];
    for (name, sql) in calls {
        let statement = runtime.block_on(client.prepare(sql)).expect("a statement");
        let client = Arc::clone(&client);
        let case = Case::new(name, move |_, done| {
            let (client, statement) = (Arc::clone(&client), statement.clone());
            async move {
                client.query(&statement, &[&done.to_string()]).await.expect("answers");
            }
        });
        latency(&runtime, CALLS, &case, WARM_MAX);
    }
}
