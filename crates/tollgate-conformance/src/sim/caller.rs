//! The workload of one machine: arrivals, bursts, costs, ids, repeats, settles and releases.

use std::sync::Arc;

use fastrand::Rng;
use tollgate::{Gate, GateExt};
use tollgate_core::{Ask, Costs, Decision, Permit, Span};
use tollgate_sim::{Machine, World};

use super::ledger::{Asked, Ended, Ledger, Spending};
use super::scenario::Scenario;

/// The largest cost in tokens.
const TOKENS_MAX: u64 = 3;

/// The shared state of the callers on one machine.
#[derive(Clone)]
pub(super) struct Workload {
    pub(super) world: World,
    pub(super) machine: Machine,
    pub(super) gate: Arc<dyn Gate>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) scenario: Arc<Scenario>,
}

impl Workload {
    /// Issues asks until the end of the run, or until the machine crashes.
    pub(super) async fn open(self, mut rng: Rng) {
        let scenario = Arc::clone(&self.scenario);
        let mut number = 0;
        loop {
            let gap = rng.u64(0..=2 * scenario.gap);
            self.world.sleep(Span::from_micros(gap)).await;
            if scenario.lasts <= self.world.elapsed() || self.machine.is_crashed() {
                return;
            }
            let is_burst = rng.u32(..100) < scenario.burst_percent;
            for _ in 0..if is_burst { rng.u32(2..=scenario.burst) } else { 1 } {
                number += 1;
                tokio::spawn(self.clone().one(number, rng.fork()));
            }
        }
    }

    async fn one(self, number: u64, mut rng: Rng) {
        let subject = format!("s{}", rng.u64(..self.scenario.subjects));
        let policy = &self.scenario.policy;
        let mut costs = Costs::new();
        for unit in policy.units() {
            let amount = if rng.u32(..4) == 0 { rng.u64(1..=TOKENS_MAX) } else { 1 };
            costs.set(unit, amount);
        }
        let machine = self.machine.number();
        let mut ask = Ask::new(policy, subject.as_str()).with_costs(&costs);
        let has_id = rng.u32(..100) < self.scenario.ids_percent;
        if has_id {
            ask = ask.id(format!("{machine}-{number}"));
        }
        let began = self.world.now();
        let asked = Asked {
            machine,
            subject: subject.clone(),
            costs,
            began,
            resent: false,
            ended: Ended::Open,
        };
        let place = self.ledger.open(asked);
        let mut answer = self.gate.acquire(&ask).await;
        // After an error the caller may repeat the ask.
        if has_id && answer.is_err() && rng.bool() {
            self.ledger.resend(place);
            answer = self.gate.acquire(&ask).await;
        }
        let at = self.world.now();
        let ended = match &answer {
            Ok(Decision::Admitted(permit)) => Ended::Admitted(Spending {
                at,
                charged_at: permit.grant().at,
                stamp: permit.grant().stamp,
                degraded: permit.degraded,
                actual: None,
            }),
            Ok(Decision::Denied(_)) => Ended::Denied { at },
            Err(error) => Ended::Failed { at, kind: error.kind() },
        };
        self.world.note("answer", machine, place as u64, || {
            format!("m{machine} ask {place} of {subject} for {:?}: {ended:?}", ask.costs())
        });
        self.ledger.close(place, ended);
        if let Ok(Decision::Admitted(permit)) = answer {
            self.afterwards(place, &permit, rng).await;
        }
    }

    /// Settles or releases the permit, or does nothing with it.
    async fn afterwards(&self, place: usize, permit: &Permit, mut rng: Rng) {
        if self.scenario.settles_percent <= rng.u32(..100) {
            return;
        }
        self.world.sleep(Span::from_micros(rng.u64(0..=3_000_000))).await;
        if self.machine.is_crashed() {
            return;
        }
        if rng.u32(..3) == 0 {
            // The call is not made, whether or not the gate learns of it.
            self.ledger.settle(place, zero(permit), self.world.now());
            drop(self.gate.release(permit).await);
            return;
        }
        let mut actual = Costs::new();
        let mut less = Costs::new();
        for (unit, amount) in permit.costs().iter() {
            let real = rng.u64(0..=amount + 1);
            actual.set(unit, real);
            less.set(unit, real.min(amount));
        }
        self.ledger.settle(place, less, self.world.now());
        if let Ok(true) = self.gate.settle(permit, &actual).await {
            self.ledger.settle(place, actual, self.world.now());
        }
    }
}

fn zero(permit: &Permit) -> Costs {
    permit.costs().iter().map(|(unit, _)| (unit.to_owned(), 0)).collect()
}
