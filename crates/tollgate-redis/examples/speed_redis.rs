//! How fast decisions are, next to plain `INCR` and to a minimal script with one limit, through the same client on the
//! same server: `cargo run --release -p tollgate-redis --example speed_redis`.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a measurement prints and looks at the clock"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tollgate::{
    Ask, CalendarWindow, Gate, Limit, Period, Policy, RollingWindow, Span, TokenBucket,
};
use tollgate_redis::{Options, Redis};
use tollgate_testing::servers;

const CONNECTIONS: usize = 50;
const TIME: Duration = Duration::from_secs(3);

/// The least a script can do: one bucket in one key.
const MINIMAL: &str = "local t = redis.call('TIME') local now = t[1] * 1000000 + t[2] \
    local tat = tonumber(redis.call('GET', KEYS[1]) or now) if tat < now then tat = now end \
    local new = tat + tonumber(ARGV[1]) if now + tonumber(ARGV[2]) < new then return {0, tostring(tat)} end \
    redis.call('SET', KEYS[1], string.format('%.0f', new), 'PX', math.ceil((new - now) / 1000)) return {1, tostring(new)}";

fn policy() -> Policy {
    let day = Span::from_hours(24);
    Policy::new(
        "speed",
        [
            Limit::new("rps", "requests", TokenBucket::per_second(1_000_000).burst(1_000_000)),
            Limit::new("tpm", "tokens", RollingWindow::new(1 << 50, day).resolution(12)),
            Limit::new("rpd", "requests", CalendarWindow::new(1 << 50, Period::Day)),
        ],
    )
    .unwrap()
}

/// Runs `work` on every connection, one call after the other, and returns calls per second.
async fn rate<C: Send + 'static, F>(
    connections: Vec<C>,
    work: impl Fn(C, usize, u64) -> F + Send + Sync + 'static,
) -> u64
where
    F: Future<Output = C> + Send,
{
    let (work, start) = (Arc::new(work), Instant::now());
    let tasks: Vec<_> = connections
        .into_iter()
        .enumerate()
        .map(|(number, mut connection)| {
            let work = Arc::clone(&work);
            tokio::spawn(async move {
                let mut done = 0;
                while start.elapsed() < TIME {
                    connection = work(connection, number, done).await;
                    done += 1;
                }
                done
            })
        })
        .collect();
    let mut all = 0;
    for task in tasks {
        all += task.await.unwrap();
    }
    all / TIME.as_secs()
}

async fn plain(url: &str) -> Vec<MultiplexedConnection> {
    let client = redis::Client::open(url).unwrap();
    let mut all = Vec::new();
    for _ in 0..CONNECTIONS {
        all.push(client.get_multiplexed_async_connection().await.unwrap());
    }
    all
}

async fn gates(url: &str) -> Vec<Arc<Redis>> {
    let mut all = Vec::new();
    for _ in 0..CONNECTIONS {
        all.push(Arc::new(Redis::connect(Options::single(url)).await.unwrap()));
    }
    all
}

fn key(keys: u64, number: usize, done: u64) -> String {
    format!("k{}", (done * 7_919 + number as u64 * 104_729) % keys)
}

#[tokio::main]
async fn main() {
    let server = servers::Redis::start().unwrap();
    let url = server.url();
    println!("{:<28} {:>10} {:>14}", "calls per second", "one key", "10,000 keys");
    let mut rows: Vec<(&str, Vec<u64>)> =
        vec![("INCR", vec![]), ("minimal script", vec![]), ("acquire, 3 limits, ids", vec![])];
    for keys in [1, 10_000] {
        let incr = rate(plain(&url).await, move |mut connection, number, done| async move {
            let _: u64 = redis::cmd("INCR")
                .arg(key(keys, number, done))
                .query_async(&mut connection)
                .await
                .unwrap();
            connection
        });
        rows[0].1.push(incr.await);
        let script = Arc::new(redis::Script::new(MINIMAL));
        let minimal = rate(plain(&url).await, move |mut connection, number, done| {
            let script = Arc::clone(&script);
            async move {
                let key = format!("m{}", key(keys, number, done));
                let _: (u8, String) = script
                    .key(key)
                    .arg(1)
                    .arg(1_000_000)
                    .invoke_async(&mut connection)
                    .await
                    .unwrap();
                connection
            }
        });
        rows[1].1.push(minimal.await);
        let policy = Arc::new(policy());
        let acquire = rate(gates(&url).await, move |gate, number, done| {
            let policy = Arc::clone(&policy);
            async move {
                let subject = key(keys, number, done);
                let ask = Ask::new(&policy, subject).cost("tokens", 100);
                let ask = ask.id_for(format!("{number}-{done}"), Span::from_millis(20));
                assert!(gate.acquire(&ask).await.unwrap().is_admitted());
                gate
            }
        });
        rows[2].1.push(acquire.await);
    }
    for (name, rates) in rows {
        println!("{name:<28} {:>10} {:>14}", rates[0], rates[1]);
    }
    let stats = server.command(&["info", "commandstats"]).unwrap();
    println!(
        "{}",
        stats
            .lines()
            .filter(|line| line.contains("evalsha") || line.contains("_incr:"))
            .collect::<Vec<_>>()
            .join("\n")
    );
}
