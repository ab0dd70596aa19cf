//! How many ids are remembered, and that those of long ago are forgotten in time.

use tollgate::core::bounds;
use tollgate::{
    Ask, CalendarWindow, Concurrency, ErrorKind, Gate, Limit, ManualClock, Period, Policy,
    RollingWindow, Rule, Span, TokenBucket,
};
use tollgate_redis::Options;

use crate::agrees::Both;
use crate::{server, slow_bucket, told};

/// As many ids as an entry remembers; then Contended, until they expire.
#[tokio::test]
async fn too_many_ids_are_contended_until_they_expire() {
    let redis = server();
    let mut both = Both::new(&redis).await;
    let policy = slow_bucket(10_000);
    for number in 0..bounds::IDS_MAX {
        let ask = Ask::new(&policy, "p").id(format!("id-{number}"));
        assert!(both.acquire(&ask).await.unwrap().is_admitted());
        if number == 499 {
            both.clock.advance(Span::from_secs(60));
        }
    }
    let one_more = Ask::new(&policy, "p").id("one-more");
    assert_eq!(both.acquire(&one_more).await.unwrap_err(), ErrorKind::Contended);
    assert!(both.acquire(&Ask::new(&policy, "p").id("id-700")).await.unwrap().is_admitted());
    assert!(both.acquire(&Ask::new(&policy, "p")).await.unwrap().is_admitted());
    both.clock.advance(Span::from_secs(60));
    for number in 0..500 {
        let ask = Ask::new(&policy, "p").id(format!("late-{number}"));
        assert!(both.acquire(&ask).await.unwrap().is_admitted());
    }
    assert_eq!(both.acquire(&one_more).await.unwrap_err(), ErrorKind::Contended);
}

/// However many asks come, as long as fewer ids than the bound live at a time none is Contended: 900 of them, for ten times
/// as many asks as are remembered, then ten, and a number that grows and shrinks.
#[tokio::test]
async fn ids_that_are_over_make_room_in_time() {
    let (redis, clock) = (server(), ManualClock::new());
    let gate = told(Options::single(redis.url()), &clock).await;
    let policy = slow_bucket(20_000);
    let ttl = Span::from_millis(900);
    let (most, some) = (10 * bounds::IDS_MAX, 2 * bounds::IDS_MAX);
    for (subject, asks, step) in [
        ("many", most, 1_000..1_001),
        ("few", some, 90_000..90_001),
        ("changing", some, 900..30_000),
    ] {
        let mut wait = step.start;
        for number in 0..asks {
            // No two of the steps are alike, and they come to their start again.
            wait = if wait + 37 < step.end { wait + 37 } else { step.start };
            clock.advance(Span::from_micros(wait));
            let ask = Ask::new(&policy, subject).id_for(format!("id-{number}"), ttl);
            assert!(gate.acquire(&ask).await.unwrap().is_admitted(), "{subject}: {number}");
        }
    }
}

/// The script is put together for the limits of a policy: as many as there may be, of every rule.
#[tokio::test]
async fn as_many_limits_as_there_may_be_are_decided_together() {
    let redis = server();
    let minute = Span::from_mins(1);
    let rules: [Rule; 5] = [
        CalendarWindow::new(20, Period::Day).into(),
        TokenBucket::per(7, minute).burst(20).into(),
        TokenBucket::per(3, minute).burst(20).at_boundaries().into(),
        RollingWindow::new(20, minute).into(),
        Concurrency::new(20, minute).into(),
    ];
    for first in 0..rules.len() {
        let mut both = Both::new(&redis).await;
        let limits = (0..bounds::LIMITS_MAX).map(|number| {
            let rule = rules[if number < 4 { first } else { (first + number) % 5 }].clone();
            Limit::new(format!("limit-{number}"), "requests", rule)
        });
        let policy = Policy::new(format!("all-{first}"), limits).unwrap();
        for number in 0..30_u64 {
            both.clock.advance(Span::from_secs(number % 3));
            let ask = Ask::new(&policy, "p").id(format!("id-{}", number / 2));
            let admitted = both.acquire(&ask).await.unwrap().is_admitted();
            assert!(admitted || 20 <= number, "{first}: {number}");
        }
    }
}
