//! Rolling windows by adding up every charge whose window still holds the instant.

use tollgate_core::RollingWindow;

/// One charge, and the time from which its window counts.
#[derive(Clone, Copy, Debug)]
struct Charge {
    ticket: Option<usize>,
    counted_from: u64,
    amount: u64,
}

/// Every charge ever made; none is merged and none is forgotten.
#[derive(Clone, Debug)]
pub(super) struct Rolling {
    window: u64,
    /// The length of a slot, where the window is cut into slots.
    slot: Option<u64>,
    charges: Vec<Charge>,
}

impl Rolling {
    pub(super) fn new(rule: &RollingWindow, ahead: u64) -> Self {
        let window = rule.window.as_micros() + ahead;
        let slot = rule.resolution.map(|slots| window.div_ceil(u64::from(slots)));
        Self { window, slot, charges: Vec::new() }
    }

    pub(super) fn used(&self, now: u64) -> u128 {
        let inside = self.charges.iter().filter(|charge| now < charge.counted_from + self.window);
        inside.map(|charge| u128::from(charge.amount)).sum()
    }

    /// The instants at which something leaves.
    pub(super) fn instants(&self) -> Vec<u64> {
        self.charges.iter().map(|charge| charge.counted_from + self.window).collect()
    }

    pub(super) fn charge(&mut self, ticket: Option<usize>, at: u64, amount: u64) {
        // With slots a charge counts until the end of its slot plus the window.
        let counted_from = self.slot.map_or(at, |slot| at - at % slot + slot);
        self.charges.push(Charge { ticket, counted_from, amount });
    }

    /// Shrinks the charge itself; once it has left, that changes nothing.
    pub(super) fn give_back(&mut self, ticket: usize, amount: u64) {
        if let Some(charge) = self.charges.iter_mut().find(|charge| charge.ticket == Some(ticket)) {
            charge.amount = charge.amount.saturating_sub(amount);
        }
    }

    pub(super) fn take_over(&mut self, old: &Self, at: u64) {
        let same = (self.window, self.slot) == (old.window, old.slot);
        // What has left under the old numbers does not come back under a longer window.
        let inside = old.charges.iter().filter(|charge| at < charge.counted_from + old.window);
        let kept =
            inside.map(|charge| Charge { ticket: charge.ticket.filter(|_| same), ..*charge });
        self.charges = kept.collect();
    }
}
