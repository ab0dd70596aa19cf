//! Fair waiting as properties of random schedules, on a real queue with a clock that the schedule moves.

use std::collections::VecDeque;
use std::sync::Mutex;

use tollgate::Limit;

use super::*;

/// How many seeds run with every change. `cargo xtask ci --long` sets `TOLLGATE_SEEDS`.
const SEEDS: u64 = 200;
const STEPS: usize = 40;

#[expect(clippy::disallowed_methods, reason = "the long check sets how many seeds run")]
fn seeds() -> std::ops::Range<u64> {
    let set = std::env::var("TOLLGATE_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    0..set.unwrap_or(SEEDS)
}

fn run<T>(schedule: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(schedule)
}

fn named(name: &str, rule: impl Into<tollgate::core::Rule>, weight: u64) -> Policy {
    let limit = Limit::new("rate", "requests", rule);
    Policy::builder(name).limit(limit).weight(weight).build().unwrap()
}

fn unlimited() -> TokenBucket {
    TokenBucket::per_second(1 << 30)
}

/// An ask that was admitted.
#[derive(Clone, Copy, Debug)]
struct Served {
    tenant: usize,
    number: u64,
    cost: u64,
}

/// What waits for one tenant, in the order of arrival.
struct Tenant {
    policy: Policy,
    waiting: VecDeque<(u64, u64, JoinHandle<()>)>,
}

/// Tenants at one shared limit.
struct Schedule {
    random: fastrand::Rng,
    queue: Waiting,
    clock: ManualClock,
    account: Policy,
    /// A charge before all others, if the queue is to be first come first served: one tenant for all asks.
    everybody: Option<Policy>,
    cost_max: u64,
    tenants: Vec<Tenant>,
    asked: u64,
    served: Arc<Mutex<Vec<Served>>>,
    /// How much of `served` was looked at.
    seen: usize,
    pairs: Vec<Pair>,
}

/// Two tenants, and while both wait what one was charged more than the other, per weight, in parts of [`PARTS`].
struct Pair {
    of: [usize; 2],
    ahead: i64,
    least: i64,
    most: i64,
}

/// Divisible by every weight that is drawn.
const PARTS: u64 = 12;

impl Schedule {
    fn new(seed: u64, tenants: usize, is_first_come: bool) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let (queue, clock) = queue();
        let cost_max = random.u64(1..=6);
        let rate = random.u64(1..=5);
        let account =
            named("account", TokenBucket::per_second(rate).burst(random.u64(cost_max..=10)), 1);
        let tenant = |_| Tenant {
            policy: named("tenant", unlimited(), [1, 1, 2, 3, 4][random.usize(..5)]),
            waiting: VecDeque::new(),
        };
        let tenants: Vec<Tenant> = (0..tenants).map(tenant).collect();
        let pairs = (0..tenants.len()).flat_map(|one| (0..one).map(move |other| [one, other]));
        let pairs = pairs.map(|of| Pair { of, ahead: 0, least: 0, most: 0 }).collect();
        let everybody = is_first_come.then(|| named("everybody", unlimited(), 1));
        Self {
            random,
            queue,
            clock,
            account,
            everybody,
            cost_max,
            tenants,
            asked: 0,
            served: Arc::default(),
            seen: 0,
            pairs,
        }
    }

    fn ask(&self, tenant: usize, cost: u64) -> Ask<'static> {
        let (policy, name) = (&self.tenants[tenant].policy, format!("t{tenant}"));
        let ask = match &self.everybody {
            Some(everybody) => Ask::new(everybody, "all").and(policy, name),
            None => Ask::new(policy, name),
        };
        ask.and(&self.account, "acme").cost("requests", cost).into_owned()
    }

    /// Waits in a task of its own, which notes when it is admitted.
    fn wait(&mut self, tenant: usize) {
        let cost = self.random.u64(1..=self.cost_max);
        let (ask, queue) = (self.ask(tenant, cost), Arc::clone(&self.queue));
        let (served, number) = (Arc::clone(&self.served), self.asked);
        let deadline = self.clock.now() + Span::from_hours(24);
        let waiter = tokio::spawn(async move {
            if queue.acquire_within(&ask, deadline).await.unwrap().is_admitted() {
                served.lock().unwrap().push(Served { tenant, number, cost });
            }
        });
        self.asked += 1;
        self.tenants[tenant].waiting.push_back((number, cost, waiter));
    }

    async fn step(&mut self) -> Result<(), String> {
        let tenant = self.random.usize(..self.tenants.len());
        match self.random.u32(..10) {
            0..5 => {
                for _ in 0..self.random.u32(1..12) {
                    self.wait(tenant);
                    if self.random.bool() {
                        self.rest().await?;
                    }
                }
            }
            5 => {
                let cost = self.random.u64(1..=self.cost_max);
                let decision = self.queue.acquire(&self.ask(tenant, cost)).await.unwrap();
                if decision.is_admitted() {
                    if !self.tenants[tenant].waiting.is_empty() {
                        return Err("it overtook a waiting ask of its own tenant".to_owned());
                    }
                    self.count(tenant, cost);
                }
            }
            6 => {
                let waiting = &mut self.tenants[tenant].waiting;
                if !waiting.is_empty() {
                    let index = self.random.usize(..waiting.len());
                    let (.., gone) = waiting.remove(index).unwrap();
                    gone.abort();
                }
            }
            _ => self.clock.advance(Span::from_millis(self.random.u64(1..4_000))),
        }
        self.rest().await
    }

    /// Lets everybody do what they can without time passing, and looks at what was served.
    async fn rest(&mut self) -> Result<(), String> {
        let mut idle = 0;
        while idle < 12 {
            tokio::task::yield_now().await;
            let served = self.served.lock().unwrap()[self.seen..].to_vec();
            idle = if served.is_empty() { idle + 1 } else { 0 };
            for served in served {
                self.seen += 1;
                self.look_at(served)?;
            }
        }
        self.forget_pairs();
        self.is_work_conserving().await
    }

    /// First come first served inside a tenant, and turns between tenants.
    fn look_at(&mut self, served: Served) -> Result<(), String> {
        let waiting = &mut self.tenants[served.tenant].waiting;
        if waiting.front().map(|(number, ..)| *number) != Some(served.number) {
            return Err(format!("{served:?} overtook an ask of its own tenant"));
        }
        self.count(served.tenant, served.cost);
        self.tenants[served.tenant].waiting.pop_front();
        self.forget_pairs();
        let parts = |tenant: &Tenant| self.cost_max * PARTS / tenant.policy.weight();
        let bound = 2 * self.tenants.iter().map(parts).max().unwrap_or(0);
        match self.pairs.iter().find(|pair| bound < pair.most.abs_diff(pair.least)) {
            Some(Pair { of, least, most, .. }) => Err(format!(
                "tenants {of:?}: the difference went from {least} to {most}, more than {bound} apart"
            )),
            None => Ok(()),
        }
    }

    fn count(&mut self, tenant: usize, cost: u64) {
        let parts = i64::try_from(cost * PARTS / self.tenants[tenant].policy.weight()).unwrap();
        for pair in &mut self.pairs {
            pair.ahead += match pair.of.iter().position(|of| *of == tenant) {
                Some(0) => parts,
                Some(_) => -parts,
                None => 0,
            };
            pair.least = pair.least.min(pair.ahead);
            pair.most = pair.most.max(pair.ahead);
        }
    }

    /// A difference counts while both wait. Who comes later starts even.
    fn forget_pairs(&mut self) {
        for pair in &mut self.pairs {
            if pair.of.iter().any(|tenant| self.tenants[*tenant].waiting.is_empty()) {
                *pair = Pair { of: pair.of, ahead: 0, least: 0, most: 0 };
            }
        }
    }

    /// While anybody waits, there is no room for what is next. A lone tenant gets everything.
    async fn is_work_conserving(&self) -> Result<(), String> {
        let firsts = self.tenants.iter().filter_map(|tenant| tenant.waiting.front());
        let Some(most) = firsts.map(|(_, cost, _)| *cost).max() else { return Ok(()) };
        let remaining = self.queue.standing(&self.account, "acme").await.unwrap()[0].remaining;
        if most <= remaining {
            return Err(format!("{remaining} remain, and an ask for at most {most} waits"));
        }
        Ok(())
    }

    /// Plays the whole schedule, and returns how many asks were served.
    async fn play(mut self) -> Result<u64, String> {
        for _ in 0..STEPS {
            self.step().await?;
        }
        // Everything that waits is served in the end.
        for _ in 0..self.asked * self.cost_max {
            if self.queue.waiting() == 0 {
                break;
            }
            self.clock.advance(Span::from_secs(3));
            self.rest().await?;
        }
        match self.queue.waiting() {
            0 => Ok(self.seen as u64),
            left => Err(format!("{left} asks wait for ever")),
        }
    }
}

