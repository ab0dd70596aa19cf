//! Several instances on one store: what they admit together stays within the bound, and can reach it (R002.1).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate::policy::{Period, Rule};
use tollgate::strategy::OptimisticOptions;
use tollgate::{CalendarWindow, Costs, Limit, Policy, RollingWindow, Span, TokenBucket};

use super::fleet::{Fleet, INSTANCES, bound, settle_down};
use super::link::Weather;

const MINUTE: Span = Span::from_mins(1);
const SEEDS: u64 = 8;

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
