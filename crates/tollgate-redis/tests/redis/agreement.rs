//! Every answer is the core's, step by step, also where an entry is at one of its bounds.

use tollgate::clock::ManualClock;
use tollgate::core::{Change, Known, Operation, apply};
use tollgate::gate::Outcome;
use tollgate::{
    Ask, Clock, Concurrency, Costs, Decision, Error, ErrorKind, GateExt, Limit, Permit, Policy,
    RollingWindow, Span, Timestamp, TokenBucket,
};
use tollgate_conformance::script::SingleEntry;
use tollgate_redis::{Options, Redis};
use tollgate_testkit::servers::{self, RedisCluster};

use crate::{admitted, open_at, server, slow_bucket};

/// A core on the client's side, to compare with step by step.
pub(crate) struct Both {
    pub(crate) gate: Redis,
    pub(crate) clock: ManualClock,
    pub(crate) core: SingleEntry,
}

impl Both {
    pub(crate) async fn new(redis: &servers::Redis) -> Self {
        Self::on(Options::single(redis.url())).await
    }

    async fn on(options: Options) -> Self {
        let clock = ManualClock::new();
        let gate = open_at(options, &clock).await;
        Self { gate, clock, core: SingleEntry::default() }
    }

    pub(crate) async fn acquire(&mut self, ask: &Ask<'_>) -> Result<Decision, ErrorKind> {
        let got = self.gate.acquire(ask).await;
        let expected = self.core.run(self.clock.now(), &Operation::Acquire(ask));
        match (got, expected) {
            (Ok(got), Ok(Outcome::Decided(expected))) => {
                assert_eq!(got, expected);
                Ok(got)
            }
            (Err(got), Err(expected)) => {
                assert_eq!(got.to_string(), expected.to_string());
                Err(got.kind())
            }
            (got, expected) => panic!("{got:?} instead of {expected:?}"),
        }
    }

    pub(crate) async fn settle(&mut self, permit: &Permit, actual: &Costs) {
        let got = self.gate.settle(permit, actual).await;
        self.same(got.map(Outcome::Changed), &Operation::Settle(permit, actual));
    }

    pub(crate) async fn release(&mut self, permit: &Permit) {
        let got = self.gate.release(permit).await;
        self.same(got.map(Outcome::Changed), &Operation::Release(permit));
    }

    pub(crate) async fn standing(&mut self, policy: &Policy) {
        let got = self.gate.standing(policy, "p").await;
        self.same(got.map(Outcome::Standings), &Operation::Standing { policy, subject: "p" });
    }

    /// Checks what the gate answered to `operation` against the core.
    pub(crate) fn same(&mut self, got: Result<Outcome, Error>, operation: &Operation<'_>) {
        match (got, self.core.run(self.clock.now(), operation)) {
            (Ok(got), Ok(expected)) => assert_eq!(got, expected, "{operation:?}"),
            (Err(got), Err(expected)) => assert_eq!(got.to_string(), expected.to_string()),
            (got, expected) => panic!("{operation:?}: {got:?} instead of {expected:?}"),
        }
    }
}

/// Numbers below a bound, the same for the same seed.
pub(crate) fn draws(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    }
}

/// Permits that are settled with gaps in between: runs are bounded, and nothing is settled twice.
#[tokio::test]
async fn settled_permits_are_remembered_as_in_the_core() {
    let redis = server();
    let mut both = Both::new(&redis).await;
    let policy = slow_bucket(10_000);
    let mut permits = Vec::new();
    for _ in 0..600 {
        both.clock.advance(Span::from_secs(1));
        permits.push(admitted(both.acquire(&Ask::new(&policy, "p")).await.unwrap()));
    }
    for step in [2, 3, 2, 1] {
        for permit in permits.iter().step_by(step) {
            both.settle(permit, &Costs::new()).await;
        }
    }
    both.clock.advance(Span::from_secs(3_300));
    for permit in permits.iter().rev() {
        both.settle(permit, &Costs::new()).await;
    }
}

/// What the server holds is what the core would hold, so that [`apply`] on it changes nothing more.
#[tokio::test]
async fn an_ask_behind_others_is_admitted_if_all_have_room() {
    let redis = server();
    let mut both = Both::new(&redis).await;
    let policy = slow_bucket(5);
    both.acquire(&Ask::new(&policy, "p")).await.unwrap();
    let front = *Ask::new(&policy, "p").cost("requests", 4).amounts();
    let ask = Ask::new(&policy, "p").behind(vec![front; 3]);
    assert!(!both.acquire(&ask).await.unwrap().is_admitted());
    let one = *Ask::new(&policy, "p").amounts();
    let ask = Ask::new(&policy, "p").id("x").behind(vec![one; 2]);
    let first = admitted(both.acquire(&ask).await.unwrap());
    let again = admitted(both.acquire(&ask).await.unwrap());
    assert_eq!(first.grant(), again.grant(), "a repeat is recognised behind others too");
    assert!(!both.acquire(&ask.id("y").behind(vec![one; 3])).await.unwrap().is_admitted());
    let entry = both.core.entry.as_mut().unwrap();
    let looks = Operation::Standing { policy: &policy, subject: "p" };
    let looked = apply(&looks, entry, Known::New, both.clock.now());
    assert_eq!(looked.unwrap().change, Change::Nothing);
    assert!(Timestamp::EPOCH < both.clock.now());
}