fn plays(seed: u64, tenants: usize, is_first_come: bool) -> Result<u64, String> {
    run(async { Schedule::new(seed, tenants, is_first_come).play().await })
        .map_err(|problem| format!("seed {seed}: {problem}"))
}

/// Between two tenants that both wait, the difference of charged ÷ weight stays within 2 · max(cost ÷ weight), from the moment
/// on at which the later one came; no ask overtakes another one of its tenant, and no room is left while one waits.
#[test]
fn tenants_that_wait_are_charged_alike() {
    let mut served = 0;
    for seed in seeds() {
        served += plays(seed, 2 + usize::try_from(seed % 4).unwrap(), false).unwrap();
    }
    assert!(seeds().end * 30 < served, "{served} were served");
}

/// A lone tenant waits only while the limit has no room for its next ask.
#[test]
fn a_lone_tenant_is_served_whenever_there_is_room() {
    for seed in seeds() {
        plays(seed, 1, false).unwrap();
    }
}

/// The same properties tell a queue that serves everybody first come first served apart.
#[test]
fn a_first_come_queue_is_found() {
    let found = seeds().filter(|seed| {
        let tenants = 2 + usize::try_from(seed % 4).unwrap();
        plays(*seed, tenants, true).is_err_and(|problem| problem.contains("the difference went"))
    });
    let found = found.count() as u64;
    assert!(seeds().end / 4 < found, "{found} of {} seeds find it", seeds().end);
}

