//! Rules ready to decide, behind one interface.

use super::{
    Calendar, CalendarState, Continuous, Interval, Lows, Slots, State, View, ViewMut, Window,
};
use crate::bounds::NUMBER_MAX;
use crate::decide::ChargeRecord;
use crate::time::{Span, Timestamp};

/// A rule ready to decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gauge {
    Continuous(Continuous),
    Interval(Interval),
    Window(Window),
    Calendar(Calendar),
    Slots(Slots),
}

/// How a continuous bucket computes a refund.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refunds {
    /// From its lows: the part that time has not given back.
    Recorded,
    /// The part that time has not refilled since the charge. It needs no lows, and ends their record.
    Unrefilled,
}

/// The charge that an amount belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChargeTag {
    pub(crate) stamp: u64,
    /// Whether it may be given back.
    pub(crate) refundable: bool,
}

impl ChargeTag {
    /// Records in `lows` the level of a bucket just before this charge.
    #[inline(always)]
    pub(crate) fn record(self, lows: &mut Option<Box<Lows>>, used: u64) {
        match lows {
            Some(lows) => lows.record(self, used),
            None if self.refundable => *lows = Some(Box::new(Lows::starting_at(self.stamp))),
            None => {}
        }
    }
}

/// A state has the same index in its entry as its gauge in the policy. [`Entry`](crate::Entry) and the codec make no other
/// pair, so a mismatch gets the strictest result instead of a panic.
impl Gauge {
    pub(crate) fn fresh(&self) -> State {
        match self {
            Self::Continuous(_) | Self::Interval(_) => State::Bucket(0, None),
            Self::Window(_) => State::Window(Box::default()),
            Self::Calendar(_) => State::Calendar(CalendarState::default()),
            Self::Slots(_) => State::Slots(Vec::new()),
        }
    }

    pub(crate) const fn fits(&self, state: &State) -> bool {
        matches!(
            (self, state),
            (Self::Continuous(_) | Self::Interval(_), State::Bucket(..))
                | (Self::Window(_), State::Window(_))
                | (Self::Calendar(_), State::Calendar(_))
                | (Self::Slots(_), State::Slots(_))
        )
    }

    /// The most that can ever be asked for at once: the effective capacity.
    #[inline]
    pub(crate) const fn most(&self) -> u64 {
        match self {
            Self::Continuous(gauge) => gauge.most(),
            Self::Interval(gauge) => gauge.most(),
            Self::Window(gauge) => gauge.most(),
            Self::Calendar(gauge) => gauge.most(),
            Self::Slots(gauge) => gauge.most(),
        }
    }

    /// Returns the usage at `now`, given the state as of `since`.
    pub(crate) fn used(&self, state: View<'_>, since: Timestamp, now: Timestamp) -> u64 {
        match (self, state) {
            (Self::Continuous(gauge), View::Bucket(used, _)) => {
                gauge.tokens_ceil(gauge.level(used, since, now))
            }
            (Self::Interval(gauge), View::Bucket(used, _)) => gauge.level(used, since, now),
            (Self::Window(gauge), View::Window(log)) => gauge.used(log, now),
            (Self::Calendar(gauge), View::Calendar(window)) => gauge.state_at(window, now).used,
            (Self::Slots(_), View::Slots(held)) => Slots::used(held, now),
            _ => self.most(),
        }
    }

    /// The first instant from `now` on at which `cost` fits, if nothing else happens. `cost` is at most
    /// [`most`](Self::most).
    #[inline(always)]
    pub(crate) fn ready_at(
        &self,
        state: View<'_>,
        since: Timestamp,
        now: Timestamp,
        cost: u64,
    ) -> Timestamp {
        match (self, state) {
            (Self::Continuous(gauge), View::Bucket(used, _)) => {
                gauge.ready_at(gauge.level(used, since, now), now, cost)
            }
            (Self::Interval(gauge), View::Bucket(used, _)) => {
                gauge.ready_at(gauge.level(used, since, now), now, cost)
            }
            (Self::Window(gauge), View::Window(log)) => gauge.ready_at(log, now, cost),
            (Self::Calendar(gauge), View::Calendar(window)) => gauge.ready_at(window, now, cost),
            (Self::Slots(gauge), View::Slots(held)) => gauge.ready_at(held, now, cost),
            _ => Timestamp::MAX,
        }
    }

