//! Blocks: how large they are, when the next one is taken, and where they go when they end.

use super::*;
use tollgate::Timestamp;

/// R002.5: exact like atomic at a fraction of its writes. Blocks grow while they do not last.
#[tokio::test]
async fn blocks_grow_with_demand_and_shrink_when_it_fades() {
    let (fleet, policy) = (Fleet::new(), leased(TokenBucket::per_second(100_000)));
    let gate = fleet.instance();
    for _ in 0..5_000 {
        assert!(ask(&gate, &policy).await.is_admitted());
    }
    assert!(fleet.store.writes() < 20, "{} writes for 5,000 asks", fleet.store.writes());
    // Ten asks in the time of a block: the big ones end unspent, and the ones after them are small.
    for _ in 0..3 {
        for _ in 0..10 {
            assert!(ask(&gate, &policy).await.is_admitted());
        }
        fleet.pass(TTL).await;
    }
    fleet.pass(Span::from_secs(2)).await;
    assert!(ask(&gate, &policy).await.is_admitted());
    let [held] = fleet.used(&policy).await[..] else { panic!("one limit") };
    assert!(held <= 20, "a block of {held} although ten are asked for");
}

#[tokio::test]
async fn a_subject_that_is_seldom_asked_for_costs_one_write_and_holds_nothing() {
    let (fleet, policy) = (Fleet::new(), leased(RollingWindow::new(1_000, Span::from_mins(1))));
    let gate = fleet.instance();
    for asked in 1..=5 {
        let permit = ask(&gate, &policy).await.into_permit().unwrap();
        assert!(!permit.is_local(), "an ask on its own gets the store's own permit");
        assert_eq!((fleet.store.writes(), fleet.used(&policy).await), (asked, vec![asked]));
        fleet.pass(TTL).await;
    }
}

#[tokio::test]
async fn the_next_block_is_there_before_the_last_one_is_spent() {
    let (fleet, policy) = (Fleet::new(), leased(TokenBucket::per_second(100_000)));
    let gate = fleet.instance();
    for _ in 0..200 {
        ask(&gate, &policy).await;
    }
    for _ in 0..2_000 {
        let verdict = gate.try_acquire(&Ask::new(&policy, "alice")).unwrap();
        assert!(matches!(verdict, Some(Verdict::Admitted(_))), "{verdict:?}");
        tokio::task::yield_now().await;
    }
}

/// Without time passing one instance gets everything the store has to give, and a denial with its true wait.
#[tokio::test]
async fn down_to_the_last_token_and_then_the_wait_is_true() {
    let day = CalendarWindow::new(500, Period::Day);
    for rule in [Rule::from(RollingWindow::new(500, Span::from_secs(10))), day.into()] {
        let (fleet, policy) = (Fleet::new(), leased(rule));
        let gate = fleet.instance();
        let (permits, denial) = drain(&gate, &policy).await;
        assert_eq!(permits.len(), 500, "{policy:?}");
        let Wait::Until(until) = denial.wait else { panic!("never") };
        fleet.clock.set(until - Span::from_micros(1));
        let early = ask(&gate, &policy).await.into_denial().unwrap();
        assert_eq!(early.wait, Wait::Until(until));
        fleet.clock.set(until);
        assert!(ask(&gate, &policy).await.is_admitted(), "{policy:?}");
    }
}

/// A block that is refused ahead of time says nothing about those who come for less, where no whole block is due.
#[tokio::test]
async fn what_is_too_little_for_a_block_is_given_out_all_the_same() {
    let fleet = Fleet::new();
    let gate = fleet.instance();
    let policy = leased(RollingWindow::new(100, Span::from_hours(1)));
    let mut admitted = 0;
    while ask(&gate, &policy).await.is_admitted() {
        admitted += 1;
        fleet.settle_down().await;
    }
    assert_eq!(admitted, 100);
}

