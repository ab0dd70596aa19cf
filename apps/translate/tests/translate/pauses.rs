//! Pauses of jobs, on virtual time: by operators, refusals and outages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;
use tollgate::retry::Backoff;
use tollgate::{Clock, Gate, Limit, Memory, Policy, Span, TokenBucket};
use tollgate_sim::World;
use tollgate_testkit::fakes::gemini::{Fault, Quota, Settings, Trouble, When};
use tollgate_translate::Layout;
use tollgate_translate::pipeline::{Amendment, Options, RunOutcome, Throttle};
use tollgate_translate::provider::{Post, ProviderError, ProviderErrorKind, Reply, Transport};

use crate::harness::{Direct, Harness, chunks_of, expected, spec};

#[test]
fn a_stop_waits_for_what_is_paid_and_puts_the_rest_back() {
    let (text, size) = chunks_of(20);
    let run = |world: World| async move {
        let quota = Quota { rpm: 5, ..Quota::NONE };
        let settings = Settings { quota, latency: Span::from_secs(10), ..Settings::default() };
        let harness = Harness::new(Arc::new(world.clock()), settings);
        let pipeline = harness.pipeline(10);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        let stop = CancellationToken::new();
        let stopper = stop.clone();
        let running = tokio::spawn({
            let pipeline = pipeline.clone();
            async move { pipeline.run("book", &stop).await }
        });
        world.sleep(Span::from_secs(5)).await;
        stopper.cancel();
        assert_eq!(running.await.unwrap().unwrap(), RunOutcome::Stopped);
        let counts = harness.store.counts("book").await.unwrap();
        assert_eq!((counts.done, counts.waiting, counts.working), (5, 15, 0), "{counts:?}");
        assert_eq!(harness.throttle.waiting(), 0);
        assert_eq!(
            pipeline.run("book", &CancellationToken::new()).await.unwrap(),
            RunOutcome::Completed
        );
        let tally = harness.fake.tally();
        assert_eq!((tally.calls, tally.repeated), (20, 0));
        assert!(tally.violations.is_empty(), "{tally:?}");
    };
    World::run(3, run).unwrap();
}

/// R000.2: with a back-off, attempts ask again after its pauses and not in line at the promised time.
#[test]
fn r000_2_a_translation_can_back_off_instead_of_waiting_in_line() {
    let (text, size) = chunks_of(4);
    let run = |world: World| async move {
        let clock: Arc<dyn Clock> = Arc::new(world.clock());
        let mut harness = Harness::new(Arc::clone(&clock), Settings::default());
        let one = TokenBucket::per_second(1).burst(1);
        let policy = Policy::new("quota", [Limit::new("rate", "requests", one)]).unwrap();
        let gate: Arc<dyn Gate> = Arc::new(Memory::with(Arc::clone(&clock), 100));
        let backoff =
            Backoff { max: Span::from_secs(30), base: Span::from_secs(30), ..Backoff::QUOTA };
        let throttle = Throttle::new(gate, policy, "project", Arc::clone(&clock));
        harness.throttle = Arc::new(throttle.with_backoff(backoff));
        let pipeline = harness.pipeline(1);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        let running = tokio::spawn({
            let pipeline = pipeline.clone();
            async move { pipeline.run("book", &CancellationToken::new()).await }
        });
        world.sleep(Span::from_secs(20)).await;
        assert_eq!((harness.throttle.waiting(), harness.fake.tally().calls), (1, 1));
        assert_eq!(running.await.unwrap().unwrap(), RunOutcome::Completed);
        assert_eq!((harness.throttle.waiting(), harness.fake.tally().calls), (0, 4));
        // Three pauses of 30 s, each with a quarter more at most.
        let lasted = world.elapsed();
        assert!((90..120).contains(&(lasted.as_micros() / 1_000_000)), "{lasted}");
    };
    World::run(3, run).unwrap();
}

#[test]
fn a_cancelled_job_stays_cancelled_and_calls_nobody() {
    let (text, size) = chunks_of(20);
    let run = |world: World| async move {
        let settings = Settings { latency: Span::from_secs(10), ..Settings::default() };
        let harness = Harness::new(Arc::new(world.clock()), settings);
        let pipeline = harness.pipeline(2);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        let running = tokio::spawn({
            let pipeline = pipeline.clone();
            async move { pipeline.run("book", &CancellationToken::new()).await }
        });
        world.sleep(Span::from_secs(15)).await;
        pipeline.cancel("book").await.unwrap();
        assert_eq!(running.await.unwrap().unwrap(), RunOutcome::Cancelled);
        assert_eq!(harness.fake.tally().calls, 4);
        assert_eq!(
            pipeline.run("book", &CancellationToken::new()).await.unwrap(),
            RunOutcome::Cancelled
        );
        assert_eq!(harness.fake.tally().calls, 4);
    };
    World::run(3, run).unwrap();
}

/// Refuses every connection until it is enabled.
#[derive(Debug)]
struct Refusing {
    fake: Direct,
    tries: AtomicU64,
    most: u64,
}

#[async_trait]
impl Transport for Refusing {
    async fn post(&self, post: Post<'_>) -> Result<Reply, ProviderError> {
        if self.tries.fetch_add(1, Ordering::Relaxed) < self.most {
            let text = "fake cannot be reached: connection refused";
            let error = ProviderError::new(ProviderErrorKind::Unreachable, text);
            return Err(error);
        }
        self.fake.post(post).await
    }
}

