//! Several instances on one store, over links that fail: what they admitted, and by how much that was over.

use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;
use tollgate::clock::ManualClock;
use tollgate::policy::{Refill, Rule};
use tollgate::strategy::{Optimistic, OptimisticOptions, over_issue_bound};
use tollgate::{Ask, Clock, Costs, Decision, GateExt, Limit, Memory, Policy, Timestamp};

use super::link::{Dice, Link, Weather};
use crate::memory;

pub(super) const INSTANCES: usize = 4;

/// Lets everything run that can run without time passing.
pub(super) async fn settle_down() {
    for _ in 0..40 {
        tokio::task::yield_now().await;
    }
}

/// What the fleet may be over by.
pub(super) fn bound(crashes: usize, unposted_max: u64) -> u64 {
    over_issue_bound(INSTANCES as u64, crashes as u64, unposted_max)
}

type Instance = Arc<Optimistic<Arc<Link>>>;

/// What was admitted: when, and how much of each unit.
type Issued = Arc<Mutex<Vec<(Timestamp, Costs)>>>;

pub(super) struct Fleet {
    store: Arc<Memory>,
    pub(super) clock: ManualClock,
    pub(super) dice: Arc<Dice>,
    weather: Weather,
    pub(super) options: OptimisticOptions,
    pub(super) instances: Vec<Instance>,
    pub(super) links: Vec<Arc<Link>>,
    tasks: Vec<JoinSet<()>>,
    pub(super) issued: Issued,
    crashes: Vec<Timestamp>,
}

impl Fleet {
    pub(super) fn new(seed: u64, weather: Weather, options: OptimisticOptions) -> Self {
        let (store, clock) = memory();
        let (dice, issued) = (Arc::new(Dice::new(seed)), Issued::default());
        let (instances, links, tasks, crashes) = Default::default();
        let mut fleet =
            Self { store, clock, dice, weather, options, instances, links, tasks, issued, crashes };
        for _ in 0..INSTANCES {
            let (link, instance) = fleet.start();
            fleet.links.push(link);
            fleet.instances.push(instance);
            fleet.tasks.push(JoinSet::new());
        }
        fleet
    }

    fn start(&self) -> (Arc<Link>, Instance) {
        let link = Arc::new(Link::new(&self.store, &self.clock, &self.dice, self.weather));
        let clock = Arc::new(self.clock.clone());
        let gate = Optimistic::new(Arc::clone(&link), self.options.clone(), clock);
        (link, Arc::new(gate))
    }

    /// Ends an instance at once, with everything that is under way in it, and starts it again.
    pub(super) fn crash(&mut self, place: usize) {
        self.tasks[place] = JoinSet::new();
        (self.links[place], self.instances[place]) = self.start();
        self.crashes.push(self.clock.now());
    }

    /// Asks an instance in a task of its own.
    pub(super) fn ask(&mut self, place: usize, policy: &Policy, costs: &Costs) {
        let (gate, issued) = (Arc::clone(&self.instances[place]), Arc::clone(&self.issued));
        let (policy, costs) = (policy.clone(), costs.clone());
        while self.tasks[place].try_join_next().is_some() {}
        self.tasks[place].spawn(async move {
            let ask = Ask::new(&policy, "shared").with_costs(&costs);
            if let Ok(Decision::Admitted(permit)) = gate.acquire(&ask).await {
                issued.lock().expect("nobody panicked").push((permit.grant().at, permit.costs()));
            }
        });
    }

    /// The most that any stretch of time holds over what `limit` allows in it, and the most that it may.
    pub(super) fn over(&self, limit: &Limit, most: u64) -> Result<u64, String> {
        let unit = limit.unit();
        let mut all: Vec<(Timestamp, u64)> = self
            .issued
            .lock()
            .expect("nobody panicked")
            .iter()
            .map(|(at, costs)| (*at, costs.get(unit).unwrap_or(0)))
            .collect();
        all.sort_unstable();
        let mut worst = 0;
        for (last, (to, _)) in all.iter().enumerate() {
            let mut sum = 0;
            for (from, cost) in all[..=last].iter().rev() {
                sum += cost;
                let Some(allowed) = allowed(limit.rule(), most, *from, *to) else { break };
                let over = sum.saturating_sub(allowed);
                let within = |at: &&Timestamp| *from <= **at && **at <= *to;
                let crashes = self.crashes.iter().filter(within).count();
                let bound = bound(crashes, self.options.unposted_max_of(unit));
                if bound < over {
                    return Err(format!(
                        "{unit}: {sum} from {from} to {to}, {allowed} allowed and {bound} on top"
                    ));
                }
                worst = worst.max(over);
            }
        }
        Ok(worst)
    }
}

/// What a rule allows from `from` to `to`, both included; nothing if they are not in one window.
fn allowed(rule: &Rule, most: u64, from: Timestamp, to: Timestamp) -> Option<u64> {
    let passed = to.since(from).as_micros();
    match rule {
        Rule::TokenBucket(rule) => {
            let period = rule.period.as_micros();
            Some(
                most + match rule.mode {
                    Refill::Continuous => passed * rule.refill / period,
                    Refill::Interval => {
                        (to.as_micros() / period - from.as_micros() / period) * rule.refill
                    }
                },
            )
        }
        Rule::RollingWindow(rule) => (passed < rule.window.as_micros()).then_some(most),
        Rule::CalendarWindow(_) => {
            (from.as_micros() / 60_000_000 == to.as_micros() / 60_000_000).then_some(most)
        }
        _ => None,
    }
}