#[tokio::test]
async fn a_bucket_that_refills_fast_is_asked_once_per_lull() {
    let (fleet, policy) = (Fleet::new(), leased(TokenBucket::per_second(10_000)));
    let gate = fleet.instance();
    let (_, mut denial) = drain(&gate, &policy).await;
    for _ in 0..20 {
        let Wait::Until(until) = denial.wait else { panic!("never") };
        let before = fleet.store.writes();
        for _ in 0..100 {
            fleet.clock.set(until - Span::from_micros(1));
            let early = ask(&gate, &policy).await.into_denial().unwrap();
            assert_eq!(early.wait, Wait::Until(until));
        }
        assert_eq!(fleet.store.writes(), before, "a standing refusal costs no write");
        fleet.clock.set(until);
        let (permits, next) = drain(&gate, &policy).await;
        assert!(!permits.is_empty(), "the wait was not true");
        denial = next;
    }
}

#[tokio::test]
async fn one_instance_leaves_the_others_their_part() {
    let (fleet, policy) = (Fleet::new(), leased(RollingWindow::new(1_600, Span::from_mins(1))));
    let greedy = fleet.instance();
    for _ in 0..1_000 {
        ask(&greedy, &policy).await;
    }
    let [used] = fleet.used(&policy).await[..] else { panic!("one limit") };
    assert!(used <= 1_000 + 200, "{used} are taken for 1,000 asks; a block is at most 100");
    let late = fleet.instance();
    for _ in 0..300 {
        assert!(ask(&late, &policy).await.is_admitted(), "the second instance starves");
    }
}

#[tokio::test]
async fn several_limits_are_spent_together_or_not_at_all() {
    let minute = Span::from_mins(1);
    let limits = [
        Limit::new("rpm", "requests", RollingWindow::new(1_000, minute)),
        Limit::new("tpm", "tokens", RollingWindow::new(100_000, minute)),
        Limit::new("rpd", "requests", CalendarWindow::new(10_000, Period::Day)),
    ];
    let (fleet, policy) = (Fleet::new(), leased_for(TTL, limits));
    let gate = fleet.instance();
    let mut spent = [0, 0];
    for round in 0.. {
        let tokens = [100, 1_500, 700][round % 3];
        let decision =
            gate.acquire(&Ask::new(&policy, "alice").cost("tokens", tokens)).await.unwrap();
        match decision {
            Decision::Admitted(_) => spent = [spent[0] + 1, spent[1] + tokens],
            Decision::Denied(denial) => {
                assert_eq!(&*denial.limit, "tpm");
                break;
            }
        }
    }
    // What no ask fits into lies in blocks until they end.
    assert!(90_000 < spent[1] && spent[1] <= 100_000, "{spent:?}");
    gate.shutdown(Timestamp::MAX).await.unwrap();
    assert_eq!(
        fleet.used(&policy).await,
        [spent[0], spent[1], spent[0]],
        "a limit was charged alone"
    );
}

#[tokio::test]
async fn what_is_left_goes_back_when_a_block_ends_and_at_shutdown() {
    let (fleet, policy) = (Fleet::new(), leased(RollingWindow::new(10_000, Span::from_mins(1))));
    let gate = fleet.instance();
    for _ in 0..300 {
        ask(&gate, &policy).await;
    }
    assert!(300 < fleet.used(&policy).await[0], "there is a block with something left");
    fleet.pass(TTL).await;
    assert_eq!(
        fleet.used(&policy).await,
        [300],
        "nobody settles single requests, so none is waited for"
    );
    for _ in 0..100 {
        ask(&gate, &policy).await;
    }
    gate.shutdown(Timestamp::MAX).await.unwrap();
    assert_eq!(fleet.used(&policy).await, [400]);
    assert!(
        !ask(&gate, &policy).await.into_permit().unwrap().is_local(),
        "after it the store is asked"
    );
}

/// Promise 6: a crash keeps what it held from everybody, until the rule restores it.
#[tokio::test]
async fn a_crash_under_issues_until_the_rule_restores_it() {
    let window = Span::from_secs(10);
    let (fleet, policy) = (Fleet::new(), leased(RollingWindow::new(1_000, window)));
    let gate = fleet.instance();
    for _ in 0..200 {
        ask(&gate, &policy).await;
    }
    let held = fleet.used(&policy).await[0];
    assert!(200 < held);
    drop(gate);
    fleet.pass(TTL).await;
    assert_eq!(fleet.used(&policy).await, [held], "nobody gives it back");
    // A slot of the grid longer than the window.
    fleet.pass(window.plus(Span::from_millis(200))).await;
    let (permits, _) = drain(&fleet.instance(), &policy).await;
    assert_eq!(permits.len(), 1_000, "nothing is lost");
}
