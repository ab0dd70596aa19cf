//! Jobs in PostgreSQL through disconnects, restarts and an unresponsive server.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;
use tollgate::clock::{ManualClock, SystemClock};
use tollgate::{Clock as _, Span};
use tollgate_testkit::fakes::gemini::{FakeGemini, Settings};
use tollgate_testkit::servers::{Postgres, eventually};
use tollgate_translate::job::{ClaimOutcome, JobStore as _, PostgresJobs};
use tollgate_translate::pipeline::RunOutcome;
use tollgate_translate::{ErrorKind, Layout};

use crate::child_process::{JOB, pipeline, pipeline_of};
use crate::harness::{chunks_of, expected, spec};

const HANG_UP: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tollgate-translate'";

/// R003.5: connections are cut again and again while a job runs, and then the server restarts; the run goes on.
#[test]
fn r003_5_a_run_goes_on_when_its_database_hangs_up_and_when_it_restarts() {
    let mut server = Postgres::start().unwrap();
    let database = server.database().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (clock, latency) = (ManualClock::new(), Span::from_millis(20));
    let settings = Settings { latency, ..Settings::default() };
    let fake = FakeGemini::new(Arc::new(clock.clone()), settings);
    let served = runtime.block_on(fake.serve(0)).unwrap();
    let url = server.url(&database);
    let store = runtime.block_on(PostgresJobs::open(&url, "tollgate")).unwrap();
    // What was under way when a connection broke is taken up when its lease ends.
    let store = Arc::new(store.with_lease(Span::from_secs(2)));
    let pipeline = pipeline(&served.url(), store);
    let (text, size) = chunks_of(60);
    // The provider goes on by itself, but not to the end, so that the run is not over before the last cut.
    let most = Arc::new(AtomicU64::new(50));
    std::thread::spawn({
        let (fake, most) = (fake.clone(), Arc::clone(&most));
        move || loop {
            eventually(|| {
                if fake.tally().translated < most.load(Ordering::SeqCst) {
                    clock.advance(latency);
                }
                None::<()>
            });
        }
    });
    runtime.block_on(pipeline.submit(&spec(JOB, &text, size))).unwrap();
    let running = pipeline.clone();
    let running = runtime.spawn(async move { running.run(JOB, &CancellationToken::new()).await });
    for done in [5, 10, 15, 20] {
        eventually(|| (done <= fake.tally().translated).then_some(())).unwrap();
        let hang_up = || server.psql(&database, HANG_UP).unwrap().starts_with('t').then_some(());
        eventually(hang_up).unwrap();
    }
    most.store(u64::MAX, Ordering::SeqCst);
    eventually(|| (30 <= fake.tally().translated).then_some(())).unwrap();
    server.restart().unwrap();
    assert_eq!(runtime.block_on(running).unwrap().unwrap(), RunOutcome::Completed);
    let output = runtime.block_on(pipeline.output(JOB, Layout::Translation)).unwrap();
    assert_eq!(output.bytes, expected(&text, size));
}

