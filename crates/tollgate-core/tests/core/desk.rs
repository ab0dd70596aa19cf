//! One subject at one desk: the shortest way to tell a story in a test.

use tollgate_conformance::script::{
    Action, DenialSummary, PermitSummary, Player, Reply, SingleEntry,
};
use tollgate_core::{Costs, Entry, Limit, Policy, Rule, Span, Standing, Timestamp};

/// Seconds after a full hour, in UTC.
pub(crate) fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(1_700_002_800 + seconds)
}

/// One microsecond before.
pub(crate) fn just_before(at: Timestamp) -> Timestamp {
    at - Span::from_micros(1)
}

/// A policy of one limit, called `only`; slots are counted in jobs, everything else in requests.
pub(crate) fn one(rule: impl Into<Rule>) -> Policy {
    let rule = rule.into();
    let unit = if let Rule::Concurrency(_) = rule { "jobs" } else { "requests" };
    policy([Limit::new("only", unit, rule)])
}

/// A policy of these limits.
pub(crate) fn policy(limits: impl IntoIterator<Item = Limit>) -> Policy {
    Policy::new("story", limits).expect("the numbers of a story are right")
}

/// A subject, its store and its permits.
pub(crate) struct Desk {
    policy: Policy,
    player: Player,
    store: SingleEntry,
}

impl Desk {
    pub(crate) fn new(policy: &Policy) -> Self {
        let player = Player::new(policy, "subject");
        Self { policy: policy.clone(), player, store: SingleEntry::default() }
    }

    pub(crate) fn change(&mut self, policy: &Policy) {
        self.policy = policy.clone();
        self.player.change(policy);
    }

    pub(crate) fn play(&mut self, now: Timestamp, action: &Action) -> Reply {
        self.player.play(now, action, &mut self.store.runner())
    }

    /// Asks for `cost` of the policy's first unit.
    pub(crate) fn ask(&mut self, now: Timestamp, cost: u64) -> Reply {
        let costs = self.costs(cost);
        self.play(now, &Action::Acquire { costs, id: None })
    }

    /// Asks under an id.
    pub(crate) fn ask_as(&mut self, now: Timestamp, cost: u64, id: &str) -> Reply {
        let costs = self.costs(cost);
        self.play(now, &Action::Acquire { costs, id: Some(id.to_owned()) })
    }

    /// Asks, is admitted, and returns the permit.
    pub(crate) fn admitted(&mut self, now: Timestamp, cost: u64) -> usize {
        match self.ask(now, cost) {
            Reply::Admitted(PermitSummary { permit, .. }) => permit,
            other => unreachable!("{cost} at {now} should be admitted: {other:?}"),
        }
    }

    /// Asks, is denied, and returns by what and until when.
    pub(crate) fn denied(&mut self, now: Timestamp, cost: u64) -> DenialSummary {
        match self.ask(now, cost) {
            Reply::Denied(refused) => refused,
            other => unreachable!("{cost} at {now} should be denied: {other:?}"),
        }
    }

    pub(crate) fn release(&mut self, now: Timestamp, permit: usize) -> Reply {
        self.play(now, &Action::Release { permit })
    }

    pub(crate) fn settle(&mut self, now: Timestamp, permit: usize, actual: u64) -> Reply {
        let actual = self.costs(actual);
        self.play(now, &Action::Settle { permit, actual })
    }

    pub(crate) fn renew(&mut self, now: Timestamp, permit: usize) -> Reply {
        self.play(now, &Action::Renew { permit })
    }

    /// Where the subject stands on the first limit.
    pub(crate) fn standing(&mut self, now: Timestamp) -> Standing {
        let all = self.player.standings(now, &mut self.store.runner());
        all.expect("a standing can always be told").remove(0)
    }

    /// What is used of the first limit.
    pub(crate) fn used(&mut self, now: Timestamp) -> u64 {
        self.standing(now).used
    }

    pub(crate) fn entry(&self) -> Option<Entry> {
        self.store.entry.clone()
    }

    pub(crate) fn forget_entry(&mut self) {
        self.store.entry = None;
    }

    fn costs(&self, cost: u64) -> Costs {
        let unit = self.policy.units().next().unwrap_or("requests");
        Costs::new().with(unit, cost)
    }
}
