//! The wait queues: plain state, without time and without IO.
//!
//! Each (policy, subject) has its own queue, and an ask waits in one of them: that of the charge which refuses it. Only the
//! first of a queue asks the gate, and the next is called when it leaves, so a dropped waiter delays no other.
//!
//! The asks of one tenant are served first come first served. Between tenants, the next is the one that was charged the
//! smallest part of the policy's limits per weight while the queue lasted: its virtual time. A tenant that starts to wait
//! begins at the virtual time of the next, so it can neither save up turns nor be made to pay for those of others.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use tollgate_core::{Amounts, Denial};

use super::snapshot::{
    QueueSnapshot, QueuesSnapshot, SNAPSHOT_QUEUES_MAX, SNAPSHOT_TENANTS_MAX, TenantSnapshot,
};
use crate::error::{Error, ErrorKind};

/// The most asks of one tenant that wait in one queue.
pub const WAITERS_MAX: usize = tollgate_core::bounds::BEHIND_MAX;

/// The most tenants without waiters whose virtual time a queue remembers.
const IDLE_TENANTS_MAX: usize = 4_096;

/// Identifies the queue of one policy and subject.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct QueueKey {
    policy: Box<str>,
    subject: Box<str>,
}

impl QueueKey {
    pub(super) fn new(policy: &str, subject: &str) -> Self {
        Self { policy: policy.into(), subject: subject.into() }
    }
}

/// The place of an ask among those of its tenant, which it keeps when it has to wait again. Drawn when it first waits.
#[derive(Debug, Default)]
pub struct Ticket(Option<u64>);

/// Where an ask waits.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) key: QueueKey,
    tenant: Arc<str>,
    ticket: u64,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    amounts: Amounts,
    /// Whether it has been denied. Until then its first ask is under way and may be charged already, so it is in front of no
    /// other.
    waits: bool,
    /// Set when there may be room; cleared when the waiter asks.
    called: bool,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct Tenant {
    virtual_time: u64,
    /// The weight of its latest waiter.
    weight: u64,
    waiters: VecDeque<Waiter>,
}

impl Tenant {
    fn index(&self, ticket: u64) -> Option<usize> {
        self.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()
    }
}

/// The turn of a tenant: its virtual time, and the ticket of its first waiter.
type Turn = (u64, u64, Arc<str>);

#[derive(Debug, Default)]
struct WaitQueue {
    tenants: HashMap<Arc<str>, Tenant>,
    /// The turns of the tenants that have waiters.
    turns: BTreeSet<Turn>,
    /// The latest denial of a first waiter.
    denial: Option<Box<Denial>>,
}

impl WaitQueue {
    /// The virtual time of the tenant that is served next.
    fn now(&self) -> u64 {
        self.turns.first().map_or(0, |(virtual_time, ..)| *virtual_time)
    }

    fn first_ticket(&self) -> Option<u64> {
        self.turns.first().map(|(_, ticket, _)| *ticket)
    }

    fn turn(&self, name: &Arc<str>) -> Option<Turn> {
        let tenant = self.tenants.get(name)?;
        Some((tenant.virtual_time, tenant.waiters.front()?.ticket, Arc::clone(name)))
    }

    /// Changes the tenant `name`, and calls the first waiter if it is another one then.
    fn change(&mut self, name: &Arc<str>, change: impl FnOnce(&mut Tenant)) -> Option<Waker> {
        let first = self.first_ticket();
        if let Some(turn) = self.turn(name) {
            self.turns.remove(&turn);
        }
        change(self.tenants.entry(Arc::clone(name)).or_default());
        self.turns.extend(self.turn(name));
        if self.first_ticket() == first { None } else { self.call() }
    }

    fn first(&mut self) -> Option<&mut Waiter> {
        let (.., name) = self.turns.first()?;
        self.tenants.get_mut(name)?.waiters.front_mut()
    }

    fn call(&mut self) -> Option<Waker> {
        let first = self.first()?;
        first.called = true;
        first.waker.take()
    }

    fn waiting(&self) -> usize {
        let tenants = self.turns.iter().filter_map(|(.., name)| self.tenants.get(name));
        tenants.map(|tenant| tenant.waiters.len()).sum()
    }

