//! Goal: no short story goes wrong.
//! Method: every sequence of up to six steps over tiny numbers, where one microsecond matters, against the model.

use tollgate_conformance::model::Model;
use tollgate_conformance::script::{Action, Player, SingleEntry};
use tollgate_core::{
    Concurrency, Costs, Policy, RollingWindow, Rule, Span, Timestamp, TokenBucket,
};

use crate::desk::one;

const STEPS_MAX: usize = 6;

#[derive(Clone)]
struct World {
    now: Timestamp,
    store: SingleEntry,
    player: Player,
    model: Model,
}

impl World {
    fn new(policy: &Policy) -> Self {
        Self {
            now: Timestamp::from_micros(1_000_001),
            store: SingleEntry::default(),
            player: Player::new(policy, "subject"),
            model: Model::new(policy),
        }
    }

    /// Does one thing on the core and on the model, and compares everything that can be seen.
    fn step(&mut self, action: &Action) {
        let run = &mut self.store.runner();
        let reply = self.player.play(self.now, action, run);
        let standings = self.player.standings(self.now, run).expect("a standing can be told");
        assert_eq!(reply, self.model.apply(self.now, action), "{action:?} at {:?}", self.now);
        assert_eq!(standings, self.model.standings(self.now), "{action:?} at {:?}", self.now);
    }
}

/// Every continuation of `world` by up to `left` steps; returns how many there are.
fn explore(world: &World, unit: &str, left: usize) -> usize {
    if left == 0 {
        return 1;
    }
    let ask = |cost| Action::Acquire { costs: Costs::new().with(unit, cost), id: None };
    let mut count = 1;
    for action in [ask(1), ask(2), Action::Release { permit: 0 }, Action::Release { permit: 1 }] {
        let mut next = world.clone();
        next.step(&action);
        count += explore(&next, unit, left - 1);
    }
    let mut later = world.clone();
    later.now = later.now + Span::from_micros(1);
    later.step(&Action::Standing);
    count + explore(&later, unit, left - 1)
}

fn every_sequence_of(rule: impl Into<Rule>) {
    let policy = one(rule);
    let unit = policy.units().next().unwrap_or_default().to_owned();
    let sequences = explore(&World::new(&policy), &unit, STEPS_MAX);
    assert_eq!(sequences, (0..=6).map(|length| 5_usize.pow(length)).sum::<usize>());
}

#[test]
fn every_short_story_of_a_continuous_bucket_is_right() {
    every_sequence_of(TokenBucket::per(2, Span::from_micros(3)).burst(2));
}

#[test]
fn every_short_story_of_an_interval_bucket_is_right() {
    every_sequence_of(TokenBucket::per(1, Span::from_micros(2)).burst(2).at_boundaries());
}

#[test]
fn every_short_story_of_a_rolling_window_is_right() {
    every_sequence_of(RollingWindow::new(2, Span::from_micros(2)));
}

#[test]
fn every_short_story_of_a_coarse_rolling_window_is_right() {
    every_sequence_of(RollingWindow::new(2, Span::from_micros(4)).resolution(2));
}

#[test]
fn every_short_story_of_a_concurrency_limit_is_right() {
    every_sequence_of(Concurrency::new(2, Span::from_micros(2)));
}
