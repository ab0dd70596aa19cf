//! A store that stalls for a few seconds.

use std::time::Duration;

use tollgate::clock::SystemClock;
use tollgate::{Clock, Span};
use tollgate_testkit::servers::{Redis, eventually};

use super::{Assembled, lines, only};

/// How long the server stalls: longer than the timeout.
const STALL: Duration = Duration::from_secs(4);

/// How soon after its end the store is asked again.
const BACK_WITHIN: Span = Span::from_secs(3);

/// Every subject fails, and a probe confirms it, so limits open as they say; it is over within seconds, not half a minute.
/// However many callers fail, the log stays short.
#[test]
fn a_short_stall_is_over_soon_and_the_log_stays_short() {
    let mut redis = Redis::start().expect("a server");
    let assembled = Assembled::start(&redis.snippet());
    let process = redis.process();
    assert_eq!(assembled.ask("closed", "alice").0, 200);
    process.pause().expect("it pauses");
    let (hot, others) = assembled.crowd(8, stall);
    assert!(only(&hot, &[(200, "degraded"), (503, "contended")]), "{hot:?}");
    assert!(only(&others, &[(503, "unavailable")]), "{others:?}");
    let failed: u64 = others.values().sum();
    assert!(20 < failed, "few callers failed: {others:?}");
    assert_eq!(assembled.ready().0, 503);
    process.resume().expect("it goes on");
    let since = SystemClock.now();
    let served = || (assembled.ask("closed", "alice").0 == 200).then_some(());
    eventually(served).expect("the store is asked again");
    let took = SystemClock.now().since(since);
    assert!(took <= BACK_WITHIN, "it took {took}");
    eventually(|| (assembled.ready().0 == 200).then_some(())).expect("it is ready again");
    let log = assembled.log();
    assert!(log.contains("RateLimiterFallbackActivated"), "{log}");
    assert!(log.contains("the store is available again"), "{log}");
    assert!(lines(&log, "ERROR") <= 4, "{failed} failures: {log}");
}

#[expect(clippy::disallowed_methods, reason = "a real server stalls in real time")]
fn stall() {
    std::thread::sleep(STALL);
}
