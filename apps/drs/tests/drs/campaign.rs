//! Campaigns: their waits, their reports and their ends.

use std::collections::BTreeSet;

use tollgate::Span;
use tollgate_drs::campaign::{CONFLICTS_MAX, Campaign, Outcome, Runner, Stage, Waiting};
use tollgate_drs::throttle::ThrottleOptions as Throttle;
use tollgate_drs::{DrsClient, Error, JobThrottler, Recovery};
use tollgate_testkit::fakes::drs::{FakeDrs, Fault, Settings};

use crate::harness::Harness;

pub(crate) const POLL: Span = Span::from_secs(10);

pub(crate) fn harness(servers: usize) -> Harness {
    Harness::new(Settings { servers, ..Settings::default() })
}

pub(crate) fn planned(servers: std::ops::Range<usize>) -> Campaign {
    Campaign::plan("night", servers.map(FakeDrs::server_id), true).unwrap()
}

pub(crate) fn runner(harness: &Harness, client: DrsClient) -> Runner {
    let throttler = JobThrottler::new(client, Throttle::default()).unwrap().slots(harness.slots());
    Runner::new(&throttler, POLL)
}

/// Runs `campaign` to its end; the reasons for which it waited, each once, in order. `seen` is called for each.
pub(crate) fn run(
    harness: &Harness,
    campaign: &mut Campaign,
    mut seen: impl FnMut(&Waiting) + Send,
) -> Vec<Waiting> {
    let mut reasons: Vec<Waiting> = Vec::new();
    let mut keep = |_: &Campaign, waiting: Option<&Waiting>| {
        if let Some(waiting) = waiting {
            seen(waiting);
            if reasons.last() != Some(waiting) {
                reasons.push(waiting.clone());
            }
        }
        Ok(())
    };
    let client = harness.client(|builder| builder);
    harness.run(runner(harness, client).run(campaign, &mut keep)).unwrap();
    assert!(campaign.is_over());
    reasons
}

/// Jobs of another caller, which are no drills.
fn other_jobs(harness: &Harness, servers: std::ops::Range<usize>) {
    let client = harness.client(|builder| builder);
    let ids: Vec<_> = servers.map(FakeDrs::server_id).collect();
    for some in ids.chunks(100) {
        harness.run(client.start_recovery(&Recovery::new(some.to_vec()))).unwrap();
    }
}

#[test]
fn a_campaign_waits_for_the_quota_of_servers_in_jobs() {
    let harness = harness(700);
    other_jobs(&harness, 0..400);
    let mut campaign = planned(400..700);
    let reasons = run(&harness, &mut campaign, |_| ());
    assert_eq!(reasons, [Waiting::ForServers { servers: 500 }]);
    assert_eq!(campaign.tally().launched, 300);
    // No request was refused.
    assert_eq!(
        (harness.fake.arrivals().count("StartRecovery"), harness.fake.jobs_started()),
        (7, 7)
    );
}

#[test]
fn a_campaign_waits_for_places_of_jobs() {
    let harness = harness(150);
    harness.fake.start_foreign_jobs(18);
    let mut looks = 0;
    let mut campaign = planned(0..150);
    let reasons = run(&harness, &mut campaign, |_| {
        looks += 1;
        if looks == 3 {
            harness.fake.end_foreign_jobs(1);
        }
    });
    // One place became free: the second wave waits until the first one's job is over.
    assert_eq!(reasons, [Waiting::ForJobs { jobs: 18, threshold: 18 }]);
    assert_eq!((campaign.tally().launched, harness.fake.jobs_started()), (150, 18 + 2));
    let over =
        |wave: &tollgate_drs::campaign::Wave| matches!(&wave.stage, Stage::Ended { job: Some(_) });
    assert!(campaign.waves.iter().all(over));
}

