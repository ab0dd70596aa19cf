//! Jobs from beginning to end, on virtual time: order, trouble, workers, meters.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tollgate::Span;
use tollgate_sim::World;
use tollgate_telemetry::{Meters, Value};
use tollgate_testkit::fakes::gemini::{Fault, Quota, Settings, Trouble, When};
use tollgate_translate::job::JobState;
use tollgate_translate::pipeline::{Options, RunOutcome};
use tollgate_translate::{FAILED_MARK, Layout};

use crate::harness::{Harness, chunks_of, expected, spec};

fn contains(text: &str) -> When {
    When::Contains(text.to_owned())
}

/// Answers that go wrong by what they are about, so that the order of calls does not matter.
fn wrong_answers() -> Vec<Trouble> {
    [
        (Fault::Dropped, "⟦#2⟧ The river", 2),
        (Fault::Doubled, "orchard night", 2),
        (Fault::Reordered, "dog they", 2),
        (Fault::Merged, "captain secret", 2),
        // What is left as it was twice is taken so.
        (Fault::Untranslated, "storm but", 1),
        (Fault::Truncated, "light captain", 2),
    ]
    .map(|(fault, text, times)| Trouble::new(fault, contains(text)).times(times))
    .into()
}

fn translated_by(parallel: usize, text: &str, size: u64) -> (Vec<u8>, u64) {
    let settings =
        Settings { latency: Span::from_secs(10), troubles: wrong_answers(), ..Settings::default() };
    let run = |world: World| async move {
        let harness = Harness::new(Arc::new(world.clock()), settings);
        let pipeline = harness.pipeline(parallel);
        assert!(pipeline.submit(&spec("book", text, size)).await.unwrap());
        assert_eq!(
            pipeline.run("book", &CancellationToken::new()).await.unwrap(),
            RunOutcome::Completed
        );
        let output = pipeline.output("book", Layout::Translation).await.unwrap();
        assert_eq!((output.missing, output.failures.len()), (0, 0));
        let faults: u64 = harness.fake.tally().faults.values().sum();
        (output.bytes, faults)
    };
    World::run(7, run).unwrap().0
}

#[test]
fn r003_10_r003_5_parallel_is_sequential_byte_for_byte_though_answers_go_wrong() {
    let (text, size) = chunks_of(60);
    let (sequential, faults) = translated_by(1, &text, size);
    assert!(3 < faults, "only {faults} answers went wrong, so nothing was shown");
    let (parallel, _) = translated_by(10, &text, size);
    assert_eq!(sequential, parallel);
    assert_eq!(
        String::from_utf8(parallel).unwrap(),
        String::from_utf8(expected(&text, size)).unwrap()
    );
}

#[test]
fn r003_2_ten_chunks_are_at_the_provider_at_once_and_never_more() {
    let (text, size) = chunks_of(25);
    for parallel in [1, 3, 10] {
        let settings = Settings { latency: Span::from_secs(10), ..Settings::default() };
        let text = &text;
        let run = |world: World| async move {
            let harness = Harness::new(Arc::new(world.clock()), settings);
            let pipeline = harness.pipeline(parallel);
            pipeline.submit(&spec("book", text, size)).await.unwrap();
            pipeline.run("book", &CancellationToken::new()).await.unwrap();
            harness.fake.tally().at_once_max
        };
        assert_eq!(World::run(1, run).unwrap().0, parallel as u64);
    }
}