/// Asks of one request over some of several limits, in any order.
struct Crossed {
    random: fastrand::Rng,
    queue: Waiting,
    clock: ManualClock,
    limits: Vec<Policy>,
    waiting: Vec<(Vec<usize>, JoinHandle<Decision>)>,
    admitted: u64,
}

impl Crossed {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let (queue, clock) = queue();
        let limits = 0..random.usize(2..=6);
        let limit = |number: usize| {
            let rule = TokenBucket::per(random.u64(1..=3), Span::from_secs(random.u64(1..=5)));
            named(&format!("limit-{number}"), rule.burst(random.u64(1..=3)), random.u64(1..=3))
        };
        let limits = limits.map(limit).collect();
        Self { random, queue, clock, limits, waiting: Vec::new(), admitted: 0 }
    }

    fn wait(&mut self) {
        let mut order: Vec<usize> = (0..self.limits.len()).collect();
        self.random.shuffle(&mut order);
        order.truncate(self.random.usize(2..=3).min(order.len()));
        let first = Ask::new(&self.limits[order[0]], "x");
        let ask = order[1..].iter().fold(first, |ask, limit| ask.and(&self.limits[*limit], "x"));
        let (ask, queue) = (ask.into_owned(), Arc::clone(&self.queue));
        let deadline = self.clock.now() + Span::from_hours(24);
        let waiter =
            tokio::spawn(async move { queue.acquire_within(&ask, deadline).await.unwrap() });
        self.waiting.push((order, waiter));
    }

    async fn step(&mut self) -> Result<(), String> {
        match self.random.u32(..10) {
            0..5 => (0..self.random.u32(1..8)).for_each(|_| self.wait()),
            5 if !self.waiting.is_empty() => {
                let index = self.random.usize(..self.waiting.len());
                self.waiting.remove(index).1.abort();
            }
            _ => self.clock.advance(Span::from_millis(self.random.u64(1..3_000))),
        }
        self.rest().await
    }

    async fn rest(&mut self) -> Result<(), String> {
        let mut idle = 0;
        while idle < 12 {
            tokio::task::yield_now().await;
            let done = self.waiting.iter().position(|(_, waiter)| waiter.is_finished());
            idle = if done.is_none() { idle + 1 } else { 0 };
            if let Some(done) = done {
                let permit = self.waiting.remove(done).1.await.unwrap().into_permit();
                let permit = permit.ok_or("denied before its deadline")?;
                self.admitted += 1;
                if self.random.u32(..8) == 0 {
                    self.queue.release(&permit).await.unwrap();
                }
            }
        }
        self.waits_for_a_reason().await
    }

    /// Every ask that waits lacks room at one of its own limits.
    async fn waits_for_a_reason(&self) -> Result<(), String> {
        let mut has_room = Vec::new();
        for limit in &self.limits {
            has_room.push(0 < self.queue.standing(limit, "x").await.unwrap()[0].remaining);
        }
        match self.waiting.iter().find(|(order, _)| order.iter().all(|limit| has_room[*limit])) {
            Some((order, _)) => Err(format!("an ask over {order:?} waits though all have room")),
            None => Ok(()),
        }
    }

    async fn play(mut self) -> Result<u64, String> {
        for _ in 0..STEPS {
            self.step().await?;
        }
        for _ in 0..2_000 {
            if self.waiting.is_empty() {
                return Ok(self.admitted);
            }
            self.clock.advance(Span::from_secs(3));
            self.rest().await?;
        }
        Err(format!("{} asks wait for ever", self.waiting.len()))
    }
}

/// An ask that waits for one limit holds up none that does not need it, whatever the order of the charges.
#[test]
fn an_ask_waits_only_for_its_own_limits() {
    let mut admitted = 0;
    for seed in seeds() {
        let played = run(async { Crossed::new(seed).play().await });
        admitted += played.unwrap_or_else(|problem| panic!("seed {seed}: {problem}"));
    }
    assert!(seeds().end * 30 < admitted, "{admitted} were admitted");
}
