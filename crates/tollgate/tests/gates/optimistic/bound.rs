//! Several instances on one store: what they admit together stays within the bound, and can reach it (R002.1, R002.2).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;
use tollgate::{
    Ask, Atomic, CalendarWindow, Clock, Costs, Decision, Gate, Headroom, Limit, ManualClock,
    Memory, Optimistic, OptimisticOptions, Period, Policy, Refill, RollingWindow, Rule, Span,
    Timestamp, TokenBucket, over_issue_bound,
};

use super::link::{Dice, Link, Weather};
use crate::memory;

const MINUTE: Span = Span::from_mins(1);
const INSTANCES: usize = 4;
const SEEDS: u64 = 8;

/// What a tuned fleet shall issue in a minute.
const TARGET: u64 = 500;

/// How far below the target a tuned fleet may land, by how its demand comes.
const STEADY_TOLERANCE_PERCENT: u64 = 20;
const BURST_TOLERANCE_PERCENT: u64 = 5;

/// Lets everything run that can run without time passing.
pub(super) async fn settle_down() {
    for _ in 0..40 {
        tokio::task::yield_now().await;
    }
}

/// What the fleet may be over by.
fn bound(crashes: usize, unposted_max: u64) -> u64 {
    over_issue_bound(INSTANCES as u64, crashes as u64, unposted_max)
}

type Instance = Arc<Optimistic<Arc<Link>>>;

/// What was admitted: when, and how much of each unit.
type Issued = Arc<Mutex<Vec<(Timestamp, Costs)>>>;

struct Fleet {
    store: Arc<Atomic<Memory>>,
    clock: ManualClock,
    dice: Arc<Dice>,
    weather: Weather,
    options: OptimisticOptions,
    instances: Vec<Instance>,
    links: Vec<Arc<Link>>,
    tasks: Vec<JoinSet<()>>,
    issued: Issued,
    crashes: Vec<Timestamp>,
}

