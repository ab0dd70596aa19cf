//! Many tasks at once on one subject: never over, never short, nothing lost.

use std::sync::Arc;

use tokio::sync::Barrier;
use tollgate_core::{Ask, Concurrency, Decision, Limit, Policy, Span};

use super::promises::{acquire, each_rule, gemini};
use super::{Fixture, ensure};

/// Runs `ask` once in each of many tasks that start together, and returns the decisions.
fn all_at_once(
    fixture: &Fixture,
    policy: &Policy,
    ask: impl Fn(&Policy, usize) -> Ask<'static>,
) -> Result<Vec<Decision>, String> {
    let tasks = fixture.capabilities.tasks;
    let barrier = Arc::new(Barrier::new(tasks));
    fixture.block_on(async {
        let spawned: Vec<_> = (0..tasks)
            .map(|number| {
                let (gate, barrier) = (Arc::clone(&fixture.gate), Arc::clone(&barrier));
                let ask = ask(policy, number);
                tokio::spawn(async move {
                    barrier.wait().await;
                    acquire(&*gate, &ask).await
                })
            })
            .collect();
        let mut decisions = Vec::with_capacity(tasks);
        for task in spawned {
            decisions.push(task.await.map_err(|error| error.to_string())??);
        }
        Ok(decisions)
    })
}

fn admitted(decisions: &[Decision]) -> usize {
    decisions.iter().filter(|decision| decision.is_admitted()).count()
}

/// Promise 1: however many ask at once, exactly the limit goes through, for every rule (R000.3, R000.8, R001.6).
///
/// # Errors
/// The rule and how many went through.
pub fn admits_exactly_the_limit(fixture: &Fixture) -> Result<(), String> {
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
///
/// # Errors
/// How many went through instead.
pub fn keeps_subjects_apart(fixture: &Fixture) -> Result<(), String> {
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
///
/// # Errors
/// What they were charged.
pub fn charges_a_shared_id_once(fixture: &Fixture) -> Result<(), String> {
    let (policy, subject) = (gemini()?, fixture.subject());
    let decisions = all_at_once(fixture, &policy, |policy, _| {
        Ask::new(policy, subject.as_str()).cost("tokens", 3_750).id("shared").into_owned()
    })?;
    let through = admitted(&decisions);
    ensure(through == decisions.len(), || format!("only {through} were recognised"))?;
    let standings = fixture.block_on(fixture.gate.standing(&policy, &subject));
    let used: Vec<u64> = standings.map_err(|e| e.to_string())?.iter().map(|s| s.used).collect();
    ensure(used == [1, 3_750, 1], || format!("one id was charged {used:?}"))
}

/// Promise 6: slots that are released, twice even, come back exactly; those that are forgotten come back by expiry.
///
/// # Errors
/// How many slots there are instead.
pub fn loses_no_slot(fixture: &Fixture) -> Result<(), String> {
    let rule = Concurrency::new(5, Span::from_mins(5));
    let policy =
        Policy::new("jobs", [Limit::new("slots", "jobs", rule)]).map_err(|e| e.to_string())?;
    let subject = fixture.subject();
    let decisions = all_at_once(fixture, &policy, |policy, _| {
        Ask::new(policy, subject.as_str()).cost("jobs", 1).into_owned()
    })?;
    let held: Vec<_> = decisions.into_iter().filter_map(Decision::permit).collect();
    fixture.block_on(async {
        let free = || async {
            let standings = fixture.gate.standing(&policy, &subject).await;
            standings.map(|limits| limits[0].remaining).map_err(|error| error.to_string())
        };
        for permit in held.iter().take(2).chain(held.iter().take(2)) {
            fixture.gate.release(permit).await.map_err(|error| error.to_string())?;
        }
        let after = free().await?;
        ensure(after == 2, || format!("two slots were released twice, and {after} are free"))?;
        if let Some(kept) = held.get(2) {
            fixture.clock.advance(Span::from_mins(4));
            fixture.gate.renew(kept).await.map_err(|error| error.to_string())?;
        }
        fixture.clock.advance(Span::from_mins(1));
        let after = free().await?;
        ensure(after == 4, || format!("all but the renewed slot expired, and {after} are free"))
    })
}
