//! The scenario of a seed: a policy, a fleet, a workload, and faults.
//!
//! Of each kind of fault many runs have none, and the others very different amounts, so that rare combinations come up
//! and no fault hides another.

use std::ops::RangeInclusive;

use fastrand::Rng;
use tollgate_core::{
    CalendarWindow, Concurrency, Limit, OnStoreFailure, Period, Policy, RollingWindow, Rule, Span,
    TokenBucket,
};
use tollgate_sim::Network;

use super::{Charges, Strategy};

/// One run, before it begins.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) rng: Rng,
    /// One; with several charges, those of an ask are taken from them.
    pub(super) levels: Vec<Level>,
    pub(super) machines: u64,
    /// How long asks and faults go on.
    pub(super) lasts: Span,
    /// The mean time between two asks on one machine, in microseconds.
    pub(super) gap: u64,
    /// How many of a hundred arrivals are a burst, and of how many.
    pub(super) burst_percent: u32,
    pub(super) burst: u32,
    /// How many of a hundred asks have an id of their own.
    pub(super) ids_percent: u32,
    /// How many of a hundred permits are settled or given back.
    pub(super) settles_percent: u32,
    pub(super) line: Network,
    /// The mean time between two faults, in microseconds; none if zero.
    pub(super) fault_gap: u64,
    /// Which faults there are.
    pub(super) faults: Vec<Fault>,
    /// The largest drift of a clock, either way.
    pub(super) drift_ppm: i32,
    /// Whether a failed request is sent again by the library.
    pub(super) resends: bool,
    /// What an optimistic machine may hold unposted.
    pub(super) unposted_max: u64,
    /// The furthest that a clock is set, either way, in microseconds.
    pub(super) step_max: i64,
}

/// A policy, and how many subjects it has.
#[derive(Clone, Debug)]
pub(super) struct Level {
    pub(super) policy: Policy,
    pub(super) subjects: u64,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Crash,
    Cut,
    Slow,
    Step,
    StoreDown,
    StoreThrottled,
    StorePaused,
    StoreStep,
}

/// The most asks of one run, roughly.
const ASKS: u64 = 240;

impl Scenario {
    pub(super) fn draw(seed: u64, strategy: Strategy, charges: Charges) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x70_6c61_6e5f_7369);
        let machines = rng.u64(1..=5);
        // Several short windows that are all used up, while replies take as long as blocks live: where a block that is
        // spent too late shows.
        let is_hurried = strategy == Strategy::Leased && rng.bool();
        let (policy, per_second) = policy(&mut rng, "sim", strategy, is_hurried);
        let lasts = Span::from_secs(rng.u64(5..=if is_hurried { 10 } else { 40 }));
        // From well below what the policy allows to several times that.
        let load = if is_hurried { rng.u64(20..=60) } else { rng.u64(3..=40) };
        let wanted = (per_second * load / 10).max(1) * lasts.as_micros() / 1_000_000;
        // Blocks are taken of limits that are large, which takes more asks to use up.
        let asks_max = if strategy == Strategy::Leased { 3 * ASKS } else { ASKS };
        let asks = wanted.clamp(20, asks_max);
        let mut faults = vec![
            Fault::Crash,
            Fault::Cut,
            Fault::Slow,
            Fault::Step,
            Fault::StoreDown,
            Fault::StoreThrottled,
            Fault::StorePaused,
        ];
        if strategy == Strategy::Atomic {
            faults.push(Fault::StoreStep);
        }
        faults.retain(|_| rng.bool());
        let often = |rng: &mut Rng| if rng.bool() { 0 } else { rng.u32(1..=100) };
        let mut line = Network {
            delay_min: rng.u64(50..=2_000),
            delay_max: rng.u64(500..=40_000),
            slow_permille: often(&mut rng),
            slow_max: rng.u64(100_000..=3_000_000),
            lost_requests_permille: often(&mut rng),
            lost_replies_permille: often(&mut rng),
            is_cut: false,
            timeout: Span::from_millis(rng.u64(90..=600)),
        };
        if is_hurried {
            line.slow_permille = rng.u32(50..=400);
            line.slow_max = rng.u64(20_000..=400_000);
        }
        let subjects = if strategy == Strategy::Leased { 1 } else { rng.u64(1..=2) };
        let mut scenario = Self {
            levels: vec![Level { policy, subjects }],
            machines,
            lasts,
            gap: lasts.as_micros() * machines / asks,
            burst_percent: rng.u32(0..=30),
            burst: rng.u32(2..=15),
            ids_percent: rng.u32(0..=if strategy == Strategy::Leased { 20 } else { 100 }),
            settles_percent: if rng.bool() { 0 } else { rng.u32(1..=80) },
            line,
            fault_gap: rng.u64(500_000..=8_000_000),
            faults,
            drift_ppm: if rng.bool() { 0 } else { rng.i32(1..=100) },
            resends: strategy == Strategy::Fallback || rng.bool(),
            unposted_max: rng.u64(0..=12),
            step_max: rng.i64(1_000..=20_000_000),
            rng,
        };
        if charges == Charges::Several {
            scenario.add_levels(strategy, is_hurried);
        }
        scenario
    }

    /// Adds parents: fewer subjects, which asks of different subjects of the first level share. Of a leased fleet the first
    /// level is leased or not.
    fn add_levels(&mut self, strategy: Strategy, is_hurried: bool) {
        self.levels[0].subjects = self.rng.u64(1..=3);
        if strategy == Strategy::Leased && self.rng.bool() {
            let (plain, _) = policy(&mut self.rng, "sim", Strategy::Atomic, is_hurried);
            self.levels[0].policy = plain;
        }
        for (name, subjects) in [("team", 2), ("account", 1)] {
            let (policy, _) = policy(&mut self.rng, name, strategy, is_hurried);
            self.levels.push(Level { policy, subjects: self.rng.u64(1..=subjects) });
        }
    }

    /// Whether a request may arrive seconds after it was sent.
    pub(super) fn is_late(&self) -> bool {
        let late = |fault: &Fault| matches!(fault, Fault::Slow | Fault::StorePaused);
        self.line.slow_permille != 0 || self.faults.iter().any(late)
    }
}

