//! Waiting without a line: on a bucket of one's own, and by asking again.

use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::ManualClock;
use tollgate::{Ask, Clock, ErrorKind, GateExt, Limit, LocalBucket, Policy, Span, TokenBucket};

use crate::{memory, settle_down};

/// R001.5, R000.2: try without waiting, wait up to a timeout, and see what is there.
#[tokio::test]
async fn the_local_bucket_tries_waits_and_tells() {
    let clock = ManualClock::new();
    let rule = TokenBucket::per_second(10).burst(20);
    let bucket = Arc::new(LocalBucket::with_clock(rule, Arc::new(clock.clone())).unwrap());
    assert_eq!(bucket.available(), 20);
    assert_eq!((0..25).filter(|_| bucket.try_acquire()).count(), 20);
    assert_eq!(bucket.available(), 0);
    assert!(
        !bucket.acquire(Duration::from_millis(99)).await.unwrap(),
        "the next token takes 100 ms"
    );
    let waiter = tokio::spawn({
        let bucket = Arc::clone(&bucket);
        async move { bucket.acquire(Duration::from_millis(100)).await }
    });
    settle_down().await;
    clock.advance(Span::from_millis(100));
    assert!(waiter.await.unwrap().unwrap());
    clock.advance(Span::from_hours(1));
    assert_eq!(bucket.available(), 20, "never more than the capacity");
    let bad = LocalBucket::new(TokenBucket::per_second(0)).unwrap_err();
    assert_eq!(bad.kind(), ErrorKind::Invalid);
}

/// R000.2: the pause is the longer of the backoff and the promised wait, and the retry succeeds after the refill.
#[tokio::test]
async fn backoff_waits_at_least_the_promised_time_and_then_succeeds() {
    let (gate, clock) = memory();
    let llm =
        Policy::new("llm", [Limit::new("tpm", "tokens", TokenBucket::per_minute(5_000))]).unwrap();
    let take = |tokens| Ask::new(&llm, "p7").cost("tokens", tokens);
    assert!(gate.acquire(&take(4_000)).await.unwrap().is_admitted());
    let start = clock.now();
    let task = tokio::spawn({
        let (gate, clock, llm) = (gate.clone(), clock.clone(), llm.clone());
        async move {
            let ask = Ask::new(&llm, "p7").cost("tokens", 3_750);
            let deadline = clock.now() + Span::from_mins(5);
            tollgate::retry::acquire_with_backoff(
                &*gate,
                &ask,
                &tollgate::retry::Backoff::QUOTA,
                deadline,
                &clock,
            )
            .await
        }
    });
    settle_down().await;
    // 2,750 tokens are missing at 5,000 per minute: 33 s, longer than the first backoff of 2 s.
    assert_eq!(clock.next_alarm(), Some(start + Span::from_secs(33)));
    clock.advance(Span::from_secs(33));
    assert!(task.await.unwrap().unwrap().is_admitted());
    let near = clock.now() + Span::from_secs(1);
    let denied = tollgate::retry::acquire_with_backoff(
        &*gate,
        &take(3_750),
        &tollgate::retry::Backoff::QUOTA,
        near,
        &clock,
    )
    .await;
    assert!(denied.unwrap().into_denial().is_some(), "no wait that would end after the deadline");
}
