//! How long a connection may go without another request: [`IDLE_MAX`] with nothing begun, [`HEAD_WAIT_MAX`] from the
//! beginning of a request to its end. One that shows no right key, where one is needed, has [`HEAD_WAIT_MAX`] in all.
//!
//! One alarm serves many requests. It is made anew only when it goes off, or would go off too late.

use std::task::Context;

use tollgate::{BoxFuture, Clock, Timestamp};

use crate::bounds::{HEAD_WAIT_MAX, IDLE_MAX};

pub(super) struct Patience {
    until: Timestamp,
    /// Whether a request has begun and not ended.
    is_midway: bool,
    /// Whether a key is needed and missing.
    is_stranger: bool,
    alarm: BoxFuture<'static, ()>,
    alarm_at: Timestamp,
}

impl Patience {
    pub(super) fn new(clock: &dyn Clock, is_stranger: bool) -> Self {
        let until = clock.now() + if is_stranger { HEAD_WAIT_MAX } else { IDLE_MAX };
        Self {
            until,
            is_midway: false,
            is_stranger,
            alarm: clock.sleep_until(until),
            alarm_at: until,
        }
    }

    /// Something came. `has_ended` says whether it ended a request, `is_midway` whether one is unfinished now, and
    /// `is_stranger` whether a key is needed and missing.
    pub(super) fn heard(
        &mut self,
        clock: &dyn Clock,
        has_ended: bool,
        is_midway: bool,
        is_stranger: bool,
    ) {
        // More of the same request does not put off its end, nor does more of a stranger.
        let is_same = is_midway && self.is_midway && !has_ended;
        if is_same || (is_stranger && self.is_stranger) {
            return;
        }
        (self.is_midway, self.is_stranger) = (is_midway, is_stranger);
        let is_short = is_midway || is_stranger;
        self.until = clock.now() + if is_short { HEAD_WAIT_MAX } else { IDLE_MAX };
        if self.until < self.alarm_at {
            self.set_alarm(clock);
        }
    }

    /// Whether it is over; if not, `context` hears of it when it might be.
    pub(super) fn is_over(&mut self, clock: &dyn Clock, context: &mut Context<'_>) -> bool {
        while self.alarm.as_mut().poll(context).is_ready() {
            if self.until <= clock.now() {
                return true;
            }
            self.set_alarm(clock);
        }
        false
    }

    fn set_alarm(&mut self, clock: &dyn Clock) {
        self.alarm = clock.sleep_until(self.until);
        self.alarm_at = self.until;
    }
}