impl Fleet {
    fn new(seed: u64, weather: Weather, options: OptimisticOptions) -> Self {
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
    fn crash(&mut self, place: usize) {
        self.tasks[place] = JoinSet::new();
        (self.links[place], self.instances[place]) = self.start();
        self.crashes.push(self.clock.now());
    }

    /// Asks an instance in a task of its own.
    fn ask(&mut self, place: usize, policy: &Policy, costs: &Costs) {
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
    fn over(&self, limit: &Limit, most: u64) -> Result<u64, String> {
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

fn rules() -> [Rule; 5] {
    [
        TokenBucket::per_minute(60).burst(40).into(),
        TokenBucket::per_minute(40).at_boundaries().into(),
        RollingWindow::new(40, MINUTE).into(),
        RollingWindow::new(40, MINUTE).resolution(6).into(),
        CalendarWindow::new(40, Period::Minute).into(),
    ]
}

fn two_limits(rule: Rule) -> Policy {
    let limits = [
        Limit::new("rate", "requests", rule),
        Limit::new("tpm", "tokens", RollingWindow::new(1_000, MINUTE)),
    ];
    Policy::new("fleet", limits).expect("the numbers are in bounds")
}

/// Random asks at random instances over a random network, with crashes; the most that was over, by limit.
async fn schedule(seed: u64, rule: Rule, options: OptimisticOptions) -> Result<[u64; 2], String> {
    schedule_of(seed, rule, options.clone(), options).await
}

/// The same, held to what `stated` allows.
async fn schedule_of(
    seed: u64,
    rule: Rule,
    options: OptimisticOptions,
    stated: OptimisticOptions,
) -> Result<[u64; 2], String> {
    let weather = Weather { delay_max: Span::from_millis(200), lost_percent: 10, ..Weather::CALM };
    let policy = two_limits(rule);
    let mut fleet = Fleet::new(seed, weather, options);
    let dice = Arc::clone(&fleet.dice);
    // Some fleets are busy and some are idle between bursts.
    let pause_max = [50_000, 400_000, 3_000_000][dice.pick(3)];
    for _ in 0..400 {
        let place = dice.pick(INSTANCES);
        let costs =
            Costs::new().with("requests", 1 + dice.roll(3)).with("tokens", 1 + dice.roll(60));
        fleet.ask(place, &policy, &costs);
        match dice.roll(100) {
            0 => fleet.crash(place),
            1 => fleet.links[place].down.store(true, Ordering::Relaxed),
            2..=5 => fleet.links.iter().for_each(|link| link.down.store(false, Ordering::Relaxed)),
            _ => {}
        }
        if dice.roll(4) == 0 {
            fleet.clock.advance(Span::from_micros(dice.roll(pause_max)));
        }
        settle_down().await;
    }
    fleet.options = stated;
    let mut worst = [0; 2];
    for ((limit, most), worst) in policy.limits().zip(policy.effective()).zip(&mut worst) {
        *worst = fleet.over(limit, most).map_err(|why| format!("seed {seed}: {why}"))?;
    }
    Ok(worst)
}

fn options() -> OptimisticOptions {
    OptimisticOptions {
        unposted_max_of: Costs::new().with("tokens", 120),
        ..OptimisticOptions::new(6)
    }
}

/// R002.1: whatever the schedule, no window of any rule holds more than the limit and the bound; and some hold more than
/// the limit, so the bound is needed.
#[tokio::test]
async fn r002_1_random_schedules_stay_within_the_bound() {
    let mut worst_tokens = 0;
    for rule in rules() {
        let mut worst = 0;
        for seed in 0..SEEDS {
            let [requests, tokens] = schedule(seed, rule.clone(), options()).await.unwrap();
            (worst, worst_tokens) = (worst.max(requests), worst_tokens.max(tokens));
        }
        assert!(0 < worst, "{rule:?} was never over");
    }
    assert!(0 < worst_tokens, "tokens were never over");
}

/// An instance that holds more than it says is caught by the same schedules.
#[tokio::test]
async fn schedules_catch_an_instance_without_unposted_max() {
    for rule in rules() {
        let mut caught = false;
        for seed in 0..SEEDS {
            let stated = options();
            let unbounded = OptimisticOptions::new(1_000_000);
            caught |= schedule_of(seed, rule.clone(), unbounded, stated).await.is_err();
        }
        assert!(caught, "{rule:?}");
    }
}

/// R002.1: the bound is reached to the last request, so no smaller one would be true. No post gets through; every
/// instance fills up, one of them crashes and fills up again, and the rest is taken at the store.
#[tokio::test]
async fn r002_1_the_bound_can_be_reached() {
    for rule in rules() {
        let limits = [Limit::new("rate", "requests", rule.clone())];
        let policy = Policy::new("fleet", limits).unwrap();
        let one = Costs::new().with("requests", 1);
        let mut fleet = Fleet::new(1, Weather::CALM, options());
        for place in [0, 1, 2, 3, 0] {
            if fleet.instances[place].unposted(&policy, "shared").get("requests") == Some(6) {
                fleet.crash(place);
            }
            fleet.links[place].posts_down.store(true, Ordering::Relaxed);
            for _ in 0..=6 {
                fleet.ask(place, &policy, &one);
                settle_down().await;
            }
        }
        for _ in 0..60 {
            fleet.ask(1, &policy, &one);
            settle_down().await;
        }
        let issued = fleet.issued.lock().expect("nobody panicked").len() as u64;
        assert_eq!(issued, 40 + bound(1, 6), "{rule:?}");
        let limit = policy.limits().next().unwrap();
        assert_eq!(fleet.over(limit, 40), Ok(bound(1, 6)), "{rule:?}");
    }
}

/// R002.2: with headroom as large as the bound the limit itself is never exceeded, and what is issued lands near it:
/// within [`STEADY_TOLERANCE_PERCENT`] under a steady demand of 2.4 times the limit, and within
/// [`BURST_TOLERANCE_PERCENT`] where all of a minute's demand comes at once.
#[tokio::test]
async fn r002_2_headroom_lands_the_issued_rate_near_the_target() {
    let calendar = Rule::from(CalendarWindow::new(TARGET, Period::Minute));
    let rolling = Rule::from(RollingWindow::new(TARGET, MINUTE));
    for (rule, every, burst, tolerance) in [
        (&calendar, 500, 10, STEADY_TOLERANCE_PERCENT),
        (&rolling, 500, 10, STEADY_TOLERANCE_PERCENT),
        (&calendar, 60_000, 1_200, BURST_TOLERANCE_PERCENT),
    ] {
        let minutes = tuned(rule.clone(), Span::from_millis(every), burst).await;
        let least = TARGET - TARGET * tolerance / 100;
        let near = minutes.iter().all(|issued| (least..=TARGET).contains(issued));
        assert!(near, "{rule:?}, {burst} at once: {minutes:?}");
    }
}

/// What a tuned fleet issues in each of four minutes, if so many asks come at once every so often.
async fn tuned(rule: Rule, every: Span, burst: u64) -> [u64; 4] {
    let unposted_max = 25;
    let headroom = bound(0, unposted_max);
    let limit = Limit::new("rate", "requests", rule).headroom(Headroom::Units(headroom));
    let policy = Policy::new("tuned", [limit.clone()]).expect("the numbers are in bounds");
    assert_eq!(policy.effective().next(), Some(TARGET - headroom));
    let weather = Weather { delay_max: Span::from_millis(40), ..Weather::CALM };
    let mut fleet = Fleet::new(7, weather, OptimisticOptions::new(unposted_max));
    let one = Costs::new().with("requests", 1);
    // Every instance has been at work before, so that none has to ask first.
    for place in 0..INSTANCES {
        fleet.ask(place, &policy, &one);
    }
    let tick = Span::from_millis(50);
    let ticks_of = |span: Span| span.as_micros() / tick.as_micros();
    let to_next_minute = MINUTE.as_micros() - fleet.clock.now().as_micros() % MINUTE.as_micros();
    for _ in 0..=to_next_minute / tick.as_micros() + ticks_of(MINUTE) {
        fleet.clock.advance(tick);
        settle_down().await;
    }
    let start = fleet.clock.now();
    fleet.issued.lock().expect("nobody panicked").clear();
    for number in 0..4 * ticks_of(MINUTE) {
        if number % ticks_of(every) == 0 {
            for _ in 0..burst {
                let place = fleet.dice.pick(INSTANCES);
                fleet.ask(place, &policy, &one);
            }
        }
        settle_down().await;
        fleet.clock.advance(tick);
    }
    let mut minutes = [0; 4];
    for (at, _) in fleet.issued.lock().expect("nobody panicked").iter() {
        let minute = at.since(start).as_micros() / MINUTE.as_micros();
        minutes[usize::try_from(minute).expect("a few").min(3)] += 1;
    }
    let over = fleet.over(&limit, TARGET - headroom).expect("within the bound");
    assert!(over <= headroom, "{over} over what is left without the headroom");
    minutes
}
