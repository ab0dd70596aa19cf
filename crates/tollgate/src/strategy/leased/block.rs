//! Blocks: tokens that the store has charged already, to be spent here. Arithmetic only: no lock, no clock, no IO.
//!
//! A block may be spent from its answer until its end. The end counts on the holder's monotonic clock from before the
//! lease was first sent, so it comes no later than `block_ttl` after the store charged it, whatever the network did and
//! whatever happened to the wall clock.

use tollgate_core::bounds::{LOCAL_STAMPS, PERMIT_TTL};
use tollgate_core::{Amounts, Costs, Grant, Permit, Policy, Span, Timestamp};

/// How much slower than the store's clock the holder's may run: one part in so many. A quartz is a tenth of that off.
pub(super) const DRIFT_PARTS: u64 = 1_000;

/// The longest life of a block. What is left of it must be given back while its permit can still be settled.
pub(super) const LIFE_MAX: Span = Span::from_micros(PERMIT_TTL.as_micros() / 2);

/// The most permits out of one block, so that remembering which of them are settled takes at most 128 KiB.
pub(super) const PERMITS_MAX: u32 = 1 << 20;

/// A block with less than one part in so many left is replaced ahead of time.
const LOW_PARTS: u64 = 4;

/// A reading of both clocks. The wall clock may only shorten a life: it shows what the other misses while a machine
/// is suspended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) passed: Span,
    pub(super) wall: Timestamp,
}

impl Moment {
    fn plus(self, span: Span) -> Self {
        Self { passed: self.passed.plus(span), wall: self.wall + span }
    }

    pub(super) const fn since(self, earlier: Self) -> Span {
        minus(self.passed, earlier.passed)
    }
}

const fn minus(span: Span, other: Span) -> Span {
    Span::from_micros(span.as_micros().saturating_sub(other.as_micros()))
}

/// How long a block may be spent that the store charged at `charged_at`, counted from before its lease was sent.
pub(super) fn life(policy: &Policy, charged_at: Timestamp, skew: Span) -> Span {
    let Some(ends_at) = policy.block_ends_at(charged_at) else { return Span::ZERO };
    let whole = ends_at.since(charged_at);
    // Where a rule starts afresh sooner, instances must agree on when that is.
    let kept = if whole < policy.block_ttl() { minus(whole, skew) } else { whole };
    let drift = Span::from_micros(kept.as_micros().div_ceil(DRIFT_PARTS));
    minus(kept, drift).min(LIFE_MAX)
}

#[derive(Debug)]
pub(super) struct Block {
    /// Drawn at random, so that a permit of another instance or of a process that is gone is not taken for one of ours.
    number: u32,
    permit: Permit,
    taken: Amounts,
    left: Amounts,
    low_mark: Amounts,
    /// The unused part of settled permits. Together with `accounted` it gives the amount of unsettled permits, so that spending,
    /// which is frequent, need not count it.
    back: Amounts,
    /// The estimates of settled permits, and what they drew beyond them.
    accounted: Amounts,
    sent: Moment,
    ends: Moment,
    stopped: bool,
    given: u32,
    settled: Vec<u64>,
    /// Permits that wait for the store to decide about other charges of their asks.
    held: u32,
    /// Permits whose extra cost is being posted, and so may not be drawn from a block instead.
    posting: Vec<u32>,
}

/// Which block gave a permit, and its number in it, as the stamp says.
pub(super) struct Origin {
    pub(super) block: u32,
    serial: u32,
}

impl Origin {
    #[expect(clippy::cast_possible_truncation, reason = "the halves of the stamp are meant")]
    pub(super) const fn from_permit(permit: &Permit) -> Self {
        let stamp = permit.grant().stamp & !LOCAL_STAMPS;
        Self { block: (stamp >> 32) as u32, serial: stamp as u32 }
    }
}

impl Block {
    /// The block that `permit` was given for, asked for at `sent`.
    pub(super) fn new(permit: Permit, number: u32, sent: Moment, skew: Span) -> Self {
        let taken = *permit.charged().amounts;
        let life = life(permit.policy(), permit.grant().at, skew);
        Self {
            number: number >> 1,
            permit,
            taken,
            left: taken,
            low_mark: Amounts::from_fn(|unit| taken.at(unit).div_ceil(LOW_PARTS)),
            back: Amounts::default(),
            accounted: Amounts::default(),
            sent,
            ends: sent.plus(life),
            stopped: false,
            given: 0,
            settled: Vec::new(),
            held: 0,
            posting: Vec::new(),
        }
    }

    pub(super) const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the store's permit.
    pub(super) const fn permit(&self) -> &Permit {
        &self.permit
    }

    pub(super) const fn taken(&self) -> &Amounts {
        &self.taken
    }

    /// With less than this left, the next block is due.
    pub(super) const fn low_mark(&self) -> &Amounts {
        &self.low_mark
    }

    pub(super) const fn left(&self) -> &Amounts {
        &self.left
    }

    pub(super) const fn sent(&self) -> Moment {
        self.sent
    }

    /// How long it may still be spent.
    pub(super) const fn life_left(&self, now: Moment) -> Span {
        minus(self.ends.passed, now.passed)
    }

