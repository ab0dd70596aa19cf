//! `kill -9` at every step of a run.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tollgate::Span;
use tollgate::clock::SystemClock;
use tollgate_testkit::fakes::gemini::{FakeGemini, Fault, Settings, Trouble, When};
use tollgate_translate::Layout;
use tollgate_translate::job::{ChunkState, EmbeddedJobs, JobStore as _};
use tollgate_translate::pipeline::RunOutcome;

use crate::child_process::{JOB, StoreLocation, pipeline, start};
use crate::harness::{chunks_of, expected, spec};

/// The sweep kills at every step up to here, and then at every third.
const EVERY_STEP_UP_TO: u64 = 24;

/// A process that is killed at any step of a run leaves a job that another finishes: the output is the same, nothing is
/// missing, and only what was at the provider is paid again. One answer is cut off, so that a part of it is kept, and one is blocked, so a split is
/// swept over too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r003_5_r003_10_killed_at_any_step_a_job_is_finished_and_nothing_is_paid_needlessly() {
    let (text, size) = chunks_of(6);
    let text = text.replacen("orchard", "marker-of-a-cut", 1);
    let text = text.replacen("secret", "marker-of-a-block", 1);
    let wanted = expected(&text, size);
    let mut die_at = 1;
    let mut killed = 0;
    loop {
        let at = |text: &str| When::Contains(text.to_owned());
        let troubles = vec![
            Trouble::new(Fault::Truncated, at("marker-of-a-cut")).times(1),
            Trouble::new(Fault::Blocked, at("marker-of-a-block")).times(1),
        ];
        let settings = Settings { latency: Span::from_millis(2), troubles, ..Settings::default() };
        let fake = FakeGemini::new(Arc::new(SystemClock), settings);
        let served = fake.serve(0).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let open = || Arc::new(EmbeddedJobs::open(folder.path()).unwrap());
        pipeline(&served.url(), open()).submit(&spec(JOB, &text, size)).await.unwrap();
        let mut child =
            start(&served.url(), &StoreLocation::Folder(folder.path().to_owned()), Some(die_at));
        let ended = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();

        let store = open();
        let under_way = store.chunks(JOB).await.unwrap();
        let under_way =
            under_way.iter().filter(|chunk| chunk.state == ChunkState::Sent).count() as u64;
        let pipeline = pipeline(&served.url(), store);
        let again = pipeline.run(JOB, &CancellationToken::new()).await;
        assert_eq!(again.unwrap(), RunOutcome::Completed, "killed at step {die_at}");
        let output = pipeline.output(JOB, Layout::Translation).await.unwrap();
        assert_eq!(output.bytes, wanted, "killed at step {die_at}");
        let repeated = fake.tally().repeated;
        assert!(
            repeated <= under_way,
            "killed at step {die_at}: {repeated} paid twice, {under_way} were under way"
        );
        if ended.success() {
            break;
        }
        killed += 1;
        die_at += if die_at < EVERY_STEP_UP_TO { 1 } else { 3 };
    }
    assert!(30 < killed, "the sweep ended after {killed} kills");
}
