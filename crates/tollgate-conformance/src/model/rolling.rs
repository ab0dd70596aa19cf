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
        let slow_and_small = rule.limit <= 128
            && u128::from(rule.limit) <= 10 * u128::from(rule.window.as_micros()) / 1_000_000;
        let slots = rule.resolution.or((!slow_and_small).then_some(64));
        let slot = slots.map(|slots| window.div_ceil(u64::from(slots)));
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
        let counted_from = self.counted_from(at);
        self.charges.push(Charge { ticket, counted_from, amount });
    }

    fn counted_from(&self, at: u64) -> u64 {
        self.slot.map_or(at, |slot| at - at % slot + slot)
    }

    /// Shrinks the charge itself; once it has left, that changes nothing.
    pub(super) fn give_back(&mut self, ticket: usize, amount: u64) {
        if let Some(charge) = self.charges.iter_mut().find(|charge| charge.ticket == Some(ticket)) {
            charge.amount = charge.amount.saturating_sub(amount);
        }
    }

    pub(super) fn take_over(&mut self, old: &Self, at: u64) {
        let same = (self.window, self.slot) == (old.window, old.slot);
        // An amount that left under the old numbers does not come back under a longer window.
        let inside = old.charges.iter().filter(|charge| at < charge.counted_from + old.window);
        let kept = inside.map(|charge| {
            // An amount filed under the end of a slot was charged before it.
            let at = charge.counted_from - u64::from(old.slot.is_some());
            let refiled =
                if self.slot.is_some() { self.counted_from(at) } else { charge.counted_from };
            let counted_from = if same { charge.counted_from } else { refiled };
            Charge { ticket: charge.ticket.filter(|_| same), counted_from, ..*charge }
        });
        self.charges = kept.collect();
    }
}
