//! PostgreSQL, own tables: decisions beside the naive solution, with as many connections.

use std::sync::{Arc, Mutex};

use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio_postgres::{Client, NoTls, Statement};
use tollgate::{Ask, GateExt, Limit, Policy, RollingWindow, Span, TokenBucket};
use tollgate_postgres::{Options, Postgres};
use tollgate_testkit::servers;

use crate::load::{Bound, Case, compare, counted, fresh_id, runtime, subject};

const CONNECTIONS: usize = 8;
const KEYS: usize = 10_000;
/// A limit that is never reached, and one that always is.
const MANY: u64 = 1_000_000;
const FEW: u64 = 1;

const PEER: &str = "SELECT FOR UPDATE + UPDATE";

pub(crate) fn run() {
    let runtime = runtime();
    println!("\n# PostgreSQL, own tables: three limits, {CONNECTIONS} connections\n");
    count(&runtime);
    for (name, arguments) in [("fsync off", ""), ("fsync on", " -c fsync=on")] {
        // Nothing but the work is measured.
        let arguments = format!("-c shared_preload_libraries={arguments}");
        let server = servers::Postgres::start_with(&arguments).expect("a server");
        let url = server.url(&server.database().expect("a database"));
        let gate = runtime.block_on(open(&url));
        let peer = Arc::new(runtime.block_on(Peer::open(&url)));
        runtime.block_on(fill(&gate));
        let cases = [8 * CONNECTIONS, CONNECTIONS].map(|callers| [(callers, 1), (callers, KEYS)]);
        for (callers, keys) in cases.into_iter().flatten() {
            println!("{name}, {callers} callers, {keys} key(s)");
            let refusal = "refused";
            let cases = [
                peer_line(PEER, &peer, keys, true),
                peer_line("SELECT FOR UPDATE, refused", &peer, keys, false),
                acquire("admitted", &gate, MANY, keys, false),
                acquire(refusal, &gate, FEW, keys, false),
                acquire("admitted, ids", &gate, MANY - 1, keys, true),
            ];
            let bounds = [
                Bound { case: "admitted", peer: PEER, least: 2.0 },
                Bound { case: refusal, peer: PEER, least: 3.0 },
            ];
            compare(&runtime, callers, &cases, &[PEER], &bounds);
        }
    }
}

async fn open(url: &str) -> Arc<Postgres> {
    let options = Options::new(url).expect("a url").connections_max(CONNECTIONS);
    Arc::new(Postgres::open(options).await.expect("the server answers"))
}

/// Uses up the small limit of every key.
async fn fill(gate: &Arc<Postgres>) {
    let fill = (0..8 * CONNECTIONS).map(|first| {
        let (gate, policy) = (Arc::clone(gate), policy(FEW));
        tokio::spawn(async move {
            for key in (first..KEYS).step_by(8 * CONNECTIONS) {
                gate.acquire(&Ask::new(&policy, format!("k{key}"))).await.expect("decides");
            }
        })
    });
    for task in fill.collect::<Vec<_>>() {
        task.await.expect("no caller fails");
    }
}

fn policy(limit: u64) -> Policy {
    let day = Span::from_hours(24);
    let limits = [
        Limit::new("rpd", "requests", TokenBucket::per(limit, day)),
        Limit::new("window", "requests", RollingWindow::new(limit * 1_000, day).resolution(12)),
        Limit::new("tpm", "tokens", TokenBucket::per_minute(limit * 1_000)),
    ];
    Policy::new(format!("speed-{limit}"), limits).expect("a valid policy")
}

fn acquire<'a>(
    name: &'a str,
    gate: &Arc<Postgres>,
    limit: u64,
    keys: usize,
    ids: bool,
) -> Case<'a> {
    let (gate, policy) = (Arc::clone(gate), policy(limit));
    Case::new(name, move |caller, done| {
        let (gate, policy) = (Arc::clone(&gate), policy.clone());
        async move {
            let ask = Ask::new(&policy, subject(keys, caller, done)).cost("tokens", 10);
            let ask = if ids { ask.id(fresh_id()) } else { ask };
            let admitted = gate.acquire(&ask).await.expect("decides").is_admitted();
            assert_eq!(admitted, limit != FEW);
        }
    })
}

