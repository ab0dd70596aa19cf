//! Same meaning everywhere: the golden vectors, and random stories played to the gate and to the core alike.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tollgate_core::{Operation, Policy, Standing, Timestamp};

use super::Fixture;
use crate::generate::{self, Move};
use crate::script::{Did, Record, Single};
use crate::vectors::{self, Stand, Vector};

/// How many moves a random story has at the most.
const MOVES_MAX: usize = 24;

/// The gate answers every golden vector as written.
///
/// # Errors
/// The first vector that it answers otherwise.
pub fn passes_vectors(fixture: &Fixture) -> Result<(), String> {
    let vectors = vectors::load_all()?;
    super::ensure(!vectors.is_empty(), || "there are no vectors".to_owned())?;
    let run = match fixture.bounded_refunds {
        true => vectors::run_with_bounded_refunds,
        false => vectors::run,
    };
    for vector in vectors {
        if fixture.exact_logs && has_default_grid(&vector)? {
            continue;
        }
        run(&vector, &mut |now, operation| at(fixture, now, operation))?;
    }
    Ok(())
}

fn has_default_grid(vector: &Vector) -> Result<bool, String> {
    let later = vector.steps.iter().filter_map(|step| step.policy.as_ref());
    for form in std::iter::once(&vector.policy).chain(later) {
        let policy = form.policy()?;
        if !policy.has_shape_of(policy.with_exact_logs()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The gate answers random stories as the core does on a single entry: every answer, every wait, every standing.
///
/// # Errors
/// The first story that differs, with both answers.
pub fn agrees_with_core(fixture: &Fixture) -> Result<(), String> {
    // The stories are the same in every run, so that a failure can be looked at again.
    let mut runner = TestRunner::deterministic();
    let stories = (generate::policy(), generate::start(), generate::moves(MOVES_MAX));
    for story in 0..fixture.capabilities.stories {
        let tree = stories.new_tree(&mut runner).map_err(|reason| reason.to_string())?;
        let (policy, start, moves) = tree.current();
        let policy = if fixture.exact_logs { policy.with_exact_logs().clone() } else { policy };
        let (expected, got) =
            (on_core(&policy, start, &moves)?, on_gate(fixture, &policy, start, &moves)?);
        if let Some((place, (core, gate))) =
            expected.iter().zip(&got).enumerate().find(|(_, (core, gate))| core != gate)
            && !(fixture.bounded_refunds && gave_back_less(core, gate))
        {
            return Err(format!(
                "story {story}, step {place}, under {policy:?}:\n  the core says {core:?}\n  the gate says {gate:?}"
            ));
        }
    }
    Ok(())
}

/// Whether `gate` did what `core` did, but gave back less. The rest of the story then is another one.
fn gave_back_less(core: &Record, gate: &Record) -> bool {
    let stands = |standings: &[Standing]| standings.iter().map(Stand::of).collect::<Vec<_>>();
    matches!(core.did, Did::Settle { .. } | Did::Release { .. })
        && (core.now, &core.did, &core.answer) == (gate.now, &gate.did, &gate.answer)
        && core.before == gate.before
        && vectors::gave_back_less(&stands(&core.after), &stands(&gate.after), MOVES_MAX)
}

fn on_core(policy: &Policy, start: Timestamp, moves: &[Move]) -> Result<Vec<Record>, String> {
    generate::record(policy, start, moves, &mut Single::default().runner())
}

fn on_gate(
    fixture: &Fixture,
    policy: &Policy,
    start: Timestamp,
    moves: &[Move],
) -> Result<Vec<Record>, String> {
    let subject = fixture.subject();
    generate::record_as(&subject, policy, start, moves, &mut |now, operation| {
        at(fixture, now, operation)
    })
}

fn at(
    fixture: &Fixture,
    now: Timestamp,
    operation: &Operation<'_>,
) -> Result<tollgate_core::Outcome, tollgate_core::Error> {
    fixture.clock.set(now);
    fixture.run(operation)
}
