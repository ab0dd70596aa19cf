//! Agreement with the core: the golden vectors, and random scripts played on the gate and on the core.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tollgate_core::{ErrorKind, Operation, Standing, Timestamp};

use super::{Checked, Fixture};
use crate::generate;
use crate::script::{Action, Record, Reply, SingleEntry};
use crate::vectors::{self, ExpectedStanding, Vector};

/// The most moves of a random script.
const MOVES_MAX: usize = 24;

/// The gate answers every golden vector as written.
pub(super) fn passes_vectors(fixture: &Fixture) -> Checked {
    let vectors = vectors::load_all()?;
    super::ensure(!vectors.is_empty(), || "there are no vectors".to_owned())?;
    vectors.iter().try_for_each(|vector| passes_vector(vector, fixture))
}

/// The gate answers `vector` as written; in the format of earlier programs, vectors about the grid are left out.
pub(super) fn passes_vector(vector: &Vector, fixture: &Fixture) -> Checked {
    if fixture.exact_logs && has_default_grid(vector)? {
        return Ok(());
    }
    let run = match fixture.bounded_refunds {
        true => vectors::run_with_bounded_refunds,
        false => vectors::run,
    };
    Ok(run(vector, &mut |now, operation| at(fixture, now, operation))?)
}

fn has_default_grid(vector: &Vector) -> Checked<bool> {
    let later = vector.steps.iter().filter_map(|step| step.policy.as_ref());
    for form in std::iter::once(&vector.policy).chain(later) {
        let policy = form.policy()?;
        if !policy.has_shape_of(policy.with_exact_logs()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The gate returns what the core returns on a single entry: every decision, wait and standing of random scripts.
pub(super) fn agrees_with_core(fixture: &Fixture) -> Checked {
    // Deterministic, so that a failure can be repeated.
    let mut runner = TestRunner::deterministic();
    let scripts = (generate::policy(), generate::start(), generate::moves(MOVES_MAX));
    for number in 0..fixture.capabilities.stories {
        let tree = scripts.new_tree(&mut runner).map_err(|reason| reason.to_string())?;
        let (policy, start, moves) = tree.current();
        let policy = if fixture.exact_logs { policy.with_exact_logs().clone() } else { policy };
        let expected =
            generate::record(&policy, start, &moves, &mut SingleEntry::default().runner())?;
        let on_gate = &mut |now, operation: &Operation<'_>| at(fixture, now, operation);
        let got = generate::record_as(&fixture.subject(), &policy, start, &moves, on_gate)?;
        if let Some((step, (core, gate))) =
            expected.iter().zip(&got).enumerate().find(|(_, (core, gate))| core != gate)
            && !(fixture.bounded_refunds && gave_back_less(core, gate))
            && !(fixture.exact_logs && charged_again(core, gate))
        {
            let text = format!(
                "script {number}, step {step}, under {policy:?}:\n  core: {core:?}\n  gate: {gate:?}"
            );
            return Err(text.into());
        }
    }
    Ok(())
}

/// Whether `gate` did what `core` did but credited less. The rest of the script is not comparable then.
fn gave_back_less(core: &Record, gate: &Record) -> bool {
    let expected = |standings: &[Standing]| {
        standings.iter().map(ExpectedStanding::from_standing).collect::<Vec<_>>()
    };
    matches!(core.action, Action::Settle { .. } | Action::Release { .. })
        && (core.now, &core.action, &core.reply) == (gate.now, &gate.action, &gate.reply)
        && core.before == gate.before
        && vectors::gave_back_less(&expected(&core.after), &expected(&gate.after), MOVES_MAX)
}

/// Whether `gate` charged an ask that `core` recognised by its id. The rest of the script is not comparable then.
fn charged_again(core: &Record, gate: &Record) -> bool {
    matches!(core.action, Action::Acquire { id: Some(_), .. })
        && matches!(core.reply, Reply::Repeated(_) | Reply::Failed(ErrorKind::Conflict))
        && matches!(gate.reply, Reply::Admitted(_) | Reply::Denied(_) | Reply::Shadowed(..))
        && core.before == gate.before
}

fn at(
    fixture: &Fixture,
    now: Timestamp,
    operation: &Operation<'_>,
) -> Result<tollgate_core::Outcome, tollgate_core::Error> {
    fixture.clock.set(now);
    fixture.run(operation)
}
