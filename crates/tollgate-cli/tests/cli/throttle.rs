//! `CL.THROTTLE` beside a model of redis-cell on every store, which decides by the clock of the test.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tollgate::clock::ManualClock;
use tollgate::policy::Policies;
use tollgate::{Gate, Timestamp};
use tollgate_dynamodb::DynamoDb;
use tollgate_embedded::Embedded;
use tollgate_postgres::Postgres;
use tollgate_redis::Redis;
use tollgate_server::{App, Listeners, run};
use tollgate_testkit::redis_cell::{Connection, compare};
use tollgate_testkit::servers;

/// Compares a server on the gate that `open` opens with the model, once for each of `seeds`.
fn answers_as_redis_cell<G: Gate, F: Future<Output = G>>(
    open: impl FnOnce(ManualClock) -> F,
    seeds: u64,
) {
    let clock = ManualClock::at(Timestamp::from_secs(1_794_721_500));
    let runtime = Runtime::new().expect("a runtime");
    let gate = runtime.block_on(open(clock.clone()));
    let address = runtime.block_on(serve(Arc::new(gate), &clock));
    for seed in 0..seeds {
        compare(address, &clock, seed, 250).expect("the server answers");
    }
}

/// Serves `gate` and returns the address of the Redis protocol.
async fn serve(gate: Arc<dyn Gate>, clock: &ManualClock) -> SocketAddr {
    let policies = Policies::new([]).expect("no policies");
    let app = App::new(gate, policies, [7; 32], Arc::new(clock.clone())).expect("an app");
    let bind = || async { TcpListener::bind("127.0.0.1:0").await.expect("a port") };
    let resp = bind().await;
    let address = resp.local_addr().expect("an address");
    let listeners = Listeners::http(bind().await).resp(resp);
    tokio::spawn(run(listeners, Arc::new(app), std::future::pending()));
    address
}

#[test]
fn changing_numbers_on_the_embedded_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = async |clock: ManualClock| {
        let options = tollgate_embedded::Options::new().clock(Arc::new(clock));
        Embedded::open(&folder.path().join("data"), options).expect("a store")
    };
    answers_as_redis_cell(open, 4);
}

#[test]
fn changing_numbers_on_redis() {
    let server = servers::Redis::start().expect("a server");
    let open = async |clock: ManualClock| {
        let options = tollgate_redis::Options::single(server.url()).test_clock(Arc::new(clock));
        Redis::open(options).await.expect("a store")
    };
    answers_as_redis_cell(open, 4);
}

/// Callers with numbers of their own share a key: none fails, and everything that was admitted is counted.
#[test]
fn different_numbers_at_once_on_redis() {
    let server = servers::Redis::start().expect("a server");
    let clock = ManualClock::at(Timestamp::from_secs(1_794_721_500));
    let runtime = Runtime::new().expect("a runtime");
    let options = tollgate_redis::Options::single(server.url()).test_clock(Arc::new(clock.clone()));
    let gate = runtime.block_on(Redis::open(options)).expect("a store");
    let address = runtime.block_on(serve(Arc::new(gate), &clock));
    let ask = |connection: &mut Connection, numbers: &str| {
        connection.ask(&format!("CL.THROTTLE hot {numbers}")).expect("an answer")
    };
    let (callers, times) = (24, 30);
    std::thread::scope(|scope| {
        for caller in 1..=callers {
            scope.spawn(move || {
                let mut connection = Connection::open(address).expect("a connection");
                for _ in 0..times {
                    // An emission interval of as many seconds as the caller's number.
                    let answer = ask(&mut connection, &format!("10000 1 {caller}"));
                    assert_eq!(answer[0], 0, "{answer:?}");
                }
            });
        }
    });
    let debt = times * (1..=callers).sum::<i64>();
    let mut connection = Connection::open(address).expect("a connection");
    assert_eq!(ask(&mut connection, "0 1 1 0"), [1, 1, 0, debt - 1, debt]);
}

#[test]
fn changing_numbers_on_postgres() {
    let server = servers::Postgres::start().expect("a server");
    let url = server.url(&server.database().expect("a database"));
    let open = async |clock: ManualClock| {
        let options = tollgate_postgres::Options::new(&url).expect("options");
        Postgres::open(options.test_clock(Arc::new(clock))).await.expect("a store")
    };
    answers_as_redis_cell(open, 2);
}

#[test]
fn changing_numbers_on_dynamodb() {
    let server = servers::DynamoDb::start().expect("a server");
    let open = async |clock: ManualClock| {
        let options = tollgate_dynamodb::Options::new("tollgate")
            .region("eu-central-1")
            .endpoint(server.endpoint())
            .credentials("test", "test")
            .skew_max(None)
            .clock(Arc::new(clock));
        tollgate_dynamodb::create_table(options.clone()).await.expect("a table");
        DynamoDb::open(options).await.expect("a store")
    };
    answers_as_redis_cell(open, 2);
}