    #[inline]
    pub(super) fn is_live(&self, now: Moment) -> bool {
        !self.stopped && now.passed < self.ends.passed && now.wall < self.ends.wall
    }

    /// Stops spending.
    pub(super) const fn stop(&mut self) {
        self.stopped = true;
    }

    /// Returns whether the block is live and has `amounts` of each unit.
    #[inline]
    pub(super) fn has_room(&self, amounts: &Amounts, now: Moment) -> bool {
        self.is_live(now) && self.given < PERMITS_MAX && self.left.covers(amounts)
    }

    /// Spends `amounts` and gives the stamp of a permit for them, if the block has room.
    #[inline]
    pub(super) fn spend(&mut self, amounts: &Amounts, now: Moment) -> Option<u64> {
        if !self.has_room(amounts, now) {
            return None;
        }
        self.left = self.left.minus(amounts);
        let stamp = LOCAL_STAMPS | u64::from(self.number) << 32 | u64::from(self.given);
        self.given += 1;
        Some(stamp)
    }

    /// Keeps a block that ends from being returned while a permit of it waits for the store.
    pub(super) const fn hold(&mut self) {
        self.held += 1;
    }

    pub(super) const fn unhold(&mut self) {
        self.held = self.held.saturating_sub(1);
    }

    pub(super) const fn is_held(&self) -> bool {
        self.held != 0
    }

    /// Takes back a permit that no caller received.
    pub(super) fn unspend(&mut self, stamp: u64, amounts: &Amounts) {
        let serial = u32::try_from(stamp & u64::from(u32::MAX)).unwrap_or(0);
        self.settle(serial, amounts, &Amounts::default());
    }

    /// Takes what a settled permit cost beyond its estimate out, all or nothing.
    pub(super) fn draw(&mut self, extra: &Amounts) -> bool {
        let covered = self.left.covers(extra);
        if covered {
            self.left = self.left.minus(extra);
            self.accounted = self.accounted.plus(extra);
        }
        covered
    }

    /// The grant of a permit with `stamp` that is spent at `now`: charged when the block was, to be used within the
    /// margin from now on.
    pub(super) fn grant(&self, stamp: u64, now: Moment) -> Grant {
        let grant = self.permit.grant();
        // At most the block's life after the charge, which is what the store's numbers allow for.
        let use_by = grant.use_by.map(|by| by + now.since(self.sent));
        Grant { stamp, use_by, ..*grant }
    }

    /// Returns whether this block gave `permit`, whose origin is `origin`.
    pub(super) fn gave(&self, origin: &Origin, permit: &Permit) -> bool {
        self.number == origin.block
            && origin.serial < self.given
            && self.permit.grant().at == permit.grant().at
            && permit.policy().has_shape_of(self.permit.policy())
            && permit.charged().same_numbers
    }

    pub(super) fn is_settled(&self, origin: &Origin) -> bool {
        let (word, bit) = bit_of(origin.serial);
        self.settled.get(word).is_some_and(|bits| bits & bit != 0)
    }

    pub(super) const fn is_any_settled(&self) -> bool {
        !self.settled.is_empty()
    }

    /// Marks that the extra cost of a permit goes to the store.
    pub(super) fn post(&mut self, origin: &Origin) {
        if !self.is_posting(origin) {
            self.posting.push(origin.serial);
        }
    }

    pub(super) fn is_posting(&self, origin: &Origin) -> bool {
        self.posting.contains(&origin.serial)
    }

    /// Settles a permit that cost `estimate` for `actual`, returning the unused part to the block.
    pub(super) fn settle_once(&mut self, origin: &Origin, estimate: &Amounts, actual: &Amounts) {
        self.posting.retain(|serial| *serial != origin.serial);
        self.settle(origin.serial, estimate, actual);
    }

    fn settle(&mut self, serial: u32, estimate: &Amounts, actual: &Amounts) {
        let (word, bit) = bit_of(serial);
        if self.settled.len() <= word {
            self.settled.resize(word + 1, 0);
        }
        self.settled[word] |= bit;
        let unused = estimate.minus(actual);
        self.accounted = self.accounted.plus(estimate);
        self.back = self.back.plus(&unused);
        self.left = self.left.plus(&unused);
    }

    /// Whether a block that has ended is better kept a while, because more of it is out with callers, who may settle
    /// for less, than lies unspent. The store takes one return only.
    pub(super) fn awaits_settles(&self) -> bool {
        let open = self.taken.plus(&self.back).minus(&self.left).minus(&self.accounted);
        !self.left.covers(&open)
    }

    /// Returns the actual cost of the block, if settling it makes any room at the store; time may have given it back already.
    pub(super) fn owed(&self, now: Moment) -> Option<Costs> {
        let (policy, charged_at) = (self.permit.policy(), self.permit.grant().at);
        let makes_room =
            policy.makes_room(&self.left, charged_at, charged_at + now.since(self.sent));
        makes_room.then(|| policy.costs(&self.taken.minus(&self.left)))
    }
}

const fn bit_of(serial: u32) -> (usize, u64) {
    ((serial / 64) as usize, 1 << (serial % 64))
}