    fn snapshot(&self, key: &QueueKey) -> QueueSnapshot {
        let tenant = |(.., name): &Turn| {
            let Tenant { weight, waiters, .. } = self.tenants.get(name)?;
            Some(TenantSnapshot {
                tenant: Arc::clone(name),
                weight: *weight,
                waiting: waiters.len(),
            })
        };
        let mut tenants: Vec<_> = self.turns.iter().filter_map(tenant).collect();
        tenants.sort_by(|one, other| {
            other.waiting.cmp(&one.waiting).then_with(|| one.tenant.cmp(&other.tenant))
        });
        tenants.truncate(SNAPSHOT_TENANTS_MAX);
        QueueSnapshot {
            policy: key.policy.clone(),
            subject: key.subject.clone(),
            waiting: self.waiting(),
            tenant_count: self.turns.len(),
            tenants,
        }
    }

    /// Forgets tenants without waiters: at first those that would begin at the virtual time of the next anyway.
    fn forget_idle(&mut self) {
        if self.tenants.len() <= self.turns.len() + IDLE_TENANTS_MAX {
            return;
        }
        let now = self.now();
        self.tenants.retain(|_, tenant| !tenant.waiters.is_empty() || now < tenant.virtual_time);
        if self.turns.len() + IDLE_TENANTS_MAX < self.tenants.len() {
            self.tenants.retain(|_, tenant| !tenant.waiters.is_empty());
        }
    }
}

/// The queues of all policies and subjects. Methods return the waker to wake after the lock is released.
#[derive(Debug, Default)]
pub(super) struct WaitQueues {
    queues: HashMap<QueueKey, WaitQueue>,
    next_ticket: u64,
}

impl WaitQueues {
    /// Joins the tenant's line in a queue: at the end, or at the place of `ticket`. An ask that finds the queue empty need not be
    /// called to ask.
    pub(super) fn join(
        &mut self,
        key: QueueKey,
        (tenant, weight): (&str, u64),
        amounts: Amounts,
        drawn: &mut Ticket,
        waits: bool,
    ) -> Result<Place, Error> {
        let queue = self.queues.entry(key.clone()).or_default();
        let known = queue.tenants.get_key_value(tenant);
        if known.is_some_and(|(_, known)| WAITERS_MAX <= known.waiters.len()) {
            return Err(Error::new(
                ErrorKind::Contended,
                format!(
                    "{WAITERS_MAX} asks of {tenant:?} wait for {:?} of {:?} already",
                    key.subject, key.policy
                ),
            ));
        }
        let tenant = known.map_or_else(|| Arc::from(tenant), |(name, _)| Arc::clone(name));
        let next_ticket = &mut self.next_ticket;
        let ticket = *drawn.0.get_or_insert_with(|| {
            *next_ticket += 1;
            *next_ticket
        });
        let now = queue.now();
        let _itself = queue.change(&tenant, |tenant| {
            if tenant.waiters.is_empty() {
                tenant.virtual_time = tenant.virtual_time.max(now);
            }
            tenant.weight = weight;
            let index = tenant.waiters.partition_point(|waiter| waiter.ticket < ticket);
            let waiter = Waiter { ticket, amounts, waits, called: false, waker: None };
            tenant.waiters.insert(index, waiter);
        });
        if let Some(first) = queue.first().filter(|first| first.ticket == ticket) {
            first.called = false;
        }
        Ok(Place { key, tenant, ticket })
    }

    /// Marks an ask as denied: from now on it waits.
    pub(super) fn waits(&mut self, place: &Place) {
        let queue = self.queues.get_mut(&place.key);
        let tenant = queue.and_then(|queue| queue.tenants.get_mut(&place.tenant));
        if let Some(tenant) = tenant
            && let Some(index) = tenant.index(place.ticket)
        {
            tenant.waiters[index].waits = true;
        }
    }

    /// Leaves the queue. If the first left, the next is called.
    #[must_use = "the next waiter sleeps until its waker is woken"]
    pub(super) fn leave(&mut self, place: &Place) -> Option<Waker> {
        let queue = self.queues.get_mut(&place.key)?;
        let index = queue.tenants.get(&place.tenant)?.index(place.ticket)?;
        let next = queue.change(&place.tenant, |tenant| drop(tenant.waiters.remove(index)));
        if queue.turns.is_empty() {
            self.queues.remove(&place.key);
        } else {
            queue.forget_idle();
        }
        next
    }

    /// Calls the first of the queue: there may be room now.
    #[must_use = "the first waiter sleeps until its waker is woken"]
    pub(super) fn call(&mut self, key: &QueueKey) -> Option<Waker> {
        self.queues.get_mut(key)?.call()
    }

