//! The debts of one subject to the store: a sum that still changes as permits are settled, and calls in the order they are
//! posted. A sum that becomes a call is frozen: it has an id, so that it can be sent twice and count once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tollgate_core::bounds::NUMBER_MAX;
use tollgate_core::{Ask, Costs, Grant, LocalSpending, Permit, Policy, Span, Standing, Timestamp};

use crate::error::Error;
use crate::strategy::random::RandomSource;
use crate::sync::{Mutex, lock};

/// How long the store recognises a posted debt that is sent again.
const POSTED_TTL: Span = Span::from_hours(1);

/// Doubtful admissions per subject that can be settled in the store. Beyond it the oldest give nothing back.
const DOUBTFUL_MAX: usize = 1_024;

/// A call that the store is still to get.
#[derive(Clone, Debug)]
pub(super) enum Job {
    Settle(Permit, Costs),
    Release(Permit),
    Close {
        limit: String,
        until: Timestamp,
    },
    /// `costs` is what the store recognises a repeat by; `spent` says how much still counts when it is sent. `doubtful` is
    /// the local stamp of an admission that the store may have charged before. `before` is where the limits stood in the store
    /// before it was first sent; empty if that is unknown.
    Charge {
        doubtful: Option<u64>,
        id: String,
        ttl: Span,
        costs: Costs,
        spent: Box<LocalSpending>,
        before: Option<Arc<[Standing]>>,
    },
    /// The charge at `index` of an ask that the store may have charged before, with the local stamp of this subject. Every
    /// subject of the ask has one; the first that is posted charges all of them.
    Joint {
        doubtful: u64,
        index: usize,
        charge: Arc<JointCharge>,
    },
}

/// An ask with several charges that the store may have charged before it failed.
#[derive(Debug)]
pub(super) struct JointCharge {
    pub(super) ask: Ask<'static>,
    /// The store's permit, once it is posted; `None` if the store refused it for good.
    posted: Mutex<Option<Option<Permit>>>,
}

impl JointCharge {
    pub(super) fn new(ask: Ask<'static>) -> Self {
        Self { ask, posted: Mutex::new(None) }
    }

    /// The store's permit, if it is posted.
    pub(super) fn posted(&self) -> Option<Option<Permit>> {
        lock(&self.posted).clone()
    }

    /// Notes that the store has it.
    pub(super) fn done(&self, permit: Option<Permit>) {
        lock(&self.posted).get_or_insert(permit);
    }
}

/// How an amount was spent locally.
#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    /// It was admitted.
    Admission,
    /// It was charged without deciding.
    Charge,
}

impl By {
    fn count(self, spent: &mut LocalSpending, costs: &Costs, grant: &Grant) -> Result<(), Error> {
        Ok(match self {
            Self::Admission => spent.admit(costs, grant),
            Self::Charge => spent.charge(costs, grant.at),
        }?)
    }
}

/// An admission that the store may have charged before it failed.
#[derive(Debug)]
enum Doubtful {
    /// Its charge is a job.
    Unposted,
    /// Its charge is a job, and its permit was settled at this cost, or released.
    Settled(Option<Costs>),
    /// The permit that the store gave for it: refundable if the store had charged it before, final if it had not.
    Posted(Permit),
}

/// The result of a settlement.
#[derive(Debug)]
pub(super) enum Settlement {
    /// Whether anything that is owed, or will be, changed.
    Counted(bool),
    /// The store has the charge under `permit`, which is to be settled there at `actual`, or released. `has_extra` says
    /// whether more than the estimate is owed besides.
    InStore { permit: Box<Permit>, actual: Option<Costs>, has_extra: bool },
}

/// The calls that the store is still to get for one subject.
#[derive(Debug)]
pub(super) struct Owed {
    last_stamp: u64,
    /// Local admissions that are in no job yet.
    sum: Costs,
    /// How much of `sum` still counts.
    spent: LocalSpending,
    /// Admissions with a stamp below this are in a job, or posted: they cannot shrink any more.
    frozen_below: u64,
    /// By their local stamp.
    doubtful: BTreeMap<u64, Doubtful>,
    jobs: VecDeque<Job>,
}

