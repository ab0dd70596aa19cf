//! Faults on command and by chance.

use std::collections::VecDeque;

use serde_json::json;
use tollgate::Span;

use super::wire::{self, Answer, Reply};

/// How a call ends instead of well.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// 429, whatever the rate is.
    Throttled,
    /// 500, and nothing was done.
    Broken,
    /// 500, although it was done.
    BrokenAfter,
    /// No answer, and nothing was done.
    Silent,
    /// No answer, although it was done.
    SilentAfter,
    /// The connection ends, although it was done.
    CutAfter,
    /// An answer that nobody can read, although it was done.
    Garbled,
    /// The answer, after this long.
    Slow(Span),
    /// An error of this status and name, and nothing was done.
    Refused(u16, &'static str),
    /// 402 with this quota code, and nothing was done.
    Quota(&'static str),
    /// An empty list, as of a list that is behind.
    Behind,
}

impl Fault {
    /// The reply to a call that is not carried out.
    pub(super) fn instead(&self) -> Option<Reply> {
        match self {
            Self::Broken => Some(Reply::Now(wire::broken())),
            Self::Silent => Some(Reply::Never),
            Self::Behind => Some(Reply::Now(Answer::new(200, json!({ "items": [] })))),
            Self::Quota(code) => Some(Reply::Now(wire::quota(code, "on command"))),
            Self::Refused(status, name) => {
                Some(Reply::Now(wire::error(*status, name, json!({ "message": "on command" }))))
            }
            _ => None,
        }
    }

    /// The reply to a call that was carried out.
    pub(super) fn after(self, answer: Answer) -> Reply {
        match self {
            Self::BrokenAfter => Reply::Now(wire::broken()),
            Self::SilentAfter => Reply::Never,
            Self::CutAfter => Reply::Cut,
            Self::Garbled => Reply::Now(Answer::new(answer.status, json!("garbled"))),
            Self::Slow(span) => Reply::Later(span, answer),
            _ => Reply::Now(answer),
        }
    }
}

/// How many of a hundred calls end badly by chance.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chances {
    /// With 429.
    pub throttled: u8,
    /// With 500.
    pub broken: u8,
    /// Without an answer although they were carried out.
    pub cut_after: u8,
    /// Where chance begins.
    pub seed: u64,
}

#[derive(Debug)]
struct Planned {
    operation: Option<&'static str>,
    times: u32,
    fault: Fault,
}

/// What is still to go wrong.
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

    /// The fault of this call of `operation`, if it has one.
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
