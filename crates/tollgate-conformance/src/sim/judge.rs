//! Checks a run against the promises.

use std::collections::BTreeMap;

use tollgate::ErrorKind;
use tollgate::strategy::over_issue_bound;
use tollgate_core::{Costs, Limit, Policy, Rule, Span};

use super::ledger::{Asked, Ended, Key};
use super::recorder::History;
use super::scenario::Scenario;
use super::spending::{self, Widening};
use super::{Charges, Counts, Sabotage, Setup, Strategy};
use crate::checkers;

/// How long the library sends a request again, in microseconds.
const RESEND_DEADLINE: u64 = 3_000_000;

/// The verdict on a run.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) counts: Counts,
    pub(super) over: (u64, u64),
    pub(super) verdict: Result<(), String>,
}

/// Judges a run by the store's histories and by what the callers saw.
pub(super) fn judge(
    scenario: &Scenario,
    setup: Setup,
    crashes: u64,
    histories: &BTreeMap<Key, History>,
    asked: &[Asked],
) -> Judged {
    let run = Run { scenario, setup, crashes, asked };
    let mut over = (0, 0);
    let mut verdict = run.in_time();
    for (key, history) in histories {
        let Some(level) = scenario.levels.iter().find(|level| level.policy.name() == key.0) else {
            continue;
        };
        let entry = Judging { policy: &level.policy, key, history };
        verdict = verdict.and_then(|()| {
            run.exact(entry)
                .and_then(|()| run.spent(entry, &mut over))
                .and_then(|()| run.books(entry))
                .map_err(|problem| format!("{problem} (policy {}, subject {})", key.0, key.1))
        });
    }
    Judged { counts: counts(asked), over, verdict }
}

struct Run<'a> {
    scenario: &'a Scenario,
    setup: Setup,
    crashes: u64,
    asked: &'a [Asked],
}

/// The history of one policy and subject.
#[derive(Clone, Copy)]
struct Judging<'a> {
    policy: &'a Policy,
    key: &'a Key,
    history: &'a History,
}