/// R003.3: connections that are refused take nothing of a day of 6 calls, and are seen at once.
#[test]
fn r003_3_calls_that_never_arrived_do_not_use_up_the_day() {
    let (text, size) = chunks_of(6);
    let run = |world: World| async move {
        let quota = Quota { rpd: 6, ..Quota::NONE };
        let harness =
            Harness::new(Arc::new(world.clock()), Settings { quota, ..Settings::default() });
        let fake = Direct {
            fake: harness.fake.clone(),
            clock: Arc::clone(&harness.clock),
            delay: Span::ZERO,
        };
        let transport = Arc::new(Refusing { fake, tries: AtomicU64::new(0), most: 30 });
        let options = Options { parallel: 2, ..Options::default() };
        let pipeline = harness.pipeline_over(transport, options);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        let mut progress = pipeline.progress();
        let running = tokio::spawn({
            let pipeline = pipeline.clone();
            async move { pipeline.run("book", &CancellationToken::new()).await }
        });
        let news = progress.wait_for(|news| news.retry.is_some()).await.unwrap().clone();
        assert_eq!(harness.clock.now(), news.began_at, "at once");
        assert!(news.retry.unwrap().contains("connection refused"));
        assert!(harness.clock.now() < news.retry_at.unwrap());
        let chunks = harness.store.chunks("book").await.unwrap();
        assert!(chunks.iter().all(|chunk| chunk.again_at.is_some()), "{chunks:?}");
        assert_eq!(running.await.unwrap().unwrap(), RunOutcome::Completed);
        assert_eq!(harness.fake.tally().calls, 6);
        assert_eq!(pipeline.progress().borrow().retry, None, "it is over");
    };
    let (_, world) = World::run(3, run).unwrap();
    assert!(world.elapsed() < Span::from_hours(3), "{}: the day was used up", world.elapsed());
}

/// R003.5: what is wrong with the account is not the chunk's fault.
#[test]
fn r003_5_a_refusal_of_the_account_pauses_the_job_in_the_providers_words() {
    let (text, size) = chunks_of(6);
    let run = |world: World| async move {
        let troubles = vec![Trouble::new(Fault::Location, When::Every(1))];
        let harness =
            Harness::new(Arc::new(world.clock()), Settings { troubles, ..Settings::default() });
        let pipeline = harness.pipeline(2);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        let ended = pipeline.run("book", &CancellationToken::new()).await.unwrap();
        let RunOutcome::Paused { resume_at: None, why, .. } = ended else { panic!("{ended:?}") };
        assert_eq!(why, "User location is not supported for the API use.");
        let counts = harness.store.counts("book").await.unwrap();
        assert_eq!((counts.waiting, counts.failed), (6, 0), "{counts:?}");
    };
    World::run(3, run).unwrap();
}

#[test]
fn a_model_that_is_gone_pauses_the_job_until_there_is_another() {
    let (text, size) = chunks_of(6);
    let run = |world: World| async move {
        let troubles = vec![Trouble::new(Fault::Gone, When::Call(3))];
        let harness =
            Harness::new(Arc::new(world.clock()), Settings { troubles, ..Settings::default() });
        let pipeline = harness.pipeline(1);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        let ended = pipeline.run("book", &CancellationToken::new()).await.unwrap();
        let RunOutcome::Paused { resume_at: None, why, .. } = ended else { panic!("{ended:?}") };
        assert!(why.contains("gemini-2.5-flash is not found"), "{why}");
        let other =
            Amendment { model: Some(("gemini-3-flash".to_owned(), None)), ..Amendment::default() };
        pipeline.amend("book", &other).await.unwrap();
        assert_eq!(
            pipeline.run("book", &CancellationToken::new()).await.unwrap(),
            RunOutcome::Completed
        );
        assert_eq!(harness.fake.tally().calls, 7);
        assert!(
            pipeline.amend("book", &other).await.unwrap_err().to_string().contains("completed")
        );
    };
    World::run(3, run).unwrap();
}

#[test]
fn a_wrong_address_pauses_the_job_and_no_chunk_is_given_up() {
    let (text, size) = chunks_of(6);
    let run = |world: World| async move {
        let troubles = vec![Trouble::new(Fault::Page, When::Every(1))];
        let harness =
            Harness::new(Arc::new(world.clock()), Settings { troubles, ..Settings::default() });
        let pipeline = harness.pipeline(10);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        let ended = pipeline.run("book", &CancellationToken::new()).await.unwrap();
        let RunOutcome::Paused { resume_at: None, why, .. } = ended else { panic!("{ended:?}") };
        assert!(why.starts_with("https://fake answered") && why.contains("check its url"), "{why}");
        let counts = harness.store.counts("book").await.unwrap();
        assert_eq!((counts.waiting, counts.failed), (6, 0), "{counts:?}");
        harness.fake.set(Settings::default());
        assert_eq!(
            pipeline.run("book", &CancellationToken::new()).await.unwrap(),
            RunOutcome::Completed
        );
    };
    World::run(3, run).unwrap();
}

#[test]
fn a_provider_that_is_down_lets_the_job_rest_and_costs_no_chunk() {
    let (text, size) = chunks_of(4);
    let run = |world: World| async move {
        let troubles = vec![Trouble::new(Fault::Overloaded, When::Every(1)).times(40)];
        let harness =
            Harness::new(Arc::new(world.clock()), Settings { troubles, ..Settings::default() });
        let pipeline = harness.pipeline(2);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        assert_eq!(
            pipeline.run("book", &CancellationToken::new()).await.unwrap(),
            RunOutcome::Completed
        );
        assert_eq!(harness.fake.tally().calls, 44);
        assert_eq!(
            pipeline.output("book", Layout::Translation).await.unwrap().bytes,
            expected(&text, size)
        );
    };
    World::run(3, run).unwrap();
}
