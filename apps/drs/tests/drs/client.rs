//! The client: property 7 of R001, R001.9, and that no job is started or ended twice.

use std::sync::Arc;

use proptest::prelude::*;
use tollgate::clock::SystemClock;
use tollgate::{Clock as _, Span, TokenBucket};
use tollgate_aws::{Buckets, Rate};
use tollgate_drs::{DrsClient, Error, JobFilter, Recovery, RetryOptions};
use tollgate_testkit::fakes::drs::{FakeDrs, Fault, OPERATIONS, Server, Settings};

use crate::harness::{Harness, REGION};

/// Calls operation number `operation`; what comes of it does not matter.
async fn call(client: &DrsClient, operation: usize, server: usize) {
    let server = FakeDrs::server_id(server);
    match operation {
        0 => drop(client.describe_source_servers(&[]).all().await),
        1 => drop(client.describe_jobs(&JobFilter::default()).all().await),
        2 => drop(client.describe_job_log_items("drsjob-00000000000000001").all().await),
        3 => drop(client.start_recovery(&Recovery::new([server])).await),
        4 => drop(client.describe_recovery_instances(&[], &[server]).all().await),
        5 => drop(client.terminate_recovery_instances(&["i-00000000000000001".to_owned()]).await),
        _ => drop(client.get_launch_configurations(&[server]).await),
    }
}

