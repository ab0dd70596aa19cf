//! Many tasks at once on one subject: never over, never short, nothing lost.

use std::sync::Arc;
use tollgate::GateExt;

use tokio::sync::Barrier;
use tollgate_core::{Ask, Concurrency, Decision, Limit, Policy, Span};

use super::promises::{each_rule, gemini};
use super::{Checked, Fixture, ensure};

/// Runs `ask` once in each of many tasks that start together, and returns the decisions.
fn all_at_once(
    fixture: &Fixture,
    policy: &Policy,
    ask: impl Fn(&Policy, usize) -> Ask<'static>,
) -> Checked<Vec<Decision>> {
    let tasks = fixture.capabilities.tasks;
    let barrier = Arc::new(Barrier::new(tasks));
    fixture.block_on(async {
        let spawned: Vec<_> = (0..tasks)
            .map(|number| {
                let (gate, barrier) = (Arc::clone(&fixture.gate), Arc::clone(&barrier));
                let ask = ask(policy, number);
                tokio::spawn(async move {
                    barrier.wait().await;
                    gate.acquire(&ask).await
                })
            })
            .collect();
        let mut decisions = Vec::with_capacity(tasks);
        for task in spawned {
            decisions.push(task.await??);
        }
        Ok(decisions)
    })
}

fn admitted(decisions: &[Decision]) -> usize {
    decisions.iter().filter(|decision| decision.is_admitted()).count()
}

/// Promise 1: however many ask at once, exactly the limit goes through, for every rule.
pub(super) fn admits_exactly_the_limit(fixture: &Fixture) -> Checked {
    for policy in each_rule()? {
        let subject = fixture.subject();
        let decisions = all_at_once(fixture, &policy, |policy, _| {
            Ask::new(policy, subject.as_str()).into_owned()
        })?;
        let through = admitted(&decisions);
        ensure(through == 5.min(decisions.len()), || {
            format!("{}: {through} of 5 went through", policy.name())
        })?;
    }
    Ok(())
}

/// Subjects do not disturb each other: each gets its own five.
pub(super) fn keeps_subjects_apart(fixture: &Fixture) -> Checked {
    let policy = gemini()?;
    let subjects: Vec<String> = (0..4).map(|_| fixture.subject()).collect();
    let decisions = all_at_once(fixture, &policy, |policy, number| {
        Ask::new(policy, subjects[number % subjects.len()].as_str()).into_owned()
    })?;
    let expected: usize = (0..subjects.len())
        .map(|place| (place..decisions.len()).step_by(subjects.len()).count().min(5))
        .sum();
    let through = admitted(&decisions);
    ensure(through == expected, || format!("{through} went through, not {expected}"))
}

/// Promise 5 under contention: many tasks with one id are one charge.
pub(super) fn charges_a_shared_id_once(fixture: &Fixture) -> Checked {
    let (policy, subject) = (gemini()?, fixture.subject());
    let decisions = all_at_once(fixture, &policy, |policy, _| {
        Ask::new(policy, subject.as_str()).cost("tokens", 3_750).id("shared").into_owned()
    })?;
    let through = admitted(&decisions);
    ensure(through == decisions.len(), || format!("only {through} were recognised"))?;
    let standings = fixture.block_on(fixture.gate.standing(&policy, &subject));
    let used: Vec<u64> = standings?.iter().map(|s| s.used).collect();
    ensure(used == [1, 3_750, 1], || format!("one id was charged {used:?}"))
}

/// Promise 6: slots that are released, twice even, come back exactly; those that are forgotten come back by expiry.
pub(super) fn loses_no_slot(fixture: &Fixture) -> Checked {
    let rule = Concurrency::new(5, Span::from_mins(5));
    let policy = Policy::new("jobs", [Limit::new("slots", "jobs", rule)])?;
    let subject = fixture.subject();
    let decisions = all_at_once(fixture, &policy, |policy, _| {
        Ask::new(policy, subject.as_str()).cost("jobs", 1).into_owned()
    })?;
    let held: Vec<_> = decisions.into_iter().filter_map(Decision::into_permit).collect();
    fixture.block_on(async {
        let free = || async {
            let standings = fixture.gate.standing(&policy, &subject).await;
            Checked::Ok(standings?[0].remaining)
        };
        for permit in held.iter().take(2).chain(held.iter().take(2)) {
            fixture.gate.release(permit).await?;
        }
        let after = free().await?;
        ensure(after == 2, || format!("two slots were released twice, and {after} are free"))?;
        if let Some(kept) = held.get(2) {
            fixture.clock.advance(Span::from_mins(4));
            fixture.gate.renew(kept).await?;
        }
        fixture.clock.advance(Span::from_mins(1));
        let after = free().await?;
        ensure(after == 4, || format!("all but the renewed slot expired, and {after} are free"))
    })
}
