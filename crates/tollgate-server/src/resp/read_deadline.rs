//! When a connection must have sent its next request: [`IDLE_MAX`] after the last one, [`HEAD_WAIT_MAX`] after the first
//! byte of an unfinished one. A client without a required key has [`HEAD_WAIT_MAX`] in all.
//!
//! One timer serves many requests: it is replaced only when it fires, or would fire too late.

use std::task::Context;

use tollgate::gate::BoxFuture;
use tollgate::{Clock, Timestamp};

use crate::bounds::{HEAD_WAIT_MAX, IDLE_MAX};

pub(super) struct ReadDeadline {
    deadline: Timestamp,
    /// Whether a request has begun and not ended.
    is_midway: bool,
    /// Whether a key is required and missing.
    is_unauthenticated: bool,
    timer: BoxFuture<'static, ()>,
    timer_at: Timestamp,
}

impl ReadDeadline {
    pub(super) fn new(clock: &dyn Clock, is_unauthenticated: bool) -> Self {
        let at = clock.now() + if is_unauthenticated { HEAD_WAIT_MAX } else { IDLE_MAX };
        let timer = clock.sleep_until(at);
        Self { deadline: at, is_midway: false, is_unauthenticated, timer, timer_at: at }
    }

    /// Moves the deadline after a read. `has_ended` is whether it ended a request, `is_midway` whether one is unfinished
    /// now, and `is_unauthenticated` whether a key is required and missing.
    pub(super) fn extend(
        &mut self,
        clock: &dyn Clock,
        has_ended: bool,
        is_midway: bool,
        is_unauthenticated: bool,
    ) {
        // More of an unfinished request does not move its deadline, and nothing moves that of a client without a key.
        let is_same_request = is_midway && self.is_midway && !has_ended;
        if is_same_request || (is_unauthenticated && self.is_unauthenticated) {
            return;
        }
        (self.is_midway, self.is_unauthenticated) = (is_midway, is_unauthenticated);
        let is_short = is_midway || is_unauthenticated;
        self.deadline = clock.now() + if is_short { HEAD_WAIT_MAX } else { IDLE_MAX };
        if self.deadline < self.timer_at {
            self.set_timer(clock);
        }
    }

    /// Returns whether the deadline has passed; otherwise `context` is woken when it might have.
    pub(super) fn is_over(&mut self, clock: &dyn Clock, context: &mut Context<'_>) -> bool {
        while self.timer.as_mut().poll(context).is_ready() {
            if self.deadline <= clock.now() {
                return true;
            }
            self.set_timer(clock);
        }
        false
    }

    fn set_timer(&mut self, clock: &dyn Clock) {
        self.timer = clock.sleep_until(self.deadline);
        self.timer_at = self.deadline;
    }
}
