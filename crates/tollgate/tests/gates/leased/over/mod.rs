//! Leased is never over at the time of spending: random schedules of several instances on one store, with clocks that
//! drift and are set, answers that are slow or get lost, crashes, settles and releases, for every rule that is leased.
//!
//! What is checked is the rule as configured, without the `block_ttl`: each admission at the true time at which it was
//! given, with what it really cost. Three sabotaged versions must be caught, each wrong at a seam of the real code.

mod road;
mod world;

use tollgate::policy::Period;
use tollgate::{CalendarWindow, Limit, Policy, RollingWindow, Span, TokenBucket};

use self::road::{Fault, RETURN};
use self::world::World;
use super::{TTL, leased_for};

const SEEDS: u64 = 6;

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
    leased_for(TTL, limits)
}

fn on_requests(rule: impl Into<tollgate::policy::Rule>) -> Limit {
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
