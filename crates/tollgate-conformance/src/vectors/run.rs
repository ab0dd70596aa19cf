//! Running a vector, on a store or on the model.

use tollgate_core::bounds::LOWS_MAX;
use tollgate_core::{Costs, ErrorKind, Policy, Standing, Timestamp};

use super::format::{Expected, ExpectedStanding, Operation, Step, Vector};
use crate::model::Model;
use crate::script::{Action, DenialSummary, Player, Reply, Run};

/// Runs `vector` on a store, one step after the other, each at its own time.
pub fn run(vector: &Vector, run: &mut Run<'_>) -> Result<(), String> {
    let player = Player::new(&vector.policy.policy()?, &vector.name);
    compare(vector, &mut Played { player, run }, Refunds::Exact)
}

/// Runs `vector` on a store whose buckets may credit less than the core. The steps after the first difference are not
/// compared.
pub fn run_with_bounded_refunds(vector: &Vector, run: &mut Run<'_>) -> Result<(), String> {
    let player = Player::new(&vector.policy.policy()?, &vector.name);
    compare(vector, &mut Played { player, run }, Refunds::Bounded)
}

/// Runs `vector` on the reference model.
pub fn run_model(vector: &Vector) -> Result<(), String> {
    compare(vector, &mut Model::new(&vector.policy.policy()?), Refunds::Exact)
}

/// Fills in the expectations of `vector` from the results of a store.
pub fn fill(mut vector: Vector, run: &mut Run<'_>) -> Result<Vector, String> {
    let player = Player::new(&vector.policy.policy()?, &vector.name);
    let answers = answers(&vector, &mut Played { player, run })?;
    for (step, (expect, standings)) in vector.steps.iter_mut().zip(answers) {
        (step.expect, step.standings) = (expect, standings);
    }
    Ok(vector)
}

/// How much a continuous bucket credits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refunds {
    Exact,
    Bounded,
}

/// Whether `got` differs from `expected` only in buckets that credited less. After more `charges` than the core has lows, its
/// own credits are lower bounds too.
pub(crate) fn gave_back_less(
    expected: &[ExpectedStanding],
    got: &[ExpectedStanding],
    charges: usize,
) -> bool {
    let is_less = |(expected, got): (&ExpectedStanding, &ExpectedStanding)| {
        let same_limit = expected.name == got.name && expected.refilled_at_us.is_some();
        let less = expected.full_at_us <= got.full_at_us || LOWS_MAX < charges;
        got == expected || (same_limit && less)
    };
    expected.len() == got.len() && expected.iter().zip(got).all(is_less)
}

/// A store or a model that runs a vector.
trait Subject {
    fn play(&mut self, now: Timestamp, action: &Action) -> Reply;
    fn standings(&mut self, now: Timestamp) -> Result<Vec<Standing>, String>;
    fn change(&mut self, policy: &Policy);
    /// The standings in the last reply, if any.
    fn shown(&self) -> &[Standing];
}

struct Played<'a, 'b> {
    player: Player,
    run: &'a mut Run<'b>,
}

impl Subject for Played<'_, '_> {
    fn play(&mut self, now: Timestamp, action: &Action) -> Reply {
        self.player.play(now, action, self.run)
    }

    fn standings(&mut self, now: Timestamp) -> Result<Vec<Standing>, String> {
        self.player.standings(now, self.run)
    }

    fn change(&mut self, policy: &Policy) {
        self.player.change(policy);
    }

    fn shown(&self) -> &[Standing] {
        self.player.shown()
    }
}

impl Subject for Model {
    fn play(&mut self, now: Timestamp, action: &Action) -> Reply {
        self.apply(now, action)
    }

    fn standings(&mut self, now: Timestamp) -> Result<Vec<Standing>, String> {
        Ok(Self::standings(self, now))
    }

    fn change(&mut self, policy: &Policy) {
        Self::change(self, policy);
    }

    fn shown(&self) -> &[Standing] {
        &[]
    }
}

fn compare(vector: &Vector, subject: &mut dyn Subject, refunds: Refunds) -> Result<(), String> {
    let answers = answers(vector, subject)?;
    for (place, (step, (expect, standings))) in vector.steps.iter().zip(answers).enumerate() {
        let story = || format!("vector {:?}, step {place} ({:?})", vector.name, step.operation);
        if step.expect != expect {
            return Err(format!("{}: expected {:?}, got {expect:?}", story(), step.expect));
        }
        let gives_back =
            matches!(step.operation, Operation::Settle { .. } | Operation::Release { .. });
        if step.standings != standings
            && refunds == Refunds::Bounded
            && gives_back
            && gave_back_less(&step.standings, &standings, place)
        {
            return Ok(());
        }
        if step.standings != standings {
            return Err(format!("{}: expected {:?}, got {standings:?}", story(), step.standings));
        }
    }
    Ok(())
}

