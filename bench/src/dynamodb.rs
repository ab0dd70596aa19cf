//! DynamoDB: requests counted where they arrive, and how long a warm acquire takes. The server is dynoxide, the counts
//! are those of the proxy in front of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate::clock::{ManualClock, SystemClock};
use tollgate::policy::{Period, Rule};
use tollgate::{
    Ask, CalendarWindow, Clock, GateExt, Limit, Policy, RollingWindow, Span, TokenBucket,
};
use tollgate_dynamodb::{DynamoDb, Options, create_table};
use tollgate_testkit::servers;

use crate::load::{Case, counted, latency, runtime};

/// R000.15: what a warm acquire may take.
const WARM_MAX: Duration = Duration::from_millis(50);

const INSTANCES: usize = 10;

pub(crate) fn run() {
    let mut server = servers::DynamoDb::start().expect("a server");
    let runtime = runtime();
    let at_proxy = server.endpoint();
    runtime.block_on(table(&at_proxy));
    println!("\n# DynamoDB: requests counted at the server\n");
    uncontended(&runtime, &server);
    let minute = Span::from_mins(1);
    let cases: [(&str, Rule, Span); 3] = [
        ("bucket of 5 a minute", TokenBucket::per_minute(5).into(), Span::from_secs(2)),
        (
            "resolution window of 5 a minute",
            RollingWindow::new(5, minute).resolution(12).into(),
            Span::from_secs(2),
        ),
        (
            "bucket of 20 a second",
            TokenBucket::per_second(20).burst(50).into(),
            Span::from_millis(200),
        ),
    ];
    for (name, rule, pace) in cases {
        saturated(&runtime, &server, name, rule, pace);
    }
    println!("\n# DynamoDB: one caller, three limits, warm\n");
    let direct = format!("http://{}", server.process().address());
    let gate = Arc::new(runtime.block_on(connect(&direct, Arc::new(SystemClock))));
    for (name, hot) in [("acquire, one subject", true), ("acquire, a new subject each", false)] {
        let (gate, policy) = (Arc::clone(&gate), policy(1_000_000));
        let case = Case::new(name, move |_, done| {
            let (gate, policy) = (Arc::clone(&gate), policy.clone());
            async move {
                let subject = if hot { "hot".to_owned() } else { format!("s{done}") };
                let ask = Ask::new(&policy, subject).cost("tokens", 100);
                assert!(gate.acquire(&ask).await.expect("decides").is_admitted());
            }
        });
        latency(&runtime, 3_000, &case, WARM_MAX);
    }
}

fn options(endpoint: &str, clock: Arc<dyn Clock>) -> Options {
    let options = Options::new("tollgate").region("eu-central-1").endpoint(endpoint);
    options.credentials("test", "test").clock(clock).skew_max(None)
}

pub(crate) async fn table(endpoint: &str) {
    create_table(options(endpoint, Arc::new(SystemClock))).await.expect("a table");
}

pub(crate) async fn connect(endpoint: &str, clock: Arc<dyn Clock>) -> DynamoDb {
    DynamoDb::open(options(endpoint, clock)).await.expect("the server answers")
}

fn policy(limit: u64) -> Policy {
    let limits = [
        Limit::new("rpm", "requests", TokenBucket::per_minute(limit)),
        Limit::new("tpm", "tokens", TokenBucket::per_minute(limit)),
        Limit::new("rpd", "requests", CalendarWindow::new(limit, Period::Day)),
    ];
    Policy::new("warm", limits).expect("a valid policy")
}

/// Requests of one instance alone on its subjects, three limits.
fn uncontended(runtime: &Runtime, server: &servers::DynamoDb) {
    const DECISIONS: u32 = 1_000;
    let clock = ManualClock::new();
    let gate = runtime.block_on(connect(&server.endpoint(), Arc::new(clock.clone())));
    let policy = policy(1_000_000);
    server.proxy().reset_counts();
    for number in 0..DECISIONS {
        clock.advance(Span::from_millis(10));
        let ask = Ask::new(&policy, format!("alone-{}", number % 10)).cost("tokens", 100);
        assert!(runtime.block_on(gate.acquire(&ask)).expect("decides").is_admitted());
    }
    let counts = server.proxy().counts();
    let all: u64 = counts.requests.values().sum();
    let per = |count: u64| count as f64 / f64::from(DECISIONS);
    counted(
        "UpdateItem per uncontended acquire of three limits",
        per(counts.count("UpdateItem")),
        1.0,
    );
    counted("other requests, reads included", per(all - counts.count("UpdateItem")), 0.0);
}

/// Ten instances ask together, again and again, for more than the limit gives.
fn saturated(runtime: &Runtime, server: &servers::DynamoDb, name: &str, rule: Rule, pace: Span) {
    let clock = ManualClock::new();
    let policy = Policy::new("single", [Limit::new("only", "requests", rule)]);
    let policy = policy.expect("a valid policy");
    let (grants, denials) = runtime.block_on(async {
        let mut gates = Vec::new();
        for _ in 0..INSTANCES {
            gates.push(Arc::new(connect(&server.endpoint(), Arc::new(clock.clone())).await));
        }
        server.proxy().reset_counts();
        let (mut grants, mut denials) = (0_u64, 0_u64);
        for _ in 0..600 {
            clock.advance(pace);
            let asks = gates.iter().map(|gate| {
                let (gate, policy, subject) = (Arc::clone(gate), policy.clone(), name.to_owned());
                tokio::spawn(async move { gate.acquire(&Ask::new(&policy, subject)).await })
            });
            for asked in asks.collect::<Vec<_>>() {
                match asked.await.expect("no task fails").expect("decides").is_admitted() {
                    true => grants += 1,
                    false => denials += 1,
                }
            }
        }
        (grants, denials)
    });
    let writes = server.proxy().counts().count("UpdateItem") - denials;
    counted(
        &format!("{name}: UpdateItems per grant, denials aside"),
        writes as f64 / grants as f64,
        1.2,
    );
}
