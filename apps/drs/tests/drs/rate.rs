//! Properties 5, 6 and 8 of R001: the bucket, its threads, buckets of other regions, and the reaction to throttling.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};

use proptest::prelude::*;
use tollgate::clock::ManualClock;
use tollgate::{Clock as _, GateExt as _, Span, TokenBucket};
use tollgate_aws::{Bucket, Buckets, Key, Rate};
use tollgate_conformance::faulty::{Faulty, Trouble};
use tollgate_drs::{Error, JobFilter};
use tollgate_testkit::fakes::drs::{Fault, Settings};

use crate::harness::Harness;

fn key() -> Key {
    Key { account: "1".into(), region: "r".into(), class: "drs".into() }
}

fn bucket(rate: Rate) -> (Harness, Arc<Bucket>) {
    let harness = Harness::new(Settings::default());
    let bucket = Bucket::new(key(), rate, None, Arc::new(harness.clock.clone())).unwrap();
    (harness, Arc::new(bucket))
}

fn got_one(taken: &Result<(), tollgate_aws::Error>) -> bool {
    match taken {
        Ok(()) => true,
        Err(tollgate_aws::Error::RateLimitTimeout(_)) => false,
        Err(other) => panic!("{other}"),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(u64),
    Advance(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0_u64..3_000).prop_map(Step::Take),
        1 => (1_u64..5_000).prop_map(Step::Advance),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Property 5: 0 ≤ tokens ≤ capacity, a token is consumed by each success and by nothing else, and they come back at the
    /// configured rate. Compared with a bucket in units of a millionth of a token.
    #[test]
    fn r001_5_tokens_stay_in_bounds_are_consumed_and_come_back(
        capacity in 1_u64..30, per_second in 1_u64..30, steps in steps()
    ) {
        let (harness, bucket) = bucket(Rate::new(TokenBucket::per_second(per_second).burst(capacity)).fixed());
        let whole = 1_000_000_u64;
        let (mut tokens, mut at) = (capacity * whole, harness.clock.now());
        for step in steps {
            let before = harness.clock.now();
            let taken = match step {
                Step::Advance(millis) => {
                    harness.clock.advance(Span::from_millis(millis));
                    false
                }
                Step::Take(millis) => {
                    let there = (tokens + before.since(at).as_micros() * per_second).min(capacity * whole);
                    let wait = whole.saturating_sub(there).div_ceil(per_second);
                    let taken = got_one(&harness.run(bucket.take(Span::from_millis(millis))));
                    prop_assert_eq!(taken, wait <= millis * 1_000);
                    let waited = harness.clock.now().since(before).as_micros();
                    prop_assert_eq!(waited, if taken { wait } else { 0 }, "no wait is longer than needed, or without a token at its end");
                    taken
                }
            };
            let now = harness.clock.now();
            tokens = (tokens + now.since(at).as_micros() * per_second).min(capacity * whole);
            at = now;
            if taken {
                prop_assert!(whole <= tokens, "a token was given that was not there");
                tokens -= whole;
            }
            prop_assert!(bucket.available() <= capacity);
            prop_assert_eq!(bucket.available(), tokens / whole);
        }
    }

    /// Property 6: however many threads take at once, as many succeed as there are tokens.
    #[test]
    fn r001_6_threads_take_exactly_what_is_there(capacity in 1_u64..40, threads in 2_usize..6, each in 1_u64..20) {
        let clock = Arc::new(ManualClock::new());
        let rate = Rate::new(TokenBucket::per_second(10).burst(capacity)).fixed();
        let bucket = Bucket::new(key(), rate, None, clock).unwrap();
        let taken = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    for _ in 0..each {
                        // The clock does not move, so only concurrent callers wait for each other, and that ends.
                        let took = runtime.block_on(bucket.take(Span::from_millis(1)));
                        taken.fetch_add(u64::from(got_one(&took)), Ordering::Relaxed);
                    }
                });
            }
        });
        let (asked, taken) = (threads as u64 * each, taken.into_inner());
        prop_assert_eq!(taken, asked.min(capacity));
        prop_assert_eq!(bucket.available(), capacity - taken);
    }

    /// R001.8, property 8: what one region or account takes, another does not miss; two clients of one region share.
    #[test]
    fn r001_8_regions_and_accounts_have_buckets_of_their_own(burst in 1_u64..5, other_account in any::<bool>()) {
        let harness = Harness::new(Settings::default());
        let rate = Rate::new(TokenBucket::per_second(10).burst(burst));
        let here = harness.client(|builder| builder.rate(rate));
        let twin = harness.client(|builder| builder.rate(rate));
        let (region, account) = if other_account { ("eu-central-1", "210987654321") } else { ("us-east-1", "123456789012") };
        let there = harness.run(harness.builder(region).account(account).rate(rate).open()).unwrap();
        let began = harness.clock.now();
        let list = |client: &tollgate_drs::DrsClient| {
            harness.run(client.describe_jobs(&JobFilter::default()).all()).unwrap();
        };
        // A caller waits only when the bucket is empty.
        (0..burst).for_each(|number| list(if number % 2 == 0 { &here } else { &twin }));
        (0..burst).for_each(|_| list(&there));
        prop_assert_eq!(harness.clock.now(), began);
        list(&twin);
        prop_assert!(began < harness.clock.now());
    }
}

