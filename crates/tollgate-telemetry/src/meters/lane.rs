//! Counters that one thread alone writes.
//!
//! An addition that no other thread can interfere with needs no locked instruction, which costs as much as several
//! plain ones. So each thread owns a lane while it lives; when all lanes are owned, further threads share one and add with
//! locked instructions.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// How many lanes have an owner; there is one more, which is shared.
pub(super) const OWNED: usize = 16;

/// The number of lanes.
pub(super) const LANES: usize = OWNED + 1;

const SHARED: usize = OWNED;
const UNASSIGNED: usize = usize::MAX;

/// Lanes that no thread owns.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// Lanes from this one on were never owned.
static FRESH: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static LANE: Cell<usize> = const { Cell::new(UNASSIGNED) };
    static OWNER: Owner = const { Owner };
}

/// Gives the lane back when its thread ends.
struct Owner;

impl Drop for Owner {
    fn drop(&mut self) {
        let lane = LANE.replace(SHARED);
        if lane < OWNED {
            FREE.lock().unwrap_or_else(PoisonError::into_inner).push(lane);
        }
    }
}

/// Which lane the calling thread writes.
#[derive(Clone, Copy)]
pub(super) struct Place(usize);

impl Place {
    /// The place of this thread.
    #[inline]
    pub(super) fn mine() -> Self {
        match LANE.get() {
            UNASSIGNED => assign(),
            lane => Self(lane),
        }
    }

    /// The lane of this place.
    #[inline]
    pub(super) fn of<T>(self, lanes: &[T; LANES]) -> &T {
        &lanes[self.0.min(SHARED)]
    }

    /// Adds `more` to a counter of the lane.
    #[inline]
    pub(super) fn add(self, counter: &AtomicU64, more: u64) {
        if self.0 == SHARED {
            counter.fetch_add(more, Relaxed);
        } else {
            counter.store(counter.load(Relaxed).wrapping_add(more), Relaxed);
        }
    }
}

#[cold]
fn assign() -> Place {
    // A thread that is ending has no owner left to give a lane back.
    if OWNER.try_with(|_| ()).is_err() {
        LANE.set(SHARED);
        return Place(SHARED);
    }
    let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let lane = free.unwrap_or_else(|| {
        let fresh =
            FRESH.fetch_update(Relaxed, Relaxed, |next| (next < OWNED as u64).then_some(next + 1));
        fresh.ok().and_then(|next| usize::try_from(next).ok()).unwrap_or(SHARED)
    });
    LANE.set(lane);
    Place(lane)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    const THREADS: usize = 2 * LANES;
    const EACH: u64 = 500_000;

    /// How many additions are lost when more threads than there are lanes add at the same time, each at its `place`.
    fn lost(place: fn() -> Place) -> u64 {
        let lanes: [AtomicU64; LANES] = Default::default();
        let barrier = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    let place = place();
                    (0..EACH).for_each(|_| place.add(place.of(&lanes), 1));
                    // Nobody gives a lane back before everybody has one.
                    barrier.wait();
                });
            }
        });
        let counted: u64 = lanes.iter().map(|lane| lane.load(Relaxed)).sum();
        THREADS as u64 * EACH - counted
    }

    #[test]
    fn no_addition_is_lost_between_threads() {
        assert_eq!(lost(Place::mine), 0);
    }

    /// A lane that several threads take for their own loses additions, and the check above sees it.
    #[test]
    fn a_lane_with_two_owners_is_found() {
        assert!((0..1_000).any(|_| lost(|| Place(0)) != 0));
    }
}
