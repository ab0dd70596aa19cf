//! Goal: changing the numbers of a policy keeps what was used, gives no free burst, and leaves waits honest.
//! Method: random histories under one policy, then another; the model says what may be issued at most.

use proptest::prelude::{TestCaseError, prop_assert, prop_assert_eq, prop_oneof, proptest};
use tollgate_conformance::generate::{self, Move};
use tollgate_conformance::model::Model;
use tollgate_conformance::script::{Action, Player, Record, Reply, SingleEntry};
use tollgate_core::{
    Ask, Costs, Decision, Entry, Known, Limit, Operation, Outcome, Policy, Rule, Span, Timestamp,
    TokenBucket, apply, standings,
};

use crate::desk::{Desk, just_before, one};

#[derive(Clone)]
struct World {
    now: Timestamp,
    store: SingleEntry,
    player: Player,
    model: Model,
}

/// Plays `moves` on the core and on the model.
fn play(policy: &Policy, start: Timestamp, moves: &[Move]) -> World {
    let mut world = World {
        now: start,
        store: SingleEntry::default(),
        player: Player::new(policy, "subject"),
        model: Model::new(policy),
    };
    let mut history: Vec<Record> = Vec::new();
    let mut promised = None;
    for step in moves {
        world.now = step.pace.from(world.now, promised);
        let action = step.resolve(policy, world.now, world.player.permits(), &history);
        let reply = world.ask(world.now, &action);
        world.model.apply(world.now, &action);
        if let Reply::Denied(refused) = &reply {
            promised = refused.until;
        }
        let (before, after) = (Vec::new(), Vec::new());
        history.push(Record { now: world.now, action, reply, before, after });
    }
    world
}

impl World {
    fn ask(&mut self, now: Timestamp, action: &Action) -> Reply {
        self.player.play(now, action, &mut self.store.runner())
    }

    fn used(&mut self) -> Result<u64, TestCaseError> {
        let standings = self.player.standings(self.now, &mut self.store.runner());
        Ok(standings.map_err(TestCaseError::fail)?[0].used)
    }

    fn change(&mut self, policy: &Policy) {
        self.player.change(policy);
        self.model.change(policy);
    }
}

fn unit(policy: &Policy) -> &str {
    policy.units().next().unwrap_or_default()
}

fn acquire(policy: &Policy, cost: u64) -> Action {
    Action::Acquire { costs: Costs::new().with(unit(policy), cost), id: None }
}

/// Three requests at ten per second are back after 300 ms, and so are 300 ms of a bucket that refills in real time.
#[test]
fn a_bucket_in_another_unit_is_full_again_at_the_same_time() {
    let limit = |unit, bucket| Policy::new("p", [Limit::new("rate", unit, bucket)]).unwrap();
    let requests = limit("requests", TokenBucket::per_second(10));
    let time = limit("ms", TokenBucket::per_second(1_000).burst(500));
    let start = Timestamp::from_secs(7);
    let mut entry = Entry::fresh(&requests, start);
    let ask = Ask::new(&requests, "p").cost("requests", 3);
    apply(&Operation::Acquire(&ask), &mut entry, Known::New, start).unwrap();
    let [standing] = &standings(&entry.carried_to(&time), start)[..] else { panic!("one limit") };
    assert_eq!((standing.used, standing.remaining), (300, 200));
    assert_eq!(standing.full_at, standings(&entry, start)[0].full_at);
}

/// Where the capacity is no part of the shape, each ask is decided by its own on one entry, which is not carried over.
#[test]
fn capacities_per_ask_share_an_entry() {
    let policy = |capacity| {
        let limit = Limit::new("rate", "requests", TokenBucket::per_second(7).burst(capacity));
        Policy::builder("p").limit(limit).capacity_per_ask().build().unwrap()
    };
    let (large, small) = (policy(10), policy(5));
    assert!(large.has_shape_of(&small) && large != small);
    let start = Timestamp::from_secs(7);
    let mut entry = Entry::fresh(&large, start);
    let mut run = |operation: &Operation<'_>| {
        apply(operation, &mut entry, Known::New, start).unwrap().outcome
    };
    let mut take = |policy, cost| {
        let ask = Ask::new(policy, "p").cost("requests", cost);
        matches!(run(&Operation::Acquire(&ask)), Outcome::Decided(Decision::Admitted(_)))
    };
    assert!(take(&large, 4) && take(&small, 1) && !take(&small, 1) && take(&large, 1));
    for (policy, remaining) in [(&small, 0), (&large, 4), (&small, 0)] {
        let Outcome::Standings(standings) = run(&Operation::Standing { policy, subject: "p" })
        else {
            panic!("it does not stand");
        };
        assert_eq!((standings[0].used, standings[0].remaining), (6, remaining));
        assert_eq!(standings[0].limit, policy.effective().next().unwrap());
    }
    let stored = Policy::from_shape_bytes("p", small.shape_bytes()).unwrap();
    assert_eq!(stored.shape_bytes(), small.shape_bytes());
}

