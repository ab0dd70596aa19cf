//! The conformance suite on a single server and on a cluster, in the current format and in the one before.

use std::sync::Arc;

use tollgate::Gate;
use tollgate::clock::ManualClock;
use tollgate_conformance::{Capabilities, Fixture};
use tollgate_redis::Options;
use tollgate_testkit::servers::{RedisCluster, unique_name};

use crate::{open_at, server};

fn fixture(options: Options, stories: u32, format: u8) -> Fixture {
    let clock = ManualClock::new();
    let options = options.format(format).expect("a known format");
    let open = async { Arc::new(open_at(options, &clock).await) as Arc<dyn Gate> };
    let fixture = Fixture::open(clock.clone(), open).with_capabilities(Capabilities {
        stories,
        joint: format == 4,
        ..Capabilities::default()
    });
    if format == 3 { fixture.with_bounded_refunds().with_exact_logs() } else { fixture }
}

fn single(stories: u32, format: u8) -> Fixture {
    let redis = server();
    fixture(Options::single(redis.url()), stories, format).holding(redis)
}

/// A cluster takes seconds to start, so the tests share one, under a prefix each.
fn shared_cluster() -> Options {
    Options::cluster(RedisCluster::shared().unwrap()).prefix(&unique_name())
}

fn cluster(format: u8) -> Fixture {
    fixture(shared_cluster(), 100, format)
}

tollgate_conformance::suite! {
    fn single_server() -> Fixture {
        single(300, 4)
    }

    fn single_server_in_format_3() -> Fixture {
        single(200, 3)
    }

    fn on_a_cluster() -> Fixture {
        cluster(4)
    }

    fn on_a_cluster_in_one_slot() -> Fixture {
        fixture(shared_cluster().slot_tag("tenant-a").expect("a valid tag"), 100, 4)
    }

    fn on_a_cluster_in_format_3() -> Fixture {
        cluster(3)
    }
}
