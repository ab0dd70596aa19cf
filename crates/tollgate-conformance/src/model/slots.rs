//! Slots by looking at every holder there ever was.

use tollgate_core::Concurrency;

/// One holder and until when it holds.
#[derive(Clone, Copy, Debug)]
struct Holder {
    ticket: usize,
    places: u64,
    until: u64,
}

/// Every holder there ever was.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    ttl: u64,
    holders: Vec<Holder>,
}

impl Slots {
    pub(super) const fn new(rule: &Concurrency) -> Self {
        Self { ttl: rule.ttl.as_micros(), holders: Vec::new() }
    }

    pub(super) fn used(&self, now: u64) -> u128 {
        let holding = self.holders.iter().filter(|holder| now < holder.until);
        holding.map(|holder| u128::from(holder.places)).sum()
    }

    /// The instants at which a holder loses its slots.
    pub(super) fn instants(&self) -> Vec<u64> {
        self.holders.iter().map(|holder| holder.until).collect()
    }

    pub(super) fn charge(&mut self, ticket: usize, now: u64, places: u64) {
        self.holders.push(Holder { ticket, places, until: now + self.ttl });
    }

    pub(super) fn free(&mut self, ticket: usize, now: u64) {
        for holder in self.holders.iter_mut().filter(|holder| holder.ticket == ticket) {
            holder.until = holder.until.min(now);
        }
    }

    pub(super) fn renew(&mut self, ticket: usize, now: u64) -> Option<u64> {
        let holds = |holder: &&mut Holder| holder.ticket == ticket && now < holder.until;
        let holder = self.holders.iter_mut().find(holds)?;
        holder.until = holder.until.max(now + self.ttl);
        Some(holder.until)
    }

    pub(super) fn expiry_of(&self, ticket: usize) -> Option<u64> {
        self.holders.iter().find(|holder| holder.ticket == ticket).map(|holder| holder.until)
    }

    pub(super) fn take_over(&mut self, old: &Self) {
        self.holders.clone_from(&old.holders);
    }
}