/// A policy, and how many requests per second it allows in the long run, at least 1.
fn policy(rng: &mut Rng, name: &str, strategy: Strategy, is_hurried: bool) -> (Policy, u64) {
    loop {
        let shapes = if strategy == Strategy::Atomic { 6 } else { 5 };
        let is_leased = strategy == Strategy::Leased;
        let limits_from = match (is_leased, is_hurried) {
            (false, _) => 3..=40,
            (true, false) => 32..=150,
            (true, true) => 32..=64,
        };
        let window_max = if is_hurried { 3_000 } else { 20_000 };
        let (rule, per_second) = rule(rng, shapes, limits_from.clone(), window_max);
        let mut limits = vec![Limit::new("first", "requests", rule)];
        if rng.u32(..3) == 0 {
            let (second, _) = self::rule(rng, 5, limits_from, window_max);
            limits.push(Limit::new("second", "tokens", second));
        }
        let on_failure = if strategy == Strategy::Fallback {
            OnStoreFailure::Fallback
        } else {
            OnStoreFailure::Closed
        };
        let policy = Policy::builder(name).limits(limits).on_store_failure(on_failure);
        // Most blocks live no longer than a bad reply takes.
        let block_ttl = match (is_leased, rng.u32(..4)) {
            (false, _) => 0,
            (true, 0) => rng.u64(20..=1_000),
            (true, _) => rng.u64(5..=60),
        };
        if let Ok(policy) = policy.block_ttl(Span::from_millis(block_ttl)).build() {
            return (policy, per_second);
        }
    }
}

fn rule(rng: &mut Rng, shapes: u32, limits: RangeInclusive<u64>, window_max: u64) -> (Rule, u64) {
    let limit = rng.u64(limits.clone());
    let window = Span::from_millis(rng.u64(1_000..=window_max));
    let per_second = (limit * 1_000_000 / window.as_micros()).max(1);
    match rng.u32(..shapes) {
        0 => (TokenBucket::per(limit, window).burst(rng.u64(limits)).into(), per_second),
        1 => (RollingWindow::new(limit, window).into(), per_second),
        2 => (RollingWindow::new(limit, window).resolution(rng.u32(1..=12)).into(), per_second),
        3 => (TokenBucket::per(limit, window).burst(limit).at_boundaries().into(), per_second),
        4 => (CalendarWindow::new(limit, Period::Minute).into(), 1),
        _ => (Concurrency::new(rng.u64(1..=6), window).into(), 4),
    }
}