fn answers(
    vector: &Vector,
    subject: &mut dyn Subject,
) -> Result<Vec<(Expected, Vec<ExpectedStanding>)>, String> {
    // The step that gave each permit.
    let mut givers: Vec<usize> = Vec::new();
    let mut all = Vec::new();
    for (place, step) in vector.steps.iter().enumerate() {
        if let Some(policy) = &step.policy {
            subject.change(&policy.policy()?);
        }
        let now = Timestamp::from_micros(step.at_us);
        let reply = subject.play(now, &action(step, &givers)?);
        if let Reply::Admitted(_) | Reply::Charged(_) | Reply::Shadowed(..) = reply {
            givers.push(place);
        }
        let standings = subject.standings(now)?;
        let shown = subject.shown();
        if !shown.is_empty() && shown != standings {
            return Err(format!(
                "vector {:?}, step {place}: the reply shows {shown:?}, and right after it is {standings:?}",
                vector.name
            ));
        }
        all.push((
            expected(reply, &givers),
            standings.iter().map(ExpectedStanding::from_standing).collect(),
        ));
    }
    Ok(all)
}

fn action(step: &Step, givers: &[usize]) -> Result<Action, String> {
    let permit = |giver: &usize| {
        let found = givers.iter().position(|place| place == giver);
        found.ok_or_else(|| format!("step {giver} gave no permit"))
    };
    let costs = |named: &std::collections::BTreeMap<String, u64>| -> Costs {
        named.iter().map(|(unit, amount)| (unit.as_str(), *amount)).collect()
    };
    Ok(match &step.operation {
        Operation::Acquire { costs: named, id } => {
            Action::Acquire { costs: costs(named), id: id.clone() }
        }
        Operation::Charge { costs: named, id } => {
            Action::Charge { costs: costs(named), id: id.clone() }
        }
        Operation::Settle { permit: giver, actual } => {
            Action::Settle { permit: permit(giver)?, actual: costs(actual) }
        }
        Operation::Release { permit: giver } => Action::Release { permit: permit(giver)? },
        Operation::Renew { permit: giver } => Action::Renew { permit: permit(giver)? },
        Operation::Close { limit, until_us } => {
            Action::Close { limit: limit.clone(), until: Timestamp::from_micros(*until_us) }
        }
        Operation::Standing => Action::Standing,
        Operation::Reset => Action::Reset,
    })
}

fn expected(reply: Reply, givers: &[usize]) -> Expected {
    let micros = |at: Option<Timestamp>| at.map(Timestamp::as_micros);
    match reply {
        Reply::Admitted(given) => Expected::Admitted {
            charged_at_us: given.at.as_micros(),
            use_by_us: micros(given.use_by),
            expires_at_us: micros(given.expires_at),
        },
        Reply::Charged(given) => Expected::Charged { charged_at_us: given.at.as_micros() },
        Reply::Repeated(given) => Expected::Repeated { permit: givers[given.permit] },
        Reply::Denied(DenialSummary { limit, until }) => {
            Expected::Denied { limit, until_us: micros(until) }
        }
        Reply::Shadowed(_, DenialSummary { limit, until }) => {
            Expected::ShadowDenied { limit, until_us: micros(until) }
        }
        Reply::Settled(done) => Expected::Settled { done },
        Reply::Renewed(expires_at) => Expected::Renewed { expires_at_us: micros(expires_at) },
        Reply::Done(done) => Expected::Done { done },
        Reply::Standings => Expected::Seen,
        Reply::Failed(kind) => Expected::Error { kind: kind_name(kind).to_owned() },
        Reply::Unexpected(text) => Expected::Odd { text },
    }
}

pub(crate) const fn kind_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "invalid",
        ErrorKind::Conflict => "conflict",
        ErrorKind::Contended => "contended",
        ErrorKind::Expired => "expired",
        ErrorKind::Corrupt => "corrupt",
        _ => "other",
    }
}

impl ExpectedStanding {
    pub(crate) fn from_standing(standing: &Standing) -> Self {
        let micros = |at: Option<Timestamp>| at.map(Timestamp::as_micros);
        Self {
            name: standing.name.to_string(),
            limit: standing.limit,
            used: standing.used,
            remaining: standing.remaining,
            reset_at_us: micros(standing.reset_at),
            full_at_us: micros(standing.full_at),
            refilled_at_us: micros(standing.refilled_at),
        }
    }
}
