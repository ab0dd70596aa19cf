//! Operations on entries that are shared with programs of the previous formats: Redis entries of version 3, PostgreSQL tables
//! of version 3, DynamoDB items of format 1.
//!
//! These programs keep an exact log for a rolling window without a configured resolution, and no lows. An entry that both
//! kinds of programs change keeps to that. Carrying it over with each change of hands would end every refund, and would move
//! the amounts of a window later each time.

use crate::entry::Entry;
use crate::error::Error;
use crate::id::Known;
use crate::operation::{Applied, Operation, apply_by};
use crate::rule::Refunds;
use crate::time::Timestamp;

/// Runs [`apply`](crate::apply()) on an entry that programs of the previous format read and write, too. The entry is in the
/// numbers of the policy [with exact logs](crate::Policy::with_exact_logs), and so is the permit in the outcome. A
/// continuous bucket gives back what has not refilled since the charge, which is never more than `apply` gives back; its
/// lows are not to be stored. An id counts [unless its permit is settled](Known::unless_settled).
///
/// # Errors
/// As `apply`; the entry is unchanged then.
pub fn apply_older(
    operation: &Operation<'_>,
    entry: &mut Entry,
    known: Known,
    now: Timestamp,
) -> Result<Applied, Error> {
    let policy = operation.policy().with_exact_logs();
    let known = known.unless_settled(operation, entry);
    let mut run =
        |operation: Operation<'_>| apply_by(&operation, entry, known, now, Refunds::Unrefilled);
    match *operation {
        Operation::Acquire(ask) => run(Operation::Acquire(&ask.under(policy))),
        Operation::Charge(ask) => run(Operation::Charge(&ask.under(policy))),
        Operation::Settle(permit, actual) => {
            run(Operation::Settle(&permit.clone().under(policy), actual))
        }
        Operation::Release(permit) => run(Operation::Release(&permit.clone().under(policy))),
        Operation::Renew(permit) => run(Operation::Renew(&permit.clone().under(policy))),
        Operation::Close { subject, limit, until, .. } => {
            run(Operation::Close { policy, subject, limit, until })
        }
        Operation::Standing { subject, .. } => run(Operation::Standing { policy, subject }),
        Operation::Reset { subject, .. } => run(Operation::Reset { policy, subject }),
    }
}
