//! The conformance suite through the client (R002.4).

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate_client::Client;
use tollgate_conformance::{Capabilities, Fixture, run_case};

use crate::broker::{Broker, InTurn, store};

/// Every step is a call over a socket, so there are fewer stories than in memory.
const CAPABILITIES: Capabilities =
    Capabilities { stories: 60, tasks: 64, arrears: false, joint: true };

fn fixture(gate: InTurn, clock: &ManualClock) -> Fixture {
    Fixture::new(Arc::new(gate), clock.clone()).with_capabilities(CAPABILITIES)
}

/// The fixture of one broker, through the client that `connect` makes.
fn one_broker(connect: fn(&Broker) -> Client) -> Fixture {
    let clock = ManualClock::new();
    let broker = Broker::start(store(&clock), &clock);
    let gate = InTurn::new([(connect(&broker), &broker)]);
    fixture(gate, &clock).holding(broker)
}

tollgate_conformance::suite! {
    fn r002_4_the_broker_over_grpc_passes_the_suite() -> Fixture {
        one_broker(Broker::by_grpc)
    }

    fn r002_4_the_broker_over_http_passes_the_suite() -> Fixture {
        one_broker(Broker::by_http)
    }

    fn r002_4_the_broker_over_resp_passes_the_suite() -> Fixture {
        one_broker(Broker::by_resp)
    }

    /// Permits are handed on inside the seal of the first broker.
    fn r002_4_a_broker_in_front_of_a_broker_passes_the_suite() -> Fixture {
        let clock = ManualClock::new();
        let last = Broker::start(store(&clock), &clock);
        let behind = InTurn::new([(last.by_grpc(), &last)]);
        let first = Broker::start(Arc::new(behind), &clock);
        let gate = InTurn::new([(first.by_resp(), &first)]);
        fixture(gate, &clock).holding(first).holding(last)
    }

    /// Two brokers on one store are one gate, by whichever transport each call goes: a permit of one is settled at the
    /// other.
    fn r002_4_two_brokers_on_one_store_are_exact() -> Fixture {
        let clock = ManualClock::new();
        let store = store(&clock);
        let brokers = [Broker::start(Arc::clone(&store), &clock), Broker::start(store, &clock)];
        let gate = InTurn::new([
            (brokers[0].by_grpc(), &brokers[0]),
            (brokers[1].by_http(), &brokers[1]),
            (brokers[1].by_grpc(), &brokers[1]),
            (brokers[0].by_resp(), &brokers[0]),
        ]);
        fixture(gate, &clock).holding(brokers)
    }
}

/// The sabotaged variant: two brokers that share nothing are caught.
#[test]
fn two_brokers_on_two_stores_are_caught() {
    let clock = ManualClock::new();
    let brokers = [(); 2].map(|()| Broker::start(store(&clock), &clock));
    let clients = brokers.iter().map(|broker| (broker.by_grpc(), broker));
    let fixture = fixture(InTurn::new(clients), &clock);
    let fault = run_case("admits_exactly_the_limit", &fixture).unwrap_err();
    assert!(fault.contains("10 of 5 went through"), "{fault}");
}
