//! Useless answers and unplanned cost pause the job with a reason, on virtual time.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tollgate::Span;
use tollgate_sim::World;
use tollgate_testkit::fakes::gemini::{Fault, Settings, Trouble, When};
use tollgate_translate::pipeline::{Amendment, RunOutcome};
use tollgate_translate::plan::{Micros, Price};
use tollgate_translate::{FAILED_MARK, Layout};

use crate::harness::{Harness, chunks_of, expected, spec};

/// Runs a job of 30 chunks whose provider always has `fault`, and again once it is well; says why it was paused and after how many calls.
fn paused_by(fault: Fault, parallel: usize) -> (String, u64) {
    let (text, size) = chunks_of(30);
    let run = |world: World| async move {
        let troubles = vec![Trouble::new(fault, When::Every(1))];
        let settings = Settings { latency: Span::from_secs(10), troubles, ..Settings::default() };
        let harness = Harness::new(Arc::new(world.clock()), settings);
        let pipeline = harness.pipeline(parallel);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        let ended = pipeline.run("book", &CancellationToken::new()).await.unwrap();
        let RunOutcome::Paused { resume_at: None, why, raise_to: None } = ended else {
            panic!("{ended:?}")
        };
        let calls = harness.fake.tally().calls;
        let counts = harness.store.counts("book").await.unwrap();
        assert_eq!((counts.waiting, counts.done, counts.failed), (30, 0, 0), "{counts:?}");
        // Nothing has changed, and one call shows it.
        pipeline.run("book", &CancellationToken::new()).await.unwrap();
        assert!(harness.fake.tally().calls <= calls + 5);
        harness.fake.set(Settings::default());
        assert_eq!(
            pipeline.run("book", &CancellationToken::new()).await.unwrap(),
            RunOutcome::Completed
        );
        let output = pipeline.output("book", Layout::Translation).await.unwrap();
        assert_eq!(output.bytes, expected(&text, size), "nothing was given up");
        (why, calls)
    };
    World::run(3, run).unwrap().0
}

#[test]
fn r003_5_a_few_answers_that_fail_alike_pause_the_job() {
    let echoed = "the answer repeats the source instead of translating it";
    let refused = "the provider refused 5 requests in a row: Request contains an invalid argument";
    for (fault, wanted) in [
        (
            Fault::Untranslated,
            format!(
                "5 answers in a row were useless: {echoed}; check the languages and the model before you resume"
            ),
        ),
        (Fault::BadRequest, refused.to_owned()),
    ] {
        // One at a time, and ten: those that are under way already are waited for.
        for (parallel, calls) in [(1, 5), (10, 10)] {
            let (why, made) = paused_by(fault, parallel);
            assert!(why.starts_with(&wanted), "{why}");
            assert_eq!(made, calls, "{fault:?} with {parallel} at once");
        }
    }
}

/// A request that is refused for one of its paragraphs is cut down to it.
#[test]
fn r003_5_one_request_that_is_refused_costs_one_paragraph() {
    let (text, size) = chunks_of(30);
    let text = text.replacen("orchard", "forbidden", 1);
    let run = |world: World| async move {
        let bad = Trouble::new(Fault::BadRequest, When::Contains("forbidden".to_owned()));
        let settings = Settings { troubles: vec![bad], ..Settings::default() };
        let harness = Harness::new(Arc::new(world.clock()), settings);
        let pipeline = harness.pipeline(10);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        assert_eq!(
            pipeline.run("book", &CancellationToken::new()).await.unwrap(),
            RunOutcome::CompletedWithErrors
        );
        let output = pipeline.output("book", Layout::Translation).await.unwrap();
        let shown = String::from_utf8(output.bytes).unwrap();
        assert_eq!(shown.matches(FAILED_MARK).count(), 1);
        let marked = shown.lines().find(|line| line.contains(FAILED_MARK)).unwrap();
        assert!(marked.contains("forbidden"), "{marked}");
        harness.fake.tally().calls
    };
    let calls = World::run(3, run).unwrap().0;
    assert_eq!(calls, 37, "of 30 that were planned");
}

/// A job without a bound asks before it costs twice what was planned, and goes on when it may.
#[test]
fn r003_3_what_costs_twice_the_plan_is_asked_about_first() {
    let (text, size) = chunks_of(30);
    let run = |world: World| async move {
        let settings = Settings { latency: Span::from_secs(10), ..Settings::default() };
        let harness = Harness::new(Arc::new(world.clock()), settings.clone());
        let pipeline = harness.pipeline(10);
        let mut spec = spec("book", &text, size);
        spec.price = Some(Price::new(300_000, 2_500_000));
        pipeline.submit(&spec).await.unwrap();
        pipeline.run("book", &CancellationToken::new()).await.unwrap();
        let planned = harness.store.counts("book").await.unwrap().cost;

        // Every second answer lacks a segment, and what is paid for it is lost.
        let troubles = vec![Trouble::new(Fault::Dropped, When::Every(2)).times(25)];
        let harness = Harness::new(Arc::new(world.clock()), Settings { troubles, ..settings });
        let pipeline = harness.pipeline(10);
        spec.ask_above = Some(Micros(planned * 3 / 2));
        pipeline.submit(&spec).await.unwrap();
        let ended = pipeline.run("book", &CancellationToken::new()).await.unwrap();
        let RunOutcome::Paused { resume_at: None, why, raise_to: Some(to) } = ended else {
            panic!("{ended:?}")
        };
        let counts = harness.store.counts("book").await.unwrap();
        assert!(why.contains(&format!("{} is spent", Micros(counts.cost))), "{why}");
        assert!(why.contains("needs your consent"), "{why}");
        assert!(planned < counts.cost && counts.cost <= planned * 3 / 2, "{counts:?}");
        assert!(0 < counts.waiting && counts.failed == 0, "{counts:?}");
        assert_eq!(to, Micros(planned * 3 / 2 * 2));
        let more = Amendment { ask_above: Some(to), ..Amendment::default() };
        pipeline.amend("book", &more).await.unwrap();
        assert_eq!(
            pipeline.run("book", &CancellationToken::new()).await.unwrap(),
            RunOutcome::Completed
        );
        let output = pipeline.output("book", Layout::Translation).await.unwrap();
        assert_eq!(output.bytes, expected(&text, size));
    };
    World::run(3, run).unwrap();
}