    /// Returns whether the waiter is first and was called. Otherwise stores `waker` for that moment.
    pub(super) fn is_called(&mut self, place: &Place, waker: &Waker) -> bool {
        let Some(queue) = self.queues.get_mut(&place.key) else { return false };
        let is_first = queue.first_ticket() == Some(place.ticket);
        let Some(tenant) = queue.tenants.get_mut(&place.tenant) else { return false };
        let Some(index) = tenant.index(place.ticket) else { return false };
        let waiter = &mut tenant.waiters[index];
        if is_first && waiter.called {
            waiter.called = false;
            return true;
        }
        waiter.waker = Some(waker.clone());
        false
    }

    pub(super) fn is_first(&self, place: &Place) -> bool {
        let queue = self.queues.get(&place.key);
        queue.and_then(WaitQueue::first_ticket) == Some(place.ticket)
    }

    /// Remembers the denial of the first waiter, which holds for all that come after it.
    pub(super) fn denied(&mut self, place: &Place, denial: &Denial) {
        if let Some(queue) = self.queues.get_mut(&place.key) {
            queue.denial = Some(Box::new(Denial { joint: None, ..denial.clone() }));
        }
    }

    /// Returns whether an ask of `tenant` that arrives now has to wait for others in the queue, with the latest denial of
    /// the first of them and how many wait.
    pub(super) fn blocks(&self, key: &QueueKey, tenant: &str) -> Option<(Option<&Denial>, usize)> {
        let queue = self.queues.get(key)?;
        let known = queue.tenants.get(tenant);
        let is_blocked = known
            .is_some_and(|known| !known.waiters.is_empty() || queue.now() < known.virtual_time);
        let waiting = || queue.tenants.values().map(|tenant| tenant.waiters.len()).sum();
        is_blocked.then(|| (queue.denial.as_deref(), waiting()))
    }

    /// Adds `share` to the virtual time of `tenant`, if anybody waits in the queue.
    #[must_use = "the first waiter sleeps until its waker is woken"]
    pub(super) fn charged(&mut self, key: &QueueKey, tenant: &str, share: u64) -> Option<Waker> {
        let queue = self.queues.get_mut(key)?;
        let now = queue.now();
        let name = queue.tenants.get_key_value(tenant).map(|(name, _)| Arc::clone(name));
        let next = queue.change(&name.unwrap_or_else(|| tenant.into()), |tenant| {
            tenant.virtual_time = tenant.virtual_time.max(now).saturating_add(share);
        });
        queue.forget_idle();
        next
    }

    /// Takes `share` off the virtual time of `tenant`, though not below that of the tenant that is served next.
    #[must_use = "the first waiter sleeps until its waker is woken"]
    pub(super) fn given_back(&mut self, key: &QueueKey, tenant: &str, share: u64) -> Option<Waker> {
        let queue = self.queues.get_mut(key)?;
        let now = queue.now();
        let (name, known) = queue.tenants.get_key_value(tenant)?;
        if known.virtual_time <= now {
            return None;
        }
        queue.change(&Arc::clone(name), |tenant| {
            tenant.virtual_time = tenant.virtual_time.saturating_sub(share).max(now);
        })
    }

    /// Returns what waits now.
    pub(super) fn snapshot(&self) -> QueuesSnapshot {
        let mut longest: Vec<_> =
            self.queues.iter().map(|(key, queue)| (queue.waiting(), key, queue)).collect();
        longest.sort_unstable_by(|(one, one_key, _), (other, other_key, _)| {
            other.cmp(one).then_with(|| one_key.cmp(other_key))
        });
        QueuesSnapshot {
            waiting: longest.iter().map(|(waiting, ..)| waiting).sum(),
            queue_count: longest.len(),
            queues: longest
                .into_iter()
                .take(SNAPSHOT_QUEUES_MAX)
                .map(|(_, key, queue)| queue.snapshot(key))
                .collect(),
        }
    }

    /// Returns how many asks wait under each policy.
    pub(super) fn waiting_by_policy(&self) -> BTreeMap<Box<str>, usize> {
        let mut sums = BTreeMap::new();
        for (key, queue) in &self.queues {
            *sums.entry(key.policy.clone()).or_default() += queue.waiting();
        }
        sums
    }

    /// Returns the amounts of the asks that wait and are served before `place`, first to last; of the whole queue without one.
    pub(super) fn in_front(&self, key: &QueueKey, place: Option<&Place>) -> Vec<Amounts> {
        let Some(queue) = self.queues.get(key) else { return Vec::new() };
        let turns = queue.turns.iter().filter_map(|(.., name)| queue.tenants.get(name));
        turns
            .flat_map(|tenant| &tenant.waiters)
            .take_while(|waiter| place.is_none_or(|place| waiter.ticket != place.ticket))
            .filter(|waiter| waiter.waits)
            .map(|waiter| waiter.amounts)
            .take(WAITERS_MAX)
            .collect()
    }
}

