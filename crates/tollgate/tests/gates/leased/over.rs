//! Leased is never over at the time of spending: random schedules of several instances on one store, with clocks that
//! drift and are set, answers that are slow or get lost, crashes, settles and releases, for every rule that is leased.
//!
//! What is checked is the rule as configured, without the `block_ttl`: each admission at the true time at which it was
//! given, with what it really cost. Three sabotaged versions must be caught, each wrong at a seam of the real code.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tollgate::{
    Ask, Atomic, BoxFuture, CalendarWindow, Clock, Costs, Decision, Error, ErrorKind, Gate, Grant,
    Leased, LeasedOptions, Limit, ManualClock, Memory, Period, Permit, Policy, RollingWindow, Span,
    Timestamp, TokenBucket,
};
use tollgate_testing::checkers::never_over;
use tollgate_testing::script::{Answer, Did, Given, Record};

const TTL: Span = Span::from_millis(100);
const INSTANCES: usize = 3;
const STEPS: usize = 120;
const SEEDS: u64 = 6;

/// How long before a full minute the calm schedule begins, and how long returns take in it.
const BEFORE: Span = Span::from_millis(30);
const RETURN: Span = Span::from_secs(5);

/// What is wrong with an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The end of a block counts from the answer to its lease.
    CountsFromAnswer,
    /// A return credits all that is left, although time has given some of it back.
    FullCredit,
    /// Blocks do not end where a rule starts afresh.
    CrossesBoundary,
}

/// The road to the store: slow, and sometimes it loses what goes either way.
#[derive(Debug)]
struct Road {
    store: Arc<Atomic<Memory>>,
    truth: ManualClock,
    random: Mutex<fastrand::Rng>,
    fault: Fault,
    /// How much gets lost, in parts of 256.
    losses: u8,
    /// How long answers were waited for; the sabotaged clock leaves it out.
    waited: Arc<AtomicU64>,
}

impl Road {
    async fn travel(&self) -> Result<(), Error> {
        let (lost, delay) = {
            let mut random = self.random.lock().expect("nobody panicked");
            let delays = [0, 0, 0, 0, 0, 0, 5, 20, 60, 400];
            let delays = if self.losses == 0 { &delays[..1] } else { &delays };
            (random.u8(..) < self.losses, delays[random.usize(..delays.len())])
        };
        if delay != 0 {
            self.truth.sleep_until(self.truth.now() + Span::from_millis(delay)).await;
        }
        if lost {
            return Err(Error::new(ErrorKind::Unavailable, "lost on the road"));
        }
        Ok(())
    }

    async fn carried<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.travel().await?;
        let answer = work.await;
        self.travel().await?;
        answer
    }

    async fn ask(&self, ask: &Ask<'_>) -> Result<Decision, Error> {
        let began = self.truth.monotonic();
        let decision = self.carried(self.store.acquire(ask)).await;
        let took = self.truth.monotonic().as_micros() - began.as_micros();
        self.waited.fetch_add(took, Ordering::Relaxed);
        match decision? {
            // Whoever believes a block to be older sees no boundary in front of it.
            Decision::Admitted(permit) if self.fault == Fault::CrossesBoundary => {
                let earlier = permit.grant().at - Span::from_millis(250);
                let grant = Grant { at: earlier, ..*permit.grant() };
                Ok(Decision::Admitted(permit.with_grant(grant)))
            }
            decision => Ok(decision),
        }
    }
}

impl Gate for Road {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        Box::pin(self.ask(ask))
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            if self.losses == 0 {
                self.truth.sleep_until(self.truth.now() + RETURN).await;
            }
            let mut permit = permit.clone();
            if self.fault == Fault::FullCredit {
                let grant = Grant { at: self.truth.now(), ..*permit.grant() };
                permit = permit.with_grant(grant);
            }
            self.carried(self.store.settle(&permit, actual)).await
        })
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.carried(self.store.release(permit)))
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(self.carried(self.store.charge(ask)))
    }

    tollgate::pass_on!(store: renew, close_until, standing, reset);
}

/// A clock that stands still while an answer is waited for.
#[derive(Debug)]
struct Forgetful {
    clock: ManualClock,
    waited: Arc<AtomicU64>,
}

impl Forgetful {
    fn waited(&self) -> Span {
        Span::from_micros(self.waited.load(Ordering::Relaxed))
    }
}

impl Clock for Forgetful {
    fn now(&self) -> Timestamp {
        self.clock.now() - self.waited()
    }

