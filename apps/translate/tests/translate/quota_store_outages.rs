//! Outages of the store that holds the quota, on virtual time.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tollgate::policy::OnStoreFailure;
use tollgate::strategy::{Fallback, FallbackOptions, ShareStart};
use tollgate::{Clock, Gate, Limit, Memory, Policy, RollingWindow, Span};
use tollgate_conformance::faulty::{Faulty, Trouble};
use tollgate_sim::World;
use tollgate_testkit::fakes::gemini::Settings;
use tollgate_translate::Layout;
use tollgate_translate::pipeline::{RunOutcome, Throttle};

use crate::harness::{Harness, chunks_of, expected, spec};

type Store = Arc<Faulty<Memory>>;

/// A harness whose quota of 1,000,000 tokens a minute is in a store that fails on command.
fn harness(world: &World, on_store_failure: OnStoreFailure) -> (Harness, Store) {
    let clock: Arc<dyn Clock> = Arc::new(world.clock());
    let settings = Settings { latency: Span::from_secs(10), ..Settings::default() };
    let mut harness = Harness::new(Arc::clone(&clock), settings);
    let store = Arc::new(Faulty::new(Memory::with(Arc::clone(&clock), 100)));
    let limit = RollingWindow::new(1_000_000, Span::from_mins(1));
    let policy = Policy::builder("quota")
        .limit(Limit::new("tpm", "tokens", limit))
        .on_store_failure(on_store_failure)
        .build()
        .unwrap();
    // The share of one of 10,000 is less than any chunk needs.
    let start = ShareStart::Share;
    let settings = FallbackOptions { start, ..FallbackOptions::new(10_000) };
    let gate = Fallback::new(Arc::clone(&store), settings, Arc::clone(&clock)).unwrap();
    let gate: Arc<dyn Gate> = Arc::new(gate);
    harness.throttle = Arc::new(Throttle::new(gate, policy, "project", clock));
    (harness, store)
}

/// The store is away for an hour of a job of 12 chunks. `why` is in what is shown meanwhile.
fn goes_on_after_an_hour(on_store_failure: OnStoreFailure, why: &str) {
    let (text, size) = chunks_of(12);
    let run = |world: World| async move {
        let (harness, store) = harness(&world, on_store_failure);
        let pipeline = harness.pipeline(3);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        let running = tokio::spawn({
            let pipeline = pipeline.clone();
            async move { pipeline.run("book", &CancellationToken::new()).await }
        });
        world.sleep(Span::from_secs(15)).await;
        store.always(Trouble::Down);
        world.sleep(Span::from_mins(5)).await;
        let calls = harness.fake.tally().calls;
        world.sleep(Span::from_mins(55)).await;
        assert_eq!((harness.fake.tally().calls, calls), (6, 6), "only those that were under way");
        let shown = pipeline.progress().borrow().clone();
        let retry = shown.retry.unwrap();
        assert!(shown.paused.is_none() && retry.contains(why), "{retry}");
        assert!(!retry.contains("the provider"), "{retry}");
        store.always(Trouble::None);
        let back = harness.clock.now();
        assert_eq!(running.await.unwrap().unwrap(), RunOutcome::Completed);
        let lasted = harness.clock.now().since(back);
        assert!(lasted < Span::from_mins(2), "{lasted}: it goes on as soon as the store is back");
        assert_eq!((harness.fake.tally().calls, pipeline.transient_failures()), (12, 0));
        let output = pipeline.output("book", Layout::Translation).await.unwrap();
        assert_eq!(output.bytes, expected(&text, size));
    };
    World::run(3, run).unwrap();
}

/// R000.10: with `closed`, nothing is called in the outage, and neither the provider nor a chunk is to blame.
#[test]
fn r000_10_a_closed_quota_whose_store_is_away_holds_the_job_and_blames_nobody_else() {
    goes_on_after_an_hour(OnStoreFailure::Closed, "the store is down");
}

/// R000.10: a share that is too small for a chunk is no reason to cut the chunk into pieces.
#[test]
fn r000_10_a_share_that_is_too_small_holds_the_job_and_splits_no_chunk() {
    let why = "the store is unavailable, and this process's share of the limit tpm is 100 tokens";
    goes_on_after_an_hour(OnStoreFailure::Fallback, why);
}
