//! Applies operations to the entry of an item.

use tollgate::core::bounds::SETTLED_RUNS_MAX_SHARED;
use tollgate::core::{Applied, Change, Entry, IdChange, Known};
use tollgate::gate::Operation;
use tollgate::{Error, ErrorKind, Timestamp};

use crate::format::Format;
use crate::item::{Item, given_back, refined};
use crate::refund::Observation;
use crate::swap_queue::Outcomes;

/// The known state of an item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) item: Option<&'a Item>,
    /// Earlier observations.
    pub(crate) observations: &'a [Observation],
    /// The format of the next write.
    pub(crate) format: Format,
}

impl<'a> Seen<'a> {
    /// The state for a store that writes `format`.
    pub(crate) fn new(item: Option<&'a Item>, format: Format) -> Self {
        Self { item, observations: &[], format: format.after(item) }
    }

    /// Returns the entry for `operation`; a fresh one without an item.
    pub(crate) fn entry(&self, operation: &Operation<'_>, now: Timestamp) -> Result<Entry, Error> {
        let numbers = self.format.numbers(operation.policy());
        match self.item {
            Some(item) => item.entry_with(numbers, given_back(operation), self.observations),
            None => Ok(Entry::fresh(numbers, now)),
        }
    }
}

/// Runs `operation` at `now` on the entry of `seen`.
pub(crate) fn run(
    operation: &Operation<'_>,
    seen: Seen<'_>,
    known: Known,
    now: Timestamp,
) -> Result<(Applied, Entry), Error> {
    let mut entry = seen.entry(operation, now)?;
    let applied = run_on(&mut entry, operation, seen, known, now)?;
    Ok((applied, entry))
}

/// The result of a sequence of operations.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) answers: Outcomes,
    /// The change of the first operation's id.
    pub(crate) id: IdChange,
    /// The entry afterwards; `None` if nothing changed.
    pub(crate) entry: Option<Entry>,
}

/// As [`run`], for a sequence of operations. A failed operation changes nothing.
pub(crate) fn run_all(
    operations: &[Operation<'_>],
    seen: Seen<'_>,
    known: Known,
    now: Timestamp,
) -> Result<Ran, Error> {
    let Some((first, rest)) = operations.split_first() else {
        return Ok(Ran { answers: Outcomes::new(), id: IdChange::Nothing, entry: None });
    };
    let mut entry = seen.entry(first, now)?;
    let (mut answers, mut changed) = (Outcomes::with_capacity(operations.len()), false);
    let mut add = |applied: Result<Applied, Error>| {
        let id = applied.as_ref().map_or(IdChange::Nothing, |applied| applied.id);
        changed |= applied.as_ref().is_ok_and(|applied| applied.change == Change::Entry);
        answers.push(applied.map(|applied| applied.outcome));
        id
    };
    let id = add(run_on(&mut entry, first, seen, known, now));
    for operation in rest {
        if let Some(permit) = given_back(operation)
            && seen.format == Format::New
        {
            entry = refined(entry, permit)?;
        }
        add(run_on(&mut entry, operation, seen, Known::New, now));
    }
    Ok(Ran { answers, id, entry: changed.then_some(entry) })
}

/// Runs `operation` on `entry`, which a failure does not change.
fn run_on(
    entry: &mut Entry,
    operation: &Operation<'_>,
    Seen { item, format, .. }: Seen<'_>,
    known: Known,
    now: Timestamp,
) -> Result<Applied, Error> {
    let is_refused = matches!(operation, Operation::Acquire(ask) if ask.is_refundable())
        && item.is_some_and(|item| item.is_full_at(now));
    if !is_refused {
        return format.apply(operation, entry, known, now);
    }
    let applied = format.apply(operation, &mut entry.clone(), known, now)?;
    if applied.change == Change::Entry { Err(too_many_in_flight()) } else { Ok(applied) }
}

/// The error of a subject with too many permits that are not settled.
pub(crate) fn too_many_in_flight() -> Error {
    Error::new(
        ErrorKind::Contended,
        format!(
            "dynamodb: more than {SETTLED_RUNS_MAX_SHARED} permits of this subject are not settled; settle or release \
             them, or retry later"
        ),
    )
}
