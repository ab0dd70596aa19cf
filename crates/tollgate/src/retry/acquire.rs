//! Asking again until a deadline, with growing pauses: for callers that would rather wait outside any queue.

use tollgate_core::{Ask, Backoff, Decision, Timestamp, Wait};

use crate::clock::Clock;
use crate::error::Error;
use crate::gate::{Gate, GateExt};
use crate::internal::edge;

/// Asks, and while denied waits the longer of the backoff and the promised wait, then asks again, until
/// `deadline`. Waiting is not an error: at the deadline the last denial is returned, and an ask that can never fit is denied at
/// once.
///
/// [`Queue`](crate::Queue) is fairer and wakes sooner; this is for gates that are far away or shared by strangers.
///
/// # Errors
/// Errors of the gate.
pub async fn acquire_with_backoff(
    gate: &dyn Gate,
    ask: &Ask<'_>,
    backoff: &Backoff,
    deadline: Timestamp,
    clock: &dyn Clock,
) -> Result<Decision, Error> {
    let mut attempt = 0;
    loop {
        let denial = match gate.acquire(ask).await? {
            Decision::Denied(denial) if denial.wait != Wait::Never => denial,
            answer => return Ok(answer),
        };
        let promised = denial.retry_after().unwrap_or_default();
        let pause = backoff.delay(attempt, edge::random()).max(promised);
        let again = clock.now() + pause;
        if deadline < again {
            return Ok(Decision::Denied(denial));
        }
        clock.sleep_until(again).await;
        attempt = attempt.saturating_add(1);
    }
}
