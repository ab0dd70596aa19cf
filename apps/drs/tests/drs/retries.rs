//! Properties 1 to 4 of R001: which errors are retried, the delays, the number of attempts, and the final error.

use proptest::prelude::*;
use tollgate::Span;
use tollgate::retry::Stopped;
use tollgate_drs::{Error, Failure, JobFilter, RETRYABLE_ERRORS, RetryOptions};
use tollgate_testkit::fakes::drs::{Fault, Settings};

use crate::harness::{ACCOUNT, Harness, REGION};

/// The errors of R001's list as the service sends them.
const RETRYABLE: [Fault; 5] = [
    Fault::Throttled,
    Fault::Refused(400, "RequestLimitExceeded"),
    Fault::Refused(503, "ServiceUnavailable"),
    Fault::Broken,
    Fault::Quota("L-D88FAC3A"),
];

const FATAL: [Fault; 5] = [
    Fault::Refused(403, "AccessDeniedException"),
    Fault::Refused(400, "ValidationException"),
    Fault::Refused(404, "ResourceNotFoundException"),
    Fault::Refused(400, "UninitializedAccountException"),
    Fault::Quota("L-E28BE5E0"),
];

/// The result of listing jobs while `faults` happen, first to last.
struct RetryRun {
    answer: Result<usize, Error>,
    calls: usize,
    waits: Vec<Span>,
}

fn run(retry: RetryOptions, faults: &[Fault]) -> RetryRun {
    let harness = Harness::new(Settings::default());
    let client = harness.client(|builder| builder.retry(retry));
    faults.iter().for_each(|fault| harness.fake.inject(None, 1, fault.clone()));
    let answer =
        harness.run(client.describe_jobs(&JobFilter::default()).all()).map(|jobs| jobs.len());
    let arrivals = harness.fake.arrivals();
    let times: Vec<_> = arrivals.all().iter().map(|arrival| arrival.at).collect();
    let waits = times.windows(2).map(|pair| pair[1].since(pair[0])).collect();
    RetryRun { answer, calls: arrivals.all().len(), waits }
}

/// The least and the most that `retry` waits after failure number `number`.
fn bounds(retry: &RetryOptions, number: usize) -> (u64, u64) {
    let doubled = retry.base_delay.as_micros() << number;
    let plain = doubled.min(retry.max_delay.as_micros());
    let (low, high) = retry.jitter_range;
    // The bucket may be closed or slow for a moment, but not here: twenty tokens are there.
    (plain * low / 1_000, plain * high / 1_000)
}

