//! Many jobs on one quota, and the speed that a quota allows, on virtual time.

use std::sync::Arc;

use tollgate::{Limit, Policy, Span, TokenBucket};
use tollgate_sim::World;
use tollgate_testing::fakes::gemini::{Quota, Settings, Tally, Window};
use tollgate_translate::Layout;
use tollgate_translate::pipeline::{Ended, Stop};

use crate::desk::{Bench, chunks_of, expected, policy, spec};

/// How long a call may take to reach the provider in these tests.
const DELAY: Span = Span::from_secs(2);

/// Ten jobs of 12 chunks at once on one quota.
fn ten_jobs(seed: u64, quota: Quota, policy: Policy, delay: Span) -> (Tally, Span) {
    let run = |world: World| async move {
        let settings = Settings { quota, latency: Span::from_secs(10), ..Settings::default() };
        let bench = Bench::with(Arc::new(world.clock()), settings, policy, delay);
        let pipeline = bench.pipeline(10);
        let mut jobs = Vec::new();
        let (text, size) = chunks_of(12);
        for number in 0..10 {
            // No two jobs have a chunk in common, or the cache would answer.
            let text = text.replace("the ", &format!("the {number} "));
            let id = format!("job-{number}");
            pipeline.submit(&spec(&id, &text, size)).await.unwrap();
            let pipeline = pipeline.clone();
            jobs.push(tokio::spawn(async move {
                let ended = pipeline.run(&id, &Stop::never()).await.unwrap();
                assert_eq!(ended, Ended::Completed);
                let output = pipeline.output(&id, Layout::Translation).await.unwrap();
                assert_eq!(output.bytes, expected(&text, size));
            }));
        }
        for job in jobs {
            job.await.unwrap();
        }
        bench.fake.tally()
    };
    let (tally, world) = World::run(seed, run).unwrap();
    (tally, world.elapsed())
}

#[test]
fn r003_7_r003_8_ten_jobs_on_one_quota_never_see_a_429_in_any_kind_of_window() {
    for seed in 0..2 {
        // Requests bind, then tokens.
        for quota in [Quota { rpm: 15, ..Quota::NONE }, Quota { tpm: 9_000, ..Quota::NONE }] {
            let (tally, _) = ten_jobs(seed, quota, policy(quota, DELAY), DELAY);
            assert!(tally.violations.is_empty(), "seed {seed}, {quota:?}: {:?}", tally.violations);
            assert!(120 <= tally.translated, "{tally:?}");
        }
    }
}

/// The classic policies must be found out: a bucket of 15 refilled at 15 a minute lets 30 through in a minute, and a window
/// without a margin counts a late call in the wrong minute.
#[test]
fn r003_7_a_bucket_or_a_window_without_a_margin_is_found_out() {
    let quota = Quota { rpm: 15, ..Quota::NONE };
    let bucket = TokenBucket::per_minute(15);
    let bucket = Policy::new("gemini", [Limit::new("rpm", "requests", bucket)]).unwrap();
    let (tally, _) = ten_jobs(1, quota, bucket, DELAY);
    assert!(tally.violations.keys().any(|(_, window)| *window == Window::Rolling), "{tally:?}");
    let (tally, _) = ten_jobs(1, quota, policy(quota, Span::ZERO), DELAY);
    assert!(!tally.violations.is_empty(), "{tally:?}");
}

fn elapsed(chunks: usize, parallel: usize, quota: Quota, margin: Span) -> Span {
    let run = |world: World| async move {
        let settings = Settings { quota, latency: Span::from_secs(10), ..Settings::default() };
        let bench = Bench::with(Arc::new(world.clock()), settings, policy(quota, margin), margin);
        let pipeline = bench.pipeline(parallel);
        let (text, size) = chunks_of(chunks);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        assert_eq!(pipeline.run("book", &Stop::never()).await.unwrap(), Ended::Completed);
        let tally = bench.fake.tally();
        assert!(tally.violations.is_empty(), "{tally:?}");
        assert_eq!(tally.calls, chunks as u64);
    };
    World::run(1, run).unwrap().1.elapsed()
}

#[test]
fn r003_6_ten_workers_are_nine_times_as_fast_and_reach_the_targets_where_the_tier_allows_it() {
    let tier = Quota { rpm: 60, ..Quota::NONE };
    let sequential = elapsed(60, 1, tier, Span::ZERO);
    let parallel = elapsed(60, 10, tier, Span::ZERO);
    assert!(
        9 * parallel.as_micros() <= sequential.as_micros(),
        "60 chunks: {sequential} one by one, {parallel} ten at once"
    );
    assert!(parallel < Span::from_secs(90), "60 chunks in {parallel}");
    let ten = elapsed(10, 10, tier, Span::ZERO);
    assert!(ten < Span::from_secs(20), "10 chunks in {ten}");
}

#[test]
fn r003_6_under_a_binding_quota_a_job_takes_at_most_5_percent_more_than_the_quota_demands() {
    // The provider lets 40 calls through per minute. Ten workers at ten seconds send 40 in the first half minute, wait for
    // the next minute, and so on; the last call takes its ten seconds.
    let quota = Quota { rpm: 40, ..Quota::NONE };
    let least = Span::from_secs(9 * 60 + 30 + 10);
    let took = elapsed(400, 10, quota, Span::from_secs(2));
    assert!(least <= took, "{took} is less than {least}, which cannot be");
    assert!(took.as_micros() * 100 <= least.as_micros() * 105, "{took} instead of {least}");
}
