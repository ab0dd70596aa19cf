//! Asking again until a deadline, with growing pauses: for callers that would rather wait outside any queue.

use tollgate_core::{Ask, Backoff, Decision, Denial, Timestamp, Wait};

use crate::clock::Clock;
use crate::error::Error;
use crate::gate::{Gate, GateExt};
use crate::retry::{ErrorClass, Retry};

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
    let deadline = Some(deadline.since(clock.now()));
    let retry = Retry { deadline, ..Retry::unlimited(*backoff) };
    // A denial is worth another attempt, an error is not.
    let call = |_| async {
        match gate.acquire(ask).await {
            Ok(Decision::Denied(denial)) if denial.wait != Wait::Never => Err(Ok(denial)),
            Ok(decision) => Ok(decision),
            Err(error) => Err(Err(error)),
        }
    };
    let judge = |failed: &Result<Denial, Error>| match failed {
        Ok(denial) => ErrorClass::RetryableAfter(denial.retry_after().unwrap_or_default()),
        Err(_) => ErrorClass::Fatal,
    };
    match retry.run(clock, call, judge).await {
        Ok(decision) => Ok(decision),
        Err(stopped) => stopped.last.map(Decision::Denied),
    }
}