fn faults() -> impl Strategy<Value = Vec<Fault>> {
    let fault = prop_oneof![
        Just(Fault::Throttled),
        Just(Fault::Broken),
        Just(Fault::BrokenAfter),
        Just(Fault::CutAfter),
        Just(Fault::SilentAfter),
        Just(Fault::Refused(503, "ServiceUnavailable")),
        Just(Fault::Slow(Span::from_secs(2))),
    ];
    prop::collection::vec(fault, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Property 7: every attempt of every operation takes a token first, and failures are retried: the service never sees
    /// more than the bucket gives out, in any window, whatever fails.
    #[test]
    fn r001_7_no_attempt_goes_out_without_a_token(
        per_second in 1_u64..20,
        burst in 1_u64..10,
        calls in prop::collection::vec((0_usize..OPERATIONS.len(), 0_usize..10), 1..12),
        faults in faults(),
    ) {
        let harness = Harness::new(Settings { page_max: 3, ..Settings::default() });
        let rate = Rate::new(TokenBucket::per_second(per_second).burst(burst));
        let client = harness.client(|builder| builder.rate(rate));
        faults.iter().for_each(|fault| harness.fake.inject(None, 1, fault.clone()));
        for (operation, server) in &calls {
            harness.run(call(&client, *operation, *server));
        }
        let arrivals = harness.fake.arrivals();
        prop_assert_eq!(arrivals.over(per_second, burst, Span::ZERO), None);
        for (operation, _) in calls {
            prop_assert!(0 < arrivals.count(OPERATIONS[operation]), "{} was not called", OPERATIONS[operation]);
        }
    }

    /// R001.9: a token before each page and each attempt at it, and everything is there exactly once.
    #[test]
    fn r001_9_each_page_takes_a_token_and_is_retried_by_itself(
        servers in 0_usize..40, page_max in 1_usize..10, failures in prop::collection::vec(0_u32..3, 0..10)
    ) {
        let harness = Harness::new(Settings { servers, page_max, ..Settings::default() });
        let rate = Rate::new(TokenBucket::per_second(5).burst(1)).fixed();
        let client = harness.client(|builder| builder.rate(rate));
        let pages = servers.div_ceil(page_max).max(1);
        let mut listing = client.describe_source_servers(&[]);
        let (mut found, mut sent) = (Vec::new(), 0);
        for page in 0..pages {
            let failing = failures.get(page).copied().unwrap_or(0);
            if 0 < failing {
                harness.fake.inject(None, failing, Fault::Refused(503, "ServiceUnavailable"));
            }
            sent += failing as usize + 1;
            found.extend(harness.run(listing.next_page()).expect("a page").unwrap());
            prop_assert_eq!(harness.fake.arrivals().count("DescribeSourceServers"), sent);
        }
        prop_assert!(harness.run(listing.next_page()).is_none());
        prop_assert_eq!(harness.fake.arrivals().over(5, 1, Span::ZERO), None);
        let ids: Vec<_> = found.iter().map(|server| server.source_server_id.clone().unwrap()).collect();
        let expected: Vec<_> = (0..servers).map(FakeDrs::server_id).collect();
        prop_assert_eq!(ids, expected);
    }

    /// However answers are lost, one job is started, and the caller learns which.
    #[test]
    fn a_recovery_is_started_once_however_answers_are_lost(lost in prop::collection::vec(0_usize..5, 0..5)) {
        let harness = Harness::new(Settings::default());
        let client = harness.client(|builder| builder);
        for number in &lost {
            let fault = [Fault::SilentAfter, Fault::CutAfter, Fault::BrokenAfter, Fault::Silent, Fault::Garbled][*number].clone();
            harness.fake.inject(Some("StartRecovery"), 1, fault);
        }
        let job = harness.run(client.start_recovery(&Recovery::new([FakeDrs::server_id(0)]))).unwrap();
        prop_assert_eq!(harness.fake.jobs_started(), 1);
        prop_assert_eq!(job.participating_servers()[0].source_server_id().unwrap(), FakeDrs::server_id(0));
        // It is sent again only as long as nothing was carried out.
        let in_vain = lost.iter().take_while(|number| **number == 3).count();
        prop_assert_eq!(harness.fake.arrivals().count("StartRecovery"), in_vain + 1);
    }
}

/// The proof must be able to fail: a client with a bucket that never binds is caught.
#[test]
fn r001_7_a_client_without_a_limit_is_caught() {
    let harness = Harness::new(Settings { servers: 60, page_max: 3, ..Settings::default() });
    let rate = Rate::new(TokenBucket::per_second(1_000_000)).fixed();
    let client = harness.client(|builder| builder.rate(rate));
    harness.run(client.describe_source_servers(&[]).all()).unwrap();
    assert!(harness.fake.arrivals().over(10, 10, Span::ZERO).is_some());
}

/// A service whose rate equals the client's throttles no call.
#[test]
fn r001_7_a_client_within_the_rate_is_not_throttled() {
    let harness = Harness::new(Settings {
        servers: 300,
        page_max: 3,
        rate: Some((10, 20)),
        ..Settings::default()
    });
    let client = harness.client(|builder| builder);
    let began = harness.clock.now();
    assert_eq!(harness.run(client.describe_source_servers(&[]).all()).unwrap().len(), 300);
    assert_eq!(harness.seen.count("rate_limit_error"), 0);
    assert_eq!(
        harness.clock.now().since(began),
        Span::from_secs(8),
        "100 pages: 20 at once, then ten a second"
    );
}

#[test]
fn an_operation_can_have_a_rate_of_its_own() {
    let harness = Harness::new(Settings::default());
    let slow = Rate::new(TokenBucket::per_minute(1)).fixed();
    let client = harness.client(|builder| {
        builder.rate_for("DescribeRecoveryInstances", slow).wait_max(Span::from_secs(1))
    });
    let list = || harness.run(client.describe_recovery_instances(&[], &[]).all());
    assert!(list().is_ok());
    let error = list().unwrap_err();
    let Error::RateLimitTimeout(timeout) = error else { panic!("{error:?}") };
    assert_eq!(&*timeout.class, "drs.DescribeRecoveryInstances");
    assert!(harness.run(client.describe_jobs(&JobFilter::default()).all()).is_ok());
}

/// The stream gives the same items, fetches no page before it is needed, and ends with the first error.
#[test]
fn items_are_a_stream_that_fetches_as_it_is_read() {
    let harness = Harness::new(Settings { servers: 5, page_max: 2, ..Settings::default() });
    let client = harness.client(|builder| {
        builder.retry(RetryOptions { max_retries: 0, ..RetryOptions::default() })
    });
    let mut items = client.describe_source_servers(&[]).items();
    assert_eq!(harness.fake.arrivals().all().len(), 0);
    for (number, pages) in [(0, 1), (1, 1), (2, 2), (3, 2)] {
        let item = harness.run(items.next_item()).unwrap().unwrap();
        assert_eq!(item.source_server_id(), Some(FakeDrs::server_id(number).as_str()));
        assert_eq!(harness.fake.arrivals().all().len(), pages);
    }
    harness.fake.inject(None, 1, Fault::Broken);
    assert!(harness.run(items.next_item()).unwrap().is_err());
    assert!(harness.run(items.next_item()).is_none());
}

/// A slow answer that comes within the bound is an answer.
#[test]
fn a_slow_answer_is_waited_for_within_the_bound() {
    let harness = Harness::new(Settings::default());
    let client = harness.client(|builder| builder.attempt_max(Span::from_secs(10)));
    harness.fake.inject(None, 1, Fault::Slow(Span::from_secs(9)));
    harness.run(client.describe_jobs(&JobFilter::default()).all()).unwrap();
    assert_eq!(harness.fake.arrivals().all().len(), 1);
    harness.fake.inject(None, 1, Fault::Slow(Span::from_secs(11)));
    harness.run(client.describe_jobs(&JobFilter::default()).all()).unwrap();
    assert_eq!(
        harness.fake.arrivals().all().len(),
        3,
        "given up after ten seconds, and tried again"
    );
}

/// Where the jobs cannot be looked through, nothing is sent again, and the caller gets the tag to look for.
#[test]
fn without_a_look_nothing_is_sent_again() {
    let harness = Harness::new(Settings::default());
    let client = harness.client(|builder| builder);
    harness.fake.inject(Some("StartRecovery"), 1, Fault::SilentAfter);
    harness.fake.inject(Some("DescribeJobs"), 1, Fault::Refused(403, "AccessDeniedException"));
    let recovery = Recovery::new([FakeDrs::server_id(0)]).request_id("plan-7-wave-1");
    let error = harness.run(client.start_recovery(&recovery)).unwrap_err();
    let Error::Ambiguous(ambiguous) = &error else { panic!("{error:?}") };
    assert_eq!(ambiguous.request_id.as_deref(), Some("plan-7-wave-1"));
    assert_eq!(harness.fake.arrivals().count("StartRecovery"), 1);
    let since = harness.clock.now();
    let found = harness.run(client.find_recovery("plan-7-wave-1", since)).unwrap();
    assert!(found.is_some(), "it can be found later by its tag");
    assert!(harness.run(client.find_recovery("plan-7-wave-2", since)).unwrap().is_none());
}

/// The answer to the last attempt is lost, and there is no further one: a lookup finds that the job was started.
#[test]
fn a_job_that_the_last_attempt_started_is_found() {
    let harness = Harness::new(Settings::default());
    let client = harness.client(|builder| {
        builder.retry(RetryOptions { max_retries: 0, ..RetryOptions::default() })
    });
    harness.fake.inject(Some("StartRecovery"), 1, Fault::CutAfter);
    let job = harness.run(client.start_recovery(&Recovery::new([FakeDrs::server_id(0)]))).unwrap();
    assert_eq!((job.job_id(), harness.fake.jobs_started()), ("drsjob-00000000000000001", 1));
    assert_eq!((harness.seen.count("retry_exhausted"), harness.seen.count("looked_up")), (0, 1));
}

/// The answer is lost and the list is behind, so it is sent again: the server is busy, and another look finds the job.
#[test]
fn a_conflict_after_a_lost_answer_leads_to_another_look() {
    let harness = Harness::new(Settings::default());
    let client = harness.client(|builder| builder);
    harness.fake.inject(Some("StartRecovery"), 1, Fault::SilentAfter);
    harness.fake.inject(Some("DescribeJobs"), 1, Fault::Behind);
    let job = harness.run(client.start_recovery(&Recovery::new([FakeDrs::server_id(0)]))).unwrap();
    assert_eq!((job.job_id(), harness.fake.jobs_started()), ("drsjob-00000000000000001", 1));
    assert_eq!(harness.fake.arrivals().count("StartRecovery"), 2);
    assert_eq!(harness.seen.count("looked_up"), 2);
}

/// A server that another caller recovers is a conflict at once, without a lookup.
#[test]
fn a_busy_server_is_a_conflict() {
    let harness = Harness::new(Settings::default());
    let client = harness.client(|builder| builder);
    let recovery = Recovery::new([FakeDrs::server_id(0)]);
    harness.run(client.start_recovery(&recovery)).unwrap();
    let error = harness.run(client.start_recovery(&recovery)).unwrap_err();
    assert_eq!(
        (error.code(), harness.fake.arrivals().count("DescribeJobs")),
        ("ConflictException", 0)
    );
    assert!(matches!(error, Error::Refused(_)));
}

/// The same for ending machines: one job, found by its instances.
#[test]
fn instances_are_terminated_once_however_answers_are_lost() {
    for fault in [Fault::SilentAfter, Fault::CutAfter, Fault::BrokenAfter, Fault::Garbled] {
        let harness = Harness::new(Settings::default());
        let client = harness.client(|builder| builder);
        harness.run(client.start_recovery(&Recovery::new([FakeDrs::server_id(3)]))).unwrap();
        harness.clock.advance(Span::from_mins(1));
        let instances = harness.run(client.describe_recovery_instances(&[], &[]).all()).unwrap();
        let ids = [instances[0].recovery_instance_id().unwrap().to_owned()];
        harness.fake.inject(Some("TerminateRecoveryInstances"), 1, fault);
        let job = harness.run(client.terminate_recovery_instances(&ids)).unwrap();
        assert_eq!(job.r#type.unwrap().as_str(), "TERMINATE");
        assert_eq!(
            (
                harness.fake.jobs_started(),
                harness.fake.arrivals().count("TerminateRecoveryInstances")
            ),
            (2, 1)
        );
    }
}

#[test]
fn wrong_input_is_refused_before_anything_is_called() {
    let harness = Harness::new(Settings::default());
    let client = harness.client(|builder| builder);
    let many: Vec<String> = (0..201).map(FakeDrs::server_id).collect();
    for servers in [&many[..0], &many[..101]] {
        let error =
            harness.run(client.start_recovery(&Recovery::new(servers.to_vec()))).unwrap_err();
        assert!(error.to_string().contains("1 to 100 servers"), "{error}");
    }
    let error = harness.run(client.terminate_recovery_instances(&many)).unwrap_err();
    assert!(error.to_string().contains("1 to 200 instances"), "{error}");
    assert!(harness.run(harness.builder("").open()).is_err());
    assert_eq!(harness.fake.arrivals().all().len(), 0);
}

/// The same over sockets, on the machine's clock: a connection that ends is a lost answer, an error of the service is looked
/// up, a 429 is believed, and one job is started.
#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_is_started_once_over_http() {
    let settings = Settings { retry_after: Span::ZERO, ..Settings::default() };
    let fake = Arc::new(FakeDrs::new(Arc::new(SystemClock), settings));
    let server = Server::start(Arc::clone(&fake), 0).await.unwrap();
    // Short pauses: a real service is waited for here, and nothing else.
    let retry = RetryOptions { base_delay: Span::from_millis(1), ..RetryOptions::default() };
    let client =
        DrsClient::builder(REGION).endpoint(server.endpoint()).keys("test", "test").retry(retry);
    let client = client.buckets(Buckets::new()).open().await.unwrap();
    let faults = [Fault::Throttled, Fault::CutAfter];
    faults.into_iter().for_each(|fault| fake.inject(Some("StartRecovery"), 1, fault));
    fake.inject(Some("DescribeJobs"), 2, Fault::Refused(503, "ServiceUnavailable"));
    let job =
        client.start_recovery(&Recovery::new([FakeDrs::server_id(0)]).drill(true)).await.unwrap();
    assert_eq!((job.status().unwrap().as_str(), fake.jobs_started()), ("PENDING", 1));
    let arrivals = fake.arrivals();
    assert_eq!((arrivals.count("StartRecovery"), arrivals.count("DescribeJobs")), (2, 3));
    assert!(client.bucket("StartRecovery").percent() < 100, "a 429 was heard");
    let log = client.describe_job_log_items(job.job_id()).all().await.unwrap();
    assert_eq!(log[0].event.as_ref().unwrap().as_str(), "JOB_START");
}
