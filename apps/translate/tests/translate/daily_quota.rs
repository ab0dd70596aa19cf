//! Quotas of a day, on virtual time: pauses until the provider's midnight, and no longer.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tollgate::gate::BoxFuture;
use tollgate::{Clock, Span, Timestamp};
use tollgate_sim::World;
use tollgate_testkit::fakes::gemini::{FakeGemini, Fault, Quota, Settings, Trouble, When};
use tollgate_translate::Layout;
use tollgate_translate::job::JobState;
use tollgate_translate::pipeline::{Options, RunOutcome};

use crate::harness::{Harness, chunks_of, expected, spec};

#[test]
fn r003_3_a_daily_quota_pauses_the_job_and_it_resumes_by_itself() {
    let (text, size) = chunks_of(60);
    let quota = Quota { rpd: 25, ..Quota::NONE };
    let run = |world: World| async move {
        let settings = Settings { quota, latency: Span::from_secs(10), ..Settings::default() };
        let harness = Harness::new(Arc::new(world.clock()), settings);
        let pipeline = harness.pipeline(10);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        let mut progress = pipeline.progress();
        let running = tokio::spawn({
            let pipeline = pipeline.clone();
            async move { pipeline.run("book", &CancellationToken::new()).await }
        });
        let paused = progress.wait_for(|news| news.paused.is_some()).await.unwrap().clone();
        assert_eq!((paused.counts.done, paused.counts.working), (25, 0));
        let job = harness.store.job("book").await.unwrap().unwrap();
        let JobState::Paused { resume_at: Some(resume_at), why } = job.state else {
            panic!("{:?}", job.state)
        };
        assert!(why.contains("rpd"), "{why}");
        assert_eq!(paused.resume_at, Some(resume_at));
        let midnight: Timestamp = "2019-12-21T08:00:00Z".parse().unwrap();
        // Ten seconds behind it, since the provider's clock may be behind ours.
        let after = (midnight + Span::from_secs(10)).as_micros();
        assert_eq!(resume_at.as_micros() % 86_400_000_000, after % 86_400_000_000);
        assert_eq!(running.await.unwrap().unwrap(), RunOutcome::Completed);
        let tally = harness.fake.tally();
        assert!(tally.violations.is_empty(), "{tally:?}");
        assert_eq!(tally.calls, 60);
        assert_eq!(
            pipeline.output("book", Layout::Translation).await.unwrap().bytes,
            expected(&text, size)
        );
    };
    let (_, world) = World::run(3, run).unwrap();
    assert!(
        Span::from_hours(24) < world.elapsed() && world.elapsed() < Span::from_hours(48),
        "two midnights"
    );
}

#[test]
fn r003_4_a_daily_quota_that_only_the_provider_knew_of_is_looked_at_twice_and_waited_out() {
    let (text, size) = chunks_of(6);
    let run = |world: World| async move {
        let settings = Settings { latency: Span::from_secs(1), ..Settings::default() };
        let refused = Trouble::new(Fault::DailyQuota, When::Every(1));
        let harness = Harness::new(Arc::new(world.clock()), settings.clone());
        let began_at = harness.clock.now();
        let options = Options { parallel: 1, wait_out_pauses: false, ..Options::default() };
        let pipeline = harness.pipeline_with(options);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        harness.fake.set(Settings { troubles: vec![refused], ..settings.clone() });
        let ended = pipeline.run("book", &CancellationToken::new()).await.unwrap();
        let RunOutcome::Paused { resume_at: Some(resume_at), .. } = ended else {
            panic!("{ended:?}")
        };
        assert_eq!(harness.fake.tally().calls, 2, "one more, after the 38 s of the hint");
        let looked = harness.clock.now().since(began_at);
        assert!(Span::from_secs(38) < looked && looked < Span::from_mins(1), "{looked}");
        assert!(Span::from_mins(1) < resume_at.since(harness.clock.now()), "38 s would be useless");
        // The gate denies an immediate retry, without a call.
        let again = pipeline.run("book", &CancellationToken::new()).await.unwrap();
        assert!(matches!(again, RunOutcome::Paused { .. }), "{again:?}");
        assert_eq!(harness.fake.tally().calls, 2);
        harness.fake.set(settings);
        assert_eq!(
            harness.pipeline(10).run("book", &CancellationToken::new()).await.unwrap(),
            RunOutcome::Completed
        );
        assert!(resume_at <= harness.clock.now());
        assert_eq!(harness.fake.tally().calls, 8);
    };
    World::run(3, run).unwrap();
}

/// R003.4: a refusal for the day just after midnight, with a hint of seconds, does not cost the day, also not on the day after a pause.
#[test]
fn r003_4_a_day_that_begins_a_little_later_is_not_lost() {
    let (text, size) = chunks_of(12);
    let run = |world: World| async move {
        let refused = |call| Trouble::new(Fault::DailyQuota, When::Call(call));
        let troubles = vec![refused(3), refused(8)];
        let settings = Settings { latency: Span::from_secs(30), troubles, ..Settings::default() };
        let harness = Harness::new(Arc::new(world.clock()), settings);
        let pipeline = harness.pipeline(1);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        assert_eq!(
            pipeline.run("book", &CancellationToken::new()).await.unwrap(),
            RunOutcome::Completed
        );
        assert_eq!((harness.fake.tally().calls, pipeline.violations()), (14, 2));
    };
    let (_, world) = World::run(3, run).unwrap();
    assert!(world.elapsed() < Span::from_hours(2), "{}", world.elapsed());
}

/// A clock that is behind.
#[derive(Debug)]
struct Behind(Arc<dyn Clock>, Span);

impl Clock for Behind {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.now().as_micros() - self.1.as_micros())
    }

    fn monotonic(&self) -> Span {
        self.0.monotonic()
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()> {
        self.0.sleep_until(at + self.1)
    }
}

/// R003.4: the provider's day begins three seconds after ours, and no call comes before it.
#[test]
fn r003_4_after_midnight_a_margin_is_waited_for_the_clock_of_the_provider() {
    let (text, size) = chunks_of(60);
    let run = |world: World| async move {
        let quota = Quota { rpd: 25, ..Quota::NONE };
        let settings = Settings { quota, latency: Span::from_secs(10), ..Settings::default() };
        let mut harness = Harness::new(Arc::new(world.clock()), settings.clone());
        let behind = Arc::new(Behind(Arc::clone(&harness.clock), Span::from_secs(3)));
        harness.fake = FakeGemini::new(behind, settings);
        let pipeline = harness.pipeline(10);
        pipeline.submit(&spec("book", &text, size)).await.unwrap();
        assert_eq!(
            pipeline.run("book", &CancellationToken::new()).await.unwrap(),
            RunOutcome::Completed
        );
        let tally = harness.fake.tally();
        assert!(tally.violations.is_empty(), "{tally:?}");
        assert_eq!(tally.calls, 60);
    };
    let (_, world) = World::run(3, run).unwrap();
    assert!(world.elapsed() < Span::from_hours(48), "{}: two midnights", world.elapsed());
}