#[test]
fn a_campaign_waits_for_servers_in_somebody_elses_job_and_goes_on_with_the_rest() {
    let harness = harness(200);
    other_jobs(&harness, 7..9);
    let mut campaign = planned(0..200);
    let reasons = run(&harness, &mut campaign, |_| {
        // The second wave is not held up by the first one.
        assert_eq!(harness.fake.jobs_started(), 2);
    });
    let job = "drsjob-00000000000000001".to_owned();
    assert_eq!(reasons, [Waiting::ForOthers { servers: 2, job }]);
    assert_eq!((campaign.tally().launched, harness.fake.jobs_started()), (200, 3));
    assert_eq!(harness.fake.arrivals().count("StartRecovery"), 3, "no request was refused");
}

#[test]
fn a_wave_that_conflicts_with_nothing_that_can_be_seen_is_given_up() {
    let harness = harness(130);
    harness.fake.inject(
        Some("StartRecovery"),
        CONFLICTS_MAX,
        Fault::Refused(409, "ConflictException"),
    );
    let mut campaign = planned(0..100);
    run(&harness, &mut campaign, |_| ());
    assert_eq!(harness.fake.arrivals().count("StartRecovery"), CONFLICTS_MAX as usize);
    assert_eq!((campaign.tally().failed, harness.fake.jobs_started()), (100, 0));
    let (_, first) = campaign.servers().next().unwrap();
    assert!(
        matches!(first, Outcome::Failed { why } if why.contains("ConflictException")),
        "{first:?}"
    );
    // One conflict less, and it is started.
    let fewer = CONFLICTS_MAX - 1;
    harness.fake.inject(Some("StartRecovery"), fewer, Fault::Refused(409, "ConflictException"));
    let mut campaign = planned(100..130);
    run(&harness, &mut campaign, |_| ());
    assert_eq!((campaign.tally().launched, harness.fake.jobs_started()), (30, 1));
}

#[test]
fn a_refusal_ends_its_wave_alone_and_a_failed_server_is_reported_by_name() {
    let failing: BTreeSet<String> = [FakeDrs::server_id(120)].into();
    let harness = Harness::new(Settings { servers: 300, failing, ..Settings::default() });
    harness.fake.inject(Some("StartRecovery"), 1, Fault::Refused(400, "ValidationException"));
    let mut campaign = planned(0..300);
    run(&harness, &mut campaign, |_| ());
    let tally = campaign.tally();
    assert_eq!((tally.launched, tally.failed, harness.fake.jobs_started()), (199, 101, 2));
    assert_eq!(campaign.waves[0].stage, Stage::Ended { job: None });
    let why =
        |number: usize| match &campaign.waves[number / 100].servers[&FakeDrs::server_id(number)] {
            Outcome::Failed { why } => why.clone(),
            other => panic!("{other:?}"),
        };
    assert!(why(0).contains("ValidationException"), "{}", why(0));
    assert!(why(120).contains("FAILED in job drsjob-"), "{}", why(120));
}

/// What concerns every wave ends the run, and the campaign stays where it was.
#[test]
fn a_refusal_of_everything_ends_the_run_and_nothing_is_sent_that_cannot_be_kept() {
    let harness = harness(100);
    let mut campaign = planned(0..100);
    let client = harness.client(|builder| builder);
    harness.fake.inject(Some("StartRecovery"), 1, Fault::Refused(403, "AccessDeniedException"));
    let error =
        harness.run(runner(&harness, client.clone()).run(&mut campaign, &mut |_, _| Ok(())));
    assert_eq!(error.unwrap_err().code(), "AccessDeniedException");
    assert!(matches!(campaign.waves[0].stage, Stage::Starting { .. }));
    let sent = harness.fake.arrivals().count("StartRecovery");
    let mut campaign = planned(0..100);
    let mut full =
        |_: &Campaign, _: Option<&Waiting>| Err(Error::Invalid("the disk is full".into()));
    let error = harness.run(runner(&harness, client).run(&mut campaign, &mut full));
    assert_eq!(error.unwrap_err().to_string(), "the disk is full");
    assert_eq!(harness.fake.arrivals().count("StartRecovery"), sent);
}