/// Statements that the server counts for each decision.
fn count(runtime: &Runtime) {
    const DECISIONS: u32 = 1_000;
    let server = servers::Postgres::start().expect("a server");
    let database = server.database().expect("a database");
    let gate = runtime.block_on(open(&server.url(&database)));
    let psql = |sql: &str| server.psql(&database, sql).expect("psql");
    psql("CREATE EXTENSION pg_stat_statements");
    for (what, limit, keys) in
        [("makes its row", MANY, DECISIONS), ("admits", MANY, 10), ("refuses", FEW, 1)]
    {
        let policy = policy(limit);
        let decide = |number: u32| {
            let ask = Ask::new(&policy, format!("{what}-{}", number % keys)).cost("tokens", 10);
            runtime.block_on(gate.acquire(&ask)).expect("decides");
        };
        // Connections prepare their statements once.
        (DECISIONS..DECISIONS + 100).for_each(|number| decide(number % keys));
        psql("SELECT pg_stat_statements_reset()");
        (100..100 + DECISIONS).for_each(decide);
        let calls = psql(
            "SELECT sum(calls) FROM pg_stat_statements WHERE toplevel AND query NOT LIKE '%_reset()'",
        );
        let calls: f64 = calls.parse().expect("a number");
        counted(
            &format!("statements per decision that {what} (pg_stat_statements)"),
            calls / f64::from(DECISIONS),
            1.0,
        );
    }
}

/// The naive solution: lock and read the row, decide here, write it. Four round trips with prepared statements.
struct Peer {
    room: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

struct Connection {
    client: Client,
    read: Statement,
    write: Statement,
}

/// Connects and leaves the driver to the runtime.
pub(crate) async fn client(url: &str) -> Client {
    let (client, driver) = tokio_postgres::connect(url, NoTls).await.expect("the server answers");
    tokio::spawn(driver);
    client
}

impl Peer {
    async fn open(url: &str) -> Self {
        let table = format!(
            "CREATE TABLE naive (key text PRIMARY KEY, a bigint, b bigint, c bigint, at timestamptz); \
             INSERT INTO naive SELECT 'k' || n, 0, 0, 0, now() FROM generate_series(0, {KEYS} - 1) n"
        );
        client(url).await.batch_execute(&table).await.expect("a table");
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS {
            let client = client(url).await;
            let read = client.prepare("SELECT a, b, c, at FROM naive WHERE key = $1 FOR UPDATE");
            let read = read.await.expect("a statement");
            let write = client
                .prepare("UPDATE naive SET a = $2, b = $3, c = $4, at = now() WHERE key = $1");
            let write = write.await.expect("a statement");
            idle.push(Connection { client, read, write });
        }
        Self { room: Semaphore::new(CONNECTIONS), idle: Mutex::new(idle) }
    }

    async fn ask(&self, key: &str, admits: bool) -> Result<(), tokio_postgres::Error> {
        let _room = self.room.acquire().await.expect("never closed");
        let connection = self.idle.lock().expect("not poisoned").pop().expect("there is room");
        let Connection { client, read, write } = &connection;
        client.batch_execute("BEGIN").await?;
        let row = client.query_one(read, &[&key]).await?;
        let (a, b, c): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        if admits {
            client.execute(write, &[&key, &(a + 1), &(b + 1), &(c + 10)]).await?;
        }
        client.batch_execute("COMMIT").await?;
        self.idle.lock().expect("not poisoned").push(connection);
        Ok(())
    }
}

/// Asks that are all let through, or all refused.
fn peer_line<'a>(name: &'a str, peer: &Arc<Peer>, keys: usize, admits: bool) -> Case<'a> {
    let peer = Arc::clone(peer);
    Case::new(name, move |caller, done| {
        let peer = Arc::clone(&peer);
        async move {
            peer.ask(&subject(keys, caller, done), admits).await.expect("the server answers");
        }
    })
}
