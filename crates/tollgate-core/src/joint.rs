//! One decision over the entries of several charges: all of them are charged, or none.
//!
//! A store that can hold several entries at once (memory, an embedded database) judges every entry first, which changes
//! nothing. Then all of them are charged, or none:
//!
//! ```
//! use tollgate_core::{Ask, Entry, JointDecision, Known, Limit, Operation, Outcome, Policy, Timestamp, TokenBucket};
//!
//! let user = Policy::new("user", [Limit::new("rpm", "requests", TokenBucket::per_minute(10))])?;
//! let team = Policy::new("team", [Limit::new("rpm", "requests", TokenBucket::per_minute(1))])?;
//! let ask = Ask::new(&user, "u1").and(&team, "t7");
//! let now = Timestamp::from_secs(1);
//! let mut entries = [Entry::fresh(&user, now), Entry::fresh(&team, now)];
//! let mut decide = || {
//!     let mut decision = JointDecision::new(&Operation::Acquire(&ask), Known::New, &[], now)?;
//!     entries.iter().try_for_each(|entry| decision.judge(entry))?;
//!     let is_charged = decision.conclude()?;
//!     entries.iter_mut().for_each(|entry| decision.complete(entry));
//!     Ok::<_, tollgate_core::Error>(is_charged)
//! };
//! assert!(decide()?);
//! assert!(!decide()?, "the team has one request per minute");
//! # Ok::<(), tollgate_core::Error>(())
//! ```

use smallvec::SmallVec;

use crate::answer::{ChargeStandings, Decision, Denial, JointDenial, Permit, RefusedLimit};
use crate::ask::Ask;
use crate::decide::{self, ChargeRecord, Grant, Verdict, Wait};
use crate::entry::Entry;
use crate::error::Error;
use crate::id::{IdChange, Known};
use crate::operation::{self, Operation, Outcome};
use crate::settle;
use crate::standing::{Standing, standings};
use crate::time::Timestamp;

/// The decision of an ask over the entries of its charges, in three steps: [`judge`](Self::judge) every entry in the order
/// of the ask, [`conclude`](Self::conclude), and [`complete`](Self::complete) every entry in the same order.
#[derive(Debug)]
pub struct JointDecision<'a> {
    ask: &'a Ask<'a>,
    is_forced: bool,
    now: Timestamp,
    /// What the charges got under the ask's id, if it is known.
    given: SmallVec<[ChargeRecord; 4]>,
    known: Known,
    /// Whether the first entry was reset since, which makes the id a new one.
    was_reset: bool,
    /// Whether slots that were given are gone: the permit is worth nothing without them.
    is_lost: bool,
    /// Of each charge, its denial if it does not fit.
    judged: SmallVec<[Option<Box<Refused>>; 4]>,
    /// Whether the charge at an index is admitted whatever its entry says, by bit.
    open: u16,
    conclusion: Conclusion,
    /// How many charges are completed.
    completed: usize,
    permits: Vec<Permit>,
    /// Of each charge of a denied ask.
    standings: Vec<Vec<Standing>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conclusion {
    Charged,
    Repeated,
    Denied,
}

#[derive(Debug)]
struct Refused {
    denial: Denial,
    limits: Vec<RefusedLimit>,
    is_shadow: bool,
}

/// The result of a [`JointDecision`].
#[derive(Clone, Debug, PartialEq)]
pub struct Joint {
    /// The answer.
    pub outcome: Outcome,
    /// What to do with the id of the ask, atomically with the charges.
    pub id: IdChange,
    /// What the charges after the first got, to be remembered with the id.
    pub others: Vec<ChargeRecord>,
}

impl<'a> JointDecision<'a> {
    /// Begins the decision of `operation` at `now`. `known` is what the store knows of the ask's id, and `others` what the
    /// charges after the first got under it.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for an operation that is neither an acquire nor a charge, and for a wrong ask.
    pub fn new(
        operation: &Operation<'a>,
        known: Known,
        others: &[ChargeRecord],
        now: Timestamp,
    ) -> Result<Self, Error> {
        let (ask, is_forced) = match *operation {
            Operation::Acquire(ask) => (ask, false),
            Operation::Charge(ask) => (ask, true),
            _ => return Err(Error::invalid("only an acquire or a charge is decided jointly")),
        };
        ask.check()?;
        let first = match known {
            Known::Before(given) => Some(given.charge),
            Known::New | Known::Full => None,
        };
        Ok(Self {
            ask,
            is_forced,
            now,
            given: first.into_iter().chain(others.iter().copied()).collect(),
            known,
            was_reset: false,
            is_lost: false,
            judged: SmallVec::new(),
            open: 0,
            conclusion: Conclusion::Denied,
            completed: 0,
            permits: Vec::new(),
            standings: Vec::new(),
        })
    }