/// R003.11: a claim whose answer was lost on the way back belongs to a worker that does not know of it. It must not keep it.
#[test]
fn r003_11_a_claim_that_its_worker_does_not_know_of_ends_by_itself() {
    let server = Postgres::start().unwrap();
    let url = server.url(&server.database().unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let fake = FakeGemini::new(Arc::new(SystemClock), Settings::default());
    let served = runtime.block_on(fake.serve(0)).unwrap();
    let store = runtime.block_on(PostgresJobs::open(&url, "tollgate")).unwrap();
    let store = Arc::new(store.with_lease(Span::from_secs(1)));
    let pipeline = pipeline_of(&served.url(), store.clone(), "forgetful");
    let (text, size) = chunks_of(3);
    runtime.block_on(pipeline.submit(&spec(JOB, &text, size))).unwrap();
    let now = tollgate::Clock::now(&SystemClock);
    let lost = runtime.block_on(store.claim(JOB, "forgetful", now)).unwrap();
    assert!(matches!(lost, ClaimOutcome::Chunk(_)));
    let ended = runtime.block_on(pipeline.run(JOB, &CancellationToken::new())).unwrap();
    assert_eq!(ended, RunOutcome::Completed);
}

/// A statement that is never answered is an error after half a minute, and the next one has a connection of its own.
#[test]
fn a_database_that_does_not_answer_is_an_error_and_the_next_statement_is_answered() {
    let server = Postgres::start().unwrap();
    let database = server.database().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let timer = ManualClock::new();
    let url = server.url(&database);
    let store = runtime.block_on(PostgresJobs::open(&url, "tollgate")).unwrap();
    let store = Arc::new(store.timed_by(Arc::new(timer.clone())));
    let asked = |wanted: &str, sql: &str| {
        eventually(|| (server.psql(&database, sql).unwrap() == wanted).then_some(())).unwrap();
    };
    std::thread::scope(|scope| {
        // It is ended below, which psql calls a failure.
        scope.spawn(|| {
            let hold = "BEGIN; LOCK TABLE tollgate.translate_jobs; SELECT pg_sleep(3600)";
            assert!(server.psql(&database, hold).is_err());
        });
        let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        asked("1", sleeps);
        let waiting = Arc::clone(&store);
        let waiting = runtime.spawn(async move { waiting.jobs().await });
        asked("1", "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'");
        assert!(!waiting.is_finished());
        timer.advance(Span::from_secs(30));
        let error = runtime.block_on(waiting).unwrap().unwrap_err().to_string();
        assert!(error.contains("no response within 30s"), "{error}");
        let end =
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        assert_eq!(server.psql(&database, end).unwrap(), "t");
    });
    assert_eq!(runtime.block_on(store.jobs()).unwrap(), []);
}

/// R003.5: a call waits for an unavailable database up to the maximum wait, and reports the outage.
#[test]
fn r003_5_a_database_that_is_away_for_minutes_is_waited_for() {
    let mut server = Postgres::start().unwrap();
    let url = server.url(&server.database().unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let timer = ManualClock::new();
    let store = runtime.block_on(PostgresJobs::open(&url, "tollgate")).unwrap();
    let store = Arc::new(store.timed_by(Arc::new(timer.clone())));
    let outages = store.outages().clone();
    let ask = || {
        let store = Arc::clone(&store);
        runtime.spawn(async move { store.jobs().await })
    };
    // Pauses between attempts pass at once, and an attempt has its time.
    let passes = |done: &dyn Fn() -> bool| {
        let mut looks = 0;
        eventually(|| {
            looks += 1;
            if looks % 50 == 0 {
                timer.advance(Span::from_secs(6));
            }
            done().then_some(())
        })
        .unwrap();
    };
    // A backend that outlives its killed server for a moment may answer once more.
    let asked_in_vain = || {
        let asked = RefCell::new(ask());
        passes(&|| {
            if asked.borrow().is_finished() {
                *asked.borrow_mut() = ask();
            }
            outages.outage().borrow().is_some()
        });
        asked.into_inner()
    };
    outages.set_max_wait(Span::from_mins(10));
    server.process().kill().unwrap();
    let waiting = asked_in_vain();
    timer.advance(Span::from_mins(5));
    passes(&|| {
        Span::from_mins(6) < timer.now().since(outages.outage().borrow().clone().unwrap().since)
    });
    assert!(!waiting.is_finished());
    server.restart().unwrap();
    passes(&|| waiting.is_finished());
    assert_eq!(runtime.block_on(waiting).unwrap().unwrap(), []);
    assert_eq!(*outages.outage().borrow(), None);
    server.process().kill().unwrap();
    let waiting = asked_in_vain();
    // A call that waits already is shortened too.
    outages.cap_max_wait(Span::from_secs(1));
    passes(&|| waiting.is_finished());
    let error = runtime.block_on(waiting).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
