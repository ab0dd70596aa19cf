//! Jobs within their quota: properties 10 and 11 of R001, the last slot, a full quota, and failing open.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;
use tollgate::{Clock as _, Gate, Span};
use tollgate_conformance::faulty::{Faulty, Trouble};
use tollgate_drs::throttle::{ThrottleOptions, VARIABLES};
use tollgate_drs::{Error, JobThrottler, Recovery};
use tollgate_testkit::fakes::drs::{self, FakeDrs, Fault};

use crate::harness::Harness;
use crate::rate::join_all;

fn harness() -> Harness {
    Harness::new(drs::Settings { servers: 100, ..drs::Settings::default() })
}

fn throttler(harness: &Harness, settings: ThrottleOptions, slots: &Arc<dyn Gate>) -> JobThrottler {
    let client = harness.client(|builder| builder);
    JobThrottler::new(client, settings).unwrap().slots(Arc::clone(slots))
}

fn recovery(server: usize) -> Recovery {
    Recovery::new([FakeDrs::server_id(server)])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Property 10: while jobs are at or above the threshold, a new one waits and looks again at every poll; it goes on at
    /// the first look that finds room.
    #[test]
    fn r001_11_a_job_waits_until_there_is_room(
        jobs in 0_usize..20, threshold in 1_u64..20, poll in 10_u64..60, ends_after in 0_u64..300
    ) {
        let harness = harness();
        harness.fake.start_foreign_jobs(jobs);
        let settings = ThrottleOptions { threshold, poll_interval: Span::from_secs(poll), ..ThrottleOptions::default() };
        let throttler = throttler(&harness, settings, &harness.slots());
        let began = harness.clock.now();
        let ending = async {
            harness.clock.sleep_until(began + Span::from_secs(ends_after)).await;
            harness.fake.end_foreign_jobs(20);
        };
        let (place, ()) = harness.run(async { tokio::join!(throttler.wait_for_capacity(), ending) });
        let place = place.unwrap();
        let looks = harness.fake.arrivals().count("DescribeJobs") as u64;
        if (jobs as u64) < threshold {
            prop_assert_eq!((place.waited(), looks), (Span::ZERO, 1));
            prop_assert_eq!(place.status().unwrap().current_jobs, jobs as u64);
        } else {
            // The first look at or after the end; both may fall on the same instant, in either order.
            let polls = ends_after.div_ceil(poll).max(1);
            let waited = place.waited().as_secs_ceil();
            let is_due = waited == polls * poll || (ends_after % poll == 0 && waited == (polls + 1) * poll);
            prop_assert!(is_due, "waited {waited}, ended after {ends_after}, polled every {poll}");
            prop_assert_eq!(looks, waited / poll + 1);
            prop_assert_eq!(place.status().unwrap().current_jobs, 0);
        }
    }

    /// Property 11: without room in time it is an error with the number of jobs and the wait, not a second late.
    #[test]
    fn r001_11_a_capacity_timeout_reports_the_jobs_and_the_wait(
        threshold in 1_u64..20, more in 0_u64..3, poll in 10_u64..200, timeout in 0_u64..900
    ) {
        let harness = harness();
        let jobs = (threshold + more).min(20);
        harness.fake.start_foreign_jobs(usize::try_from(jobs).unwrap());
        let (poll_interval, timeout) = (Span::from_secs(poll), Span::from_secs(timeout));
        let settings = ThrottleOptions { threshold, poll_interval, timeout, ..ThrottleOptions::default() };
        let began = harness.clock.now();
        let error = harness.run(throttler(&harness, settings, &harness.slots()).wait_for_capacity()).unwrap_err();
        let Error::JobCapacityTimeout(timeout_error) = &error else { panic!("{error:?}") };
        prop_assert_eq!((timeout_error.current_jobs, timeout_error.max_jobs, timeout_error.waited), (jobs, 20, timeout));
        prop_assert_eq!(harness.clock.now().since(began), timeout, "a sleep never passes the timeout");
        let answer = timeout_error.to_http_response();
        prop_assert_eq!(answer.status, 429);
        prop_assert_eq!(&answer.body["error"], "JOB_CAPACITY_TIMEOUT");
        prop_assert_eq!(&answer.body["currentJobs"], &json!(jobs));
        prop_assert_eq!(&answer.body["message"], &json!(error.to_string()));
    }

    /// However many orchestrators race, jobs never pass the threshold, and every place below it is used.
    #[test]
    fn r001_11_orchestrators_that_race_stay_within_the_threshold(
        foreign in 10_usize..18, racing in 2_usize..6, slow in prop::collection::vec(0_u64..3, 8)
    ) {
        let harness = harness();
        harness.fake.start_foreign_jobs(foreign);
        let started = race(&harness, racing, &slow, &harness.slots());
        prop_assert_eq!(started, racing.min(18 - foreign));
        prop_assert!(harness.fake.active_jobs() <= 18);
    }
}

