//! Random policies and random sequences of operations.
//!
//! Numbers are small, so that limits are reached, windows end and ids come again within a few steps. Time moves by
//! microseconds, by seconds and by hours, sometimes back, and often to exactly the promised instant or one microsecond
//! before it, where mistakes live.

mod policies;
mod steps;

pub use policies::{
    calendar, continuous, interval, kind_of_policy, policy, policy_named, policy_of, rolling,
    rolling_coarse, slots,
};
pub use steps::{Move, Pace, costs, moves, start};
pub(crate) use steps::{amounts, pace};

use tollgate_core::{Policy, Timestamp};

use crate::script::{Action, Player, Record, Reply, Run};

/// Plays `moves` from `start` on and records everything.
pub fn record(
    policy: &Policy,
    start: Timestamp,
    moves: &[Move],
    run: &mut Run<'_>,
) -> Result<Vec<Record>, String> {
    record_as("subject", policy, start, moves, run)
}

/// As [`record`], for a subject with a name of its own.
pub fn record_as(
    subject: &str,
    policy: &Policy,
    start: Timestamp,
    moves: &[Move],
    run: &mut Run<'_>,
) -> Result<Vec<Record>, String> {
    let mut player = Player::new(policy, subject);
    let mut now = start;
    let mut promised = None;
    let mut history = Vec::with_capacity(moves.len());
    for step in moves {
        now = step.pace.from(now, promised);
        let action = step.resolve(policy, now, player.permits(), &history);
        let before = player.standings(now, run)?;
        let reply = player.play(now, &action, run);
        let after = player.standings(now, run)?;
        if let Reply::Denied(refused) | Reply::Shadowed(_, refused) = &reply {
            promised = refused.until;
        }
        history.push(Record { now, action, reply, before, after });
    }
    Ok(history)
}

/// What [`record`] plays at one step, for those who drive a store themselves.
pub fn resolve(
    policy: &Policy,
    step: &Move,
    now: Timestamp,
    permits: usize,
    history: &[Record],
) -> Action {
    step.resolve(policy, now, permits, history)
}
