//! Quotas over one's own rows (R004), with two million rows and a user with ten thousand.

use std::time::Instant;

use tollgate::Span;
use tollgate_postgres::Options;
use tollgate_postgres::rows::Rows;
use tollgate_testing::servers;

use super::peer::client;

const CALLS: usize = 2_000;

pub(super) async fn measure() {
    let server = servers::Postgres::start().unwrap();
    let database = server.database().unwrap();
    server
        .psql(
            &database,
            "CREATE TABLE video_requests (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, user_id text NOT NULL, \
             created_at timestamptz NOT NULL DEFAULT now()); \
             INSERT INTO video_requests (user_id, created_at) \
             SELECT 'user-' || n % 50000, now() - n * interval '1 second' FROM generate_series(1, 1990000) n UNION ALL \
             SELECT 'heavy', now() - n * interval '8 seconds' FROM generate_series(1, 10000) n",
        )
        .unwrap();
    let options = Options::new(&server.url(&database)).unwrap();
    for (limit, schema) in [(5, "video_requests_quota"), (2_000, "many")] {
        let rows = Rows::of("video_requests", limit, Span::from_hours(24)).in_schema(schema);
        rows.install(&options).await.unwrap();
    }
    server.psql(&database, "VACUUM ANALYZE video_requests").unwrap();
    let client = client(&server.url(&database)).await;
    println!("two million rows, a user with ten thousand, one caller, warm");
    let calls = [
        ("consume, 5 per day, refused", "SELECT video_requests_quota.consume('heavy')"),
        ("consume, 5 per day, admitted", "SELECT video_requests_quota.consume('new-' || $1::text)"),
        ("check, 5 per day", "SELECT video_requests_quota.check('heavy')"),
        ("consume, 2000 per day, refused", "SELECT many.consume('heavy')"),
    ];
    for (name, sql) in calls {
        let statement = client.prepare(sql).await.unwrap();
        let mut times = Vec::new();
        for turn in 0..CALLS {
            let turn = turn.to_string();
            let begun = Instant::now();
            let rows = match statement.params().len() {
                0 => client.query(&statement, &[]).await,
                _ => client.query(&statement, &[&turn]).await,
            };
            rows.unwrap();
            times.push(begun.elapsed());
        }
        times.sort();
        let [half, most] = [times[CALLS / 2], times[CALLS * 99 / 100]];
        println!("  {name:<32} p50 {half:>9.2?}  p99 {most:>9.2?}");
    }
}
