//! Permits of a block: what settling gives back or costs more, and until when they are to be used.

use super::*;
use tollgate::Timestamp;

/// Spends until a permit is a local one.
async fn local_permit(gate: &impl Gate, policy: &Policy, tokens: u64) -> Permit {
    loop {
        let ask = Ask::new(policy, "alice").cost("tokens", tokens);
        let permit =
            gate.acquire(&ask).await.expect("it decides").into_permit().expect("there is room");
        if permit.is_local() {
            return permit;
        }
    }
}

fn tokens_per_minute() -> Policy {
    leased_for(TTL, [Limit::new("tpm", "tokens", RollingWindow::new(100_000, Span::from_mins(1)))])
}

fn tokens(amount: u64) -> Costs {
    Costs::new().with("tokens", amount)
}

#[tokio::test]
async fn settling_for_less_leaves_it_to_spend_once() {
    let (fleet, policy) = (Fleet::new(), tokens_per_minute());
    let gate = fleet.instance();
    let permit = local_permit(&gate, &policy, 100).await;
    assert!(gate.settle(&permit, &tokens(40)).await.unwrap());
    assert!(!gate.settle(&permit, &tokens(0)).await.unwrap(), "the second time changes nothing");
    assert!(!gate.release(&permit).await.unwrap());
    let before = fleet.used(&policy).await[0];
    gate.shutdown(Timestamp::MAX).await.unwrap();
    let asked = before - fleet.used(&policy).await[0];
    assert!(60 <= asked, "at least what was not used came back");
    // 100 for each ask so far, less the 60.
    assert_eq!((fleet.used(&policy).await[0] + 60) % 100, 0);
}

#[tokio::test]
async fn settling_after_the_block_ended_still_gives_back() {
    let (fleet, policy) = (Fleet::new(), tokens_per_minute());
    let gate = fleet.instance();
    // The block that gives the permit is spent whole, so it waits for its permits.
    let (mut permits, ask) = (Vec::new(), Ask::new(&policy, "alice").cost("tokens", 100));
    for _ in 0..60 {
        permits.push(gate.acquire(&ask).await.unwrap().into_permit().unwrap());
    }
    fleet.pass(TTL).await;
    let mut settled = 0;
    for permit in permits.iter().filter(|permit| permit.is_local()) {
        settled += u64::from(gate.settle(permit, &tokens(10)).await.unwrap());
    }
    fleet.pass(LeasedOptions::default().settle_wait.into()).await;
    // Those of the last block keep their estimate: most of it was unspent, and went back when it ended.
    assert!(20 < settled, "{settled} were settled");
    assert_eq!(fleet.used(&policy).await, [60 * 100 - settled * 90]);
    for permit in permits.iter().filter(|permit| permit.is_local()) {
        assert!(!gate.settle(permit, &tokens(0)).await.unwrap(), "the blocks are gone");
    }
}

#[tokio::test]
async fn extra_cost_is_drawn_from_the_block_or_posted() {
    let (fleet, policy) = (Fleet::new(), tokens_per_minute());
    let gate = fleet.instance();
    let (small, large) = {
        for _ in 0..20 {
            local_permit(&gate, &policy, 100).await;
        }
        (local_permit(&gate, &policy, 100).await, local_permit(&gate, &policy, 100).await)
    };
    let used = fleet.used(&policy).await[0];
    assert!(gate.settle(&small, &tokens(101)).await.unwrap());
    assert_eq!(
        (fleet.used(&policy).await[0], fleet.store.charges.load(Ordering::Relaxed)),
        (used, 0)
    );
    assert!(gate.settle(&large, &tokens(50_100)).await.unwrap());
    assert_eq!(fleet.used(&policy).await, [used + 50_000], "posted before settle answered");
    assert!(!gate.settle(&large, &tokens(50_100)).await.unwrap());
    assert_eq!(fleet.used(&policy).await, [used + 50_000], "and posted once");
    let wrong = gate.settle(&small, &Costs::new().with("bananas", 1)).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Invalid);
}

/// A permit that comes to another instance, or to the store itself, gives nothing back.
#[tokio::test]
async fn a_permit_of_an_unknown_block_gives_nothing_back() {
    let (fleet, policy) = (Fleet::new(), tokens_per_minute());
    let gate = fleet.instance();
    let permit = local_permit(&gate, &policy, 100).await;
    let used = fleet.used(&policy).await;
    let other = fleet.instance();
    assert!(!other.release(&permit).await.unwrap());
    assert!(!other.settle(&permit, &tokens(1)).await.unwrap());
    assert!(!fleet.store.gate.release(&permit).await.unwrap());
    assert_eq!(fleet.used(&policy).await, used);
    for _ in 0..2 {
        other.settle(&permit, &tokens(150)).await.unwrap();
        assert_eq!(fleet.used(&policy).await, [used[0] + 50], "what it cost more is posted once");
    }
    assert_eq!(gate.renew(&permit).await.unwrap(), permit);
}

#[tokio::test]
async fn a_permit_says_until_when_it_is_to_be_used() {
    let margin = Span::from_secs(2);
    let limit = Limit::new("tpm", "tokens", RollingWindow::new(100_000, Span::from_mins(1)));
    let (fleet, policy) = (Fleet::new(), leased_for(TTL, [limit.margin(margin)]));
    let gate = fleet.instance();
    let first = local_permit(&gate, &policy, 10).await;
    fleet.clock.advance(Span::from_millis(30));
    let later = local_permit(&gate, &policy, 10).await;
    assert_eq!(first.use_by(), Some(first.grant().at + margin));
    assert_eq!(later.use_by(), Some(fleet.clock.now() + margin));
}