impl Run<'_> {
    /// Every promise, in the store's own time.
    fn exact(&self, entry: Judging<'_>) -> Result<(), String> {
        if self.setup.sabotage == Some(Sabotage::FullCredit) {
            // Permits whose time was changed are not those of the history: what callers spent must show it.
            return Ok(());
        }
        // A repeat whose slots are gone is a new ask.
        let has_slots = |limit: &Limit| matches!(limit.rule(), Rule::Concurrency(_));
        if !entry.policy.limits().any(has_slots) {
            entry.history.problem()?;
        }
        checkers::all(entry.policy, &entry.history.records)
            .map_err(|problem| format!("at the store: {problem}"))
    }

    /// What callers spent stays within the strategy's promise; `over` becomes the most it was beyond the rule, and the
    /// bound.
    fn spent(&self, entry: Judging<'_>, over: &mut (u64, u64)) -> Result<(), String> {
        let is_atomic = self.setup.strategy == Strategy::Atomic;
        let spent = spending::history(self.asked, entry.key, entry.history, is_atomic);
        let widening = self.widening(entry.key);
        spending::within(entry.policy, &spent, widening).map_err(|problem| {
            format!("callers spent too much: {problem}, widened by {widening:?}")
        })?;
        if let Widening::By(bound) = widening
            && bound != 0
        {
            over.0 = over.0.max(spending::over(entry.policy, &spent, bound));
            over.1 = bound;
        }
        Ok(())
    }

    /// How much more than the rule the strategy may issue.
    fn widening(&self, key: &Key) -> Widening {
        let Scenario { machines, unposted_max, .. } = *self.scenario;
        match self.setup.strategy {
            Strategy::Atomic | Strategy::Leased => Widening::By(0),
            Strategy::Optimistic => {
                Widening::By(over_issue_bound(machines, self.crashes, unposted_max))
            }
            Strategy::Fallback => {
                let mut alone: Vec<u64> = self
                    .asked
                    .iter()
                    .filter(|asked| asked.charge_of(key).is_some() && asked.is_degraded())
                    .map(|asked| asked.machine)
                    .collect();
                alone.sort_unstable();
                alone.dedup();
                Widening::Shares { cut_off: alone.len() as u64, instances: machines }
            }
        }
    }

    /// The books balance: what callers were admitted is charged, and nothing else is except asks whose reply was lost. Where
    /// machines admit by themselves, a crash may lose what they had not posted.
    fn books(&self, entry: Judging<'_>) -> Result<(), String> {
        let is_settled = self.scenario.settles_percent != 0;
        if is_settled && self.setup.strategy != Strategy::Atomic {
            return Ok(());
        }
        let may_lose = match self.setup.strategy {
            Strategy::Atomic | Strategy::Leased => false,
            Strategy::Optimistic | Strategy::Fallback => self.crashes != 0,
        };
        let of_entry = || self.asked.iter().filter(|asked| asked.charge_of(entry.key).is_some());
        for unit in entry.policy.units() {
            let sum = |asked: &Asked| {
                asked.charge_of(entry.key).map_or(0, |(costs, _)| amount(costs, unit))
            };
            let charged = entry.history.charged();
            let charged = charged.iter().map(|costs| amount(costs, unit)).sum::<u64>();
            // Admissions without the store are posted as far as they still count.
            let admitted = of_entry()
                .filter(|asked| {
                    matches!(asked.ended, Ended::Admitted { .. }) && !asked.is_degraded()
                })
                .map(sum)
                .sum::<u64>();
            // A first request may come after a second was refused, or was admitted and given back, or after the machine
            // decided by itself.
            let unknown = of_entry()
                .filter(|asked| asked.resent || asked.is_degraded() || self.resends(asked))
                .map(sum)
                .sum::<u64>();
            // Blocks are charged before they are spent, and the rest is given back.
            let may_hold = self.setup.strategy == Strategy::Leased;
            if (charged < admitted && !may_lose) || (admitted + unknown < charged && !may_hold) {
                return Err(format!(
                    "the books do not balance: {charged} {unit} charged at the store, {admitted} admitted, and {unknown} of \
                     which the caller cannot know"
                ));
            }
        }
        Ok(())
    }

    /// Whether a request of this ask may have been charged without its caller knowing.
    fn resends(&self, asked: &Asked) -> bool {
        match asked.ended {
            Ended::Open | Ended::Failed { .. } => true,
            Ended::Denied { .. } => self.resends_itself(),
            // A late first request finds its id, unless it comes after the id was forgotten, or what it asked for was
            // given back.
            Ended::Admitted { .. } => {
                self.resends_itself()
                    && (self.scenario.is_late() || self.scenario.settles_percent != 0)
            }
        }
    }

    const fn resends_itself(&self) -> bool {
        self.scenario.resends && matches!(self.setup.sabotage, None | Some(Sabotage::WholeShares))
    }

    /// Every ask of a machine that lives is answered within its deadline.
    fn in_time(&self) -> Result<(), String> {
        let timeout = self.scenario.line.timeout.as_micros();
        let ttls = self.scenario.levels.iter().map(|level| level.policy.block_ttl().as_micros());
        let ttls = 2 * ttls.max().unwrap_or(0);
        // A block may end while the store decides about other charges: then the store's permit is released, and the
        // store decides again.
        let calls = if self.setup.charges == Charges::Several { 3 } else { 2 };
        let one = match (self.setup.strategy, self.scenario.resends) {
            // A clock that leaves time out keeps no deadline.
            _ if self.setup.sabotage == Some(Sabotage::LifeFromAnswer) => return Ok(()),
            (Strategy::Atomic, _) if self.setup.sabotage.is_some() => 2 * timeout,
            (Strategy::Atomic, false) => timeout,
            (Strategy::Atomic, true) => RESEND_DEADLINE,
            (Strategy::Leased, false) => calls * timeout + ttls,
            (Strategy::Leased, true) => calls * RESEND_DEADLINE + ttls,
            (Strategy::Optimistic, _) => 20_000_000,
            (Strategy::Fallback, _) => 4_500_000,
        };
        for (number, asked) in self.asked.iter().enumerate() {
            // A caller may ask twice; clocks that run slow let a little more time pass.
            let times = 1 + u64::from(asked.resent);
            let deadline = Span::from_micros(times * one * 101 / 100);
            if let Some(waited) = asked.waited()
                && deadline < waited
            {
                return Err(format!(
                    "ask {number} was answered after {waited}, not within {deadline}"
                ));
            }
        }
        Ok(())
    }
}

fn amount(costs: &Costs, unit: &str) -> u64 {
    costs.get(unit).unwrap_or(0)
}

fn counts(asked: &[Asked]) -> Counts {
    let mut counts = Counts { asks: asked.len() as u64, ..Counts::default() };
    for asked in asked {
        match &asked.ended {
            Ended::Open => counts.unanswered += 1,
            Ended::Admitted { .. } => {
                counts.admitted += 1;
                counts.degraded += u64::from(asked.is_degraded());
            }
            Ended::Denied { .. } => counts.denied += 1,
            Ended::Failed { kind: ErrorKind::Contended, .. } => counts.contended += 1,
            Ended::Failed { .. } => counts.failed += 1,
        }
    }
    counts
}
