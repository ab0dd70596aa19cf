//! Workers of several processes on one job in PostgreSQL.

use std::sync::Arc;

use tollgate::clock::{ManualClock, SystemClock};
use tollgate::{Clock as _, Span, Timestamp};
use tollgate_testkit::fakes::gemini::{FakeGemini, Fault, Settings, Trouble, When};
use tollgate_testkit::servers::{Postgres, eventually};
use tollgate_translate::Layout;
use tollgate_translate::job::{EmbeddedJobs, JobState, JobStore as _, PostgresJobs};
use tollgate_translate::pipeline::{ChunkOutcome, RunOutcome};

use crate::child_process::{JOB, PARALLEL, StoreLocation, pipeline, start};
use crate::harness::{Harness, chunks_of, expected, spec};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r003_11_two_workers_share_a_job_and_when_one_is_killed_the_other_finishes_it() {
    let server = Postgres::start().unwrap();
    let url = server.url(&server.database().unwrap());
    let (text, size) = chunks_of(30);
    let (clock, latency) = (ManualClock::new(), Span::from_secs(1));
    let settings = Settings { latency, ..Settings::default() };
    let fake = FakeGemini::new(Arc::new(clock.clone()), settings);
    let served = fake.serve(0).await.unwrap();
    let store = Arc::new(PostgresJobs::open(&url, "tollgate").await.unwrap());
    let pipeline = pipeline(&served.url(), store.clone());
    pipeline.submit(&spec(JOB, &text, size)).await.unwrap();

    let place = StoreLocation::Database(url);
    // In the middle of its work, with calls at the provider.
    let mut mortal = start(&served.url(), &place, Some(40));
    let mut other = start(&served.url(), &place, None);
    // The provider answers once both workers have calls pending, so that neither does the work of both.
    let mortal = eventually(|| {
        let tally = fake.tally();
        if tally.calls - tally.translated == 2 * PARALLEL as u64 {
            clock.advance(latency);
        }
        mortal.try_wait().unwrap()
    });
    let other = eventually(|| {
        clock.advance(latency);
        other.try_wait().unwrap()
    });
    let (mortal, other) = (mortal.unwrap(), other.unwrap());
    assert!(!mortal.success() && other.success(), "{mortal:?} {other:?}");

    assert_eq!(store.job(JOB).await.unwrap().unwrap().state, JobState::Completed);
    let output = pipeline.output(JOB, Layout::Translation).await.unwrap();
    assert_eq!(output.bytes, expected(&text, size));
    let tally = fake.tally();
    assert!(tally.repeated <= PARALLEL as u64, "only what the killed one had under way: {tally:?}");
    assert!(tally.calls <= 30 + PARALLEL as u64, "{tally:?}");
    assert!(PARALLEL as u64 <= tally.at_once_max, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r003_11_a_map_that_calls_a_function_for_each_chunk_finishes_the_job() {
    let server = Postgres::start().unwrap();
    let url = server.url(&server.database().unwrap());
    let (text, size) = chunks_of(9);
    let fake = FakeGemini::new(Arc::new(SystemClock), Settings::default());
    let served = fake.serve(0).await.unwrap();
    let store = Arc::new(PostgresJobs::open(&url, "tollgate").await.unwrap());
    let pipeline = pipeline(&served.url(), store);
    pipeline.submit(&spec(JOB, &text, size)).await.unwrap();
    let calls: Vec<_> = (0..9)
        .map(|_| {
            let pipeline = pipeline.clone();
            tokio::spawn(async move { pipeline.run_chunk(JOB).await })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), ChunkOutcome::Worked);
    }
    assert_eq!(pipeline.run_chunk(JOB).await.unwrap(), ChunkOutcome::Ended(RunOutcome::Completed));
    assert_eq!(pipeline.run_chunk(JOB).await.unwrap(), ChunkOutcome::Ended(RunOutcome::Completed));
    assert_eq!(
        pipeline.output(JOB, Layout::Translation).await.unwrap().bytes,
        expected(&text, size)
    );
    assert_eq!(fake.tally().calls, 9);
    let alone =
        crate::child_process::pipeline(&served.url(), Arc::new(EmbeddedJobs::in_memory().unwrap()));
    assert!(alone.run_chunk(JOB).await.unwrap_err().to_string().contains("shared"));
}

/// R003.5: functions that see one answer each find out together that all of them are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r003_5_functions_whose_requests_are_all_refused_pause_the_job() {
    let server = Postgres::start().unwrap();
    let url = server.url(&server.database().unwrap());
    let (text, size) = chunks_of(9);
    let troubles = vec![Trouble::new(Fault::BadRequest, When::Every(1))];
    let settings = Settings { troubles, ..Settings::default() };
    let fake = FakeGemini::new(Arc::new(SystemClock), settings);
    let served = fake.serve(0).await.unwrap();
    let store = Arc::new(PostgresJobs::open(&url, "tollgate").await.unwrap());
    let pipeline = pipeline(&served.url(), store.clone());
    pipeline.submit(&spec(JOB, &text, size)).await.unwrap();
    for _ in 1..5 {
        assert_eq!(pipeline.run_chunk(JOB).await.unwrap(), ChunkOutcome::Worked);
    }
    let fifth = pipeline.run_chunk(JOB).await.unwrap();
    let ChunkOutcome::Ended(RunOutcome::Paused { resume_at: None, why, .. }) = fifth else {
        panic!("{fifth:?}")
    };
    assert!(why.starts_with("the provider refused 5 requests in a row: "), "{why}");
    let counts = store.counts(JOB).await.unwrap();
    assert_eq!((fake.tally().calls, counts.waiting, counts.failed), (5, 9, 0));
}

/// R003.11: a call takes as long as five leases, and another function finds nothing to do meanwhile.
#[test]
fn r003_11_a_function_keeps_its_chunk_for_as_long_as_its_call_takes() {
    let server = Postgres::start().unwrap();
    let database = server.database().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let (lease, latency) = (Span::from_secs(30), Span::from_secs(150));
    let settings = Settings { latency, ..Settings::default() };
    let mut harness = Harness::new(Arc::new(clock.clone()), settings);
    let url = server.url(&database);
    let store = runtime
        .block_on(PostgresJobs::open(&url, "tollgate"))
        .unwrap()
        .with_lease(lease)
        .by_callers_clock();
    harness.store = Arc::new(store);
    let [mine, other] = [harness.pipeline(1), harness.pipeline(1)];
    let (text, size) = chunks_of(1);
    runtime.block_on(mine.submit(&spec(JOB, &text, size))).unwrap();
    let worked = runtime.spawn(async move { mine.run_chunk(JOB).await });
    eventually(|| (harness.fake.tally().calls == 1).then_some(())).unwrap();
    let asked = "SELECT lease_until FROM tollgate.translate_chunks";
    for _ in 1..15 {
        clock.advance(Span::from_secs(10));
        let until = (clock.now() + lease).as_micros().to_string();
        eventually(|| (server.psql(&database, asked).unwrap() == until).then_some(())).unwrap();
        let later = runtime.block_on(other.run_chunk(JOB)).unwrap();
        assert_eq!(later, ChunkOutcome::Later(clock.now() + lease));
    }
    clock.advance(Span::from_secs(10));
    assert_eq!(runtime.block_on(worked).unwrap().unwrap(), ChunkOutcome::Worked);
    assert_eq!(
        runtime.block_on(other.run_chunk(JOB)).unwrap(),
        ChunkOutcome::Ended(RunOutcome::Completed)
    );
    assert_eq!(harness.fake.tally().calls, 1);
}
