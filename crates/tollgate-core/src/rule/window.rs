//! Rolling window: at most n in *any* window of the given length.
//!
//! This is the rule for a limit that a provider enforces: a bucket of 5 refilled at 5 per minute lets 9 or 10 through
//! in 60 s. The state is a log of (time, amount). A small, slow limit keeps the exact log. Any other limit has a grid: the
//! window is cut into m slots and an amount is filed under the *end* of its slot, so at most m + 1 entries live at once,
//! an amount counts for less than a slot too long, and evenly spaced demand can use m/(m + 1) of the limit.
//!
//! Refused: merging neighbours of a full log. The oldest entry then keeps moving forward, and demand below the limit is
//! refused.

use std::collections::VecDeque;

use crate::bounds::{
    EXACT_LIMIT_MAX, EXACT_RATE_MAX, LOG_ENTRIES_MAX, NUMBER_MAX, RESOLUTION_DEFAULT,
};
use crate::policy::Derived;
use crate::time::{Span, Timestamp};

/// The rule `rolling-window`: at most `limit` in any `window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RollingWindow {
    /// The most that any window may hold.
    pub limit: u64,
    /// The length of the window.
    pub window: Span,
    /// The number of slots the window is cut into, if configured; [`slots`](Self::slots) is the number in force.
    pub resolution: Option<u32>,
}

impl RollingWindow {
    /// At most `limit` in any `window`.
    #[must_use]
    pub fn new(limit: u64, window: impl Into<Span>) -> Self {
        Self { limit, window: window.into(), resolution: None }
    }

    /// The same limit on a grid of `slots` slots per window.
    #[must_use]
    pub const fn resolution(mut self, slots: u32) -> Self {
        self.resolution = Some(slots);
        self
    }

    /// The number of slots in the grid, or `None` for the exact log. It follows from the rule alone, so it is the same on
    /// every store: the configured [`resolution`](Self::resolution), else the exact log for at most
    /// [`EXACT_LIMIT_MAX`] and [`EXACT_RATE_MAX`] per second, else [`RESOLUTION_DEFAULT`].
    ///
    /// ```
    /// use tollgate_core::{RollingWindow, Span};
    ///
    /// assert_eq!(RollingWindow::new(5, Span::from_mins(1)).slots(), None);
    /// assert_eq!(RollingWindow::new(20_000, Span::from_mins(1)).slots(), Some(64));
    /// assert_eq!(RollingWindow::new(5, Span::from_mins(1)).resolution(20).slots(), Some(20));
    /// ```
    #[must_use]
    pub fn slots(&self) -> Option<u32> {
        let exact = self.limit <= EXACT_LIMIT_MAX
            && u128::from(self.limit) * 1_000_000
                <= u128::from(EXACT_RATE_MAX) * u128::from(self.window.as_micros());
        self.resolution.or((!exact).then_some(RESOLUTION_DEFAULT))
    }
}

/// An amount and the time from which its window counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Logged {
    pub(crate) at: Timestamp,
    pub(crate) amount: u64,
}

/// The state of a rolling window, oldest first, times strictly rising.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Log {
    entries: VecDeque<Logged>,
    sum: u64,
}

impl Log {
    /// A log of `entries`, or nothing if they are not in strictly rising order or hold no amount.
    pub(crate) fn from_entries(entries: Vec<Logged>) -> Option<Self> {
        let rising = entries.windows(2).all(|pair| pair[0].at < pair[1].at);
        let mut sum: u64 = 0;
        for entry in &entries {
            sum = sum.checked_add(entry.amount).filter(|sum| *sum <= NUMBER_MAX)?;
        }
        let sound = rising
            && entries.len() <= LOG_ENTRIES_MAX
            && entries.iter().all(|entry| entry.amount > 0);
        sound.then(|| Self { entries: entries.into(), sum })
    }

    pub(crate) fn entries(&self) -> impl ExactSizeIterator<Item = &Logged> {
        self.entries.iter()
    }

    /// The log that counts at any time what the larger of the two counts then.
    pub(crate) fn envelope(&self, other: &Self) -> Self {
        let (mut ours, mut theirs) =
            (self.entries.iter().peekable(), other.entries.iter().peekable());
        let (mut left, mut envelope) = ([self.sum, other.sum], Self::default());
        while let Some(at) =
            [ours.peek(), theirs.peek()].into_iter().flatten().map(|one| one.at).min()
        {
            let before = left[0].max(left[1]);
            for (entries, left) in [&mut ours, &mut theirs].into_iter().zip(&mut left) {
                if let Some(entry) = entries.next_if(|entry| entry.at == at) {
                    *left -= entry.amount;
                }
            }
            envelope.push(at, before - left[0].max(left[1]));
        }
        envelope
    }

    fn push(&mut self, at: Timestamp, amount: u64) {
        let amount = amount.min(NUMBER_MAX.saturating_sub(self.sum));
        if amount == 0 {
            return;
        }
        self.sum += amount;
        match self.entries.back_mut() {
            Some(last) if at <= last.at => last.amount += amount,
            _ => self.entries.push_back(Logged { at, amount }),
        }
        self.merge_newest();
    }

    /// Keeps a log that is too long within its bound.
    fn merge_newest(&mut self) {
        while LOG_ENTRIES_MAX < self.entries.len()
            && let (Some(newest), Some(before)) = (self.entries.pop_back(), self.entries.back_mut())
        {
            *before = Logged { at: newest.at, amount: before.amount + newest.amount };
        }
    }

