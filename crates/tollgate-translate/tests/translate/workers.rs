//! Workers of several processes on one job in PostgreSQL.

use std::sync::Arc;

use tollgate::{Span, SystemClock};
use tollgate_testing::fakes::gemini::{FakeGemini, Settings};
use tollgate_testing::servers::Postgres;
use tollgate_translate::Layout;
use tollgate_translate::job::{JobState, JobStore as _, PostgresJobs};

use crate::child::{JOB, PARALLEL, Place, pipeline, start};
use crate::desk::{chunks_of, expected, spec};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r003_11_two_workers_share_a_job_and_when_one_is_killed_the_other_finishes_it() {
    let server = Postgres::start().unwrap();
    let url = server.url(&server.database().unwrap());
    let (text, size) = chunks_of(30);
    let settings = Settings { latency: Span::from_millis(50), ..Settings::default() };
    let fake = FakeGemini::new(Arc::new(SystemClock), settings);
    let served = fake.serve(0).await.unwrap();
    let store = Arc::new(PostgresJobs::open(&url, "tollgate").await.unwrap());
    let pipeline = pipeline(&served.url(), store.clone());
    pipeline.submit(&spec(JOB, &text, size)).await.unwrap();

    let place = Place::Database(url);
    // In the middle of its work, with calls at the provider.
    let mut mortal = start(&served.url(), &place, Some(40));
    let mut other = start(&served.url(), &place, None);
    let ended =
        tokio::task::spawn_blocking(move || (mortal.wait().unwrap(), other.wait().unwrap())).await;
    let (mortal, other) = ended.unwrap();
    assert!(!mortal.success() && other.success(), "{mortal:?} {other:?}");

    assert_eq!(store.job(JOB).await.unwrap().unwrap().state, JobState::Completed);
    let output = pipeline.output(JOB, Layout::Translation).await.unwrap();
    assert_eq!(output.bytes, expected(&text, size));
    let tally = fake.tally();
    assert!(tally.repeated <= PARALLEL as u64, "only what the killed one had under way: {tally:?}");
    assert!(tally.calls <= 30 + PARALLEL as u64, "{tally:?}");
    assert!(PARALLEL as u64 <= tally.at_once_max, "{tally:?}");
}