#[tokio::test]
async fn ids_and_changed_numbers_are_as_in_the_core() {
    let redis = server();
    ids_and_changed_numbers(Both::new(&redis).await, 6_000).await;
}

#[tokio::test]
async fn ids_and_changed_numbers_on_a_cluster_are_as_in_the_core() {
    let cluster = RedisCluster::start().unwrap();
    ids_and_changed_numbers(Both::on(Options::cluster(cluster.urls())).await, 3_000).await;
}

/// Ids, slots and numbers that change to and fro: every answer is the core's.
async fn ids_and_changed_numbers(mut both: Both, steps: usize) {
    let policies = [(10, 30), (12, 30), (10, 45)].map(|(limit, secs)| {
        let span = Span::from_secs(secs);
        Policy::new(
            "changing",
            [
                Limit::new("bucket", "requests", TokenBucket::per(limit, span)),
                Limit::new("rolling", "requests", RollingWindow::new(limit, span).resolution(4)),
                Limit::new("exact", "tokens", RollingWindow::new(3 * limit, span)),
                Limit::new("slots", "calls", Concurrency::new(4, span)),
            ],
        )
        .unwrap()
    });
    let mut draw = draws(7);
    let mut permits: Vec<Permit> = Vec::new();
    for _ in 0..steps {
        let wait = [0, 1, 900_000, 7_000_000, 50_000_000][usize::try_from(draw(5)).unwrap()];
        both.clock.advance(Span::from_micros(wait));
        if draw(300) == 0 {
            both.clock.advance(Span::from_secs(3_600));
        }
        // The numbers change now and then, and come back.
        let policy = &policies[if draw(20) == 0 { usize::try_from(draw(3)).unwrap() } else { 0 }];
        let mut ask = Ask::new(policy, "p").cost("requests", draw(3)).cost("tokens", draw(2));
        ask = ask.cost("calls", draw(2));
        if draw(3) != 0 {
            ask = ask.id_for(format!("id-{}", draw(4)), Span::from_secs(10 + draw(110)));
        }
        if draw(6) == 0 {
            ask = ask.behind(vec![*Ask::new(policy, "p").amounts(); 2]);
        }
        let verb = draw(10);
        let mut permit = None;
        if let Some(last) = permits.len().checked_sub(1) {
            let back = usize::try_from(draw(4)).unwrap().min(last);
            permit = Some(permits[last - back].clone());
        }
        let actual = Costs::new().with("requests", draw(4)).with("tokens", draw(3));
        let subject = "p";
        let (got, operation) = match (verb, &permit) {
            (0..=3, _) | (_, None) => {
                let got = both.gate.acquire(&ask).await;
                (got.map(Outcome::Decided), Operation::Acquire(&ask))
            }
            (4, _) => {
                let got = both.gate.charge(&ask).await;
                (got.map(Outcome::Permitted), Operation::Charge(&ask))
            }
            (5, Some(permit)) => {
                let got = both.gate.settle(permit, &actual).await;
                (got.map(Outcome::Changed), Operation::Settle(permit, &actual))
            }
            (6 | 7, Some(permit)) => {
                let got = both.gate.release(permit).await;
                (got.map(Outcome::Changed), Operation::Release(permit))
            }
            (8, Some(permit)) => {
                let got = both.gate.renew(permit).await;
                (got.map(Outcome::Permitted), Operation::Renew(permit))
            }
            _ if draw(4) == 0 => {
                let got = both.gate.reset(policy, subject).await;
                (got.map(Outcome::Changed), Operation::Reset { policy, subject })
            }
            _ => {
                let got = both.gate.standing(policy, subject).await;
                (got.map(Outcome::Standings), Operation::Standing { policy, subject })
            }
        };
        let given = got.as_ref().ok().cloned();
        both.same(got, &operation);
        if let Some(Outcome::Decided(Decision::Admitted(permit)) | Outcome::Permitted(permit)) =
            given
        {
            permits.push(if draw(8) == 0 { permit.under_other_numbers() } else { permit });
        }
    }
}
