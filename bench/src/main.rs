//! Side-by-side benchmarks. Every figure is printed as a ratio against a peer or a bound that was measured in the same
//! run, in turns of a few milliseconds, so that a busy machine slows both sides alike.
//!
//! ```text
//! cargo xtask bench             all
//! cargo xtask bench memory      the in-process store beside governor
//! cargo xtask bench keys        memory per key, and allocations
//! cargo xtask bench embedded    the embedded store beside the disk and memory
//! cargo xtask bench joint       asks with four charges beside asks with one, and waiters of many tenants
//! cargo xtask bench leased      the leased strategy beside memory, and a fleet of it
//! cargo xtask bench leased-real a fleet of it on Redis and on DynamoDB
//! cargo xtask bench optimistic  the optimistic strategy beside memory
//! cargo xtask bench observation a watched gate beside an unwatched one
//! cargo xtask bench redis       Redis beside INCR and a minimal script
//! cargo xtask bench dynamodb    DynamoDB: requests per decision, and their time
//! cargo xtask bench postgres    PostgreSQL beside SELECT FOR UPDATE + UPDATE
//! cargo xtask bench rows        quotas over the rows of a table of two million
//! cargo xtask bench resp        the Redis protocol beside Redis itself and throttlecrab
//! cargo xtask bench chunking    documents of a translation cut into chunks: MB/s, and memory beyond the document
//! cargo xtask bench translate   whole translations by real processes beside what quota and latency allow
//! cargo xtask bench serve       HTTP, gRPC and the Redis protocol beside throttlecrab, and their latencies at half load
//! cargo xtask bench gateway     the gateway beside a bare reverse proxy, LiteLLM and Portkey: time, memory, calls over the limit
//! cargo xtask bench soak        the memory of a broker: idle connections, many keys, and over time
//! cargo xtask bench aws         a guarded AWS client beside an unguarded one, and a line of a thousand callers
//! ```
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "figures for people need no last digit"
)]

mod aws;
mod chunking;
mod client;
mod constant;
mod dynamodb;
mod embedded;
mod files;
mod gateway;
mod joint;
mod keys;
mod leased;
mod leased_real;
mod load;
mod measure;
mod memory;
mod observation;
mod optimistic;
mod peers;
mod postgres;
mod redis;
mod resp;
mod rows;
mod serve;
mod soak;
mod translate;

use std::process::ExitCode;

fn main() -> ExitCode {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let sections: [(&str, fn()); 19] = [
        ("memory", memory::run),
        ("keys", keys::run),
        ("embedded", embedded::run),
        ("joint", joint::run),
        ("leased", leased::run),
        ("leased-real", leased_real::run),
        ("optimistic", optimistic::run),
        ("observation", observation::run),
        ("redis", redis::run),
        ("dynamodb", dynamodb::run),
        ("postgres", postgres::run),
        ("rows", rows::run),
        ("resp", resp::run),
        ("chunking", chunking::run),
        ("translate", translate::run),
        ("serve", serve::run),
        ("gateway", gateway::run),
        ("soak", soak::run),
        ("aws", aws::run),
    ];
    if let Some(unknown) = wanted.iter().find(|word| sections.iter().all(|(name, _)| name != word))
    {
        let names = sections.map(|(name, _)| name).join(", ");
        println!("no benchmark is called {unknown:?}; there are {names}");
        return ExitCode::from(2);
    }
    for (name, run) in sections {
        if wanted.is_empty() || wanted.iter().any(|word| word == name) {
            run();
        }
    }
    ExitCode::SUCCESS
}
