//! How fast it is, beside what one would write first, in one run on one real server.
//!
//! ```text
//! cargo run --release -p tollgate-postgres --example speed_postgres
//! ```
#![allow(clippy::print_stdout, reason = "it prints a table")]
#![allow(clippy::unwrap_used, reason = "a measurement that fails is none")]
#![allow(clippy::disallowed_methods, reason = "it measures time")]

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls};
use tollgate::{Ask, Gate, Limit, Policy, RollingWindow, Span, TokenBucket};
use tollgate_postgres::rows::Rows;
use tollgate_postgres::{Options, Postgres};
use tollgate_testing::servers;

const CALLERS: usize = 8;
const TIME: Duration = Duration::from_secs(3);
const SUBJECTS: usize = 1_000;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    for (name, arguments) in [("fsync off", ""), ("fsync on", "-c fsync=on")] {
        let server = servers::Postgres::start_with(arguments).unwrap();
        let url = server.url(&server.database().unwrap());
        println!("{name}, {CALLERS} callers, {SUBJECTS} subjects, three limits");
        own_tables(&url).await;
    }
    let server = servers::Postgres::start().unwrap();
    let database = server.database().unwrap();
    users_rows(&server, &database).await;
}

fn policy(limit: u64) -> Policy {
    let minute = Span::from_mins(1);
    let limits = [
        Limit::new("rps", "requests", TokenBucket::per_second(limit).burst(limit)),
        Limit::new("rpm", "requests", RollingWindow::new(limit * 60, minute).resolution(12)),
        Limit::new("tpm", "tokens", TokenBucket::per_minute(limit * 1_000)),
    ];
    Policy::new(format!("speed-{limit}"), limits).unwrap()
}

/// Operations per second of `CALLERS` loops of `work(caller, turn)`.
async fn measure<F: Future<Output = ()> + Send + 'static>(
    work: impl Fn(usize, usize) -> F + Send + Sync + 'static,
) -> f64 {
    let (work, begun) = (Arc::new(work), Instant::now());
    let tasks: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let work = Arc::clone(&work);
            tokio::spawn(async move {
                let mut turns = 0;
                while begun.elapsed() < TIME {
                    work(caller, turns).await;
                    turns += 1;
                }
                turns
            })
        })
        .collect();
    let mut turns = 0;
    for task in tasks {
        turns += task.await.unwrap();
    }
    f64::from(u32::try_from(turns).unwrap()) / begun.elapsed().as_secs_f64()
}

async fn own_tables(url: &str) {
    let gate = Arc::new(Postgres::open(Options::new(url).unwrap()).await.unwrap());
    let asks = |policy: Policy, id: bool| {
        let gate = Arc::clone(&gate);
        move |caller: usize, turn: usize| {
            let (gate, policy) = (Arc::clone(&gate), policy.clone());
            async move {
                let subject = format!("s-{}", (caller * 7_919 + turn * 31) % SUBJECTS);
                let id = id.then(|| format!("{caller}-{turn}"));
                let ask = Ask::new(&policy, subject).cost("tokens", 10);
                let ask = match &id {
                    Some(id) => ask.id(id.as_str()),
                    None => ask,
                };
                gate.acquire(&ask).await.unwrap();
            }
        }
    };
    let admitted = measure(asks(policy(1_000_000), false)).await;
    let with_ids = measure(asks(policy(999_999), true)).await;
    // One per second each: nearly every ask is refused.
    let refused = measure(asks(policy(1), false)).await;
    let naive = naive(url).await;
    println!("  SELECT FOR UPDATE + UPDATE       {naive:>8.0}/s");
    println!("  admitted                         {admitted:>8.0}/s  {:.2}x", admitted / naive);
    println!("  admitted, with ids               {with_ids:>8.0}/s  {:.2}x", with_ids / naive);
    println!("  refused                          {refused:>8.0}/s  {:.2}x", refused / naive);
}

/// What one would write first: lock the row, read it, decide here, write it.
async fn naive(url: &str) -> f64 {
    let clients = clients(url).await;
    clients[0]
        .batch_execute(
            "CREATE TABLE naive (key text PRIMARY KEY, a bigint, b bigint, c bigint, at timestamptz); \
             INSERT INTO naive SELECT 's-' || n, 0, 0, 0, now() FROM generate_series(0, 999) n",
        )
        .await
        .unwrap();
    let mut prepared = Vec::new();
    for client in &clients {
        let read = client.prepare("SELECT a, b, c, at FROM naive WHERE key = $1 FOR UPDATE").await;
        let write = client
            .prepare("UPDATE naive SET a = $2, b = $3, c = $4, at = now() WHERE key = $1")
            .await;
        prepared.push((read.unwrap(), write.unwrap()));
    }
    let (clients, prepared) = (Arc::new(clients), Arc::new(prepared));
    measure(move |caller, turn| {
        let (clients, prepared) = (Arc::clone(&clients), Arc::clone(&prepared));
        async move {
            let key = format!("s-{}", (caller * 7_919 + turn * 31) % SUBJECTS);
            let (client, (read, write)) = (&clients[caller], &prepared[caller]);
            client.batch_execute("BEGIN").await.unwrap();
            let row = client.query_one(read, &[&key]).await.unwrap();
            let (a, b, c): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
            client.execute(write, &[&key, &(a + 1), &(b + 1), &(c + 10)]).await.unwrap();
            client.batch_execute("COMMIT").await.unwrap();
        }
    })
    .await
}

async fn clients(url: &str) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..CALLERS {
        let (client, driver) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(driver);
        clients.push(client);
    }
    clients
}

/// R004 with two million rows and a user with ten thousand.
async fn users_rows(server: &servers::Postgres, database: &str) {
    server
        .psql(
            database,
            "CREATE TABLE video_requests (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, user_id text NOT NULL, \
             created_at timestamptz NOT NULL DEFAULT now()); \
             INSERT INTO video_requests (user_id, created_at) \
             SELECT 'user-' || n % 50000, now() - n * interval '1 second' FROM generate_series(1, 1990000) n UNION ALL \
             SELECT 'heavy', now() - n * interval '1 minute' FROM generate_series(1, 10000) n",
        )
        .unwrap();
    let options = Options::new(&server.url(database)).unwrap();
    Rows::of("video_requests", 2_000, Span::from_hours(24))
        .in_schema("many")
        .install(&options)
        .await
        .unwrap();
    Rows::of("video_requests", 5, Span::from_hours(24)).install(&options).await.unwrap();
    server.psql(database, "VACUUM ANALYZE video_requests").unwrap();
    let clients = clients(&server.url(database)).await;
    println!("two million rows, a user with ten thousand, one caller");
    let calls = [
        ("consume, 5 per day, refused", "SELECT video_requests_quota.consume('heavy')"),
        ("consume, 5 per day, admitted", "SELECT video_requests_quota.consume('new-' || $1::text)"),
        ("check, 5 per day", "SELECT video_requests_quota.check('heavy')"),
        ("consume, 2000 per day", "SELECT many.consume('heavy')"),
    ];
    for (name, sql) in calls {
        let statement = clients[0].prepare(sql).await.unwrap();
        let mut times = Vec::new();
        for turn in 0..1_000 {
            let turn = turn.to_string();
            let begun = Instant::now();
            let rows = match statement.params().len() {
                0 => clients[0].query(&statement, &[]).await,
                _ => clients[0].query(&statement, &[&turn]).await,
            };
            rows.unwrap();
            times.push(begun.elapsed());
        }
        times.sort();
        println!("  {name:<32} p50 {:>9.2?}  p99 {:>9.2?}", times[500], times[990]);
    }
}