/// Thirteen sevenths of a token at half a token per microsecond are gone after 3.7 µs, so after 4 µs.
#[test]
fn a_level_that_does_not_divide_is_rounded_to_the_strict_side() {
    let bucket = |micros| one(TokenBucket::per(1, Span::from_micros(micros)).burst(2));
    let mut desk = Desk::new(&bucket(7));
    let start = Timestamp::from_micros(7_000_000);
    let later = |micros| start + Span::from_micros(micros);
    desk.admitted(start, 1);
    desk.admitted(later(1), 1);
    desk.change(&bucket(2));
    assert_eq!(desk.denied(later(1), 2).until, Some(later(5)));
    assert_eq!(desk.denied(later(4), 2).until, Some(later(5)));
    desk.admitted(later(5), 2);
}

/// Whether the core may round where the model does not.
fn rounds(before: &Policy, after: &Policy) -> bool {
    let bucket =
        |policy: &Policy| policy.limits().any(|limit| matches!(limit.rule(), Rule::TokenBucket(_)));
    bucket(before) || bucket(after)
}

fn any_rule() -> impl proptest::strategy::Strategy<Value = Policy> {
    prop_oneof![
        generate::policy_of(generate::continuous()),
        generate::policy_of(generate::interval()),
        generate::policy_of(generate::rolling()),
        generate::policy_of(generate::rolling_coarse()),
        generate::policy_of(generate::slots()),
    ]
}

proptest! {
    #[test]
    fn what_was_used_stays_used_and_there_is_no_free_burst(
        before in any_rule(),
        after in any_rule(),
        start in generate::start(),
        moves in generate::moves(30),
    ) {
        let mut world = play(&before, start, &moves);
        world.change(&after);
        let exact = world.model.standings(world.now)[0].used;
        let used = world.used()?;
        if rounds(&before, &after) {
            prop_assert!(exact <= used, "{} counted, {} used", used, exact);
        } else {
            prop_assert_eq!(exact, used);
        }
        // No wait is shorter than the exact one, not by a microsecond.
        for cost in 1..=12 {
            let action = acquire(&after, cost);
            let Action::Acquire { costs, .. } = &action else { continue };
            let exact = world.model.admit(costs, world.now);
            match (world.clone().ask(world.now, &action), exact) {
                (Reply::Admitted(_), exact) => prop_assert_eq!(exact, None, "{} fits", cost),
                (Reply::Denied(refused), Some(exact)) => {
                    prop_assert!(exact.until <= refused.until, "{:?}, {:?}", exact, refused);
                }
                _ => {}
            }
        }
        // Whoever asks one by one right after the change gets no more than the model leaves.
        let most = after.effective().next().unwrap_or(0);
        let one = acquire(&after, 1);
        let mut issued = 0;
        while issued <= most && matches!(world.ask(world.now, &one), Reply::Admitted(_)) {
            issued += 1;
        }
        prop_assert!(issued <= most.saturating_sub(exact), "{} issued, {} of {} used", issued, exact, most);
    }

    #[test]
    fn a_wait_promised_after_the_change_is_honest(
        before in any_rule(),
        after in any_rule(),
        start in generate::start(),
        moves in generate::moves(30),
        cost in 1_u64..=12,
    ) {
        let mut world = play(&before, start, &moves);
        world.change(&after);
        let action = acquire(&after, cost);
        let Reply::Denied(refused) = world.ask(world.now, &action) else { return Ok(()) };
        let Some(until) = refused.until else { return Ok(()) };
        let again = world.clone().ask(just_before(until), &action);
        prop_assert!(
            matches!(&again, Reply::Denied(still) if still.until == Some(until)),
            "just before {}: {:?}", until, again
        );
        let at = world.ask(until, &action);
        prop_assert!(matches!(at, Reply::Admitted(_)), "at {}: {:?}", until, at);
    }

    /// A refusal under new numbers writes nothing, so going back to the old ones is as if nothing had happened.
    #[test]
    fn a_change_that_is_taken_back_leaves_everything_as_it_was(
        before in any_rule(),
        after in any_rule(),
        start in generate::start(),
        moves in generate::moves(30),
    ) {
        let mut world = play(&before, start, &moves);
        let entry = world.store.clone();
        world.player.change(&after);
        let too_much = acquire(&after, 1_000);
        prop_assert!(!matches!(world.ask(world.now, &too_much), Reply::Admitted(_)));
        prop_assert_eq!(&world.store, &entry);
    }
}
