//! Turns of tenants on random schedules, against a slow and obvious model.

use std::collections::BTreeMap;

use super::*;

const SEEDS: u64 = 2_000;
const STEPS: usize = 120;
const TENANTS: [&str; 5] = ["a", "b", "c", "d", "e"];
const SHARE_MAX: u64 = 40;

/// What every tenant was charged, and who waits.
#[derive(Debug, Default)]
struct Model {
    tenants: BTreeMap<&'static str, (u64, VecDeque<u64>)>,
}

impl Model {
    /// The next tenant: the least virtual time, then the earliest ticket.
    fn next(&self) -> Option<&'static str> {
        let waiting = self.tenants.iter().filter(|(_, (_, line))| !line.is_empty());
        let turn = |(_, (virtual_time, line)): &(_, &(u64, VecDeque<u64>))| {
            (*virtual_time, line.front().copied())
        };
        waiting.min_by_key(turn).map(|(name, _)| *name)
    }

    fn now(&self) -> u64 {
        self.next().map_or(0, |next| self.tenants[next].0)
    }

    fn join(&mut self, tenant: &'static str, ticket: u64) {
        let now = self.now();
        let (virtual_time, line) = self.tenants.entry(tenant).or_default();
        if line.is_empty() {
            *virtual_time = now.max(*virtual_time);
        }
        line.push_back(ticket);
    }

    fn charge(&mut self, tenant: &'static str, share: u64) {
        if self.next().is_some() {
            let now = self.now();
            let (virtual_time, _) = self.tenants.entry(tenant).or_default();
            *virtual_time = now.max(*virtual_time) + share;
        }
    }

    fn give_back(&mut self, tenant: &'static str, share: u64) {
        let now = self.now();
        if let Some((virtual_time, _)) = self.tenants.get_mut(tenant)
            && now < *virtual_time
        {
            *virtual_time = now.max(virtual_time.saturating_sub(share));
        }
    }

    fn leave(&mut self, tenant: &'static str, ticket: u64) {
        if let Some((_, line)) = self.tenants.get_mut(tenant) {
            line.retain(|waiting| *waiting != ticket);
        }
        if self.next().is_none() {
            self.tenants.clear();
        }
    }
}

struct Schedule {
    random: fastrand::Rng,
    key: QueueKey,
    queues: WaitQueues,
    model: Model,
    places: Vec<(&'static str, Place)>,
}

impl Schedule {
    fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            key: QueueKey::new("account", "acme"),
            queues: WaitQueues::default(),
            model: Model::default(),
            places: Vec::new(),
        }
    }

    fn step(&mut self) {
        let tenant = TENANTS[self.random.usize(..TENANTS.len())];
        let share = self.random.u64(0..=SHARE_MAX);
        match self.random.u32(..10) {
            0..4 => {
                let joined = self.queues.join(
                    self.key.clone(),
                    (tenant, 1),
                    Amounts::default(),
                    &mut Ticket::default(),
                    true,
                );
                let place = joined.expect("the line is short");
                self.model.join(tenant, place.ticket);
                self.places.push((tenant, place));
            }
            4..7 => {
                let first = self.places.iter().position(|(_, place)| self.queues.is_first(place));
                let Some(first) = first else { return };
                assert_eq!(Some(self.places[first].0), self.model.next(), "another one's turn");
                self.charge(self.places[first].0, share);
                self.leave(first);
            }
            7 if !self.places.is_empty() => {
                let index = self.random.usize(..self.places.len());
                self.leave(index);
            }
            8 => self.charge(tenant, share),
            _ => {
                let least = self.model.now();
                let _woken = self.queues.given_back(&self.key, tenant, share);
                self.model.give_back(tenant, share);
                let (virtual_time, is_known) = self.virtual_time(tenant);
                assert!(!is_known || least <= virtual_time, "credit: {virtual_time} < {least}");
            }
        }
    }

    fn charge(&mut self, tenant: &'static str, share: u64) {
        let _woken = self.queues.charged(&self.key, tenant, share);
        self.model.charge(tenant, share);
    }

    fn leave(&mut self, index: usize) {
        let (tenant, place) = self.places.remove(index);
        let _woken = self.queues.leave(&place);
        self.model.leave(tenant, place.ticket);
    }

    fn virtual_time(&self, tenant: &str) -> (u64, bool) {
        let queue = self.queues.queues.get(&self.key);
        let known = queue.and_then(|queue| queue.tenants.get(tenant));
        (
            known.map_or(0, |tenant| tenant.virtual_time),
            known.is_some_and(|it| !it.waiters.is_empty()),
        )
    }

    fn check(&self) {
        for (tenant, (virtual_time, line)) in &self.model.tenants {
            assert_eq!(self.virtual_time(tenant), (*virtual_time, !line.is_empty()), "{tenant}");
        }
    }
}

/// Turns, corrections and tenants that come and go: as the model says, at every step, and a correction never puts a tenant
/// that waits before the one that is served next.
#[test]
fn turns_are_those_of_the_model() {
    for seed in 0..SEEDS {
        let mut schedule = Schedule::new(seed);
        for _ in 0..STEPS {
            schedule.step();
            schedule.check();
        }
    }
}
