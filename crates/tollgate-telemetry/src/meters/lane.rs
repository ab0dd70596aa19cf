//! Lanes: counters with a single writing thread.
//!
//! An addition without concurrent writers needs no locked instruction, which costs as much as several plain ones. Each
//! thread owns a lane while it lives; once all lanes are owned, further threads share one and add atomically.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// The number of lanes with an owner; one more is shared.
pub(super) const OWNED: usize = 16;

/// The number of lanes.
pub(super) const LANES: usize = OWNED + 1;

const SHARED: usize = OWNED;
const UNASSIGNED: usize = usize::MAX;

/// Lanes whose thread has ended.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// The first lane that was never owned.
static FRESH: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static LANE: Cell<usize> = const { Cell::new(UNASSIGNED) };
    static OWNER: Owner = const { Owner };
}

/// Returns the lane when its thread ends.
struct Owner;

impl Drop for Owner {
    fn drop(&mut self) {
        let lane = LANE.replace(SHARED);
        if lane < OWNED {
            FREE.lock().unwrap_or_else(PoisonError::into_inner).push(lane);
        }
    }
}

/// The lane of a thread.
#[derive(Clone, Copy)]
pub(super) struct LaneId(usize);

impl LaneId {
    /// Returns the lane of the current thread.
    #[inline]
    pub(super) fn current() -> Self {
        match LANE.get() {
            UNASSIGNED => assign(),
            lane => Self(lane),
        }
    }

    /// Selects this lane of `lanes`.
    #[inline]
    pub(super) fn select<T>(self, lanes: &[T; LANES]) -> &T {
        &lanes[self.0.min(SHARED)]
    }

    /// Adds `more` to a counter of this lane, which saturates.
    #[inline]
    pub(super) fn add(self, counter: &AtomicU64, more: u64) {
        if self.0 == SHARED {
            let _ = counter.fetch_update(Relaxed, Relaxed, |sum| Some(sum.saturating_add(more)));
        } else {
            counter.store(counter.load(Relaxed).saturating_add(more), Relaxed);
        }
    }
}

#[cold]
fn assign() -> LaneId {
    // A thread that is ending cannot return a lane.
    if OWNER.try_with(|_| ()).is_err() {
        LANE.set(SHARED);
        return LaneId(SHARED);
    }
    let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let lane = free.unwrap_or_else(|| {
        let fresh =
            FRESH.fetch_update(Relaxed, Relaxed, |next| (next < OWNED as u64).then_some(next + 1));
        fresh.ok().and_then(|next| usize::try_from(next).ok()).unwrap_or(SHARED)
    });
    LANE.set(lane);
    LaneId(lane)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    const THREADS: usize = 2 * LANES;
    const EACH: u64 = 500_000;

    /// Returns how many additions are lost when more threads than lanes add concurrently, each to `lane`.
    fn lost(lane: fn() -> LaneId) -> u64 {
        let lanes: [AtomicU64; LANES] = Default::default();
        let barrier = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    let lane = lane();
                    (0..EACH).for_each(|_| lane.add(lane.select(&lanes), 1));
                    // No thread returns its lane before all have one.
                    barrier.wait();
                });
            }
        });
        let counted: u64 = lanes.iter().map(|lane| lane.load(Relaxed)).sum();
        THREADS as u64 * EACH - counted
    }

    /// `CL.THROTTLE` charges nanoseconds, of which a counter may get more than it holds.
    #[test]
    fn a_full_counter_stays_full() {
        for lane in [LaneId(0), LaneId(SHARED)] {
            let counter = AtomicU64::new(u64::MAX - 5);
            for _ in 0..3 {
                lane.add(&counter, 4);
            }
            assert_eq!(counter.load(Relaxed), u64::MAX);
        }
    }

    #[test]
    fn no_addition_is_lost_between_threads() {
        assert_eq!(lost(LaneId::current), 0);
    }

    /// A lane with several owners loses additions, and `lost` detects it.
    #[test]
    fn a_lane_with_two_owners_is_found() {
        assert!((0..1_000).any(|_| lost(|| LaneId(0)) != 0));
    }
}
