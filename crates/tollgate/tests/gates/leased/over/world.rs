//! A store and the instances around it: schedules that are played on them, and what must be true of what was spent.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::clock::ManualClock;
use tollgate::strategy::{Leased, LeasedOptions};
use tollgate::{Ask, Clock, Costs, Decision, GateExt, Memory, Permit, Policy, Span, Timestamp};
use tollgate_conformance::checkers::never_over;
use tollgate_conformance::sabotage::Forgetful;
use tollgate_conformance::script::{Action, PermitSummary, Record, Reply};

use super::TTL;
use super::road::{Fault, Road};

const INSTANCES: usize = 3;
const STEPS: usize = 120;

/// How long before a full minute the calm schedule begins.
const BEFORE: Span = Span::from_millis(30);

struct Instance {
    gate: Rc<Leased<Road>>,
    clock: ManualClock,
}

/// One admission: when, what it cost, and its permit.
struct Spent {
    at: Timestamp,
    cost: u64,
    permit: Permit,
}

/// Instances on one store, the clocks of all, and what was let through.
pub(super) struct World {
    random: fastrand::Rng,
    truth: ManualClock,
    store: Arc<Memory>,
    policy: Policy,
    fault: Fault,
    /// Nothing is slow and nothing gets lost.
    calm: bool,
    fleet: Vec<Instance>,
    /// The clock of every instance there was, and how fast it runs in parts of ten thousand: off by at most the drift
    /// that blocks allow for.
    clocks: Vec<(ManualClock, u64)>,
    spent: Rc<RefCell<Vec<Spent>>>,
}