    /// Adds `amount` at `at`, which may be before what was added last.
    fn insert(&mut self, at: Timestamp, amount: u64) {
        let later = self.entries.split_off(self.entries.partition_point(|entry| entry.at <= at));
        self.push(at, amount);
        self.entries.extend(later);
        self.merge_newest();
    }

    /// Shrinks the entry that an amount of time `at` went into. Where it was merged with a later one nothing is given
    /// back, so that a younger charge never is.
    fn take(&mut self, at: Timestamp, amount: u64) {
        let Ok(index) = self.entries.binary_search_by_key(&at, |entry| entry.at) else { return };
        let entry = &mut self.entries[index];
        let taken = amount.min(entry.amount);
        entry.amount -= taken;
        self.sum -= taken;
        if entry.amount == 0 {
            self.entries.remove(index);
        }
    }
}

/// A rolling window, ready to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    limit: u64,
    window: Span,
    /// Length of a slot; zero keeps the exact log.
    slot: u64,
}

impl Window {
    /// `slots` is the grid to use, which an entry from before the grid does not have.
    pub(crate) fn new(rule: &RollingWindow, slots: Option<u32>, reserve: u64, ahead: Span) -> Self {
        let window = rule.window.plus(ahead);
        let slot = slots.map_or(0, |slots| window.as_micros().div_ceil(u64::from(slots)));
        Self { limit: rule.limit.saturating_sub(reserve), window, slot }
    }

    pub(crate) const fn most(&self) -> u64 {
        self.limit
    }

    pub(crate) const fn derived(&self) -> Derived {
        let slot = Span::from_micros(self.slot);
        Derived::Window { limit: self.limit, window: self.window, slot }
    }

    /// The time under which an amount charged at `at` is filed.
    fn filed_at(&self, at: Timestamp) -> Timestamp {
        if self.slot == 0 {
            return at;
        }
        Timestamp::from_micros((at.as_micros() / self.slot + 1).saturating_mul(self.slot))
    }

    fn leaves_at(&self, entry: &Logged) -> Timestamp {
        entry.at + self.window
    }

    pub(crate) fn used(&self, log: &Log, now: Timestamp) -> u64 {
        let left: u64 = log
            .entries
            .iter()
            .take_while(|entry| self.leaves_at(entry) <= now)
            .map(|entry| entry.amount)
            .sum();
        log.sum - left
    }

    pub(crate) fn ready_at(&self, log: &Log, now: Timestamp, cost: u64) -> Timestamp {
        let room = self.limit.saturating_sub(cost);
        let mut used = log.sum;
        let mut ready = now;
        for entry in &log.entries {
            let leaves = self.leaves_at(entry);
            if used <= room && leaves > now {
                break;
            }
            used -= entry.amount;
            ready = ready.max(leaves);
        }
        ready
    }

    pub(crate) fn advance(&self, log: &mut Log, now: Timestamp) {
        while let Some(oldest) = log.entries.front().filter(|entry| self.leaves_at(entry) <= now) {
            log.sum -= oldest.amount;
            log.entries.pop_front();
        }
    }

    pub(crate) fn add(&self, log: &mut Log, now: Timestamp, cost: u64) {
        log.push(self.filed_at(now), cost);
    }

    /// Files `amount` at its own time, unless it has left the window by `now`.
    pub(crate) fn add_earlier(&self, log: &mut Log, at: Timestamp, now: Timestamp, amount: u64) {
        if self.counts(at, now) {
            log.insert(self.filed_at(at), amount);
        }
    }

    /// The age and the amount of everything that is in the window at `now`, oldest first.
    pub(crate) fn lumps(&self, log: &Log, now: Timestamp) -> Vec<(Span, u64)> {
        // The end of a slot belongs to the next one.
        let last = Span::from_micros(u64::from(self.slot != 0));
        let inside = log.entries.iter().filter(|entry| now < self.leaves_at(entry));
        inside.map(|entry| (now.since(entry.at - last), entry.amount)).collect()
    }

    /// Does nothing once the charge has left the window: the log then holds later amounts.
    pub(crate) fn give_back(
        &self,
        log: &mut Log,
        amount: u64,
        charged_at: Timestamp,
        now: Timestamp,
    ) {
        if self.counts(charged_at, now) {
            log.take(self.filed_at(charged_at), amount);
        }
    }

    /// Returns whether a charge of `charged_at` is in the window at `now`.
    pub(crate) fn counts(&self, charged_at: Timestamp, now: Timestamp) -> bool {
        now < self.filed_at(charged_at) + self.window
    }

    /// The log of `old` as this window files it: entries move to the end of the slot they are in here.
    pub(crate) fn refiled(&self, old: &Self, log: &Log) -> Log {
        let mut refiled = Log::default();
        for entry in &log.entries {
            // What `old` filed under the end of a slot was charged before that end.
            let charged_at = entry.at - Span::from_micros(u64::from(old.slot != 0));
            let at = if self.slot == 0 { entry.at } else { self.filed_at(charged_at) };
            refiled.push(at, entry.amount);
        }
        refiled
    }

    /// Whether a charge is filed here where `other` filed it, and leaves when it left there.
    pub(crate) fn files_like(&self, other: &Self) -> bool {
        (self.window, self.slot) == (other.window, other.slot)
    }
}
