//! A campaign that crashes at any request and resumes from its saved state: exactly one job for each wave.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use aws_smithy_runtime_api::client::http::{
    HttpClient as _, HttpConnector, HttpConnectorFuture, SharedHttpClient, SharedHttpConnector,
    http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use tollgate_drs::campaign::{Campaign, Stage, Waiting};
use tollgate_testkit::fakes::drs::Fault;

use crate::campaign::{harness, planned, runner};
use crate::harness::{Harness, in_process};

/// Servers in three waves, of which one is small.
const SERVERS: usize = 230;
const WAVES: usize = 3;

/// Whether the service executes the request at which the process crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastRequest {
    CarriedOut,
    Lost,
}

/// The number of requests before the crash, and whether it happened.
#[derive(Debug)]
struct CrashPoint {
    left: AtomicUsize,
    last: LastRequest,
    is_over: AtomicBool,
}

#[derive(Debug)]
struct CrashingConnector {
    inner: SharedHttpConnector,
    life: Arc<CrashPoint>,
}

impl HttpConnector for CrashingConnector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let life = Arc::clone(&self.life);
        if life.left.fetch_sub(1, SeqCst) != 1 {
            return self.inner.call(request);
        }
        let inner = self.inner.clone();
        HttpConnectorFuture::new(async move {
            if life.last == LastRequest::CarriedOut {
                drop(inner.call(request).await);
            }
            life.is_over.store(true, SeqCst);
            std::future::pending().await
        })
    }
}

fn crashing_client(harness: &Harness, life: &Arc<CrashPoint>) -> SharedHttpClient {
    let (inner, life) = (in_process(&harness.fake), Arc::clone(life));
    http_client_fn(move |settings, components| {
        let inner = inner.http_connector(settings, components);
        SharedHttpConnector::new(CrashingConnector { inner, life: Arc::clone(&life) })
    })
}

/// Returns the campaign to save; `None` keeps the saved one.
type Keeper = fn(&Campaign) -> Option<Campaign>;

/// Crashes at request `number`, resumes from what `keeper` saved while the first `behind` lists of jobs are outdated, and
/// completes. Returns whether it crashed, and the number of jobs.
fn die_at(number: usize, last: LastRequest, keeper: Keeper, behind: u32) -> (bool, usize) {
    let harness = harness(SERVERS);
    let life = Arc::new(CrashPoint { left: number.into(), last, is_over: false.into() });
    let client = harness.client(|builder| builder.http_client(crashing_client(&harness, &life)));
    let mut kept = planned(0..SERVERS);
    let mut campaign = kept.clone();
    harness.run(async {
        let mut keep = |campaign: &Campaign, _: Option<&Waiting>| {
            kept = keeper(campaign).unwrap_or_else(|| kept.clone());
            Ok(())
        };
        let mut first = runner(&harness, client);
        let death = std::future::poll_fn(|_| match life.is_over.load(SeqCst) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        });
        tokio::select! {
            biased;
            ended = first.run(&mut campaign, &mut keep) => ended.unwrap(),
            () = death => {}
        }
    });
    // What is kept is bytes.
    let mut kept: Campaign = serde_json::from_slice(&serde_json::to_vec(&kept).unwrap()).unwrap();
    harness.fake.inject(Some("DescribeJobs"), behind, Fault::Behind);
    let client = harness.client(|builder| builder);
    harness.run(runner(&harness, client).run(&mut kept, &mut |_, _| Ok(()))).unwrap();
    assert!(kept.is_over());
    assert_eq!(kept.tally().launched, SERVERS, "{number} {last:?}");
    (life.is_over.load(SeqCst), harness.fake.jobs_started())
}

/// Dies at every request in turn; those after which there was another number of jobs than of waves.
fn sweep(keeper: Keeper) -> Vec<(usize, LastRequest, usize)> {
    let mut wrong = Vec::new();
    for last in [LastRequest::CarriedOut, LastRequest::Lost] {
        let mut number = 1;
        loop {
            let (died, jobs) = die_at(number, last, keeper, 0);
            if jobs != WAVES {
                wrong.push((number, last, jobs));
            }
            if !died {
                break;
            }
            number += 1;
        }
        assert!(2 * WAVES < number, "there were only {number} requests to die at");
    }
    wrong
}

#[test]
fn who_dies_at_any_request_goes_on_and_starts_each_job_once() {
    assert_eq!(sweep(|campaign| Some(campaign.clone())), []);
}

/// A list that does not show the job yet leads to a second start, which meets a conflict, and then the job is found.
#[test]
fn who_goes_on_with_lists_that_are_behind_starts_each_job_once_too() {
    let whole: Keeper = |campaign| Some(campaign.clone());
    for number in 1.. {
        let (died, jobs) = die_at(number, LastRequest::CarriedOut, whole, 3);
        assert_eq!(jobs, WAVES, "{number}");
        if !died {
            break;
        }
    }
}

/// A runner that did not save the pending start finds the job by its tag.
#[test]
fn who_forgets_to_keep_before_sending_starts_each_job_once() {
    let forgetful: Keeper = |campaign| {
        let starting =
            campaign.waves.iter().any(|wave| matches!(wave.stage, Stage::Starting { .. }));
        (!starting).then(|| campaign.clone())
    };
    assert_eq!(sweep(forgetful), []);
}

/// The sweep must be able to fail: under another id the jobs of the first life are those of another campaign, and
/// a recovery that is no drill does not count for it.
#[test]
fn who_forgets_the_id_of_the_campaign_is_caught() {
    let forgetful: Keeper = |campaign| {
        let mut other = planned(0..SERVERS);
        (other.id, other.is_drill) = ("day".to_owned(), !campaign.is_drill);
        Some(other)
    };
    let wrong = sweep(forgetful);
    assert!(WAVES <= wrong.len(), "{wrong:?}");
    assert!(wrong.iter().all(|(_, _, jobs)| WAVES < *jobs), "{wrong:?}");
}
