//! The workload of one machine: arrivals, bursts, costs, ids, repeats, settles and releases.

use std::sync::Arc;

use fastrand::Rng;
use tollgate::{Gate, GateExt};
use tollgate_core::{Ask, Charge, Costs, Decision, Permit, Span};
use tollgate_sim::{Machine, World};

use super::ledger::{Asked, Ended, Ledger, Spending};
use super::scenario::{Level, Scenario};

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
        let machine = self.machine.number();
        let mut ask = self.ask(&mut rng);
        let has_id = rng.u32(..100) < self.scenario.ids_percent;
        if has_id {
            ask = ask.id(format!("{machine}-{number}"));
        }
        let began = self.world.now();
        let charge = |charge: &Charge<'_>| {
            let key = (charge.policy().name().to_owned(), charge.subject().to_owned());
            (key, charge.policy().costs(charge.amounts()))
        };
        let asked = Asked {
            machine,
            charges: ask.charges().map(charge).collect(),
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
            Ok(Decision::Admitted(permit)) => Ended::Admitted {
                at,
                charges: permit.parts().map(|part| spending(&part)).collect(),
            },
            Ok(Decision::Denied(_)) => Ended::Denied { at },
            Err(error) => Ended::Failed { at, kind: error.kind() },
        };
        self.world.note("answer", machine, place as u64, || {
            let subject = ask.subject();
            format!("m{machine} ask {place} of {subject} for {:?}: {ended:?}", ask.costs())
        });
        self.ledger.close(place, ended);
        if let Ok(Decision::Admitted(permit)) = answer {
            self.afterwards(place, &permit, rng).await;
        }
    }

    /// An ask of one level, or of some levels in any order.
    fn ask(&self, rng: &mut Rng) -> Ask<'_> {
        let mut levels: Vec<&Level> = self.scenario.levels.iter().collect();
        let is_several = 1 < levels.len();
        if is_several {
            rng.shuffle(&mut levels);
            levels.truncate(rng.usize(1..=levels.len()));
        }
        let subjects: Vec<String> =
            levels.iter().map(|level| format!("s{}", rng.u64(..level.subjects))).collect();
        let has_own_costs = 1 < levels.len() && rng.u32(..6) == 0;
        let sharing = levels.len() - usize::from(has_own_costs);
        let mut ask = Ask::new(&levels[0].policy, subjects[0].clone());
        let rest = levels.iter().zip(subjects).enumerate().skip(1);
        for (index, (level, subject)) in rest {
            ask = if index < sharing {
                ask.and(&level.policy, subject)
            } else {
                let costs = costs(std::slice::from_ref(level), rng);
                ask.and_costing(&level.policy, subject, &costs)
            };
        }
        ask.with_costs(&costs(&levels[..sharing], rng))
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
            for (index, part) in permit.parts().enumerate() {
                self.ledger.settle(place, index, zero(&part), self.world.now());
            }
            drop(self.gate.release(permit).await);
            return;
        }
        for (index, part) in permit.parts().enumerate() {
            if part.has_own_costs() && rng.bool() {
                let actual = draw_actual(&part.costs(), Costs::new(), &mut rng);
                self.settle(place, &[(index, &part)], &part, &actual).await;
            }
        }
        let parts: Vec<_> = permit.parts().enumerate().collect();
        let sharing: Vec<(usize, &Permit)> = parts
            .iter()
            .filter(|(_, part)| !part.has_own_costs())
            .map(|(index, part)| (*index, &**part))
            .collect();
        let draw =
            |actual, (_, part): &(usize, &Permit)| draw_actual(&part.costs(), actual, &mut rng);
        let actual = sharing.iter().fold(Costs::new(), draw);
        self.settle(place, &sharing, permit, &actual).await;
    }

    /// Settles `permit`, of which `actual` applies to `parts`. What was spent is no more than the estimate, unless the gate
    /// knows of it.
    async fn settle(
        &self,
        place: usize,
        parts: &[(usize, &Permit)],
        permit: &Permit,
        actual: &Costs,
    ) {
        for (index, part) in parts {
            let costs = part.costs();
            let least = costs.iter().map(|(unit, amount)| {
                (unit.to_owned(), actual.get(unit).map_or(amount, |actual| actual.min(amount)))
            });
            self.ledger.settle(place, *index, least.collect(), self.world.now());
        }
        if let Ok(true) = self.gate.settle(permit, actual).await {
            for (index, part) in parts {
                let costs = part.costs();
                let known = actual.iter().filter(|(unit, _)| costs.get(unit).is_some());
                self.ledger.settle(place, *index, known.collect(), self.world.now());
            }
        }
    }
}

/// A cost for each unit of `levels`.
fn costs(levels: &[&Level], rng: &mut Rng) -> Costs {
    let mut costs = Costs::new();
    for unit in levels.iter().flat_map(|level| level.policy.units()) {
        if costs.get(unit).is_none() {
            let amount = if rng.u32(..4) == 0 { rng.u64(1..=TOKENS_MAX) } else { 1 };
            costs.set(unit, amount);
        }
    }
    costs
}

/// Adds an actual cost for each unit of `estimate` that has none yet.
fn draw_actual(estimate: &Costs, mut actual: Costs, rng: &mut Rng) -> Costs {
    for (unit, amount) in estimate.iter() {
        if actual.get(unit).is_none() {
            actual.set(unit, rng.u64(0..=amount + 1));
        }
    }
    actual
}

fn spending(part: &Permit) -> Spending {
    let grant = part.grant();
    Spending { charged_at: grant.at, stamp: grant.stamp, degraded: part.degraded, actual: None }
}

fn zero(permit: &Permit) -> Costs {
    permit.costs().iter().map(|(unit, _)| (unit.to_owned(), 0)).collect()
}