#[test]
fn r003_7_r003_4_passing_errors_are_recovered_with_a_new_permit_each() {
    let (text, size) = chunks_of(120);
    let every = |fault, n| Trouble::new(fault, When::Every(n));
    let troubles = vec![
        every(Fault::Overloaded, 29),
        every(Fault::Internal, 61),
        every(Fault::Deadline, 67),
        every(Fault::Garbage, 71),
        Trouble::new(Fault::MinuteQuota, When::Call(11)),
        Trouble::new(Fault::TokenQuota, When::Call(22)),
        Trouble::new(Fault::BareQuota, When::Call(33)),
    ];
    let settings = Settings {
        latency: Span::from_secs(3),
        troubles,
        quota: Quota { rpm: 100, ..Quota::NONE },
        ..Settings::default()
    };
    let run = |world: World| async move {
        let harness = Harness::new(Arc::new(world.clock()), settings);
        let pipeline = harness.pipeline(10);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        assert_eq!(
            pipeline.run("book", &CancellationToken::new()).await.unwrap(),
            RunOutcome::Completed
        );
        let tally = harness.fake.tally();
        let faults: u64 = tally.faults.values().sum();
        assert!(6 < faults, "{tally:?}");
        assert_eq!(tally.calls, 120 + faults, "each trouble is one call more, and nothing else");
        assert_eq!((pipeline.violations(), pipeline.transient_failures()), (3, faults));
        assert_eq!(
            pipeline.output("book", Layout::Translation).await.unwrap().bytes,
            expected(&text, size)
        );
    };
    World::run(3, run).unwrap();
}

#[test]
fn r003_5_a_chunk_that_is_given_up_shows_and_only_it_is_redone() {
    let (text, size) = chunks_of(12);
    let text = text.replacen("orchard", "forbidden", 1);
    let settings = Settings {
        troubles: vec![Trouble::new(Fault::Blocked, contains("forbidden"))],
        ..Settings::default()
    };
    let run = |world: World| async move {
        let harness = Harness::new(Arc::new(world.clock()), settings);
        let pipeline = harness.pipeline(10);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        assert_eq!(
            pipeline.run("book", &CancellationToken::new()).await.unwrap(),
            RunOutcome::CompletedWithErrors
        );
        let job = harness.store.job("book").await.unwrap().unwrap();
        assert_eq!(job.state, JobState::CompletedWithErrors);
        let output = pipeline.output("book", Layout::Translation).await.unwrap();
        let shown = String::from_utf8(output.bytes).unwrap();
        assert_eq!(shown.matches(FAILED_MARK).count(), 1, "one paragraph, and no more");
        let marked = shown.lines().find(|line| line.contains(FAILED_MARK)).unwrap();
        assert!(marked.contains("forbidden"), "the source is there: {marked}");
        let [failure] = output.failures.as_slice() else { panic!("{:?}", output.failures) };
        assert!(failure.run.len() == 1 && failure.reason.contains("blocked"), "{failure:?}");

        // Run again, a job that is over stays as it is.
        let before = harness.fake.tally().calls;
        assert_eq!(
            pipeline.run("book", &CancellationToken::new()).await.unwrap(),
            RunOutcome::CompletedWithErrors
        );
        assert_eq!(harness.fake.tally().calls, before);

        harness.fake.set(Settings::default());
        assert_eq!(pipeline.retry_failed("book").await.unwrap(), 1);
        assert_eq!(
            pipeline.run("book", &CancellationToken::new()).await.unwrap(),
            RunOutcome::Completed
        );
        assert_eq!(harness.fake.tally().calls, before + 1);
        let output = pipeline.output("book", Layout::Translation).await.unwrap();
        assert_eq!(output.bytes, expected(&text, size));
        assert_eq!(pipeline.retry_failed("book").await.unwrap(), 0);
    };
    World::run(3, run).unwrap();
}

#[test]
fn what_was_translated_once_is_not_paid_again() {
    let (text, size) = chunks_of(10);
    let run = |world: World| async move {
        let harness = Harness::new(Arc::new(world.clock()), Settings::default());
        let pipeline = harness.pipeline(10);
        for (id, calls) in [("first", 10), ("second", 10)] {
            pipeline.submit(&spec(id, &text, size)).await.unwrap();
            assert_eq!(
                pipeline.run(id, &CancellationToken::new()).await.unwrap(),
                RunOutcome::Completed
            );
            assert_eq!(harness.fake.tally().calls, calls);
            let output = pipeline.output(id, Layout::Translation).await.unwrap();
            assert_eq!(output.bytes, expected(&text, size));
        }
        assert!(
            !pipeline.submit(&spec("first", &text, size)).await.unwrap(),
            "it is there already"
        );
    };
    World::run(3, run).unwrap();
}