/// A thousand callers at once are served in the order in which they came: the burst at once, and then each as soon as the
/// rate has a token, so there is no window in which more are served.
#[test]
fn a_line_is_served_in_order_at_the_rate() {
    for burst in [1, 20] {
        let rate = Rate::new(TokenBucket::per_second(100).burst(burst)).fixed();
        a_line_of_a_thousand(rate, |number| {
            Span::from_millis(10 * (number + 1).saturating_sub(burst))
        });
    }
}

fn a_line_of_a_thousand(rate: Rate, served_after: impl Fn(u64) -> Span) {
    let (Harness { clock, .. }, bucket) = bucket(rate);
    let began = clock.now();
    let served = std::sync::Mutex::new(Vec::new());
    let mut line = pin!(join_all((0..1_000).map(|number| {
        let (bucket, served, clock) = (&bucket, &served, &clock);
        async move {
            bucket.take(Span::from_secs(30)).await.unwrap();
            served.lock().unwrap().push((number, clock.now().since(began)));
        }
    })));
    let mut context = Context::from_waker(Waker::noop());
    while line.as_mut().poll(&mut context).is_pending() {
        let alarm = clock.next_alarm().expect("the first in line waits for a token");
        assert!(clock.now() < alarm);
        clock.set(alarm);
    }
    let expected: Vec<_> = (0..1_000).map(|number| (number, served_after(number))).collect();
    assert_eq!(*served.lock().unwrap(), expected);
}

#[test]
fn a_call_without_a_token_in_time_fails_at_once_and_is_not_sent() {
    let harness = Harness::new(Settings::default());
    let rate = Rate::new(TokenBucket::per_minute(1));
    let client = harness.client(|builder| builder.rate(rate).wait_max(Span::from_secs(30)));
    harness.run(client.describe_jobs(&JobFilter::default()).all()).unwrap();
    let before = harness.clock.now();
    let error = harness.run(client.describe_jobs(&JobFilter::default()).all()).unwrap_err();
    let Error::RateLimitTimeout(timeout) = &error else { panic!("{error:?}") };
    assert_eq!((&*timeout.class, timeout.wait_max), ("drs", Span::from_secs(30)));
    assert_eq!((harness.clock.now(), harness.fake.arrivals().all().len()), (before, 1));
    assert!(error.to_string().contains("did not go out"), "{error}");
}

/// Conflict 27: a refusal lowers the rate, success raises it again, both within bounds.
#[test]
fn a_refusal_halves_the_rate_down_to_the_floor_and_success_raises_it_again() {
    let (harness, bucket) = bucket(Rate::default());
    let second = Span::from_secs(1);
    let throttled = || {
        harness.run(bucket.throttled(None));
        bucket.percent()
    };
    assert_eq!((throttled(), throttled()), (50, 50), "calls that were under way say nothing new");
    let falling = [(); 3].map(|()| {
        harness.clock.advance(second);
        throttled()
    });
    assert_eq!(falling, [25, 12, 10]);
    bucket.succeeded();
    assert_eq!(bucket.percent(), 10, "not right after it fell");
    let rising = [(); 20].map(|()| {
        harness.clock.advance(second);
        bucket.succeeded();
        bucket.percent()
    });
    assert_eq!((rising[0], rising[1], rising[17], rising[19]), (15, 20, 100, 100));
}

