//! Asks with several charges: all of them are charged, or none.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tokio::sync::Barrier;
use tollgate::GateExt;
use tollgate_core::{Ask, Decision, Limit, Policy, RollingWindow, Span};

use super::{Checked, Fixture, ensure};
use crate::joint::{self, JointModel, JointPlayer, JointVector, Party};

/// The most moves of a random script.
const MOVES_MAX: usize = 32;

/// How often each task of a contention case asks.
const ASKS: usize = 8;

/// How often one ask is raced by others.
const ROUNDS: usize = 4;

/// The gate answers every golden vector with several parties as written. They are one test, because a server for each of
/// them costs more than they do; an error names the vector.
pub(super) fn passes_vectors(fixture: &Fixture) -> Checked {
    joint::load_all()?.iter().try_for_each(|vector| passes_vector(vector, fixture))
}

/// The gate answers `vector` as written, for parties that no other vector has.
pub(super) fn passes_vector(vector: &JointVector, fixture: &Fixture) -> Checked {
    if !fixture.capabilities.joint {
        return Ok(());
    }
    let mut vector = vector.clone();
    for party in &mut vector.parties {
        party.subject = fixture.subject();
    }
    Ok(joint::run(&vector, &mut |now, operation| {
        fixture.clock.set(now);
        fixture.run(operation)
    })?)
}

/// The gate returns what the reference model returns: every decision, wait and standing of random scripts.
pub(super) fn agrees_with_model(fixture: &Fixture) -> Checked {
    if !fixture.capabilities.joint {
        return Ok(());
    }
    let mut runner = TestRunner::deterministic();
    let scripts = (joint::parties(), joint::script(MOVES_MAX));
    for number in 0..fixture.capabilities.stories {
        let tree = scripts.new_tree(&mut runner).map_err(|reason| reason.to_string())?;
        let (mut parties, (start, moves)) = tree.current();
        for party in &mut parties {
            party.subject = fixture.subject();
        }
        let expected = joint::record(&parties, start, &moves, &mut JointModel::new(&parties))?;
        let mut run = |now, operation: &tollgate_core::Operation<'_>| {
            fixture.clock.set(now);
            fixture.run(operation)
        };
        let mut player = JointPlayer::new(&parties, &mut run);
        let got = joint::record(&parties, start, &moves, &mut player)?;
        let differs = expected.iter().zip(&got).position(|(model, gate)| model != gate);
        if let Some(step) = differs {
            let policies: Vec<&Policy> = parties.iter().map(|party| &party.policy).collect();
            let (model, gate) = (&expected[step], &got[step]);
            let text = format!(
                "script {number}, step {step}, under {policies:?}:\n  model: {model:?}\n  gate:  {gate:?}"
            );
            return Err(text.into());
        }
    }
    Ok(())
}

/// Five parties of which every ask charges four, in an order of its own.
fn crowd(fixture: &Fixture) -> Checked<Vec<Party>> {
    let limits = [40, 25, 30, 60, 35];
    let party = |(number, limit): (usize, u64)| {
        let rule = RollingWindow::new(limit, Span::from_mins(1));
        let policy = Policy::new(format!("party-{number}"), [Limit::new("rpm", "requests", rule)])?;
        Ok(Party { policy, subject: fixture.subject() })
    };
    limits.into_iter().enumerate().map(party).collect()
}

/// Promises 1 to 3 under contention: what each party was charged is what the admitted asks charged to it, and no party is
/// over its limit.
pub(super) fn charges_all_or_none_at_once(fixture: &Fixture) -> Checked {
    if !fixture.capabilities.joint {
        return Ok(());
    }
    let parties = Arc::new(crowd(fixture)?);
    let barrier = Arc::new(Barrier::new(fixture.capabilities.tasks));
    let admitted = fixture.block_on(async {
        let tasks: Vec<_> = (0..fixture.capabilities.tasks)
            .map(|task| {
                let (gate, parties) = (Arc::clone(&fixture.gate), Arc::clone(&parties));
                let barrier = Arc::clone(&barrier);
                tokio::spawn(async move {
                    let mut admitted: Vec<usize> = Vec::new();
                    barrier.wait().await;
                    for number in 0..ASKS {
                        let order = order(task * ASKS + number);
                        let charge = |index: usize| &parties[order[index]];
                        let mut ask = Ask::new(&charge(0).policy, charge(0).subject.as_str());
                        for index in 1..4 {
                            ask = ask.and(&charge(index).policy, charge(index).subject.as_str());
                        }
                        if gate.acquire(&ask).await?.is_admitted() {
                            admitted.extend(&order[..4]);
                        }
                    }
                    Ok::<_, tollgate::Error>(admitted)
                })
            })
            .collect();
        let mut sums: HashMap<usize, u64> = HashMap::new();
        for task in tasks {
            for party in task.await?? {
                *sums.entry(party).or_default() += 1;
            }
        }
        Checked::Ok(sums)
    })?;
    for (index, party) in parties.iter().enumerate() {
        let standing = fixture.block_on(fixture.gate.standing(&party.policy, &party.subject))?;
        let (used, charged) = (standing[0].used, admitted.get(&index).copied().unwrap_or(0));
        ensure(used == charged && used <= standing[0].limit, || {
            format!("party {index}: {used} used, {charged} admitted, limit {}", standing[0].limit)
        })?;
    }
    let exhausted = parties.iter().enumerate().any(|(index, party)| {
        let limit = party.policy.effective().next();
        limit == admitted.get(&index).copied()
    });
    ensure(exhausted, || "no party was used up, so nothing was contended".to_owned())
}