    fn monotonic(&self) -> Span {
        let waited = self.waited().as_micros();
        Span::from_micros(self.clock.monotonic().as_micros().saturating_sub(waited))
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()> {
        self.clock.sleep_until(at + self.waited())
    }
}

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

struct World {
    random: fastrand::Rng,
    truth: ManualClock,
    store: Arc<Atomic<Memory>>,
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
    fn new(seed: u64, policy: &Policy, fault: Fault, calm: bool) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        // Just before a full minute, so that what is leased at first, or at last, meets a boundary.
        let before = if calm { BEFORE } else { Span::from_millis(random.u64(20..400)) };
        let truth = ManualClock::at(Timestamp::from_secs(1_700_000_040) - before);
        let store = Arc::new(Atomic::new(Memory::with(Arc::new(truth.clone()), 1_000)));
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
            Fault::CountsFromAnswer => Arc::new(Forgetful { clock: clock.clone(), waited }),
            _ => Arc::new(clock.clone()),
        };
        let settle_wait = Span::from_millis(if self.calm { 0 } else { self.random.u64(0..300) });
        let options = LeasedOptions { skew: Span::ZERO, settle_wait, ..LeasedOptions::default() };
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
            let answer = match actual {
                0 => gate.release(&permit).await,
                _ => gate.settle(&permit, &Costs::new().with("requests", actual)).await,
            };
            drop(answer);
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
    async fn play(mut self) -> Result<usize, String> {
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
    async fn play_calmly(mut self, later: Span) -> Result<usize, String> {
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
                did: Did::Acquire { costs: Costs::new().with("requests", spent.cost), id: None },
                answer: Answer::Admitted(Given {
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

fn play(seed: u64, policy: &Policy, fault: Fault) -> Result<usize, String> {
    run(World::new(seed, policy, fault, false).play())
        .map_err(|why| format!("seed {seed} under {policy:?}: {why}"))
}

fn play_calmly(policy: &Policy, fault: Fault, later: Span) -> Result<usize, String> {
    run(World::new(0, policy, fault, true).play_calmly(later))
        .map_err(|why| format!("calmly, under {policy:?}: {why}"))
}

fn run<T>(play: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().build().expect("the numbers are in bounds");
    runtime.block_on(tokio::task::LocalSet::new().run_until(play))
}

fn policy(limits: impl IntoIterator<Item = Limit>) -> Policy {
    Policy::builder("test")
        .limits(limits)
        .block_ttl(TTL)
        .build()
        .expect("the numbers are in bounds")
}

fn on_requests(rule: impl Into<tollgate::Rule>) -> Limit {
    Limit::new("only", "requests", rule)
}

fn interval() -> Policy {
    policy([on_requests(TokenBucket::per_second(320).at_boundaries())])
}

fn rolling() -> Policy {
    policy([on_requests(RollingWindow::new(320, Span::from_secs(2)))])
}

fn minute() -> CalendarWindow {
    CalendarWindow::new(320, Period::Minute)
}

/// Every rule that is leased, alone and together, with headroom and margins.
fn policies() -> Vec<Policy> {
    let margin = Span::from_millis(150);
    vec![
        policy([on_requests(TokenBucket::per_second(400).burst(320))]),
        policy([on_requests(TokenBucket::per_second(20).burst(640))]),
        interval(),
        rolling(),
        policy([on_requests(RollingWindow::new(320, Span::from_secs(2)).resolution(7))]),
        policy([on_requests(minute())]),
        policy([on_requests(minute()).margin(margin)]),
        policy([on_requests(TokenBucket::per_second(400).burst(400)).margin(margin)]),
        policy([
            Limit::new("second", "requests", TokenBucket::per_second(300).burst(320)),
            Limit::new("window", "requests", RollingWindow::new(400, Span::from_secs(2))),
            Limit::new("minute", "requests", CalendarWindow::new(900, Period::Minute)),
        ]),
    ]
}

#[test]
fn leased_is_never_over_when_it_is_spent_and_loses_nothing() {
    for policy in policies() {
        let mut local = 0;
        for seed in 0..SEEDS {
            local += play(seed, &policy, Fault::None).unwrap();
        }
        assert!(200 < local, "only {local} were spent from blocks under {policy:?}");
    }
}

#[test]
fn an_end_that_counts_from_the_answer_is_caught() {
    let faulty = |seed| play(seed, &rolling(), Fault::CountsFromAnswer);
    assert!((0..20).any(|seed| faulty(seed).is_err()));
}

#[test]
fn a_return_that_credits_everything_is_caught() {
    // What comes back was there again long before it arrives, and somebody else has spent it.
    let slow = policy([on_requests(TokenBucket::per_second(10).burst(640))]);
    let later = RETURN.plus(Span::from_millis(90));
    assert!(640 < play_calmly(&slow, Fault::None, later).unwrap());
    play_calmly(&slow, Fault::FullCredit, later).unwrap_err();
}

#[test]
fn a_block_that_crosses_a_boundary_is_caught() {
    let later = Span::from_millis(40);
    for policy in [interval(), policy([on_requests(minute())])] {
        assert!(320 < play_calmly(&policy, Fault::None, later).unwrap());
        play_calmly(&policy, Fault::CrossesBoundary, later).unwrap_err();
    }
}