    /// Judges the entry of the next charge, a [fresh](Entry::fresh) one where the store has none. Changes nothing.
    ///
    /// # Errors
    /// [`Contended`](crate::ErrorKind::Contended) if there is no room for another permit in flight.
    pub fn judge(&mut self, entry: &Entry) -> Result<(), Error> {
        self.judge_by(entry, self.is_forced)
    }

    /// Does the same for a charge that is admitted whatever its entry says, as a policy may ask for while its store is away.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the ask has no such charge.
    pub fn judge_open(&mut self, entry: &Entry) -> Result<(), Error> {
        self.open |= 1 << self.judged.len();
        self.judge_by(entry, true)
    }

    fn judge_by(&mut self, entry: &Entry, is_forced: bool) -> Result<(), Error> {
        let index = self.judged.len();
        let Some(part) = self.ask.part(index) else {
            return Err(Error::invalid("an entry more than the ask has charges"));
        };
        let carried;
        let entry = if entry.policy().has_shape_of(part.policy()) {
            entry
        } else {
            carried = entry.carried_to(part.policy());
            &carried
        };
        self.compare_with_given(index, entry, &part);
        let verdict = if is_forced {
            None
        } else {
            Some(decide::decide(entry, self.now, &part, Known::New)?)
        };
        self.judged.push(match verdict {
            Some(Verdict::Denied(refusal)) => {
                let limits = decide::refusals(entry, self.now, part.amounts());
                Some(Box::new(Refused {
                    limits: limits.map(|limit| RefusedLimit::new(index, &part, limit)).collect(),
                    denial: operation::denial(entry, self.now, &part, refusal),
                    is_shadow: part.policy().is_shadow(),
                }))
            }
            _ => None,
        });
        Ok(())
    }

    fn compare_with_given(&mut self, index: usize, entry: &Entry, part: &Ask<'_>) {
        let now = entry.effective(self.now);
        if index == 0 && self.known.before(now).is_none() {
            self.given.clear();
        }
        let Some(record) = self.given.get(index).filter(|record| record.stamp != 0) else { return };
        if index == 0 {
            let settled = entry.extra().map(|extra| &extra.settled);
            self.was_reset = settled.is_some_and(|settled| settled.was_reset(record.stamp));
        }
        self.is_lost |= !decide::is_still_valid(entry, now, *record, part.amounts());
    }

    /// Decides, once every entry is judged, and returns whether the entries are charged: the ask is admitted, and not a
    /// repeat. Whatever the store may yet refuse, such as room for a new entry, must be certain by then.
    ///
    /// # Errors
    /// [`Conflict`](crate::ErrorKind::Conflict) if the id was used with another ask, [`Contended`](crate::ErrorKind::Contended) if there is no room for another
    /// id.
    pub fn conclude(&mut self) -> Result<bool, Error> {
        let never_fits = self.enforced().any(|refused| refused.denial.wait == Wait::Never);
        self.conclusion = if never_fits {
            Conclusion::Denied
        } else if self.is_repeat()? {
            Conclusion::Repeated
        } else if self.enforced().next().is_some() {
            Conclusion::Denied
        } else {
            decide::ensure_room_for_id(self.ask, self.known)?;
            Conclusion::Charged
        };
        Ok(self.conclusion == Conclusion::Charged)
    }

    fn is_repeat(&self) -> Result<bool, Error> {
        let (Some(id), Known::Before(given)) = (self.ask.id_text(), self.known) else {
            return Ok(false);
        };
        if self.was_reset || self.given.is_empty() {
            return Ok(false);
        }
        if given.digest != self.ask.digest() {
            return Err(decide::conflict(id));
        }
        Ok(self.is_forced || !self.is_lost)
    }

    /// The refusals of policies that are not in shadow mode.
    fn enforced(&self) -> impl Iterator<Item = &Refused> {
        self.judged.iter().flatten().map(|refused| &**refused).filter(|refused| !refused.is_shadow)
    }