impl Owed {
    /// Owes nothing of `policy`, whose limits `instances` share.
    pub(super) fn new(policy: &Policy, instances: u64, now: Timestamp) -> Self {
        Self {
            last_stamp: 0,
            sum: Costs::new(),
            spent: LocalSpending::new(policy, instances, now),
            frozen_below: 0,
            doubtful: BTreeMap::new(),
            jobs: VecDeque::new(),
        }
    }

    /// Goes on in the numbers of `policy`.
    pub(super) fn change_policy(&mut self, policy: &Policy, instances: u64) {
        self.spent.change_policy(policy, instances);
    }

    pub(super) fn is_any(&self) -> bool {
        !self.jobs.is_empty() || self.has_sum()
    }

    fn has_sum(&self) -> bool {
        is_any(&self.sum)
    }

    pub(super) fn jobs(&self) -> usize {
        self.jobs.len()
    }

    /// The stamp of the last admission that is owed, or was.
    pub(super) const fn last_stamp(&self) -> u64 {
        self.last_stamp
    }

    /// The closing that ends last among those not posted to the store yet, if one is still in force.
    pub(super) fn closed_at(&self, now: Timestamp) -> Option<(&str, Timestamp)> {
        let closed = self.jobs.iter().filter_map(|job| match job {
            Job::Close { limit, until } if now < *until => Some((limit.as_str(), *until)),
            _ => None,
        });
        closed.max_by_key(|(_, until)| *until)
    }

    /// Owes what `permit` was given for, once. What the store may have charged already is posted under its own id.
    pub(super) fn add(
        &mut self,
        permit: &Permit,
        ask: &Ask<'_>,
        by: By,
        in_doubt: bool,
    ) -> Result<(), Error> {
        let (grant, costs) = (permit.grant(), ask.costs());
        if grant.stamp <= self.last_stamp {
            return Ok(());
        }
        self.last_stamp = grant.stamp;
        match ask.id_text().filter(|_| in_doubt) {
            Some(id) => {
                let mut spent = self.spent.emptied(grant.at);
                by.count(&mut spent, &costs, grant)?;
                let (id, spent, doubtful) = (id.to_owned(), Box::new(spent), Some(grant.stamp));
                let ttl = ask.id_ttl();
                let job = Job::Charge { doubtful, id, ttl, costs, spent, before: None };
                self.add_doubtful(grant.stamp, job);
            }
            None => {
                change(&mut self.sum, &Costs::new(), &costs);
                by.count(&mut self.spent, &costs, grant)?;
            }
        }
        Ok(())
    }

    /// Owes `job`, the charge of the admission with the local `stamp`, which the store may have made already.
    pub(super) fn add_doubtful(&mut self, stamp: u64, job: Job) {
        self.last_stamp = self.last_stamp.max(stamp);
        self.jobs.push_back(job);
        self.doubtful.insert(stamp, Doubtful::Unposted);
        if DOUBTFUL_MAX < self.doubtful.len() {
            self.doubtful.pop_first();
        }
    }

    /// Has an admission cost `actual` instead of `was`, or nothing at all.
    pub(super) fn settle(
        &mut self,
        grant: &Grant,
        was: &Costs,
        actual: Option<&Costs>,
        now: Timestamp,
    ) -> Result<Settlement, Error> {
        let mut is = was.clone();
        for (unit, amount) in was.iter() {
            is.set(unit, actual.map_or(0, |actual| actual.get(unit).unwrap_or(amount)));
        }
        let more = beyond(&is, was);
        let has_extra = is_any(&more);
        let known = self.doubtful.remove(&grant.stamp);
        if known.is_none() && self.frozen_below <= grant.stamp {
            change(&mut self.sum, was, &is);
            if self.spent.settle((was, &is), grant, now).is_err() {
                // What cannot be given back stays counted.
                self.spent.charge(&more, now)?;
            }
            return Ok(Settlement::Counted(true));
        }
        // What is posted, or on its way, stays; what the call cost beyond it is owed.
        change(&mut self.sum, &Costs::new(), &more);
        self.spent.charge(&more, now)?;
        let less: Costs =
            is.iter().map(|(unit, is)| (unit, is.min(was.get(unit).unwrap_or(0)))).collect();
        let kept = actual.map(|_| less.clone());
        Ok(match known {
            None => Settlement::Counted(has_extra),
            Some(Doubtful::Posted(permit)) => {
                Settlement::InStore { permit: Box::new(permit), actual: kept, has_extra }
            }
            Some(Doubtful::Unposted | Doubtful::Settled(_)) => {
                // Right if the store has not charged it; if it has, it ignores the job, and the settlement comes after it.
                for job in &mut self.jobs {
                    if let Job::Charge { doubtful, spent, .. } = job
                        && *doubtful == Some(grant.stamp)
                    {
                        drop(spent.settle((was, &less), grant, now));
                    }
                }
                self.doubtful.insert(grant.stamp, Doubtful::Settled(kept));
                Settlement::Counted(true)
            }
        })
    }

