//! Running a vector, on a store or on the model.

use tollgate_core::bounds::LOWS_MAX;
use tollgate_core::{Costs, ErrorKind, Policy, Standing, Timestamp};

use super::format::{Expected, Operation, Stand, Step, Vector};
use crate::model::Model;
use crate::script::{Answer, Did, Player, Refused, Run};

/// Runs `vector` on a store, one step after the other, each at its own time.
///
/// # Errors
/// The first step that answered something else, with what was expected.
pub fn run(vector: &Vector, run: &mut Run<'_>) -> Result<(), String> {
    let player = Player::new(&vector.policy.policy()?, &vector.name);
    compare(vector, &mut Played { player, run }, Refunds::Exact)
}

/// Runs `vector` as [`run`] does on a store whose buckets may give back less than the core. From the first step on at which
/// that shows, the rest of the vector is another story and is not compared.
///
/// # Errors
/// As [`run`].
pub fn run_with_bounded_refunds(vector: &Vector, run: &mut Run<'_>) -> Result<(), String> {
    let player = Player::new(&vector.policy.policy()?, &vector.name);
    compare(vector, &mut Played { player, run }, Refunds::Bounded)
}

/// Runs `vector` on the reference model.
///
/// # Errors
/// As [`run`].
pub fn run_model(vector: &Vector) -> Result<(), String> {
    compare(vector, &mut Model::new(&vector.policy.policy()?), Refunds::Exact)
}

/// `vector` with everything it expects taken from what the store answers.
///
/// # Errors
/// A policy that is wrong, or a store that shows other standings with an answer than on their own.
pub fn fill(mut vector: Vector, run: &mut Run<'_>) -> Result<Vector, String> {
    let player = Player::new(&vector.policy.policy()?, &vector.name);
    let answers = answers(&vector, &mut Played { player, run })?;
    for (step, (expect, standings)) in vector.steps.iter_mut().zip(answers) {
        (step.expect, step.standings) = (expect, standings);
    }
    Ok(vector)
}

/// What a continuous bucket gives back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refunds {
    Exact,
    Bounded,
}

/// Whether `got` differs from `expected` only in buckets that gave back less. After more `charges` than the core has lows its
/// own credits are bounds too, and may be the lower ones.
pub(crate) fn gave_back_less(expected: &[Stand], got: &[Stand], charges: usize) -> bool {
    let is_less = |(expected, got): (&Stand, &Stand)| {
        let same_limit = expected.name == got.name && expected.refilled_at_us.is_some();
        let less = expected.full_at_us <= got.full_at_us || LOWS_MAX < charges;
        got == expected || (same_limit && less)
    };
    expected.len() == got.len() && expected.iter().zip(got).all(is_less)
}

/// Who a vector can be played to.
trait Subject {
    fn play(&mut self, now: Timestamp, did: &Did) -> Answer;
    fn standings(&mut self, now: Timestamp) -> Result<Vec<Standing>, String>;
    fn change(&mut self, policy: &Policy);
    /// What the last answer showed of the standings, if it showed any.
    fn shown(&self) -> &[Standing];
}

struct Played<'a, 'b> {
    player: Player,
    run: &'a mut Run<'b>,
}

impl Subject for Played<'_, '_> {
    fn play(&mut self, now: Timestamp, did: &Did) -> Answer {
        self.player.play(now, did, self.run)
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
    fn play(&mut self, now: Timestamp, did: &Did) -> Answer {
        self.apply(now, did)
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
) -> Result<Vec<(Expected, Vec<Stand>)>, String> {
    // The step that gave each permit.
    let mut givers: Vec<usize> = Vec::new();
    let mut all = Vec::new();
    for (place, step) in vector.steps.iter().enumerate() {
        if let Some(policy) = &step.policy {
            subject.change(&policy.policy()?);
        }
        let now = Timestamp::from_micros(step.at_us);
        let answer = subject.play(now, &did(step, &givers)?);
        if let Answer::Admitted(_) | Answer::Charged(_) | Answer::Shadowed(..) = answer {
            givers.push(place);
        }
        let standings = subject.standings(now)?;
        let shown = subject.shown();
        if !shown.is_empty() && shown != standings {
            return Err(format!(
                "vector {:?}, step {place}: the answer shows {shown:?}, and right after it is {standings:?}",
                vector.name
            ));
        }
        all.push((expected(answer, &givers), standings.iter().map(Stand::of).collect()));
    }
    Ok(all)
}

fn did(step: &Step, givers: &[usize]) -> Result<Did, String> {
    let permit = |giver: &usize| {
        let found = givers.iter().position(|place| place == giver);
        found.ok_or_else(|| format!("step {giver} gave no permit"))
    };
    let costs = |named: &std::collections::BTreeMap<String, u64>| -> Costs {
        named.iter().map(|(unit, amount)| (unit.as_str(), *amount)).collect()
    };
    Ok(match &step.operation {
        Operation::Acquire { costs: named, id } => {
            Did::Acquire { costs: costs(named), id: id.clone() }
        }
        Operation::Charge { costs: named, id } => {
            Did::Charge { costs: costs(named), id: id.clone() }
        }
        Operation::Settle { permit: giver, actual } => {
            Did::Settle { permit: permit(giver)?, actual: costs(actual) }
        }
        Operation::Release { permit: giver } => Did::Release { permit: permit(giver)? },
        Operation::Renew { permit: giver } => Did::Renew { permit: permit(giver)? },
        Operation::Close { limit, until_us } => {
            Did::Close { limit: limit.clone(), until: Timestamp::from_micros(*until_us) }
        }
        Operation::Standing => Did::Look,
        Operation::Reset => Did::Reset,
    })
}

fn expected(answer: Answer, givers: &[usize]) -> Expected {
    let micros = |at: Option<Timestamp>| at.map(Timestamp::as_micros);
    match answer {
        Answer::Admitted(given) => Expected::Admitted {
            charged_at_us: given.at.as_micros(),
            use_by_us: micros(given.use_by),
            expires_at_us: micros(given.expires_at),
        },
        Answer::Charged(given) => Expected::Charged { charged_at_us: given.at.as_micros() },
        Answer::Repeated(given) => Expected::Repeated { permit: givers[given.permit] },
        Answer::Denied(Refused { limit, until }) => {
            Expected::Denied { limit, until_us: micros(until) }
        }
        Answer::Shadowed(_, Refused { limit, until }) => {
            Expected::ShadowDenied { limit, until_us: micros(until) }
        }
        Answer::Settled(done) => Expected::Settled { done },
        Answer::Renewed(expires_at) => Expected::Renewed { expires_at_us: micros(expires_at) },
        Answer::Done(done) => Expected::Done { done },
        Answer::Seen => Expected::Seen,
        Answer::Failed(kind) => Expected::Error { kind: kind_name(kind).to_owned() },
        Answer::Odd(text) => Expected::Odd { text },
    }
}

const fn kind_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "invalid",
        ErrorKind::Conflict => "conflict",
        ErrorKind::Contended => "contended",
        ErrorKind::Expired => "expired",
        ErrorKind::Corrupt => "corrupt",
        _ => "other",
    }
}

impl Stand {
    pub(crate) fn of(standing: &Standing) -> Self {
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