#[cfg(test)]
mod properties;

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> QueueKey {
        QueueKey::new("account", "acme")
    }

    fn join(queues: &mut WaitQueues, tenant: &str) -> Place {
        queues.join(key(), (tenant, 1), Amounts::default(), &mut Ticket::default(), true).unwrap()
    }

    /// A queue in which every tenant of `waiting` has as many asks as it says.
    fn queues(waiting: &[(&str, usize)]) -> (WaitQueues, Vec<Place>) {
        let mut queues = WaitQueues::default();
        let mut places = Vec::new();
        for (tenant, count) in waiting {
            for _ in 0..*count {
                places.push(join(&mut queues, tenant));
            }
        }
        (queues, places)
    }

    /// Serves the first `count` asks at `share` each, and returns their tenants.
    fn serve(
        queues: &mut WaitQueues,
        places: &mut Vec<Place>,
        shares: &[(&str, u64)],
        count: usize,
    ) -> Vec<Arc<str>> {
        let mut served = Vec::new();
        for _ in 0..count {
            let index = places.iter().position(|place| queues.is_first(place)).unwrap();
            let place = places.remove(index);
            let share = shares.iter().find(|(name, _)| *name == &*place.tenant).unwrap().1;
            let _woken = queues.charged(&place.key, &place.tenant, share);
            let _woken = queues.leave(&place);
            served.push(place.tenant);
        }
        served
    }

    fn count(served: &[Arc<str>], tenant: &str) -> usize {
        served.iter().filter(|name| &***name == tenant).count()
    }

    /// One tenant queued a hundred asks before the other came.
    #[test]
    fn two_backlogged_tenants_take_turns() {
        let (mut queues, mut places) = queues(&[("a", 100), ("b", 10)]);
        let served = serve(&mut queues, &mut places, &[("a", 5), ("b", 5)], 20);
        assert_eq!((count(&served, "a"), count(&served, "b")), (10, 10));
        let rest = serve(&mut queues, &mut places, &[("a", 5)], 90);
        assert_eq!(count(&rest, "a"), 90);
        assert!(queues.queues.is_empty(), "nothing stays of an empty queue");
    }

    /// An ask that was admitted and has to wait again is served before those of its tenant that came after it.
    #[test]
    fn an_ask_that_waits_again_keeps_its_place() {
        let mut queues = WaitQueues::default();
        let mut ticket = Ticket::default();
        let first = queues.join(key(), ("a", 1), Amounts::default(), &mut ticket, true).unwrap();
        let second = join(&mut queues, "a");
        let _woken = queues.leave(&first);
        assert!(queues.is_first(&second));
        let again = queues.join(key(), ("a", 1), Amounts::default(), &mut ticket, true).unwrap();
        assert!(queues.is_first(&again), "not behind the second");
        let _woken = queues.leave(&again);
        assert!(queues.is_first(&second));
    }

    /// Without virtual time the queue is first come first served, which the tests here must tell apart.
    #[test]
    fn a_first_come_queue_would_serve_one_tenant_only() {
        let (mut queues, mut places) = queues(&[("a", 100), ("b", 10)]);
        let served = serve(&mut queues, &mut places, &[("a", 0), ("b", 0)], 20);
        assert_eq!((count(&served, "a"), count(&served, "b")), (20, 0));
    }

    /// A weight of three makes a share of a third, and large asks count as what they are.
    #[test]
    fn turns_follow_shares() {
        let (mut queues, mut places) = queues(&[("light", 90), ("heavy", 90)]);
        let served = serve(&mut queues, &mut places, &[("light", 10), ("heavy", 30)], 80);
        assert_eq!((count(&served, "light"), count(&served, "heavy")), (60, 20));
    }

    /// Between two tenants that always wait, the difference stays within twice the largest share.
    #[test]
    fn the_difference_is_bounded_at_every_step() {
        let tenants = [("a", 300), ("b", 300), ("c", 300)];
        let shares = [("a", 7), ("b", 40), ("c", 13)];
        let (mut queues, mut places) = queues(&tenants);
        let mut charged: HashMap<&str, u64> = HashMap::new();
        for _ in 0..200 {
            let served = serve(&mut queues, &mut places, &shares, 1);
            let (name, share) = shares.iter().find(|(name, _)| *name == &*served[0]).unwrap();
            *charged.entry(name).or_default() += share;
            let of = |name: &str| charged.get(name).copied().unwrap_or(0);
            for (one, other) in [("a", "b"), ("a", "c"), ("b", "c")] {
                assert!(of(one).abs_diff(of(other)) <= 80, "{charged:?}");
            }
        }
    }

    /// A tenant that was away begins where the others are, and has saved nothing up.
    #[test]
    fn a_tenant_that_comes_late_has_no_credit() {
        let (mut queues, mut places) = queues(&[("a", 50)]);
        serve(&mut queues, &mut places, &[("a", 5)], 20);
        for _ in 0..10 {
            places.push(join(&mut queues, "b"));
        }
        let served = serve(&mut queues, &mut places, &[("a", 5), ("b", 5)], 10);
        assert_eq!((count(&served, "a"), count(&served, "b")), (5, 5));
    }

    /// Who does not wait is charged, too, and has to let the others by afterwards.
    #[test]
    fn a_tenant_that_does_not_wait_takes_its_turn_and_no_more() {
        let (mut queues, mut places) = queues(&[("a", 10)]);
        assert!(queues.blocks(&key(), "a").is_some(), "behind its own asks");
        assert!(queues.blocks(&key(), "b").is_none());
        let _woken = queues.charged(&key(), "b", 5);
        assert!(queues.blocks(&key(), "b").is_some());
        serve(&mut queues, &mut places, &[("a", 5)], 1);
        assert!(queues.blocks(&key(), "b").is_none());
    }

    #[test]
    fn what_is_given_back_counts_but_never_as_credit() {
        let (mut queues, places) = queues(&[("a", 2), ("b", 2)]);
        let _woken = queues.charged(&key(), "a", 10);
        assert!(queues.is_first(&places[2]), "b is next");
        let _woken = queues.given_back(&key(), "a", 25);
        assert!(queues.is_first(&places[0]), "a came first");
        let _woken = queues.charged(&key(), "a", 1);
        assert!(queues.is_first(&places[2]), "a has no credit of 15");
    }

    /// A queue remembers a bounded number of tenants without waiters.
    #[test]
    fn idle_tenants_are_forgotten() {
        let (mut queues, places) = queues(&[("a", 1)]);
        for number in 0..3 * IDLE_TENANTS_MAX {
            let _woken = queues.charged(&key(), &format!("idle-{number}"), 1);
        }
        assert!(queues.queues[&key()].tenants.len() <= IDLE_TENANTS_MAX + 2);
        assert!(queues.is_first(&places[0]));
    }

    /// A snapshot lists the longest queues and the tenants with the most waiters, counts the others, and leaves out tenants
    /// without waiters.
    #[test]
    fn a_snapshot_is_bounded() {
        let mut queues = WaitQueues::default();
        let mut join = |subject: &str, tenant: &str, count: usize| {
            for _ in 0..count {
                let key = QueueKey::new("account", subject);
                queues
                    .join(key, (tenant, 3), Amounts::default(), &mut Ticket::default(), true)
                    .unwrap();
            }
        };
        for number in 0..SNAPSHOT_TENANTS_MAX + 5 {
            join("busy", &format!("t{number:03}"), 1 + number % 2);
        }
        for number in 0..SNAPSHOT_QUEUES_MAX + 5 {
            join(&format!("quiet-{number:03}"), "a", 1);
        }
        let _woken = queues.charged(&QueueKey::new("account", "busy"), "idle", 1);
        let snapshot = queues.snapshot();
        let waiting = SNAPSHOT_TENANTS_MAX + 5 + (SNAPSHOT_TENANTS_MAX + 5) / 2;
        assert_eq!(snapshot.waiting, waiting + SNAPSHOT_QUEUES_MAX + 5);
        assert_eq!(snapshot.queue_count, SNAPSHOT_QUEUES_MAX + 6);
        assert_eq!(snapshot.queues.len(), SNAPSHOT_QUEUES_MAX);
        let busy = &snapshot.queues[0];
        assert_eq!((&*busy.subject, busy.waiting), ("busy", waiting));
        assert_eq!(busy.tenant_count, SNAPSHOT_TENANTS_MAX + 5);
        assert_eq!(busy.tenants.len(), SNAPSHOT_TENANTS_MAX);
        let first = &busy.tenants[0];
        assert_eq!((&*first.tenant, first.weight, first.waiting), ("t001", 3, 2));
    }
}