/// A reduced rate applies to pending waits too, and a closed bucket opens at the time that the service gave.
#[test]
fn who_waits_already_goes_by_the_new_rate() {
    let (harness, bucket) = bucket(Rate::new(TokenBucket::per_second(10).burst(1)));
    harness.run(bucket.take(Span::ZERO)).unwrap();
    let began = harness.clock.now();
    harness.run(bucket.throttled(Some(Span::from_secs(3))));
    harness.run(bucket.take(Span::from_secs(30))).unwrap();
    assert_eq!(harness.clock.now().since(began), Span::from_secs(3));
    harness.run(bucket.take(Span::from_secs(30))).unwrap();
    assert_eq!(harness.clock.now().since(began), Span::from_millis(3_200), "five per second now");
}

#[test]
fn a_second_configuration_of_one_bucket_is_refused() {
    let (buckets, clock): (_, Arc<dyn tollgate::Clock>) =
        (Buckets::new(), Arc::new(ManualClock::new()));
    let one = buckets.get_or_create(key(), Rate::default(), None, &clock).unwrap();
    assert!(Arc::ptr_eq(
        &one,
        &buckets.get_or_create(key(), Rate::default(), None, &clock).unwrap()
    ));
    let error = buckets
        .get_or_create(key(), Rate::new(TokenBucket::per_second(5)), None, &clock)
        .unwrap_err();
    assert!(error.to_string().contains("another rate"), "{error}");
    let error = buckets
        .get_or_create(key(), Rate::new(TokenBucket::per_second(0)), None, &clock)
        .unwrap_err();
    assert!(matches!(error, tollgate_aws::Error::Invalid(_)));
}

/// A gate that other processes share is asked for every attempt, and a gate that cannot decide lets nothing out.
#[test]
fn every_attempt_takes_a_token_of_the_shared_gate_too() {
    let harness = Harness::new(Settings::default());
    let gate = harness.slots();
    let client = harness.client(|builder| builder.gate(Arc::clone(&gate)));
    harness.fake.inject(None, 2, Fault::Refused(503, "ServiceUnavailable"));
    harness.run(client.describe_jobs(&JobFilter::default()).all()).unwrap();
    let policy = tollgate::Policy::new(
        "aws.drs",
        [tollgate::Limit::new("rate", "requests", Rate::default().bucket)],
    )
    .unwrap();
    let subject = "123456789012/eu-central-1";
    let charge = |amount: u64| {
        let ask = tollgate::Ask::new(&policy, subject).cost("requests", amount);
        harness.run(gate.charge(&ask)).unwrap();
    };
    // Another process takes more than there is for the next minute.
    charge(20 + 600);
    let error = harness.run(client.describe_jobs(&JobFilter::default()).all()).unwrap_err();
    assert!(matches!(error, Error::RateLimitTimeout(_)), "{error:?}");
    assert_eq!(harness.fake.arrivals().all().len(), 3);
    let broken = Arc::new(Faulty::new(harness.slots()));
    broken.always(Trouble::Down);
    let client = harness.run(harness.builder("us-east-1").gate(broken).open()).unwrap();
    let error = harness.run(client.describe_jobs(&JobFilter::default()).all()).unwrap_err();
    assert!(matches!(error, Error::Gate(_)), "{error:?}");
    assert_eq!(harness.fake.arrivals().all().len(), 3, "an error never admits");
}

/// Waits for all of `work`, side by side.
pub(crate) async fn join_all<F: Future<Output = ()>>(work: impl IntoIterator<Item = F>) {
    let mut all: Vec<_> = work.into_iter().map(|work| Some(Box::pin(work))).collect();
    std::future::poll_fn(|context| {
        for slot in &mut all {
            if let Some(work) = slot
                && work.as_mut().poll(context).is_ready()
            {
                *slot = None;
            }
        }
        if all.iter().all(Option::is_none) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}
