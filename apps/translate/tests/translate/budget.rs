//! The budget of a job, on virtual time: used up, and never exceeded.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tollgate::Span;
use tollgate_sim::World;
use tollgate_testkit::fakes::gemini::{Fault, Quota, Settings, Trouble, When};
use tollgate_translate::pipeline::{Amendment, RunOutcome};
use tollgate_translate::plan::{Micros, Price};
use tollgate_translate::provider::TIMEOUT_DEFAULT;

use crate::harness::{Harness, chunks_of, spec};

#[test]
fn a_bound_on_the_cost_is_never_passed_and_can_be_raised() {
    let (text, size) = chunks_of(20);
    let run = |world: World| async move {
        let settings = Settings { latency: Span::from_secs(10), ..Settings::default() };
        let harness = Harness::new(Arc::new(world.clock()), settings);
        let pipeline = harness.pipeline(10);
        let mut spec = spec("book", &text, size);
        spec.price = Some(Price::new(300_000, 2_500_000));
        spec.max_cost = Some(Micros(8_000));
        pipeline.submit(&spec).await.unwrap();
        let ended = pipeline.run("book", &CancellationToken::new()).await.unwrap();
        let RunOutcome::Paused { resume_at: None, why, raise_to: Some(to) } = ended else {
            panic!("{ended:?}")
        };
        assert!(why.contains("$0.0080"), "{why}");
        let counts = harness.store.counts("book").await.unwrap();
        assert!(7_000 < counts.cost && counts.cost <= 8_000, "{counts:?}");
        assert!(0 < counts.done && 0 < counts.waiting, "{counts:?}");
        // The same bound again changes nothing, and says so.
        let again = pipeline.run("book", &CancellationToken::new()).await.unwrap();
        let same = RunOutcome::Paused { resume_at: None, why: why.clone(), raise_to: Some(to) };
        assert_eq!(again, same);
        assert!(why.contains("goes nowhere"), "{why}");
        assert!(why.contains(&format!("{} is spent", Micros(counts.cost))), "{why}");
        assert_eq!(harness.store.counts("book").await.unwrap(), counts);
        assert_eq!(to, Micros(16_000));
        let more = Amendment { max_cost: Some(to), ..Amendment::default() };
        pipeline.amend("book", &more).await.unwrap();
        assert_eq!(
            pipeline.run("book", &CancellationToken::new()).await.unwrap(),
            RunOutcome::Completed
        );
        assert_eq!(harness.fake.tally().calls, 20);
    };
    World::run(3, run).unwrap();
}

/// Most of ten workers stand in line for a quota of three calls a minute, and cost nothing there.
#[test]
fn nine_tenths_of_a_bound_are_used_though_most_workers_stand_in_line() {
    let (text, size) = chunks_of(120);
    let run = |world: World| async move {
        let quota = Quota { rpm: 3, ..Quota::NONE };
        let settings = Settings { quota, latency: Span::from_secs(10), ..Settings::default() };
        let harness = Harness::new(Arc::new(world.clock()), settings);
        let pipeline = harness.pipeline(10);
        let mut spec = spec("book", &text, size);
        spec.price = Some(Price::new(300_000, 2_500_000));
        spec.max_cost = Some(Micros(20_000));
        pipeline.submit(&spec).await.unwrap();
        let ended = pipeline.run("book", &CancellationToken::new()).await.unwrap();
        let RunOutcome::Paused { resume_at: None, why, .. } = ended else { panic!("{ended:?}") };
        let counts = harness.store.counts("book").await.unwrap();
        assert!(18_000 <= counts.cost && counts.cost <= 20_000, "{counts:?}");
        assert!(why.contains(&format!("{} is spent", Micros(counts.cost))), "{why}");
        let tally = harness.fake.tally();
        assert_eq!((tally.calls, counts.failed), (counts.done, 0), "{tally:?}");
    };
    World::run(3, run).unwrap();
}

/// An answer that was lost on the way back counts as paid, so a bound holds for those too.
#[test]
fn an_answer_that_is_lost_counts_as_paid() {
    let (text, size) = chunks_of(4);
    let run = |world: World| async move {
        let troubles = vec![Trouble::new(Fault::Slow, When::Call(2))];
        let settings = Settings { troubles, latency: Span::from_secs(1), ..Settings::default() };
        let harness = Harness::new(Arc::new(world.clock()), settings);
        let pipeline = harness.pipeline(1);
        let mut spec = spec("book", &text, size);
        spec.price = Some(Price::new(0, 1_000_000));
        spec.max_cost = Some(Micros(10_000));
        pipeline.submit(&spec).await.unwrap();
        assert_eq!(
            pipeline.run("book", &CancellationToken::new()).await.unwrap(),
            RunOutcome::Completed
        );
        let counts = harness.store.counts("book").await.unwrap();
        assert!(counts.output_tokens + 2_048 <= counts.cost, "{counts:?}");
        assert_eq!((counts.calls, harness.fake.tally().calls), (5, 5));
    };
    let (_, world) = World::run(3, run).unwrap();
    let took = world.elapsed();
    assert!(
        TIMEOUT_DEFAULT < took && took < Span::from_hours(1),
        "{took}: the client's own timeout"
    );
}
