//! The overlapping counters of rolling windows in [format 1](crate::format): each counts the charges from its slot on for one
//! window.

use tollgate::Timestamp;

use crate::expression::to_number;
use crate::item::Attributes;
use crate::layout::{Grid, counter_name};
use crate::write::by_slot;

/// The most counters of all rolling windows of a policy; a window beyond it has a list.
const COUNTERS_MAX: u64 = 40;

/// The remaining counters of a policy.
#[derive(Debug)]
pub(crate) struct Counters {
    left: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self { left: COUNTERS_MAX }
    }
}

impl Counters {
    /// Returns the counters of the window at `place`; `None` if it has a list, because of too many slots or an unaligned log.
    pub(crate) fn for_window(
        &mut self,
        place: usize,
        grid: &Grid,
        log: &[(Timestamp, u64)],
    ) -> Option<Attributes> {
        self.left = self.left.checked_sub(grid.span() + 1)?;
        let slots = by_slot(grid, log)?;
        let (Some((oldest, _)), Some((newest, _))) = (slots.first(), slots.last()) else {
            return Some(Attributes::new());
        };
        if grid.span() < newest - oldest {
            return None;
        }
        let counters = (oldest.saturating_sub(grid.span())..=*newest).filter_map(|first| {
            let window = first..=first + grid.span();
            let inside = slots.iter().filter(|(slot, _)| window.contains(slot));
            let used: u64 = inside.map(|(_, amount)| *amount).sum();
            (0 < used).then(|| (counter_name(place, first), to_number(used.into())))
        });
        Some(counters.collect())
    }
}