#[test]
fn a_request_that_no_limit_will_ever_admit_is_cut_until_it_fits() {
    let (text, size) = chunks_of(3);
    let run = |world: World| async move {
        // A whole chunk with its prompt needs about 700 tokens by our estimate.
        let quota = Quota { tpm: 640, ..Quota::NONE };
        let harness =
            Harness::new(Arc::new(world.clock()), Settings { quota, ..Settings::default() });
        let pipeline = harness.pipeline(10);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        let ended = pipeline.run("book", &CancellationToken::new()).await.unwrap();
        let chunks = harness.store.chunks("book").await.unwrap();
        assert_eq!(ended, RunOutcome::Completed, "{chunks:?}");
        assert!(3 < chunks.len(), "{}", chunks.len());
        assert!(harness.fake.tally().violations.is_empty());
        assert_eq!(
            pipeline.output("book", Layout::Translation).await.unwrap().bytes,
            expected(&text, size)
        );
    };
    World::run(3, run).unwrap();
}

#[test]
fn r003_8_a_worker_runs_every_job_and_stops_on_request() {
    let (text, size) = chunks_of(8);
    let run = |world: World| async move {
        let settings = Settings { latency: Span::from_secs(10), ..Settings::default() };
        let harness = Harness::new(Arc::new(world.clock()), settings);
        let pipeline = harness.pipeline(4);
        let stop = CancellationToken::new();
        let stopper = stop.clone();
        let working = tokio::spawn({
            let pipeline = pipeline.clone();
            async move {
                let mut ended = Vec::new();
                let hear = |id: &str, outcome: Result<RunOutcome, _>| {
                    ended.push((id.to_owned(), outcome.unwrap()));
                };
                pipeline.work(&stop, hear).await.unwrap();
                ended
            }
        });
        for number in 0..5 {
            let text = text.replace("the ", &format!("the {number} "));
            pipeline.submit(&spec(&format!("job-{number}"), &text, size)).await.unwrap();
            world.sleep(Span::from_secs(7)).await;
        }
        let late = JobState::Paused {
            resume_at: Some(harness.clock.now() + Span::from_hours(1)),
            why: String::new(),
        };
        let waits = JobState::Paused { resume_at: None, why: "no key".to_owned() };
        for (id, state) in [("late", late), ("waits", waits)] {
            pipeline.submit(&spec(id, &text, size)).await.unwrap();
            harness.store.set_state(id, &state, harness.clock.now()).await.unwrap();
        }
        world.sleep(Span::from_hours(2)).await;
        stopper.cancel();
        let ended = working.await.unwrap();
        assert_eq!(ended.len(), 6, "{ended:?}");
        assert!(ended.iter().all(|(_, outcome)| *outcome == RunOutcome::Completed), "{ended:?}");
        assert!(ended.iter().any(|(id, _)| id == "late"));
        let waits = harness.store.job("waits").await.unwrap().unwrap();
        assert!(matches!(waits.state, JobState::Paused { .. }), "it needs an operator: {waits:?}");
    };
    World::run(3, run).unwrap();
}

