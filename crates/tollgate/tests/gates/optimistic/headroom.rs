//! Headroom as large as the bound: the limit itself holds, and what is issued lands near it (R002.2).

use tollgate::policy::{Headroom, Period, Rule};
use tollgate::strategy::OptimisticOptions;
use tollgate::{CalendarWindow, Clock, Costs, Limit, Policy, RollingWindow, Span};

use super::fleet::{Fleet, INSTANCES, bound, settle_down};
use super::link::Weather;

const MINUTE: Span = Span::from_mins(1);

/// What a tuned fleet shall issue in a minute.
const TARGET: u64 = 500;

/// How far below the target a tuned fleet may land, by how its demand comes.
const STEADY_TOLERANCE_PERCENT: u64 = 20;
const BURST_TOLERANCE_PERCENT: u64 = 5;

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
