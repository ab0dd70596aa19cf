//! Sizes of items, as the service bills them.

use aws_sdk_dynamodb::types::AttributeValue;
use tollgate::core::bounds::{LOG_ENTRIES_MAX, SLOTS_MAX};
use tollgate::core::{Derived, Part, Parts, SlotPart};
use tollgate::{Error, Policy, Span, Timestamp};

use crate::expression::to_number;
use crate::format::Format;
use crate::item::{Attributes, KEY, TTL, VERSION};
use crate::store::DynamoDb;
use crate::write::attributes_of;

impl DynamoDb {
    /// Returns the billed bytes of the item of a subject that uses all limits of `policy`, spread evenly over their windows. A
    /// write unit is 1 KB, a read unit 4 KB.
    ///
    /// ```
    /// use tollgate::{Limit, Policy, RollingWindow, Span};
    /// use tollgate_dynamodb::DynamoDb;
    ///
    /// let tpm = RollingWindow::new(250_000, Span::from_mins(1));
    /// let policy = Policy::new("llm", [Limit::new("tpm", "tokens", tpm)])?;
    /// assert!(DynamoDb::item_bytes(&policy, "project-7")? < 1_024);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Invalid`](tollgate::ErrorKind::Invalid) if this store does not support the policy.
    pub fn item_bytes(policy: &Policy, subject: &str) -> Result<usize, Error> {
        Self::check(policy)?;
        // Any time with as many digits as today.
        let at = Timestamp::from_secs(1_800_000_000);
        let borders = policy.windows_at(at);
        let states = policy.derived().zip(borders).map(|(derived, borders)| match derived {
            Derived::Continuous { capacity, .. } | Derived::Interval { capacity, .. } => {
                Part::Bucket { used: capacity, lows: Vec::new() }
            }
            Derived::Window { limit, window, slot } => {
                Part::Window(spread(limit, window, slot, at))
            }
            Derived::Calendar { limit, .. } => {
                let end = borders.map_or(at, |[open, _]| open.end);
                Part::Calendar { end, used: limit, late: 0 }
            }
            Derived::Slots { limit, ttl } => {
                let held = (0..limit.min(SLOTS_MAX)).map(|number| SlotPart {
                    stamp: at.as_micros() + number,
                    expires_at: at + ttl,
                    places: 1,
                });
                Part::Slots(held.collect())
            }
            _ => Part::Bucket { used: 0, lows: Vec::new() },
        });
        let states = states.collect();
        let parts = Parts { at, next_stamp: at.as_micros(), states, ..Parts::default() };
        let mut item = attributes_of(&parts.into_entry(policy)?, Format::New);
        let number = to_number(at.as_micros().into());
        item.insert(KEY.to_owned(), AttributeValue::S(format!("{}/{subject}", policy.name())));
        item.insert(VERSION.to_owned(), number.clone());
        item.insert(TTL.to_owned(), number);
        Ok(billed(&item))
    }
}

/// Spreads `limit` over every slot of a window, or over its log, at `at`.
fn spread(limit: u64, window: Span, slot: Span, at: Timestamp) -> Vec<(Timestamp, u64)> {
    let (count, apart) = if slot.is_zero() {
        let count = limit.min(LOG_ENTRIES_MAX as u64);
        (count, (window.as_micros() / count).max(1))
    } else {
        (window.as_micros().div_ceil(slot.as_micros()) + 1, slot.as_micros())
    };
    let last = (at.as_micros() / apart + 1) * apart;
    let each = (limit / count).max(1);
    (0..count).rev().map(|ago| (Timestamp::from_micros(last - ago * apart), each)).collect()
}

/// Returns the bytes of names and values.
fn billed(item: &Attributes) -> usize {
    let value = |value: &AttributeValue| match value {
        AttributeValue::N(number) => 1 + number.len().div_ceil(2),
        AttributeValue::S(text) => text.len(),
        AttributeValue::B(bytes) => bytes.as_ref().len(),
        _ => 0,
    };
    item.iter().map(|(name, of)| name.len() + value(of)).sum()
}