/// Promise 2 under contention: who asks for one party beside asks that another party refuses is not refused by theirs.
pub(super) fn refused_asks_take_nothing_meanwhile(fixture: &Fixture) -> Checked {
    if !fixture.capabilities.joint {
        return Ok(());
    }
    let named = |name: &str| {
        let rule = RollingWindow::new(1, Span::from_mins(1));
        Policy::new(name, [Limit::new("rpm", "requests", rule)])
    };
    let (free, full) = (named("free")?, named("full")?);
    let refusing = fixture.subject();
    fixture.block_on(fixture.gate.acquire(&Ask::new(&full, refusing.as_str())))?;
    for _ in 0..ROUNDS {
        let wanted = fixture.subject();
        let barrier = Arc::new(Barrier::new(fixture.capabilities.tasks));
        let admitted = fixture.block_on(async {
            let tasks: Vec<_> = (0..fixture.capabilities.tasks)
                .map(|task| {
                    let (gate, barrier) = (Arc::clone(&fixture.gate), Arc::clone(&barrier));
                    let ask = Ask::new(&free, wanted.as_str());
                    let is_alone = task == fixture.capabilities.tasks / 2;
                    let ask = if is_alone { ask } else { ask.and(&full, refusing.as_str()) };
                    let ask = ask.into_owned();
                    tokio::spawn(async move {
                        barrier.wait().await;
                        Ok::<_, tollgate::Error>((is_alone, gate.acquire(&ask).await?))
                    })
                })
                .collect();
            let mut admitted = Vec::new();
            for task in tasks {
                let (is_alone, decision) = task.await??;
                admitted.extend(decision.is_admitted().then_some(is_alone));
            }
            Checked::Ok(admitted)
        })?;
        ensure(admitted == [true], || {
            format!("admitted {admitted:?} instead of the one that asks for one party")
        })?;
    }
    Ok(())
}

/// An order of five parties that differs from ask to ask.
fn order(seed: usize) -> [usize; 5] {
    let mut order = [0, 1, 2, 3, 4];
    order.rotate_left(seed % 5);
    order.swap(seed % 4, 4);
    order.swap(0, seed % 3);
    order
}

/// Promise 5 under contention: many tasks with one id are one charge of every party.
pub(super) fn charges_a_shared_id_once(fixture: &Fixture) -> Checked {
    if !fixture.capabilities.joint {
        return Ok(());
    }
    let parties = Arc::new(crowd(fixture)?);
    let decisions = fixture.block_on(async {
        let tasks: Vec<_> = (0..fixture.capabilities.tasks)
            .map(|_| {
                let (gate, parties) = (Arc::clone(&fixture.gate), Arc::clone(&parties));
                tokio::spawn(async move {
                    let [first, second, ..] = parties.as_slice() else { return Ok(None) };
                    let ask = Ask::new(&first.policy, first.subject.as_str())
                        .and(&second.policy, second.subject.as_str())
                        .id("shared");
                    gate.acquire(&ask).await.map(Decision::into_permit)
                })
            })
            .collect();
        let mut permits = Vec::new();
        for task in tasks {
            permits.push(task.await??);
        }
        Checked::Ok(permits)
    })?;
    ensure(decisions.iter().all(Option::is_some), || "an ask was refused".to_owned())?;
    for (party, expected) in parties.iter().zip([1, 1, 0]) {
        let standing = fixture.block_on(fixture.gate.standing(&party.policy, &party.subject))?;
        ensure(standing[0].used == expected, || {
            format!("{} was charged {}", party.policy.name(), standing[0].used)
        })?;
    }
    Ok(())
}