impl World {
    pub(super) fn new(seed: u64, policy: &Policy, fault: Fault, calm: bool) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        // Just before a full minute, so that what is leased at first, or at last, meets a boundary.
        let before = if calm { BEFORE } else { Span::from_millis(random.u64(20..400)) };
        let truth = ManualClock::at(Timestamp::from_secs(1_700_000_040) - before);
        let store = Arc::new(Memory::with(Arc::new(truth.clone()), 1_000));
        let (fleet, clocks, spent) = (Vec::new(), Vec::new(), Rc::default());
        let mut world = Self {
            random,
            truth,
            store,
            policy: policy.clone(),
            fault,
            calm,
            fleet,
            clocks,
            spent,
        };
        for _ in 0..INSTANCES {
            let instance = world.start();
            world.fleet.push(instance);
        }
        world
    }

    fn start(&mut self) -> Instance {
        let clock = ManualClock::at(self.truth.now());
        let waited = Arc::new(AtomicU64::new(0));
        let road = Road {
            store: Arc::clone(&self.store),
            truth: self.truth.clone(),
            random: Mutex::new(self.random.fork()),
            fault: self.fault,
            losses: if self.calm { 0 } else { 12 },
            waited: Arc::clone(&waited),
        };
        let seen: Arc<dyn Clock> = match self.fault {
            Fault::CountsFromAnswer => Arc::new(Forgetful::new(clock.clone(), waited)),
            _ => Arc::new(clock.clone()),
        };
        let settle_wait =
            Duration::from_millis(if self.calm { 0 } else { self.random.u64(0..300) });
        let options =
            LeasedOptions { skew: Duration::ZERO, settle_wait, ..LeasedOptions::default() };
        self.clocks.push((clock.clone(), self.random.u64(9_991..=10_009)));
        Instance { gate: Rc::new(Leased::new(road, options, seen)), clock }
    }

    async fn pass(&mut self, span: Span) {
        self.truth.advance(span);
        for (clock, pace) in &self.clocks {
            clock.advance(Span::from_micros(span.as_micros() * pace / 10_000));
        }
        self.rest().await;
    }

    async fn rest(&self) {
        for _ in 0..30 {
            tokio::task::yield_now().await;
        }
    }

    /// Asks in a task of its own, which notes the true time at which it may go.
    fn ask(&mut self, instance: usize, cost: u64) {
        let gate = Rc::clone(&self.fleet[instance].gate);
        let (policy, truth, spent) =
            (self.policy.clone(), self.truth.clone(), Rc::clone(&self.spent));
        tokio::task::spawn_local(async move {
            let ask = Ask::new(&policy, "alice").cost("requests", cost);
            if let Ok(Decision::Admitted(permit)) = gate.acquire(&ask).await {
                // The store's own permit was spent when the store gave it; a local one is spent now.
                let at = if permit.is_local() { truth.now() } else { permit.grant().at };
                spent.borrow_mut().push(Spent { at, cost, permit });
            }
        });
    }

    /// Settles or releases something that was admitted, at any instance, perhaps again.
    fn settle(&mut self) {
        let mut all = self.spent.borrow_mut();
        if all.is_empty() {
            return;
        }
        let last = all.len();
        let place = self.random.usize(last.saturating_sub(60)..last);
        let spent = &mut all[place];
        let actual = self.random.u64(0..=4);
        let permit = spent.permit.clone();
        // Extra cost is posted, not decided; what counts here is what was let through.
        spent.cost = spent.cost.min(actual);
        let gate = Rc::clone(&self.fleet[self.random.usize(..self.fleet.len())].gate);
        tokio::task::spawn_local(async move {
            let reply = match actual {
                0 => gate.release(&permit).await,
                _ => gate.settle(&permit, &Costs::new().with("requests", actual)).await,
            };
            drop(reply);
        });
    }

    async fn step(&mut self) {
        match self.random.u8(..100) {
            0..30 => {
                for _ in 0..self.random.u8(1..60) {
                    let instance = self.random.usize(..self.fleet.len());
                    let cost = self.random.u64(1..=3);
                    self.ask(instance, cost);
                }
                self.rest().await;
            }
            80..90 => {
                for _ in 0..self.random.u8(1..10) {
                    self.settle();
                }
                self.rest().await;
            }
            30..70 => {
                let millis = [1, 3, 10, 30, 49, 95, 99, 100, 101, 250, 1_000];
                let millis = millis[self.random.usize(..millis.len())];
                self.pass(Span::from_millis(millis)).await;
            }
            70..80 => {
                // To just before the next full second, where intervals and minutes end.
                let second = 1_000_000 - self.truth.now().as_micros() % 1_000_000;
                let before = self.random.u64(1..90_000).min(second);
                self.pass(Span::from_micros(second - before)).await;
            }
            90..95 => {
                let instance = self.random.usize(..self.fleet.len());
                let clock = &self.fleet[instance].clock;
                let hour = Span::from_hours(1);
                let to = if self.random.bool() { clock.now() + hour } else { clock.now() - hour };
                clock.step(to);
            }
            _ => {
                let instance = self.random.usize(..self.fleet.len());
                self.fleet[instance] = self.start();
            }
        }
    }

    /// Plays a whole schedule, and checks what was spent in it.
    pub(super) async fn play(mut self) -> Result<usize, String> {
        for _ in 0..STEPS {
            self.step().await;
        }
        self.check()?;
        if self.fault == Fault::None {
            self.nothing_is_lost().await?;
        }
        Ok(self.spent.borrow().iter().filter(|spent| spent.permit.is_local()).count())
    }

    /// The first instance takes blocks just before a full minute and spends a part of them. `later` all instances ask
    /// for more than any limit has, and again when what is left of those blocks has come back.
    pub(super) async fn play_calmly(mut self, later: Span) -> Result<usize, String> {
        self.ask_in_turn(0, 20).await;
        self.pass(later.min(TTL)).await;
        self.pass(Span::from_micros(later.as_micros().saturating_sub(TTL.as_micros()))).await;
        for instance in 0..INSTANCES - 1 {
            self.ask_in_turn(instance, 1_000).await;
        }
        self.pass(Span::from_millis(10)).await;
        self.ask_in_turn(INSTANCES - 1, 1_000).await;
        self.check()?;
        Ok(self.spent.borrow().len())
    }

    async fn ask_in_turn(&mut self, instance: usize, asks: usize) {
        for _ in 0..asks {
            self.ask(instance, 1);
            self.rest().await;
        }
    }

    fn check(&self) -> Result<(), String> {
        let all = self.spent.borrow();
        let mut history: Vec<Record> = all
            .iter()
            .enumerate()
            .map(|(permit, spent)| Record {
                now: spent.at,
                action: Action::Acquire {
                    costs: Costs::new().with("requests", spent.cost),
                    id: None,
                },
                reply: Reply::Admitted(PermitSummary {
                    permit,
                    at: spent.at,
                    use_by: None,
                    expires_at: None,
                }),
                before: Vec::new(),
                after: Vec::new(),
            })
            .collect();
        history.sort_by_key(|record| record.now);
        let configured =
            Policy::new("test", self.policy.limits().cloned()).expect("the numbers are in bounds");
        never_over(&configured, &history)
    }

    /// Promise 6: whatever crashed or got lost, in the end everything is there again.
    async fn nothing_is_lost(&mut self) -> Result<(), String> {
        // What is still on the road arrives, leg by leg.
        for _ in 0..1_000 {
            self.pass(Span::from_millis(20)).await;
        }
        self.pass(Span::from_mins(2)).await;
        let standings = self.store.standing(&self.policy, "alice").await.expect("it stands");
        for (standing, most) in standings.iter().zip(self.policy.effective()) {
            if standing.remaining != most {
                return Err(format!("of {most} only {} are there again", standing.remaining));
            }
        }
        Ok(())
    }
}
