//! The conformance suite and the golden vectors, on a single server and on a cluster.

use std::sync::Arc;

use tollgate::ManualClock;
use tollgate_redis::Options;
use tollgate_testing::conformance::{self, Capabilities, Fixture};
use tollgate_testing::servers::RedisCluster;

use crate::{server, told};

fn run_suite(options: Options, stories: u32, format: u8) {
    let clock = ManualClock::new();
    // The connection lives on a runtime of its own, which outlasts the suite's.
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime");
    let options = options.format(format).expect("it is known");
    let gate = runtime.block_on(told(options, &clock));
    let capabilities = Capabilities { stories, ..Capabilities::default() };
    let mut fixture = Fixture::new(Arc::new(gate), clock).with_capabilities(capabilities);
    if format == 3 {
        fixture = fixture.with_bounded_refunds().with_exact_logs();
    }
    if let Err(why) = conformance::run_all(&fixture) {
        panic!("{why}");
    }
}

#[test]
fn a_single_server_passes_the_suite() {
    let redis = server();
    run_suite(Options::single(redis.url()), 300, 4);
}

#[test]
fn a_single_server_in_format_3_passes_the_suite() {
    let redis = server();
    run_suite(Options::single(redis.url()), 200, 3);
}

#[test]
fn a_cluster_passes_the_suite() {
    let cluster = RedisCluster::start().expect("a cluster");
    run_suite(Options::cluster(cluster.urls()), 100, 4);
}

#[test]
fn a_cluster_in_format_3_passes_the_suite() {
    let cluster = RedisCluster::start().expect("a cluster");
    run_suite(Options::cluster(cluster.urls()), 100, 3);
}