    /// Advances the state from `since` to `now`: refills, expires amounts, starts a new window.
    #[inline(always)]
    pub(crate) fn advance(&self, state: ViewMut<'_>, since: Timestamp, now: Timestamp) {
        match (self, state) {
            (Self::Continuous(gauge), ViewMut::Bucket(used, lows)) => {
                *used = gauge.level(*used, since, now);
                if *used == 0
                    && let Some(Some(lows)) = lows
                {
                    lows.clear();
                }
            }
            (Self::Interval(gauge), ViewMut::Bucket(used, _)) => {
                *used = gauge.level(*used, since, now);
            }
            (Self::Window(gauge), ViewMut::Window(log)) => gauge.advance(log, now),
            (Self::Calendar(gauge), ViewMut::Calendar(window)) => {
                *window = gauge.state_at(window, now);
            }
            (Self::Slots(_), ViewMut::Slots(held)) => Slots::advance(held, now),
            _ => {}
        }
    }

    /// Brings the state from `since` to `now` and charges `cost` to it, whether it fits or not.
    #[inline(always)]
    pub(crate) fn charge(
        &self,
        state: ViewMut<'_>,
        since: Timestamp,
        now: Timestamp,
        cost: u64,
        tag: ChargeTag,
    ) {
        if cost == 0 {
            return self.advance(state, since, now);
        }
        match (self, state) {
            (Self::Continuous(gauge), ViewMut::Bucket(used, lows)) => {
                let level = gauge.level(*used, since, now);
                if let Some(lows) = lows {
                    tag.record(lows, level);
                }
                *used = gauge.add(level, cost);
            }
            (Self::Interval(gauge), ViewMut::Bucket(used, _)) => {
                *used = gauge.level(*used, since, now).saturating_add(cost).min(NUMBER_MAX);
            }
            (Self::Window(gauge), ViewMut::Window(log)) => {
                gauge.advance(log, now);
                gauge.add(log, now, cost);
            }
            (Self::Calendar(gauge), ViewMut::Calendar(window)) => {
                *window = gauge.state_at(window, now);
                gauge.add(window, now, cost);
            }
            (Self::Slots(gauge), ViewMut::Slots(held)) => {
                Slots::advance(held, now);
                gauge.add(held, now, cost, tag.stamp);
            }
            _ => {}
        }
    }

    /// Charges all that a fresh state has, at least: a bucket becomes empty and gets no debt.
    pub(crate) fn use_up(&self, state: ViewMut<'_>, now: Timestamp, tag: ChargeTag) {
        match (self, state) {
            (Self::Continuous(gauge), ViewMut::Bucket(used, lows)) => {
                if let Some(lows) = lows {
                    tag.record(lows, *used);
                }
                *used = gauge.add(0, gauge.most()).max(*used);
            }
            (Self::Interval(gauge), ViewMut::Bucket(used, _)) => *used = gauge.most().max(*used),
            (_, state) => self.charge(state, now, now, self.most(), tag),
        }
    }

    /// Charges `amount` that was spent at `at`, not after `now`, and posted only now. A rolling window files it under its
    /// own time. What a bucket could have issued empties it at most; the rest is debt.
    pub(crate) fn add_earlier(
        &self,
        state: ViewMut<'_>,
        at: Timestamp,
        now: Timestamp,
        amount: u64,
        tag: ChargeTag,
    ) {
        match (self, state) {
            (Self::Window(gauge), ViewMut::Window(log)) => gauge.add_earlier(log, at, now, amount),
            (Self::Continuous(_) | Self::Interval(_), ViewMut::Bucket(used, lows)) => {
                if let (Self::Continuous(_), Some(lows)) = (self, lows) {
                    tag.record(lows, *used);
                }
                let issued = amount.min(self.most());
                let room = self.level_of(self.most()).saturating_sub(*used);
                let debt = self.level_of(amount - issued);
                let level = used.saturating_add(self.level_of(issued).min(room));
                *used = level.saturating_add(debt).min(NUMBER_MAX);
            }
            (_, state) => self.charge(state, now, now, amount, tag),
        }
    }

