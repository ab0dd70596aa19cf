//! Alternatives: one of several subjects is charged, such as one of several deployments or keys.
//!
//! A refusal takes nothing, so the alternatives are simply asked for one after the other: [`GateExt::acquire_any`] returns the
//! first that is admitted, or the denial with the shortest wait, and
//! [`Queue::acquire_any_within`](crate::Queue::acquire_any_within) waits for that one.

use tollgate_core::bounds::ALTERNATIVES_MAX;
use tollgate_core::{Ask, Decision, Denial, Policy, Wait};

use crate::error::{Error, ErrorKind};
#[cfg(doc)]
use crate::gate::GateExt;

/// An ask with one more charge, for the first of several subjects that has room.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tollgate::gate::Alternatives;
/// use tollgate::{Ask, GateExt, Limit, Memory, Policy, TokenBucket};
///
/// let user = Policy::new("user", [Limit::new("rpm", "requests", TokenBucket::per_minute(100))])?;
/// let key = Policy::new("key", [Limit::new("rpm", "requests", TokenBucket::per_minute(1))])?;
/// let gate = Memory::new();
/// let either = Alternatives::new(&Ask::new(&user, "u1"), [(&key, "key-a"), (&key, "key-b")])?;
/// let mut charged = Vec::new();
/// while let Some(permit) = gate.acquire_any(&either).await?.into_permit() {
///     charged.extend(permit.parts().last().map(|part| part.subject().to_owned()));
/// }
/// assert_eq!(charged, ["key-a", "key-b"]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Alternatives<'a> {
    asks: Vec<Ask<'a>>,
    /// How many charges all of them have in common.
    shared: usize,
}

impl<'a> Alternatives<'a> {
    /// `ask` with a charge for one of `group`, which the costs of the ask apply to. They are tried in this order.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a wrong ask, if there is no alternative, more than [`ALTERNATIVES_MAX`], or one
    /// twice.
    pub fn new(
        ask: &Ask<'a>,
        group: impl IntoIterator<Item = (&'a Policy, &'a str)>,
    ) -> Result<Self, Error> {
        let join = |(policy, subject)| ask.clone().and(policy, subject);
        Self::from_asks(group.into_iter().map(join).collect(), ask.charges().len())
    }

    /// Whole asks, of which one is to be admitted, in this order. Their first `shared` charges are the same, apart from costs: a
    /// refusal by one of them refuses all.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_asks(asks: Vec<Ask<'a>>, shared: usize) -> Result<Self, Error> {
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        if !(1..=ALTERNATIVES_MAX).contains(&asks.len()) {
            return invalid(format!("an ask has 1 to {ALTERNATIVES_MAX} alternatives"));
        }
        asks.iter().try_for_each(Ask::check)?;
        if let [ask] = asks.as_slice()
            && ask.id_text().is_none()
        {
            // Only an id is compared by its digest.
            return Ok(Self { asks, shared });
        }
        let digests: Vec<u64> = asks.iter().map(Ask::digest).collect();
        if (1..digests.len()).any(|index| digests[..index].contains(&digests[index])) {
            return invalid("an ask names an alternative twice; name it once".to_owned());
        }
        // Of the ask as it is written: other alternatives make the same id a conflict.
        let written = digests.iter().fold(1, |all: u64, one| all.rotate_left(7) ^ one);
        let asks = asks.into_iter().map(|ask| ask.alternative(written)).collect();
        Ok(Self { asks, shared })
    }

    /// An ask without alternatives.
    pub(crate) fn only(ask: &Ask<'a>) -> Self {
        Self { asks: vec![ask.clone()], shared: ask.charges().len() }
    }

    /// Returns the asks, of which one is to be admitted.
    #[must_use]
    pub fn asks(&self) -> &[Ask<'a>] {
        &self.asks
    }

    pub(crate) const fn trial(&self) -> Trial<'_, 'a> {
        Trial { of: self, index: 0, rounds: 0, shortest: None, end: None }
    }

    /// Whether a charge that all of them have refuses: no other alternative would fit.
    fn is_refused_outside(&self, denial: &Denial) -> bool {
        let joint = denial.joint.as_ref();
        joint.is_some_and(|joint| joint.refused.iter().any(|limit| limit.charge < self.shared))
    }
}

/// One pass over the alternatives.
#[derive(Debug)]
pub(crate) struct Trial<'i, 'a> {
    of: &'i Alternatives<'a>,
    index: usize,
    rounds: usize,
    shortest: Option<(usize, Denial)>,
    end: Option<Result<Decision, Error>>,
}

impl<'i, 'a> Trial<'i, 'a> {
    /// Returns the next ask to try.
    pub(crate) fn next(&mut self) -> Option<&'i Ask<'a>> {
        let is_conflict = matches!(&self.end, Some(Err(error)) if is_conflict(error));
        if self.index == self.of.asks.len() && is_conflict && self.rounds == 0 {
            // The id was remembered for an alternative that this pass had tried before.
            (self.index, self.rounds, self.shortest, self.end) = (0, 1, None, None);
        }
        if self.end.is_some() && !is_conflict {
            return None;
        }
        self.of.asks.get(self.index)
    }

    /// Adds the result of that ask. A lost reply ends the trial, since the charge may have been made. A conflict does not:
    /// the id may be that of another alternative.
    pub(crate) fn add(&mut self, result: Result<Decision, Error>) {
        match result {
            Ok(Decision::Denied(denial)) if !self.of.is_refused_outside(&denial) => {
                let is_shorter = |known: &(usize, Denial)| is_shorter(&denial, &known.1);
                if self.shortest.as_ref().is_none_or(is_shorter) {
                    self.shortest = Some((self.index, denial));
                }
            }
            end => self.end = Some(end),
        }
        self.index += 1;
    }

    /// Returns the decision, and the index of the ask that it is about.
    pub(crate) fn finish(self) -> Result<(usize, Decision), Error> {
        match (self.end, self.shortest) {
            (Some(end), _) => Ok((self.index.saturating_sub(1), end?)),
            (None, Some((index, denial))) => Ok((index, Decision::Denied(denial))),
            (None, None) => Err(Error::new(ErrorKind::Invalid, "an ask without alternatives")),
        }
    }
}

fn is_conflict(error: &Error) -> bool {
    error.kind() == ErrorKind::Conflict
}

fn is_shorter(one: &Denial, other: &Denial) -> bool {
    match (one.wait, other.wait) {
        (Wait::Until(one), Wait::Until(other)) => one < other,
        (Wait::Until(_), Wait::Never) => true,
        (Wait::Never, _) => false,
    }
}