#[test]
fn r003_9_a_job_is_counted_by_its_time_its_calls_and_its_end() {
    let (text, size) = chunks_of(12);
    let run = |world: World| async move {
        let settings = Settings {
            quota: Quota { rpm: 10, ..Quota::NONE },
            latency: Span::from_secs(10),
            troubles: vec![Trouble::new(Fault::MinuteQuota, When::Call(3))],
            ..Settings::default()
        };
        let harness = Harness::new(Arc::new(world.clock()), settings);
        let meters = Arc::new(Meters::new());
        let options = Options { meters: Some(Arc::clone(&meters)), ..Options::default() };
        let pipeline = harness.pipeline_with(options);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        let running = tokio::spawn({
            let pipeline = pipeline.clone();
            async move { pipeline.run("book", &CancellationToken::new()).await }
        });
        let number = |name: &str, labels: &[&str]| {
            let snapshot = meters.snapshot(harness.clock.now());
            match snapshot.get(name, labels) {
                Some(Value::Number(number)) => *number,
                other => panic!("{name}: {other:?}"),
            }
        };
        world.sleep(Span::from_secs(5)).await;
        assert_eq!(number("tollgate_translation_parallel", &[]), 10);
        assert_eq!(number("tollgate_translation_jobs_running", &[]), 1);
        assert_eq!(running.await.unwrap().unwrap(), RunOutcome::Completed);
        assert_eq!(number("tollgate_translation_parallel", &[]), 0);
        assert_eq!(number("tollgate_translation_violations", &[]), 1);
        assert!(0 < number("tollgate_translation_denials", &[]));
        assert_eq!(number("tollgate_translation_jobs", &["completed"]), 1);
        let elapsed = world.elapsed().as_micros();
        match meters.snapshot(harness.clock.now()).get("tollgate_translation_duration_seconds", &[])
        {
            Some(Value::Buckets { sum, .. }) => assert_eq!(*sum, elapsed),
            other => panic!("{other:?}"),
        }
        let words = text.split_whitespace().count() as u64;
        assert_eq!(number("tollgate_translation_words", &[]), words);
        assert_eq!(number("tollgate_translation_calls", &["answered"]), 12);
        assert_eq!(number("tollgate_translation_calls", &["refused"]), 1);
        assert_eq!(number("tollgate_translation_calls", &["failed"]), 0);
        assert_eq!(number("tollgate_translation_jobs_running", &[]), 0);
    };
    World::run(3, run).unwrap();
}

/// R003.9: each pause is counted once, by what ends it.
#[test]
fn r003_9_a_pause_is_counted_by_what_ends_it() {
    let (text, size) = chunks_of(12);
    let run = |world: World| async move {
        let settings = Settings {
            quota: Quota { rpd: 3, ..Quota::NONE },
            troubles: vec![Trouble::new(Fault::BadKey, When::Call(4))],
            ..Settings::default()
        };
        let harness = Harness::new(Arc::new(world.clock()), settings);
        let meters = Arc::new(Meters::new());
        let counted_in = Some(Arc::clone(&meters));
        let options = Options { meters: counted_in, wait_out_pauses: false, ..Options::default() };
        let pipeline = harness.pipeline_with(Options { parallel: 1, ..options });
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        let number = |name: &str, label: &str| match meters
            .snapshot(harness.clock.now())
            .get(name, &[label])
        {
            Some(Value::Number(number)) => *number,
            other => panic!("{name}: {other:?}"),
        };
        let pauses =
            || ["time", "operator"].map(|until| number("tollgate_translation_pauses", until));
        let first = pipeline.run("book", &CancellationToken::new()).await.unwrap();
        assert!(matches!(first, RunOutcome::Paused { resume_at: Some(_), .. }), "{first:?}");
        assert_eq!(pauses(), [1, 0]);
        world.sleep(Span::from_hours(25)).await;
        let second = pipeline.run("book", &CancellationToken::new()).await.unwrap();
        assert!(matches!(second, RunOutcome::Paused { resume_at: None, .. }), "{second:?}");
        assert_eq!(pauses(), [1, 1]);
        assert_eq!(number("tollgate_translation_calls", "answered"), 3);
        assert_eq!(number("tollgate_translation_calls", "failed"), 1);
    };
    World::run(3, run).unwrap();
}
