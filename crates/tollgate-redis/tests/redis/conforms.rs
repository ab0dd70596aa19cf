//! The conformance suite and the golden vectors, on a single server and on a cluster.

use std::sync::Arc;

use tollgate::ManualClock;
use tollgate_redis::Options;
use tollgate_testing::conformance::{self, Capabilities, Fixture};
use tollgate_testing::servers::RedisCluster;

use crate::{server, told};

/// Whether a token bucket gives back all that the core does, or a lower bound of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refunds {
    Exact,
    Bounded,
}

fn run_suite(options: Options, capabilities: Capabilities, refunds: Refunds) {
    let clock = ManualClock::new();
    // The connection lives on a runtime of its own, which outlasts the suite's.
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime");
    let gate = runtime.block_on(told(options, &clock));
    let fixture = Fixture::new(Arc::new(gate), clock).with_capabilities(capabilities);
    let fixture =
        if refunds == Refunds::Bounded { fixture.with_bounded_refunds() } else { fixture };
    if let Err(why) = conformance::run_all(&fixture) {
        panic!("{why}");
    }
}

#[test]
fn a_single_server_passes_the_suite() {
    let redis = server();
    run_suite(
        Options::single(redis.url()),
        Capabilities { stories: 300, ..Capabilities::default() },
        Refunds::Exact,
    );
}

#[test]
fn a_single_server_in_format_3_passes_the_suite() {
    let redis = server();
    run_suite(
        Options::single(redis.url()).format(3).expect("it is known"),
        Capabilities { stories: 200, ..Capabilities::default() },
        Refunds::Bounded,
    );
}

#[test]
fn a_cluster_passes_the_suite() {
    let cluster = RedisCluster::start().expect("a cluster");
    run_suite(
        Options::cluster(cluster.urls()),
        Capabilities { stories: 100, ..Capabilities::default() },
        Refunds::Exact,
    );
}