    /// Keeps a call for the store.
    pub(super) fn keep(&mut self, job: Job) {
        self.jobs.push_back(job);
    }

    /// The next call that the store is to get; the same until it is [`done`](Self::done).
    pub(super) fn next_job(&mut self, now: Timestamp, random: &RandomSource) -> Option<Job> {
        if self.jobs.is_empty() {
            self.freeze(now, random);
        }
        self.jobs.front().cloned()
    }

    /// Stores the standings from before the next call is first sent.
    pub(super) fn note_before(&mut self, found: &Arc<[Standing]>) {
        if let Some(Job::Charge { before, .. }) = self.jobs.front_mut() {
            before.get_or_insert_with(|| Arc::clone(found));
        }
    }

    /// Drops the call that was posted. `permit` is what the store gave for a charge.
    pub(super) fn done(&mut self, permit: Option<Permit>) {
        let (Some(Job::Charge { doubtful: Some(stamp), .. })
        | Some(Job::Joint { doubtful: stamp, .. })) = self.jobs.pop_front()
        else {
            return;
        };
        let Some(known) = self.doubtful.remove(&stamp) else { return };
        match (known, permit) {
            (_, None) => {}
            (Doubtful::Settled(Some(actual)), Some(permit)) => {
                self.jobs.push_front(Job::Settle(permit, actual));
            }
            (Doubtful::Settled(None), Some(permit)) => self.jobs.push_front(Job::Release(permit)),
            (_, Some(permit)) => {
                self.doubtful.insert(stamp, Doubtful::Posted(permit));
            }
        }
    }

    /// Makes one job of what was spent and still counts. From now on it has an id and does not change.
    fn freeze(&mut self, now: Timestamp, random: &RandomSource) {
        if !self.has_sum() {
            return;
        }
        self.sum = Costs::new();
        self.frozen_below = self.last_stamp + 1;
        let empty = self.spent.emptied(now);
        let spent = Box::new(std::mem::replace(&mut self.spent, empty));
        let costs = spent.costs(now);
        if is_any(&costs) {
            self.jobs.push_back(Job::Charge {
                doubtful: None,
                id: random.id(),
                ttl: POSTED_TTL,
                costs,
                spent,
                before: None,
            });
        }
    }
}

fn is_any(costs: &Costs) -> bool {
    costs.iter().any(|(_, amount)| 0 < amount)
}

/// `sum` with `was` replaced by `is`.
fn change(sum: &mut Costs, was: &Costs, is: &Costs) {
    for (unit, amount) in is.iter() {
        let rest = sum.get(unit).unwrap_or(0).saturating_add(amount);
        let rest = rest.saturating_sub(was.get(unit).unwrap_or(0));
        sum.set(unit, rest.min(NUMBER_MAX));
    }
}

/// Returns the amounts of `is` beyond `was`.
fn beyond(is: &Costs, was: &Costs) -> Costs {
    let more = |unit: &str, amount: u64| amount.saturating_sub(was.get(unit).unwrap_or(0));
    is.iter().map(|(unit, amount)| (unit, more(unit, amount))).collect()
}
