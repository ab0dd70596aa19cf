//! Faults on command and by chance.

use std::collections::VecDeque;

use serde_json::json;
use tollgate::Span;

use super::wire::{self, Reply, Response};

/// How a call fails. `After` means that the call was carried out.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// 429, whatever the rate.
    Throttled,
    /// 500.
    Broken,
    /// 500.
    BrokenAfter,
    /// No reply.
    Silent,
    /// No reply.
    SilentAfter,
    /// The connection is closed.
    CutAfter,
    /// Carried out; the reply does not parse.
    Garbled,
    /// The reply after a delay.
    Slow(Span),
    /// An error with a status and a name.
    Refused(u16, &'static str),
    /// 402 with a quota code.
    Quota(&'static str),
    /// An empty list, as of a stale replica.
    Behind,
}

impl Fault {
    /// Returns the reply to a call that is not carried out.
    pub(super) fn instead(&self) -> Option<Reply> {
        match self {
            Self::Broken => Some(Reply::Now(wire::broken())),
            Self::Silent => Some(Reply::Never),
            Self::Behind => Some(Reply::Now(Response::new(200, json!({ "items": [] })))),
            Self::Quota(code) => Some(Reply::Now(wire::quota(code, "on command"))),
            Self::Refused(status, name) => {
                Some(Reply::Now(wire::error(*status, name, json!({ "message": "on command" }))))
            }
            _ => None,
        }
    }

    /// Returns the reply to a call that was carried out.
    pub(super) fn after(self, answer: Response) -> Reply {
        match self {
            Self::BrokenAfter => Reply::Now(wire::broken()),
            Self::SilentAfter => Reply::Never,
            Self::CutAfter => Reply::Cut,
            Self::Garbled => Reply::Now(Response::new(answer.status, json!("garbled"))),
            Self::Slow(span) => Reply::Later(span, answer),
            _ => Reply::Now(answer),
        }
    }
}

/// Random faults, in percent of calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chances {
    pub throttled: u8,
    pub broken: u8,
    /// Carried out, and the connection is closed.
    pub cut_after: u8,
    /// Seed of the random numbers.
    pub seed: u64,
}

#[derive(Debug)]
struct Planned {
    operation: Option<&'static str>,
    times: u32,
    fault: Fault,
}

/// Faults that have not happened yet.
#[derive(Debug)]
pub(super) struct Faults {
    planned: VecDeque<Planned>,
    chances: Chances,
    random: fastrand::Rng,
}

impl Faults {
    pub(super) fn new(chances: Chances) -> Self {
        Self { planned: VecDeque::new(), chances, random: fastrand::Rng::with_seed(chances.seed) }
    }

    pub(super) fn add(&mut self, operation: Option<&'static str>, times: u32, fault: Fault) {
        if 0 < times {
            self.planned.push_back(Planned { operation, times, fault });
        }
    }

    /// Returns the fault of this call of `operation`.
    pub(super) fn next(&mut self, operation: &str) -> Option<Fault> {
        let meant = |plan: &Planned| plan.operation.is_none_or(|of| of == operation);
        if let Some(place) = self.planned.iter().position(meant) {
            let plan = &mut self.planned[place];
            let fault = plan.fault.clone();
            plan.times = plan.times.saturating_sub(1);
            if plan.times == 0 {
                self.planned.remove(place);
            }
            return Some(fault);
        }
        let Chances { throttled, broken, cut_after, .. } = self.chances;
        let drawn = self.random.u8(..100);
        let (broken, cut_after) = (
            throttled.saturating_add(broken),
            throttled.saturating_add(broken).saturating_add(cut_after),
        );
        match drawn {
            _ if drawn < throttled => Some(Fault::Throttled),
            _ if drawn < broken => Some(Fault::Broken),
            _ if drawn < cut_after => Some(Fault::CutAfter),
            _ => None,
        }
    }
}
