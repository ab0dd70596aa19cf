//! The DynamoDB store on a server that speaks DynamoDB, behind a proxy that counts and misbehaves.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
#![allow(
    clippy::print_stdout,
    reason = "figures are printed, and a child process reports to its parent"
)]

mod branches;
mod child;
mod clocks;
mod conformance;
mod counts;
mod errors;
mod faults;
mod formats;
mod ids;
mod joint;
mod overrides;
mod refunds;
mod requirements;
mod retries;
mod sabotage;
mod stories;
mod windows;

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::policy::Period;
use tollgate::{
    Ask, CalendarWindow, Clock, Decision, Denial, GateExt, Limit, Permit, Policy, RollingWindow,
    Span, Standing, TokenBucket,
};
use tollgate_dynamodb::{ATTEMPT_TIMEOUT_MAX, DynamoDb, Options, create_table};
use tollgate_testkit::servers;

const TABLE: &str = "tollgate";
const MINUTE: Span = Span::from_mins(1);

/// A server with a table, and a manual clock.
struct TestTable {
    server: servers::DynamoDb,
    clock: ManualClock,
}

impl TestTable {
    async fn new() -> Self {
        Self::on(servers::DynamoDb::start().unwrap()).await
    }

    /// As [`new`](Self::new), on a server whose tables survive a restart.
    async fn durable() -> Self {
        Self::on(servers::DynamoDb::start_durable().unwrap()).await
    }

    /// As [`new`](Self::new), on the second server.
    async fn second() -> Self {
        Self::on(servers::DynamoDb::start_ministack().unwrap()).await
    }

    async fn on(server: servers::DynamoDb) -> Self {
        let table = Self { server, clock: ManualClock::new() };
        assert!(create_table(table.options()).await.unwrap());
        table
    }

    /// Options on the clock of the table, which is years away from the server's.
    fn options(&self) -> Options {
        options(&self.server.endpoint(), Arc::new(self.clock.clone())).skew_max(None)
    }

    /// An instance of its own: it knows nothing of what others saw.
    async fn gate(&self) -> Dynamo {
        connect(self.options()).await
    }

    /// A client that sees the items themselves.
    fn client(&self) -> aws_sdk_dynamodb::Client {
        use aws_sdk_dynamodb::config::{BehaviorVersion, Config, Credentials, Region};
        let config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .region(Region::new("eu-central-1"))
            .credentials_provider(Credentials::new("test", "test", None, None, "test"))
            .endpoint_url(self.server.endpoint());
        aws_sdk_dynamodb::Client::from_conf(config.build())
    }
}

/// The store as a gate.
type Dynamo = DynamoDb;

async fn connect(options: Options) -> Dynamo {
    DynamoDb::open(options).await.unwrap()
}

fn options(endpoint: &str, clock: Arc<dyn Clock>) -> Options {
    options_for(TABLE, endpoint, clock)
}

fn options_for(table: &str, endpoint: &str, clock: Arc<dyn Clock>) -> Options {
    Options::new(table)
        .region("eu-central-1")
        .endpoint(endpoint)
        .credentials("test", "test")
        // A machine that runs many tests at once is slow.
        .attempt_timeout(ATTEMPT_TIMEOUT_MAX)
        .clock(clock)
}

/// 5 requests and 250,000 tokens a minute as buckets, 25 requests a day: the limits of R000.
fn gemini() -> Policy {
    let day = CalendarWindow::new(25, Period::Day).in_zone("America/Los_Angeles");
    let limits = [
        Limit::new("rpm", "requests", TokenBucket::per_minute(5)),
        Limit::new("tpm", "tokens", TokenBucket::per_minute(250_000)),
        Limit::new("rpd", "requests", day),
    ];
    Policy::new("gemini", limits).unwrap()
}

/// 5 requests a minute, by this rule.
fn single(rule: impl Into<tollgate::policy::Rule>) -> Policy {
    Policy::new("single", [Limit::new("only", "requests", rule)]).unwrap()
}

/// At most `limit` a minute in twelve slots.
fn coarse(limit: u64) -> Policy {
    single(RollingWindow::new(limit, MINUTE).resolution(12))
}

async fn admit(gate: &Dynamo, ask: &Ask<'_>) -> Permit {
    match gate.acquire(ask).await.unwrap() {
        Decision::Admitted(permit) => permit,
        Decision::Denied(denial) => panic!("denied: {denial:?}"),
    }
}

async fn deny(gate: &Dynamo, ask: &Ask<'_>) -> Denial {
    gate.acquire(ask).await.unwrap().into_denial().unwrap()
}

async fn standing(gate: &Dynamo, policy: &Policy, subject: &str) -> Vec<Standing> {
    gate.standing(policy, subject).await.unwrap()
}

/// What is left of each limit.
async fn remaining(gate: &Dynamo, policy: &Policy, subject: &str) -> Vec<u64> {
    standing(gate, policy, subject).await.iter().map(|limit| limit.remaining).collect()
}
