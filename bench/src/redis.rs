//! Redis: decisions beside plain `INCR` and beside a minimal script with one limit, through the same client on the same
//! server.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, IntoConnectionInfo, ProtocolVersion, Script};
use tokio::runtime::Runtime;
use tollgate::policy::Period;
use tollgate::{Ask, CalendarWindow, GateExt, Limit, Policy, RollingWindow, Span, TokenBucket};
use tollgate_redis::{Options, Redis};
use tollgate_testkit::servers;

use crate::load::{Bound, Case, compare, counted, fresh_id, runtime, subject};

const CONNECTIONS: usize = 50;
/// So short that ids expire during a run, as they do in a long one.
const ID_TTL: Span = Span::from_millis(5);

/// A busy machine may stop a program for longer than an attempt takes by default.
const PATIENCE: Span = Span::from_secs(20);

const INCR: &str = "INCR";
const MINIMAL: &str = "minimal script";
const IDS: &str = "acquire, 3 limits, ids";

/// The least a script can do: one bucket in one key.
pub(crate) const SCRIPT: &str = "local t = redis.call('TIME') local now = t[1] * 1000000 + t[2] \
    local tat = tonumber(redis.call('GET', KEYS[1]) or now) if tat < now then tat = now end \
    local new = tat + tonumber(ARGV[1]) if now + tonumber(ARGV[2]) < new then return {0, tostring(tat)} end \
    redis.call('SET', KEYS[1], string.format('%.0f', new), 'PX', math.ceil((new - now) / 1000)) return {1, tostring(new)}";

pub(crate) fn run() {
    let server = servers::Redis::start().expect("a server");
    let runtime = runtime();
    let (plain, gates) = runtime.block_on(connect(&server.url()));
    let (open, shut) = (policy("open", 1 << 50), policy("shut", 1));
    println!("\n# Redis: {CONNECTIONS} connections, no pipelining\n");
    count(&runtime, &server, &gates[0], [&open, &shut]);
    for keys in [1, 10_000] {
        println!("{keys} key(s)");
        runtime.block_on(async {
            for number in 0..keys {
                let ask = Ask::new(&shut, format!("k{number}"));
                gates[0].acquire(&ask).await.expect("decides");
            }
        });
        let cases = [
            incr(&plain, keys),
            minimal(&plain, keys),
            acquire(IDS, &gates, &open, keys, true),
            acquire("acquire, 3 limits, no ids", &gates, &open, keys, false),
            acquire("refusal", &gates, &shut, keys, false),
        ];
        let bounds = [
            Bound { case: IDS, peer: INCR, least: 0.5 },
            Bound { case: IDS, peer: MINIMAL, least: 0.9 },
        ];
        compare(&runtime, CONNECTIONS, &cases, &[INCR, MINIMAL], &bounds);
        for case in &cases {
            cost(&runtime, &server, case);
        }
    }
}

/// Prints the processor time of a call, of the server and of the client; other load changes it little.
fn cost(runtime: &Runtime, server: &servers::Redis, case: &Case<'_>) {
    const CALLS: usize = 600;
    let ours = || {
        let times = std::fs::read_to_string("/proc/self/stat").expect("this is Linux");
        // Ticks in user mode and in the kernel, of which there are a hundred in a second.
        let ticks = times.rsplit(')').next().expect("a case").split_whitespace().skip(11).take(2);
        ticks.map(|ticks| ticks.parse::<f64>().expect("a number")).sum::<f64>() / 100.0
    };
    let theirs = || {
        let times = server.command(&["info", "cpu"]).expect("the server answers");
        let time = |name: &str| {
            let time = times.lines().find_map(|case| case.strip_prefix(name));
            time.expect("a time").trim().parse::<f64>().expect("a number")
        };
        time("used_cpu_user:") + time("used_cpu_sys:")
    };
    let before = (theirs(), ours());
    runtime.block_on(case.turns(CONNECTIONS, CALLS));
    let per_call = |seconds: f64| seconds * 1e6 / (CONNECTIONS * CALLS) as f64;
    println!(
        "  {:<34} {:>6.1} us of the server, {:>6.1} us of the client",
        case.name(),
        per_call(theirs() - before.0),
        per_call(ours() - before.1)
    );
}

