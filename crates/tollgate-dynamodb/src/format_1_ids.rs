//! Ask ids in items of [format 1](crate::format): in the item itself.
//!
//! ```text
//! x:<id>   until when it is used, µs     s:<id>   the stamp of its charge     r:<id>   when it was charged, µs, and its costs
//! ```

use aws_sdk_dynamodb::types::AttributeValue;
use tollgate::core::{ChargeRecord, IdChange, Known, Remembered};
use tollgate::gate::{Operation, Outcome};
use tollgate::{Ask, Costs, Error, Policy, Timestamp};

use crate::conditional_update::PRUNE_SLACK;
use crate::expression::to_number;
use crate::item::{Attributes, Item, corrupt};
use crate::swap_queue::Outcomes;

/// The most ids that a program of format 1 reads.
pub(crate) const IDS_MAX_OLD: usize = 1_024;

const EXPIRES: &str = "x:";
const STAMP: &str = "s:";
const CHARGE: &str = "r:";

/// Returns the record of the operation's id in `item` at `now`.
pub(crate) fn known(
    operation: &Operation<'_>,
    item: Option<&Item>,
    now: Timestamp,
) -> Result<Known, Error> {
    let (Some(id), Some(item)) = (operation.id(), item) else { return Ok(Known::New) };
    let now = now.max(item.at());
    if let Some(expires_at) = expiry(item, id).filter(|expires_at| now < *expires_at) {
        let charge = item.attributes.get(&format!("{CHARGE}{id}")).and_then(|it| it.as_s().ok());
        let charge = charge.and_then(|charge| read_charge(charge, operation.policy()));
        let (at, digest) = charge.ok_or_else(|| corrupt("one of its ids is broken"))?;
        let stamp = item.small(&format!("{STAMP}{id}")).unwrap_or(0);
        return Ok(Known::Before(Remembered {
            charge: ChargeRecord { at, stamp },
            digest,
            expires_at,
        }));
    }
    let is_used = |id: &str| expiry(item, id).is_some_and(|expires_at| now < expires_at);
    let used = ids(item).filter(|id| is_used(id)).count();
    Ok(if used < IDS_MAX_OLD { Known::New } else { Known::Full })
}

fn ids(item: &Item) -> impl Iterator<Item = &str> {
    item.attributes.keys().filter_map(|name| name.strip_prefix(EXPIRES))
}

fn expiry(item: &Item, id: &str) -> Option<Timestamp> {
    item.small(&format!("{EXPIRES}{id}")).map(Timestamp::from_micros)
}

/// Parses the time of the charge, and the digest of an ask under `policy` with its costs.
fn read_charge(text: &str, policy: &Policy) -> Option<(Timestamp, u64)> {
    let (at, named) = text.split_once(';')?;
    let named = named.split(',').map(|cost| {
        let (unit, amount) = cost.split_once('=')?;
        Some((unit, amount.parse().ok()?))
    });
    let named = named.collect::<Option<Vec<(&str, u64)>>>()?;
    let amount = |unit| named.iter().find(|(other, _)| *other == unit).map_or(0, |(_, n)| *n);
    let costs: Costs = policy.units().map(|unit| (unit, amount(unit))).collect();
    let digest = Ask::new(policy, "").with_costs(&costs).digest();
    Some((Timestamp::from_micros(at.parse().ok()?), digest))
}

fn write_charge(at: Timestamp, costs: &Costs) -> AttributeValue {
    let costs: Vec<String> =
        costs.iter().map(|(unit, amount)| format!("{unit}={amount}")).collect();
    AttributeValue::S(format!("{};{}", at.as_micros(), costs.join(",")))
}

/// The changes of the ids of an item.
#[derive(Debug, Default)]
pub(crate) struct IdChanges {
    remembered: Option<(String, Remembered, Costs)>,
    /// Whether a reset voids every id.
    frees_all: bool,
    /// The stamps of released permits, whose ids are void.
    freed: Vec<u64>,
}

impl IdChanges {
    /// Returns the changes of `operations` with these `answers`; `change` is that of the first id.
    pub(crate) fn from_outcomes(
        operations: &[Operation<'_>],
        answers: &Outcomes,
        change: IdChange,
    ) -> Self {
        let mut changes = Self::default();
        if let (Some(Operation::Acquire(ask) | Operation::Charge(ask)), IdChange::Remember(given)) =
            (operations.first(), change)
        {
            let id = ask.id_text().map(str::to_owned);
            changes.remembered = id.map(|id| (id, given, ask.costs()));
        }
        for (operation, answer) in operations.iter().zip(answers) {
            match (operation, answer) {
                (Operation::Release(permit), Ok(Outcome::Changed(true))) => {
                    changes.freed.push(permit.grant().stamp);
                }
                (Operation::Reset { .. }, Ok(Outcome::Changed(true))) => changes.frees_all = true,
                _ => {}
            }
        }
        changes
    }

    fn frees(&self, stamp: Option<u64>) -> bool {
        self.frees_all || stamp.is_some_and(|stamp| self.freed.contains(&stamp))
    }

    /// Adds the ids of `seen` to `wanted`, with these changes at `at`. A void id stays for a while as expired, since an ask that
    /// was decided before may still be in flight.
    pub(crate) fn apply(&self, wanted: &mut Attributes, seen: Option<&Item>, at: Timestamp) {
        for (item, id) in seen.into_iter().flat_map(|item| ids(item).map(move |id| (item, id))) {
            let names = [EXPIRES, STAMP, CHARGE].map(|prefix| format!("{prefix}{id}"));
            let Some(expires_at) = expiry(item, id).filter(|end| at < *end + PRUNE_SLACK) else {
                continue;
            };
            let [expires, stamp, _] = &names;
            if self.frees(item.small(stamp)) {
                let freed_at = expires_at.min(at).as_micros();
                wanted.insert(expires.clone(), to_number(freed_at.into()));
                continue;
            }
            for name in names {
                if let Some(value) = item.attributes.get(&name) {
                    wanted.insert(name, value.clone());
                }
            }
        }
        if let Some((id, Remembered { charge, expires_at, .. }, costs)) = &self.remembered {
            let expires_at = to_number(expires_at.as_micros().into());
            wanted.insert(format!("{EXPIRES}{id}"), expires_at);
            wanted.insert(format!("{STAMP}{id}"), to_number(charge.stamp.into()));
            wanted.insert(format!("{CHARGE}{id}"), write_charge(charge.at, costs));
        }
    }
}