    /// Raises `state` so that from the time that it and `other` are of, it has room only when both have. Nothing that was
    /// charged can be given back to a bucket afterwards.
    pub(crate) fn raise(&self, state: ViewMut<'_>, other: &State) {
        match (state, other) {
            (ViewMut::Bucket(used, lows), State::Bucket(other, _)) => {
                *used = (*used).max(*other);
                if let Some(lows) = lows {
                    *lows = None;
                }
            }
            (ViewMut::Window(log), State::Window(other)) => *log = log.envelope(other),
            (ViewMut::Calendar(window), State::Calendar(other)) => {
                // Windows of one time end alike, unless the rules of the time zone changed.
                window.end = window.end.max(other.end);
                window.used = window.used.max(other.used);
                window.late = window.late.max(other.late);
            }
            (ViewMut::Slots(held), State::Slots(other)) => Slots::unite(held, other),
            _ => {}
        }
    }

    /// How many tokens the level of a bucket stands for, rounded up.
    pub(crate) fn tokens_of(&self, level: u64) -> u64 {
        match self {
            Self::Continuous(gauge) => gauge.tokens_ceil(level),
            _ => level,
        }
    }

    /// The level of a bucket of which `tokens` are used.
    pub(crate) fn level_of(&self, tokens: u64) -> u64 {
        match self {
            Self::Continuous(gauge) => gauge.add(0, tokens),
            _ => tokens.min(NUMBER_MAX),
        }
    }

    /// Returns the usage of a state as of `since` that still counts at `now`, as ages and amounts for [`add_earlier`](Self::add_earlier).
    pub(crate) fn lumps(
        &self,
        state: View<'_>,
        since: Timestamp,
        now: Timestamp,
    ) -> Vec<(Span, u64)> {
        match (self, state) {
            (Self::Window(gauge), View::Window(log)) => gauge.lumps(log, now),
            (Self::Slots(_), _) => Vec::new(),
            (_, state) => {
                let used = self.used(state, since, now);
                (0 < used).then_some((Span::ZERO, used)).into_iter().collect()
            }
        }
    }

    /// Gives back `amount` of what was `charged`, without making room twice. Slots are freed by [`free`](Self::free)
    /// instead.
    pub(crate) fn give_back(
        &self,
        state: ViewMut<'_>,
        now: Timestamp,
        amount: u64,
        charged: ChargeRecord,
        refunds: Refunds,
    ) {
        let charged_at = charged.at;
        match (self, state) {
            (Self::Continuous(gauge), ViewMut::Bucket(used, Some(lows))) => match refunds {
                Refunds::Recorded => gauge.give_back(used, lows, amount, charged.stamp),
                Refunds::Unrefilled => {
                    *used = gauge.give_back_unrefilled(*used, amount, now.since(charged_at));
                    *lows = None;
                }
            },
            (Self::Interval(gauge), ViewMut::Bucket(used, _)) => {
                *used = gauge.give_back(*used, amount, charged_at, now);
            }
            (Self::Window(gauge), ViewMut::Window(log)) => {
                gauge.give_back(log, amount, charged_at, now);
            }
            (Self::Calendar(gauge), ViewMut::Calendar(window)) => {
                gauge.give_back(window, amount, charged_at);
            }
            _ => {}
        }
    }