prop_compose! {
    fn configured()(
        max_retries in 0_u32..7,
        base in 1_u64..3_000,
        max in 1_u64..90_000,
        low in 0_u64..1_000,
        width in 1_u64..1_500,
    ) -> RetryOptions {
        RetryOptions {
            max_retries,
            base_delay: Span::from_millis(base),
            max_delay: Span::from_millis(max),
            jitter_range: (low, low + width),
            ..RetryOptions::default()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Property 1: a retryable error is tried again until success, as long as there are retries.
    #[test]
    fn r001_1_what_is_retryable_is_retried_up_to_the_maximum(
        faults in prop::collection::vec(prop::sample::select(&RETRYABLE[..]), 0..8),
        max_retries in 0_u32..7,
    ) {
        let ran = run(RetryOptions { max_retries, ..RetryOptions::default() }, &faults);
        let (failing, most) = (faults.len(), max_retries as usize);
        prop_assert_eq!(ran.calls, failing.min(most) + 1);
        prop_assert_eq!(ran.answer.is_ok(), failing <= most, "{:?}", ran.answer);
    }

    /// Property 1, the other half: what is not retryable is called once, however many retries there are.
    #[test]
    fn r001_1_what_is_not_retryable_is_called_once(
        before in prop::collection::vec(prop::sample::select(&RETRYABLE[..]), 0..3),
        fatal in prop::sample::select(&FATAL[..]),
    ) {
        let faults: Vec<Fault> = before.iter().cloned().chain([fatal]).collect();
        let ran = run(RetryOptions::default(), &faults);
        prop_assert_eq!(ran.calls, faults.len());
        prop_assert!(matches!(ran.answer, Err(Error::Refused(_))), "{:?}", ran.answer);
    }

    /// Property 2: each wait is min(base · 2^attempt, max) times a factor within the range.
    #[test]
    fn r001_2_waits_double_up_to_the_cap_within_their_jitter(retry in configured()) {
        let fault = Fault::Refused(503, "ServiceUnavailable");
        let ran = run(retry.clone(), &vec![fault; retry.max_retries as usize]);
        prop_assert_eq!(ran.waits.len(), retry.max_retries as usize);
        for (number, wait) in ran.waits.iter().enumerate() {
            let (least, most) = bounds(&retry, number);
            prop_assert!((least..=most).contains(&wait.as_micros()), "{wait} is not within {least}..={most}");
        }
    }

    /// Property 2 with `Retry-After`: it is the least to wait.
    #[test]
    fn r001_2_retry_after_is_the_least_to_wait(seconds in 1_u64..50, retry in configured()) {
        let harness = Harness::new(Settings { retry_after: Span::from_secs(seconds), ..Settings::default() });
        let client = harness.client(|builder| builder.wait_max(Span::from_mins(1)).retry(RetryOptions { max_retries: 1, ..retry }));
        harness.fake.inject(None, 1, Fault::Throttled);
        prop_assert!(harness.run(client.describe_jobs(&JobFilter::default()).all()).is_ok());
        let arrivals = harness.fake.arrivals();
        let [first, second] = arrivals.all() else { panic!("{arrivals:?}") };
        prop_assert!(Span::from_secs(seconds) <= second.at.since(first.at));
    }

    /// Property 3: exactly max_retries + 1 calls when all of them fail, with the configured waits.
    #[test]
    fn r001_3_the_configuration_is_respected(retry in configured()) {
        let ran = run(retry.clone(), &vec![Fault::Refused(503, "ServiceUnavailable"); 20]);
        prop_assert_eq!(ran.calls, retry.max_retries as usize + 1);
        let most: u64 = (0..retry.max_retries as usize).map(|number| bounds(&retry, number).1).sum();
        let took: u64 = ran.waits.iter().map(|wait| wait.as_micros()).sum();
        prop_assert!(took <= most);
    }

    /// Property 4: exhaustion is typed, with the last error, the number of attempts and the identity of the call.
    #[test]
    fn r001_4_exhaustion_tells_the_last_error_the_attempts_and_the_call(
        max_retries in 0_u32..6,
        last in prop::sample::select(&RETRYABLE[..]),
    ) {
        let mut faults = vec![Fault::Broken; max_retries as usize];
        faults.push(last.clone());
        let ran = run(RetryOptions { max_retries, ..RetryOptions::default() }, &faults);
        let Err(error @ Error::RetryExhausted(_)) = &ran.answer else { panic!("{:?}", ran.answer) };
        let Error::RetryExhausted(exhausted) = error else { unreachable!() };
        prop_assert_eq!((exhausted.attempts, exhausted.stopped), (max_retries + 1, Stopped::Exhausted));
        prop_assert!(RETRYABLE_ERRORS.contains(&exhausted.last.code.as_str()));
        let expected = match last {
            Fault::Throttled => "ThrottlingException",
            Fault::Broken => "InternalServerException",
            Fault::Quota(_) => "ServiceQuotaExceededException",
            Fault::Refused(_, name) => name,
            other => panic!("{other:?}"),
        };
        prop_assert_eq!(&exhausted.last.code, expected);
        let context = &exhausted.context;
        prop_assert_eq!((context.operation, &*context.region, &*context.account), ("DescribeJobs", REGION, ACCOUNT));
        let text = error.to_string();
        prop_assert!(text.contains(&format!("{} attempts", max_retries + 1)) && text.contains(expected), "{}", text);
    }
}

/// Property 2: waits differ from call to call.
#[test]
fn r001_2_two_calls_do_not_wait_alike() {
    let fault = Fault::Refused(503, "ServiceUnavailable");
    let [one, other] =
        [(); 2].map(|()| run(RetryOptions::default(), &vec![fault.clone(); 5]).waits);
    assert_ne!(one, other);
}

#[test]
fn a_clamped_wait_stays_within_its_maximum_and_a_deadline_ends_everything() {
    let jitter_range = (1_400, 1_500);
    let retry = RetryOptions {
        clamp: true,
        max_delay: Span::from_secs(2),
        jitter_range,
        ..RetryOptions::default()
    };
    let ran = run(retry.clone(), &vec![Fault::Refused(503, "ServiceUnavailable"); 5]);
    assert!(ran.waits.iter().all(|wait| *wait <= Span::from_secs(2)), "{:?}", ran.waits);
    let ran =
        run(RetryOptions { deadline: Some(Span::from_secs(3)), ..retry }, &vec![Fault::Broken; 9]);
    let Err(Error::RetryExhausted(exhausted)) = ran.answer else { panic!("{:?}", ran.answer) };
    assert_eq!(exhausted.stopped, Stopped::DeadlineExceeded);
}

/// Whatever a test of this file sees as a failure, the service said: the code, the status, the wait and the quota.
#[test]
fn a_failure_tells_what_the_service_said() {
    let failure = |fault: Fault| match run(
        RetryOptions { max_retries: 0, ..RetryOptions::default() },
        &[fault],
    )
    .answer
    {
        Err(error) => error.failure().cloned().unwrap(),
        Ok(_) => panic!("it should have failed"),
    };
    let Failure { code, status, retry_after, .. } = failure(Fault::Throttled);
    assert_eq!(
        (code.as_str(), status, retry_after),
        ("ThrottlingException", Some(429), Some(Span::from_secs(1)))
    );
    let full = failure(Fault::Quota("L-D88FAC3A"));
    assert_eq!(
        (full.status, full.quota_code.as_deref(), full.is_full()),
        (Some(402), Some("L-D88FAC3A"), true)
    );
    assert!(!failure(Fault::Quota("L-B827C881")).is_full());
    let silent = failure(Fault::Silent);
    assert_eq!(
        (silent.code.as_str(), silent.status, silent.is_ambiguous()),
        ("RequestTimeout", None, true)
    );
    assert!(failure(Fault::CutAfter).is_ambiguous());
    assert!(!failure(Fault::Throttled).is_ambiguous());
}