/// Three limits on two units, the last of them with so many requests a day.
fn policy(name: &str, daily: u64) -> Policy {
    let limits = [
        Limit::new("rps", "requests", TokenBucket::per_second(1_000_000).burst(1_000_000)),
        Limit::new(
            "tpm",
            "tokens",
            RollingWindow::new(1 << 50, Span::from_hours(24)).resolution(12),
        ),
        Limit::new("rpd", "requests", CalendarWindow::new(daily, Period::Day)),
    ];
    Policy::new(name, limits).expect("a valid policy")
}

/// Connections as the store has them, without the store and with it.
async fn connect(url: &str) -> (Vec<ConnectionManager>, Vec<Arc<Redis>>) {
    let (mut plain, mut gates) = (Vec::new(), Vec::new());
    let timeout = Some(Duration::from(PATIENCE));
    let config = ConnectionManagerConfig::new()
        .set_response_timeout(timeout)
        .set_connection_timeout(timeout)
        .set_number_of_retries(0);
    for _ in 0..CONNECTIONS {
        let info = url.into_connection_info().expect("a url");
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(settings)).expect("a client");
        let connection = ConnectionManager::new_with_config(client, config.clone()).await;
        plain.push(connection.expect("the server answers"));
        let options = Options::single(url).attempt_timeout(PATIENCE);
        gates.push(Arc::new(Redis::open(options).await.expect("it answers")));
    }
    (plain, gates)
}

fn incr(plain: &[ConnectionManager], keys: usize) -> Case<'static> {
    let plain = plain.to_vec();
    Case::new(INCR, move |caller, done| {
        let mut connection = plain[caller].clone();
        async move {
            let mut command = redis::cmd("INCR");
            command.arg(subject(keys, caller, done));
            let _: u64 = command.query_async(&mut connection).await.expect("counts");
        }
    })
}

fn minimal(plain: &[ConnectionManager], keys: usize) -> Case<'static> {
    let (plain, script) = (plain.to_vec(), Arc::new(Script::new(SCRIPT)));
    Case::new(MINIMAL, move |caller, done| {
        let (mut connection, script) = (plain[caller].clone(), Arc::clone(&script));
        async move {
            let mut call = script.key(format!("m{}", subject(keys, caller, done)));
            let call = call.arg(1).arg(1_000_000);
            let _: (u8, String) = call.invoke_async(&mut connection).await.expect("decides");
        }
    })
}

fn acquire<'a>(
    name: &'a str,
    gates: &[Arc<Redis>],
    policy: &Policy,
    keys: usize,
    ids: bool,
) -> Case<'a> {
    let (gates, policy, admits) = (gates.to_vec(), policy.clone(), policy.name() == "open");
    Case::new(name, move |caller, done| {
        let (gate, policy) = (Arc::clone(&gates[caller]), policy.clone());
        async move {
            let ask = Ask::new(&policy, subject(keys, caller, done)).cost("tokens", 100);
            let ask = if ids { ask.id_for(fresh_id(), ID_TTL) } else { ask };
            assert_eq!(gate.acquire(&ask).await.expect("decides").is_admitted(), admits);
        }
    })
}

/// Commands that the server saw for each decision, those inside scripts left out.
fn count(runtime: &Runtime, server: &servers::Redis, gate: &Redis, policies: [&Policy; 2]) {
    const DECISIONS: u32 = 2_000;
    for (policy, what) in policies.into_iter().zip(["admits", "refuses, but once"]) {
        let decide = |number: u32| {
            let ask = Ask::new(policy, "counted").cost("tokens", 100);
            let ask = ask.id_for(format!("{number}"), ID_TTL).into_owned();
            runtime.block_on(gate.acquire(&ask)).expect("decides");
        };
        decide(DECISIONS);
        server.command(&["config", "resetstat"]).expect("the server answers");
        (0..DECISIONS).for_each(decide);
        let stats = server.command(&["info", "commandstats"]).expect("the server answers");
        // The client sends nothing else; what a script calls has its own cases, and so has redis-cli.
        let calls = stats.lines().filter_map(|case| {
            let (name, figures) = case.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let outer = ["eval", "evalsha", "script|load", "get", "wait"].contains(&name);
            figures.split(',').next()?.parse::<u32>().ok().filter(|_| outer && name != "get")
        });
        let calls: u32 = calls.sum();
        counted(
            &format!("commands per decision that {what} (INFO commandstats)"),
            f64::from(calls) / f64::from(DECISIONS),
            1.0,
        );
    }
}