    /// Whether what was charged under `other` can be given back here without making room twice. Under another rate,
    /// window or calendar, how much time has given back already is unknown.
    pub(crate) fn gives_back_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Continuous(gauge), Self::Continuous(other)) => gauge.refills_like(other),
            (Self::Interval(gauge), Self::Interval(other)) => gauge.has_boundaries_of(other),
            (Self::Window(gauge), Self::Window(other)) => gauge.files_like(other),
            (Self::Calendar(gauge), Self::Calendar(other)) => gauge.has_windows_of(other),
            (Self::Slots(_), Self::Slots(_)) => true,
            _ => false,
        }
    }

    /// Frees the slots that the permit with this stamp holds.
    pub(crate) fn free(&self, state: ViewMut<'_>, stamp: u64) {
        if let (Self::Slots(_), ViewMut::Slots(held)) = (self, state) {
            Slots::free(held, stamp);
        }
    }

    /// Whether a state as of `since` says at `now` what a fresh one says.
    pub(crate) fn is_idle(&self, state: View<'_>, since: Timestamp, now: Timestamp) -> bool {
        match (self, state) {
            (Self::Continuous(gauge), View::Bucket(used, _)) => gauge.level(used, since, now) == 0,
            (Self::Interval(gauge), View::Bucket(used, _)) => gauge.level(used, since, now) == 0,
            (Self::Window(gauge), View::Window(log)) => gauge.used(log, now) == 0,
            // Late amounts count in the next window too, so the state is idle one window later.
            (Self::Calendar(gauge), View::Calendar(window)) => {
                let open = gauge.state_at(window, now);
                open.used == 0 && open.late == 0
            }
            (Self::Slots(_), View::Slots(held)) => Slots::used(held, now) == 0,
            _ => false,
        }
    }

    /// The state of `old` as of `since`, said in the numbers of this gauge: what was used stays used.
    pub(crate) fn carry(&self, old: &Self, state: View<'_>, since: Timestamp) -> State {
        match (self, old, state) {
            (Self::Continuous(new), Self::Continuous(old), View::Bucket(used, record)) => {
                // These lows do not say what another rate has given back.
                let lows = if new.refills_like(old) { record.to_lows() } else { None };
                State::Bucket(old.convert(used, new), lows)
            }
            (Self::Window(new), Self::Window(old), View::Window(log)) if !new.files_like(old) => {
                State::Window(Box::new(new.refiled(old, log)))
            }
            (Self::Interval(_), Self::Interval(_), View::Bucket(..))
            | (Self::Window(_), Self::Window(_), View::Window(_))
            | (Self::Slots(_), Self::Slots(_), View::Slots(_)) => state.to_state(),
            (Self::Calendar(new), Self::Calendar(old), View::Calendar(_))
                if new.has_windows_of(old) =>
            {
                state.to_state()
            }
            // Carried slots could not be released before they expire, so a new concurrency limit starts free.
            (Self::Slots(_), _, _) => self.fresh(),
            _ => {
                let mut fresh = self.fresh();
                let tag = ChargeTag { stamp: 0, refundable: false };
                let used = old.used(state, since, since);
                self.charge(fresh.view_mut(), since, since, used, tag);
                fresh
            }
        }
    }

    /// Runs [`carry`](Self::carry) if `old` counted another unit. Amounts of different units do not compare, so a
    /// continuous bucket keeps the instant at which it is full again.
    pub(crate) fn carry_time(&self, old: &Self, state: View<'_>, since: Timestamp) -> State {
        match (self, old, state) {
            (Self::Continuous(new), Self::Continuous(old), View::Bucket(used, _)) => {
                State::Bucket(old.convert_time(used, new), None)
            }
            _ => self.carry(old, state, since),
        }
    }

    /// When the bucket was last refilled; other rules have no such time.
    pub(crate) const fn refilled_at(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Continuous(_) => Some(now),
            Self::Interval(gauge) => Some(gauge.refilled_at(now)),
            Self::Window(_) | Self::Calendar(_) | Self::Slots(_) => None,
        }
    }

    /// The next instant at which this rule starts afresh, where tokens taken in advance lose their meaning.
    pub(crate) fn next_boundary(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Interval(gauge) => Some(gauge.next_boundary(now)),
            Self::Calendar(gauge) => Some(gauge.next_boundary(now)),
            Self::Continuous(_) | Self::Window(_) | Self::Slots(_) => None,
        }
    }

    /// Whether giving back `amount` of what was charged at `charged_at` would make any room at `now`, or time has
    /// given all of it back.
    pub(crate) fn makes_room(&self, amount: u64, charged_at: Timestamp, now: Timestamp) -> bool {
        0 < amount
            && match self {
                // How low the bucket has been since is the store's to know.
                Self::Continuous(_) | Self::Slots(_) => true,
                Self::Interval(gauge) => now < gauge.next_boundary(charged_at),
                Self::Window(gauge) => gauge.counts(charged_at, now),
                Self::Calendar(gauge) => gauge.counts(charged_at, now),
            }
    }

    /// When a slot taken at `at` expires, if this is a concurrency limit.
    #[inline]
    pub(crate) fn slot_expiry(&self, at: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Slots(gauge) => Some(gauge.expires_at(at)),
            _ => None,
        }
    }

    /// Renews the slots of the permit with this stamp; the new expiry, or nothing if it holds none.
    pub(crate) fn renew(
        &self,
        state: ViewMut<'_>,
        now: Timestamp,
        stamp: u64,
    ) -> Option<Timestamp> {
        match (self, state) {
            (Self::Slots(gauge), ViewMut::Slots(held)) => gauge.renew(held, now, stamp),
            _ => None,
        }
    }

    pub(crate) const fn is_bucket(&self) -> bool {
        matches!(self, Self::Continuous(_) | Self::Interval(_))
    }

    #[inline]
    pub(crate) const fn is_slots(&self) -> bool {
        matches!(self, Self::Slots(_))
    }
}
