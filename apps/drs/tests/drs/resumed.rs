//! A campaign that dies at any request, and goes on from what was kept: one job for each wave, whatever happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use aws_smithy_runtime_api::client::http::{
    HttpClient as _, HttpConnector, HttpConnectorFuture, SharedHttpClient, SharedHttpConnector,
    http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use tollgate_drs::campaign::{Campaign, Stage, Waiting};
use tollgate_testkit::fakes::drs::Fault;

use crate::campaign::{planned, runner, world};
use crate::world::{World, in_process};

/// Servers in three waves, of which one is small.
const SERVERS: usize = 230;
const WAVES: usize = 3;

/// Whether the request at which somebody dies is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    CarriedOut,
    Lost,
}

/// How many requests somebody makes before dying, and whether that came.
#[derive(Debug)]
struct Life {
    left: AtomicUsize,
    last: Last,
    is_over: AtomicBool,
}

#[derive(Debug)]
struct Mortal {
    inner: SharedHttpConnector,
    life: Arc<Life>,
}

impl HttpConnector for Mortal {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let life = Arc::clone(&self.life);
        if life.left.fetch_sub(1, SeqCst) != 1 {
            return self.inner.call(request);
        }
        let inner = self.inner.clone();
        HttpConnectorFuture::new(async move {
            if life.last == Last::CarriedOut {
                drop(inner.call(request).await);
            }
            life.is_over.store(true, SeqCst);
            std::future::pending().await
        })
    }
}

fn mortal(world: &World, life: &Arc<Life>) -> SharedHttpClient {
    let (inner, life) = (in_process(&world.fake), Arc::clone(life));
    http_client_fn(move |settings, components| {
        let inner = inner.http_connector(settings, components);
        SharedHttpConnector::new(Mortal { inner, life: Arc::clone(&life) })
    })
}

/// Whoever keeps campaigns: what is kept of one, or nothing where it stays as it was.
type Keeper = fn(&Campaign) -> Option<Campaign>;

/// Dies at request `number`, goes on from what `keeper` kept while so many lists of jobs are `behind`, and ends; whether it
/// died, and how many jobs there were.
fn die_at(number: usize, last: Last, keeper: Keeper, behind: u32) -> (bool, usize) {
    let world = world(SERVERS);
    let life = Arc::new(Life { left: number.into(), last, is_over: false.into() });
    let client = world.client(|builder| builder.http_client(mortal(&world, &life)));
    let mut kept = planned(0..SERVERS);
    let mut campaign = kept.clone();
    world.run(async {
        let mut keep = |campaign: &Campaign, _: Option<&Waiting>| {
            kept = keeper(campaign).unwrap_or_else(|| kept.clone());
            Ok(())
        };
        let mut first = runner(&world, client);
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
    world.fake.inject(Some("DescribeJobs"), behind, Fault::Behind);
    let client = world.client(|builder| builder);
    world.run(runner(&world, client).run(&mut kept, &mut |_, _| Ok(()))).unwrap();
    assert!(kept.is_over());
    assert_eq!(kept.tally().launched, SERVERS, "{number} {last:?}");
    (life.is_over.load(SeqCst), world.fake.jobs_started())
}

/// Dies at every request in turn; those after which there was another number of jobs than of waves.
fn sweep(keeper: Keeper) -> Vec<(usize, Last, usize)> {
    let mut wrong = Vec::new();
    for last in [Last::CarriedOut, Last::Lost] {
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
        let (died, jobs) = die_at(number, Last::CarriedOut, whole, 3);
        assert_eq!(jobs, WAVES, "{number}");
        if !died {
            break;
        }
    }
}

/// Who does not keep that something is about to be sent finds the job by its tag all the same.
#[test]
fn who_forgets_to_keep_before_sending_starts_each_job_once() {
    let forgetful: Keeper = |campaign| {
        let starting =
            campaign.waves.iter().any(|wave| matches!(wave.stage, Stage::Starting { .. }));
        (!starting).then(|| campaign.clone())
    };
    assert_eq!(sweep(forgetful), []);
}

/// The sweep must be able to fail: under another id the jobs of the first life are those of somebody else's campaign, and
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
