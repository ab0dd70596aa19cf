//! Two gateways on one Redis, of which one is killed: the provider never sees more than its quota.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::Span;
use tollgate_testkit::fakes::llm::{Dialect, Quota, Settings};
use tollgate_testkit::servers::{Redis, eventually};

use super::raw::{Raw, read};
use super::{KEY, Provider, RunningGateway, Setup};

const RATE: u64 = 10;
const CALLS: u64 = 120;

#[test]
fn two_gateways_on_one_redis_are_exact_when_one_is_killed() {
    let redis = Redis::start().expect("Redis starts");
    let quota = Quota { rpm: RATE, minute: Span::from_secs(1), ..Quota::NONE };
    let provider =
        Provider::start(Settings { quota, latency: Span::from_millis(50), ..Settings::default() });
    let limits = format!(
        "{{ name = \"rate\", unit = \"requests\", rule = \"rolling-window\", limit = {RATE}, window = \"1s\", margin = \"250ms\" }}"
    );
    let store = redis.snippet();
    let config =
        Setup { store: &store, limits: &limits, ..Setup::default() }.config(&provider.served.url());
    let gateways = [RunningGateway::start(&config), RunningGateway::start(&config)];
    let [doomed, other] = &gateways;
    let (answered, lost) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (answered, lost) = (&answered, &lost);
        for number in 0..CALLS {
            let first = if number % 2 == 0 { doomed } else { other };
            scope.spawn(move || {
                let raw = Raw::say(Dialect::OpenAi, &format!("Call {number}"), number % 3 == 0);
                let reply = read(&mut raw.open(&first.url, Dialect::OpenAi, KEY));
                // A client of the gateway that was killed turns to the other.
                let reply = reply.filter(|reply| !reply.body.is_empty()).unwrap_or_else(|| {
                    lost.fetch_add(1, Ordering::SeqCst);
                    raw.through(&other.url, Dialect::OpenAi)
                });
                assert_eq!(reply.status, 200, "{}", reply.text());
                answered.fetch_add(1, Ordering::SeqCst);
            });
        }
        let half = eventually(|| (3 * RATE <= provider.fake.tally().calls).then_some(()));
        assert!(half.is_some(), "calls arrive");
        doomed.broker.kill();
    });
    assert_eq!(answered.into_inner(), CALLS);
    assert_ne!(lost.into_inner(), 0, "it was killed while it worked");
    let tally = provider.fake.tally();
    assert!(tally.violations.is_empty(), "{tally:?}");
    assert_eq!(tally.answered(429), 0, "{tally:?}");
}
