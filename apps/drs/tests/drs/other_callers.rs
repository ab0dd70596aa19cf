//! Campaigns beside other callers: another runner of the same campaign, other launches, and a service that is full.

use tollgate_drs::Recovery;
use tollgate_drs::campaign::{Stage, Waiting};
use tollgate_testkit::fakes::drs::{FakeDrs, Settings};

use crate::campaign::{harness, planned, run, runner};
use crate::harness::Harness;

#[test]
fn two_runners_of_one_campaign_start_each_job_once() {
    let harness = harness(230);
    let (mut one, mut two) = (planned(0..230), planned(0..230));
    let client = harness.client(|builder| builder);
    let (mut first, mut second) = (runner(&harness, client.clone()), runner(&harness, client));
    harness.run(async {
        let (mut keep, mut keep_too) =
            (|_: &_, _: Option<&_>| Ok(()), |_: &_, _: Option<&_>| Ok(()));
        let (first, second) =
            tokio::join!(first.run(&mut one, &mut keep), second.run(&mut two, &mut keep_too));
        first.unwrap();
        second.unwrap();
    });
    assert_eq!((one.tally().launched, two.tally().launched), (230, 230));
    assert_eq!(harness.fake.jobs_started(), 3);
    // One that begins when the jobs are over finds them, too.
    let mut late = planned(0..230);
    run(&harness, &mut late, |_| ());
    assert_eq!((late.tally().launched, harness.fake.jobs_started()), (230, 3));
}

#[test]
fn a_server_that_another_caller_launches_for_the_same_purpose_is_not_launched_again() {
    let harness = harness(200);
    let client = harness.client(|builder| builder);
    let theirs: Vec<String> = (7..9).map(FakeDrs::server_id).collect();
    harness.run(client.start_recovery(&Recovery::new(theirs.clone()).drill(true))).unwrap();
    let mut campaign = planned(0..200);
    let reasons = run(&harness, &mut campaign, |_| ());
    let job = "drsjob-00000000000000001".to_owned();
    assert_eq!(reasons, [Waiting::ForOthers { servers: 2, job }]);
    assert_eq!((campaign.tally().launched, harness.fake.jobs_started()), (200, 3));
    let instances = harness.run(client.describe_recovery_instances(&[], &theirs).all()).unwrap();
    assert_eq!(instances.len(), 2);
}

/// A campaign whose every server was launched by another caller meanwhile has nothing to start.
#[test]
fn a_wave_that_another_caller_launched_since_the_plan_is_over() {
    let harness = harness(30);
    let mut campaign = planned(0..30);
    campaign.since = Some(tollgate::Clock::now(&harness.clock).as_micros());
    let client = harness.client(|builder| builder);
    let theirs = (0..30).map(FakeDrs::server_id);
    harness.run(client.start_recovery(&Recovery::new(theirs).drill(true))).unwrap();
    harness.clock.advance(tollgate::Span::from_mins(10));
    run(&harness, &mut campaign, |_| ());
    assert_eq!(campaign.waves[0].stage, Stage::Ended { job: None });
    assert_eq!((campaign.tally().launched, harness.fake.jobs_started()), (30, 1));
}

/// The service refuses by a quota that is lower than what we know of: what is shown are the jobs that were counted.
#[test]
fn a_refusal_by_a_quota_is_shown_with_the_jobs_that_there_are() {
    let harness = Harness::new(Settings { servers: 150, jobs_max: 1, ..Settings::default() });
    let mut campaign = planned(0..150);
    let reasons = run(&harness, &mut campaign, |_| ());
    let quota = "L-D88FAC3A";
    assert_eq!(reasons, [Waiting::ForQuota { quota, jobs: 1 }]);
    assert_eq!(
        reasons[0].to_string(),
        "DRS refuses another job by its quota L-D88FAC3A; 1 jobs were counted"
    );
    assert_eq!((campaign.tally().launched, harness.fake.jobs_started()), (150, 2));
}
