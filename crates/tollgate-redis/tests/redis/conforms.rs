//! The conformance suite and the golden vectors, on a single server and on a cluster.

use std::sync::Arc;

use tollgate::ManualClock;
use tollgate_redis::Options;
use tollgate_testing::conformance::{self, Capabilities, Fixture};
use tollgate_testing::servers::RedisCluster;

use crate::{server, told};

fn run_suite(options: Options, capabilities: Capabilities) {
    let clock = ManualClock::new();
    // The connection lives on a runtime of its own, which outlasts the suite's.
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime");
    let gate = runtime.block_on(told(options, &clock));
    let fixture = Fixture::new(Arc::new(gate), clock).with_capabilities(capabilities);
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
    );
}

#[test]
fn a_cluster_passes_the_suite() {
    let cluster = RedisCluster::start().expect("a cluster");
    run_suite(
        Options::cluster(cluster.urls()),
        Capabilities { stories: 100, ..Capabilities::default() },
    );
}
