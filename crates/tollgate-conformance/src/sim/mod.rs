//! Deterministic simulation: a fleet, its network, its clocks and its store, driven by one seed.
//!
//! A run draws a policy, a fleet, a workload and its faults from its seed, runs the real gates in a
//! [`World`], and holds what happened against the promises: the store's own history against every
//! [checker](crate::checkers), what the callers spent against the strategy's promise, and the books against each other.
//! Asks have one charge, or several that are decided together; then every promise is checked for each policy and subject.
//! The same seed gives the same run. A failure says how to repeat it: `cargo xtask sim SEED --strategy NAME --charges NAME`.

mod caller;
mod faults;
mod fleet;
mod judge;
mod ledger;
mod recorder;
mod sabotage;
mod scenario;
mod spending;

pub use sabotage::Sabotage;

use std::ops::Range;

use tollgate_sim::World;

use scenario::Scenario;

/// How the machines of a run decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Every ask is decided by the store.
    Atomic,
    /// Machines spend blocks that they took from the store.
    Leased,
    /// Machines decide from memory and post in the background.
    Optimistic,
    /// Every ask is decided by the store, and by the machine's share while the store is away.
    Fallback,
}

impl Strategy {
    /// Every strategy there is.
    pub const ALL: [Self; 4] = [Self::Atomic, Self::Leased, Self::Optimistic, Self::Fallback];

    /// Its name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Atomic => "atomic",
            Self::Leased => "leased",
            Self::Optimistic => "optimistic",
            Self::Fallback => "fallback",
        }
    }

    /// The strategy called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|strategy| strategy.name() == name)
    }
}

/// How many charges an ask has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charges {
    /// One.
    One,
    /// One to three, of subjects that asks share, in any order.
    Several,
}

impl Charges {
    /// Both.
    pub const ALL: [Self; 2] = [Self::One, Self::Several];

    /// Its name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Several => "several",
        }
    }

    /// The one called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|charges| charges.name() == name)
    }
}

/// What a run is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// How the machines decide.
    pub strategy: Strategy,
    /// How many charges the asks have.
    pub charges: Charges,
    /// The defect, in a test of the simulator itself.
    pub sabotage: Option<Sabotage>,
    /// Whether the trace is kept.
    pub traced: bool,
}

impl Setup {
    /// Runs of `strategy` as it is.
    pub const fn new(strategy: Strategy) -> Self {
        Self { strategy, charges: Charges::One, sabotage: None, traced: false }
    }

    /// The same with asks of so many charges.
    pub const fn charging(mut self, charges: Charges) -> Self {
        self.charges = charges;
        self
    }

    /// The same with something wrong.
    pub const fn sabotaged(mut self, sabotage: Sabotage) -> Self {
        self.sabotage = Some(sabotage);
        self
    }

    /// The same with the trace kept.
    pub const fn traced(mut self) -> Self {
        self.traced = true;
        self
    }
}

/// The result of one run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// A hash of everything that happened.
    pub hash: u64,
    /// What happened, if the trace was kept.
    pub lines: Vec<String>,
    /// How many asks there were, and how they ended.
    pub counts: Counts,
    /// The most that any stretch of time held beyond the rule, and the most that the strategy allows.
    pub over: (u64, u64),
    /// The first violation, with how to repeat it.
    pub verdict: Result<(), String>,
}

/// How many asks ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Asked.
    pub asks: u64,
    /// Admitted.
    pub admitted: u64,
    /// Admitted without the store.
    pub degraded: u64,
    /// Denied.
    pub denied: u64,
    /// Could not be decided for one subject, while the store served others.
    pub contended: u64,
    /// Could not be decided.
    pub failed: u64,
    /// Never answered, because the machine crashed.
    pub unanswered: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.asks += other.asks;
        self.admitted += other.admitted;
        self.degraded += other.degraded;
        self.denied += other.denied;
        self.contended += other.contended;
        self.failed += other.failed;
        self.unanswered += other.unanswered;
    }
}

/// Runs `seed`.
pub fn run(seed: u64, setup: Setup) -> Report {
    let scenario = Scenario::draw(seed, setup.strategy, setup.charges);
    let ran = World::run_with(seed, setup.traced, |world| fleet::run(world, scenario, setup));
    let repeat = |problem: String| {
        let (name, charges) = (setup.strategy.name(), setup.charges.name());
        let sabotage = setup.sabotage.map_or(String::new(), |it| format!(" with {it:?}"));
        format!(
            "seed {seed}, {name}, {charges}{sabotage}: {problem}\n  repeat it with: cargo xtask sim {seed} --strategy {name} --charges {charges}"
        )
    };
    match ran {
        Ok((judged, world)) => Report {
            seed,
            hash: world.hash(),
            lines: world.lines(),
            counts: judged.counts,
            over: judged.over,
            verdict: judged.verdict.map_err(repeat),
        },
        Err(stuck) => Report {
            seed,
            hash: 0,
            lines: Vec::new(),
            counts: Counts::default(),
            over: (0, 0),
            verdict: Err(repeat(stuck.to_string())),
        },
    }
}

/// The results of many runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// How many runs.
    pub runs: u64,
    /// All their asks.
    pub counts: Counts,
    /// In the run that came nearest to its bound: the over-issue and the bound.
    pub nearest: (u64, u64),
}

/// Runs every seed in `seeds` until one fails.
pub fn sweep(seeds: Range<u64>, setup: Setup) -> Result<Summary, String> {
    let mut all = Summary::default();
    for seed in seeds {
        let report = run(seed, setup);
        report.verdict?;
        all.runs += 1;
        all.counts.add(report.counts);
        let (over, bound) = report.over;
        if bound != 0 && all.nearest.0 * bound <= over * all.nearest.1.max(1) {
            all.nearest = (over, bound);
        }
    }
    Ok(all)
}