    /// Returns whether [`complete`](Self::complete) changes the entry of the charge at `index`. A policy in shadow mode is
    /// not charged what it would refuse.
    #[must_use]
    pub fn is_charged(&self, index: usize) -> bool {
        self.conclusion == Conclusion::Charged && matches!(self.judged.get(index), Some(None))
    }

    /// Completes the entry of the next charge: the one that was judged. Changes it only if the ask is charged.
    pub fn complete(&mut self, entry: &mut Entry) {
        let index = self.completed;
        let Some(part) = self.ask.part(index) else { return };
        self.completed += 1;
        let record = match (self.conclusion, self.judged.get(index)) {
            (Conclusion::Charged, Some(Some(shadowed))) => {
                self.permits.push(Permit::in_shadow(&part, shadowed.denial.clone()));
                return;
            }
            (Conclusion::Charged, _) => Some(self.charge(index, entry, &part)),
            (Conclusion::Repeated, _) => self.given.get(index).copied(),
            (Conclusion::Denied, _) => None,
        };
        let standings = standings(entry, self.now);
        let Some(record) = record else { return self.standings.push(standings) };
        let mut grant = Grant::new(record, part.policy(), part.amounts());
        if self.is_forced {
            grant.expires_at = None;
        }
        let mut permit = Permit::for_ask(&part, grant, standings);
        if self.ask.has_own_costs(index) {
            permit = permit.with_own_costs();
        }
        self.permits.push(permit);
    }

    fn charge(&self, index: usize, entry: &mut Entry, part: &Ask<'_>) -> ChargeRecord {
        if !entry.adopt(part.policy()) {
            *entry = entry.carried_to(part.policy());
        }
        let (at, stamp) = (entry.effective(self.now), entry.next_stamp());
        if self.is_forced || self.open >> index & 1 == 1 {
            return settle::charge_now(entry, at, part);
        }
        decide::commit(entry, at, part);
        ChargeRecord { at, stamp }
    }

    /// Returns the answer, once every entry is completed.
    #[must_use]
    pub fn finish(self) -> Joint {
        let record =
            |permit: &Permit| ChargeRecord { at: permit.grant().at, stamp: permit.grant().stamp };
        let mut others = self.permits.iter().map(record);
        let (first, others) = (others.next(), others.collect());
        let id = match (self.conclusion, first) {
            (Conclusion::Charged, Some(first)) => {
                IdChange::after(self.ask, Verdict::Admitted(first))
            }
            _ => IdChange::Nothing,
        };
        let outcome = if self.conclusion == Conclusion::Denied {
            Outcome::Decided(Decision::Denied(self.denial()))
        } else {
            let permit = Permit::joined(self.permits).with_id(self.ask.id_text());
            if self.is_forced {
                Outcome::Permitted(permit)
            } else {
                Outcome::Decided(Decision::Admitted(permit))
            }
        };
        Joint { outcome, id, others }
    }

    /// The denial with the longest wait, then the first in the order of the ask, and all that refuses beside it.
    fn denial(self) -> Denial {
        let charges =
            self.ask.charges().zip(self.standings).map(|(charge, limits)| ChargeStandings {
                policy: charge.policy().shared_name(),
                subject: charge.subject().into(),
                limits,
            });
        let charges = charges.collect();
        let mut refused = self.judged.into_iter().flatten().filter(|refused| !refused.is_shadow);
        let Refused { mut denial, mut limits, .. } =
            *refused.next().expect("a denied ask has a charge that is refused");
        let mut not_before = exact_wait(&denial);
        for other in refused {
            not_before = not_before.max(exact_wait(&other.denial));
            limits.extend(other.limits);
            if is_longer(other.denial.bound(), denial.bound()) {
                denial = other.denial;
            }
        }
        if let Some(not_before) = not_before {
            denial = denial.not_before_others(not_before);
        }
        Denial { joint: Some(Box::new(JointDenial { refused: limits, charges })), ..denial }
    }
}

/// The wait that no release of slots shortens, if it is not for ever.
fn exact_wait(denial: &Denial) -> Option<Timestamp> {
    if denial.is_estimated() { Some(denial.not_before()) } else { denial.reset_at() }
}

fn is_longer(wait: Wait, than: Wait) -> bool {
    match (wait, than) {
        (Wait::Never, Wait::Until(_)) => true,
        (Wait::Until(wait), Wait::Until(than)) => than < wait,
        (_, Wait::Never) => false,
    }
}