/// Lets `racing` orchestrators start a job each while answers take as long as `slow` says. Returns how many
/// did; the others give up after a few polls.
fn race(harness: &Harness, racing: usize, slow: &[u64], slots: &Arc<dyn Gate>) -> usize {
    for seconds in slow {
        harness.fake.inject(Some("DescribeJobs"), 1, Fault::Slow(Span::from_secs(*seconds)));
        harness.fake.inject(Some("StartRecovery"), 1, Fault::Slow(Span::from_secs(*seconds)));
    }
    let (poll_interval, timeout) = (Span::from_secs(4), Span::from_secs(24));
    let before = harness.fake.jobs_started();
    let work = (0..racing).map(|number| {
        let throttler = throttler(
            harness,
            ThrottleOptions { poll_interval, timeout, ..ThrottleOptions::default() },
            slots,
        );
        async move {
            match throttler.start_recovery(&recovery(number)).await {
                Ok(_) | Err(Error::JobCapacityTimeout(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
    });
    let work: Vec<_> = work.collect();
    harness.run(join_all(work));
    harness.fake.jobs_started() - before
}

/// The race must be able to be lost: orchestrators that do not share slots both take the last place.
#[test]
fn r001_11_without_shared_slots_the_race_is_lost() {
    let harness = harness();
    harness.fake.start_foreign_jobs(17);
    harness.fake.inject(Some("DescribeJobs"), 2, Fault::Slow(Span::from_secs(1)));
    let work = [0, 1].map(|number| {
        let throttler = throttler(&harness, ThrottleOptions::default(), &harness.slots());
        async move { drop(throttler.start_recovery(&recovery(number)).await.unwrap()) }
    });
    harness.run(join_all(work));
    assert_eq!(harness.fake.jobs_started(), 19, "both saw 17");
}

/// The last place goes to one; the other waits, and gets it when the job has ended.
#[test]
fn r001_11_who_loses_the_race_waits_and_goes_next() {
    let harness = harness();
    harness.fake.start_foreign_jobs(17);
    harness.fake.inject(Some("DescribeJobs"), 2, Fault::Slow(Span::from_secs(1)));
    let (slots, began) = (harness.slots(), harness.clock.now());
    let ended = std::sync::Mutex::new(Vec::new());
    let work = [0, 1].map(|number| {
        let throttler = throttler(&harness, ThrottleOptions::default(), &slots);
        let (ended, clock) = (&ended, &harness.clock);
        async move {
            throttler.start_recovery(&recovery(number)).await.unwrap();
            ended.lock().unwrap().push((number, clock.now().since(began).as_secs_ceil()));
        }
    });
    harness.run(join_all(work));
    // A job takes 35 s, and the other one looks every 30 s.
    assert_eq!(ended.into_inner().unwrap(), [(0, 1), (1, 61)]);
    assert_eq!(harness.seen.count("job_throttled"), 2);
}

/// Conflict 21: 402 with a quota of jobs means full, whatever was counted; it is waited for, not retried in seconds.
#[test]
fn r001_11_a_full_quota_is_waited_for() {
    let harness = harness();
    let throttler = throttler(&harness, ThrottleOptions::default(), &harness.slots());
    harness.fake.inject(Some("StartRecovery"), 2, Fault::Quota("L-05AFA8C6"));
    let began = harness.clock.now();
    harness.run(throttler.start_recovery(&recovery(0))).unwrap();
    assert_eq!(harness.clock.now().since(began), Span::from_secs(60));
    assert_eq!(harness.fake.arrivals().count("StartRecovery"), 3);
    harness.fake.inject(Some("StartRecovery"), 100, Fault::Quota("L-D88FAC3A"));
    let error = harness.run(throttler.start_recovery(&recovery(1))).unwrap_err();
    let Error::JobCapacityTimeout(timeout_error) = error else { panic!("{error:?}") };
    assert_eq!(
        (timeout_error.current_jobs, timeout_error.waited),
        (0, Span::from_secs(600)),
        "what was counted"
    );
}

/// Another quota frees itself never: an error at once.
#[test]
fn r001_11_another_quota_fails_at_once() {
    let harness = harness();
    let throttler = throttler(&harness, ThrottleOptions::default(), &harness.slots());
    harness.fake.inject(Some("StartRecovery"), 1, Fault::Quota("L-B827C881"));
    let (began, error) =
        (harness.clock.now(), harness.run(throttler.start_recovery(&recovery(0))).unwrap_err());
    assert_eq!((error.code(), harness.clock.now()), ("ServiceQuotaExceededException", began));
}

/// A throttle that cannot count lets a recovery through, and says so.
#[test]
fn r001_11_what_cannot_be_counted_fails_open_and_is_logged() {
    let harness = harness();
    harness.fake.start_foreign_jobs(18);
    let throttler = throttler(&harness, ThrottleOptions::default(), &harness.slots());
    harness.fake.inject(Some("DescribeJobs"), 1, Fault::Refused(403, "AccessDeniedException"));
    let place = harness.run(throttler.wait_for_capacity()).unwrap();
    assert_eq!((place.status(), harness.seen.count("failed_open")), (None, 1));
    drop(place);
    let error = harness.run(async {
        harness.fake.inject(Some("DescribeJobs"), 1, Fault::Refused(403, "AccessDeniedException"));
        throttler.check_capacity().await.unwrap_err()
    });
    assert_eq!(error.code(), "AccessDeniedException", "a mere check says what is wrong");
    let broken = Arc::new(Faulty::new(harness.slots()));
    broken.always(Trouble::Down);
    harness.fake.end_foreign_jobs(18);
    let throttler = throttler.slots(broken);
    harness.run(throttler.start_recovery(&recovery(0))).unwrap();
    assert_eq!(harness.seen.count("failed_open"), 2);
}

/// A check returns the status without waiting, and slots are never negative.
#[test]
fn r001_11_a_check_tells_how_it_stands() {
    for (jobs, throttling, full) in
        [(0_usize, false, false), (17, false, false), (18, true, false), (20, true, true)]
    {
        let harness = harness();
        harness.fake.start_foreign_jobs(jobs);
        let status = harness
            .run(throttler(&harness, ThrottleOptions::default(), &harness.slots()).check_capacity())
            .unwrap();
        let expected = json!({
            "currentJobs": jobs, "maxJobs": 20, "availableSlots": 20 - jobs,
            "throttlingActive": throttling, "atCapacity": full,
        });
        assert_eq!(status.to_json(), expected);
    }
    let harness = harness();
    harness.fake.start_foreign_jobs(25);
    let status = harness
        .run(throttler(&harness, ThrottleOptions::default(), &harness.slots()).check_capacity())
        .unwrap();
    assert_eq!(status.available_slots, 0);
}

/// A place that is dropped is given back; one whose job does not show stays taken until it expires.
#[test]
fn r001_11_places_are_given_back_or_expire() {
    let harness = harness();
    let settings =
        ThrottleOptions { threshold: 1, timeout: Span::ZERO, ..ThrottleOptions::default() };
    let throttler = throttler(&harness, settings, &harness.slots());
    let wait = || harness.run(throttler.wait_for_capacity());
    let place = wait().unwrap();
    let Err(Error::JobCapacityTimeout(timeout_error)) = wait() else {
        panic!("there was one slot")
    };
    assert_eq!((timeout_error.current_jobs, timeout_error.starting), (0, 1));
    drop(place);
    wait().unwrap().keep();
    assert!(wait().is_err());
    harness.clock.advance(Span::from_mins(15));
    assert!(wait().is_ok());
}

#[test]
fn r001_11_the_environment_sets_the_throttle() {
    let set = |values: [&str; 3]| {
        let variable = |name: &str| {
            let place = VARIABLES.iter().position(|variable| *variable == name)?;
            Some(values[place].to_owned()).filter(|value| !value.is_empty())
        };
        ThrottleOptions::from_variables(variable)
    };
    assert_eq!(VARIABLES, ["JOB_THROTTLE_THRESHOLD", "JOB_POLL_INTERVAL", "JOB_THROTTLE_TIMEOUT"]);
    let ThrottleOptions { threshold, max_jobs, poll_interval, timeout, .. } =
        set(["", "", ""]).unwrap();
    assert_eq!(
        (threshold, max_jobs, poll_interval, timeout),
        (18, 20, Span::from_secs(30), Span::from_secs(600))
    );
    let ThrottleOptions { threshold, poll_interval, timeout, .. } = set(["15", "5", "60"]).unwrap();
    assert_eq!((threshold, poll_interval, timeout), (15, Span::from_secs(5), Span::from_secs(60)));
    for (wrong, name) in [
        (["x", "", ""], VARIABLES[0]),
        (["21", "", ""], VARIABLES[0]),
        (["", "0", ""], VARIABLES[1]),
    ] {
        let error = set(wrong).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}
