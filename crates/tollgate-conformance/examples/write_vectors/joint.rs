//! Asks with several charges.

use std::collections::BTreeMap;

use tollgate_conformance::joint::{ActionForm, Answer, AskForm, JointVector, PartyForm, StepForm};
use tollgate_conformance::vectors::PolicyForm;
use tollgate_core::{
    CalendarWindow, Concurrency, Error, Limit, Period, Policy, RollingWindow, Span, TokenBucket,
};

use crate::story::at;

const MINUTE: Span = Span::from_mins(1);

pub(crate) fn all() -> Result<Vec<JointVector>, Error> {
    let stories = [
        refused_by_last()?,
        five_times_forty()?,
        every_refusal()?,
        honest_wait()?,
        settle()?,
        own_costs()?,
        release()?,
        repeat()?,
        conflict()?,
        shadow_inside()?,
        shadow_first()?,
        changed_numbers()?,
        debt()?,
        slots()?,
        slots_lost()?,
        never()?,
        duplicate()?,
        unknown_unit()?,
        closed()?,
        reset()?,
        clock_back()?,
        expired_id()?,
    ];
    Ok(stories.into_iter().map(|story| story.0).collect())
}

fn user() -> Result<Policy, Error> {
    Policy::new("user", [Limit::new("rpm", "requests", RollingWindow::new(3, MINUTE))])
}

fn team() -> Result<Policy, Error> {
    Policy::new("team", [Limit::new("tpm", "tokens", TokenBucket::per_minute(60).burst(100))])
}

fn account() -> Result<Policy, Error> {
    Policy::new(
        "account",
        [
            Limit::new("rpm", "requests", RollingWindow::new(5, MINUTE)),
            Limit::new("tpd", "tokens", CalendarWindow::new(200, Period::Day)),
        ],
    )
}

fn three(name: &str, why: &str) -> Result<Story, Error> {
    Ok(Story::new(name, why, [("u1", user()?), ("t7", team()?), ("main", account()?)]))
}

const ALL: [usize; 3] = [0, 1, 2];

fn refused_by_last() -> Result<Story, Error> {
    let why = "the last charge refuses, so the others are charged nothing";
    Ok(three("refused-by-last", why)?
        .acquire(0, &[2], &[("tokens", 150)])
        .acquire(1, &ALL, &[("tokens", 60)])
        .acquire(1, &ALL, &[("tokens", 50)]))
}

fn five_times_forty() -> Result<Story, Error> {
    let why = "five asks of 40 tokens against 100 over three parties admit two, and the rest costs nobody anything";
    let mut story = three("five-times-forty", why)?;
    for _ in 0..5 {
        story = story.acquire(0, &ALL, &[("tokens", 40)]);
    }
    Ok(story)
}

fn every_refusal() -> Result<Story, Error> {
    let why = "a denial names every limit of every charge that refuses; the longest wait binds, then the order of the ask";
    Ok(three("every-refusal", why)?
        .acquire(0, &ALL, &[("tokens", 100), ("requests", 3)])
        .acquire(1, &[2], &[("tokens", 100), ("requests", 2)])
        .acquire(2, &ALL, &[("tokens", 50)])
        .acquire(2, &[2, 1, 0], &[("tokens", 50)]))
}

fn honest_wait() -> Result<Story, Error> {
    let why = "denied one microsecond before the promised time, admitted at it";
    Ok(three("honest-wait", why)?
        .acquire(0, &ALL, &[("tokens", 100)])
        .acquire(0, &[0, 1], &[("tokens", 30)])
        .acquire_at(at(30) - 1, &[0, 1], &[("tokens", 30)])
        .acquire(30, &[0, 1], &[("tokens", 30)]))
}

fn settle() -> Result<Story, Error> {
    let why = "actual costs apply to every charge that has the unit, above and below the estimate; twice changes nothing";
    Ok(three("settle", why)?
        .acquire(0, &ALL, &[("tokens", 40)])
        .settle(0, 0, &[("tokens", 10)])
        .settle(0, 0, &[("tokens", 10)])
        .acquire(1, &ALL, &[("tokens", 40)])
        .settle(1, 3, &[("tokens", 70)])
        .settle(1, 3, &[("pages", 1)]))
}

fn own_costs() -> Result<Story, Error> {
    let why = "a charge with costs of its own is settled by its own actual costs, and keeps its estimate otherwise";
    Ok(three("own-costs", why)?
        .ask(0, AskForm { own_costs: own(2, &[("tokens", 25)]), ..ask(&ALL, &[("tokens", 40)]) })
        .settle(0, 0, &[("tokens", 30)])
        .ask(1, AskForm { own_costs: own(2, &[("tokens", 25)]), ..ask(&ALL, &[("tokens", 40)]) })
        .step(1, ActionForm::SettlePart { permit: 2, charge: 2, actual: named(&[("tokens", 5)]) })
        .settle(1, 2, &[("tokens", 20)]))
}

fn release() -> Result<Story, Error> {
    let why = "a release gives every charge back, once, and forgets the id";
    Ok(three("release", why)?
        .ask(0, with_id("a", &ALL, &[("tokens", 40)]))
        .release(0, 0)
        .release(0, 0)
        .ask(0, with_id("a", &ALL, &[("tokens", 40)])))
}

fn repeat() -> Result<Story, Error> {
    let why = "a repeat by id gets the first permit, also after it was settled, and charges no party again";
    Ok(three("repeat", why)?
        .ask(0, with_id("a", &ALL, &[("tokens", 40)]))
        .ask(1, with_id("a", &ALL, &[("tokens", 40)]))
        .settle(2, 0, &[("tokens", 10)])
        .ask(3, with_id("a", &ALL, &[("tokens", 40)])))
}

fn conflict() -> Result<Story, Error> {
    let why = "the same id under the same first charge is a conflict with other costs, other parties or another order of them; \
               under another first charge it is another id";
    Ok(three("conflict", why)?
        .ask(0, with_id("a", &ALL, &[("tokens", 10)]))
        .ask(0, with_id("a", &ALL, &[("tokens", 11)]))
        .ask(0, with_id("a", &[0, 1], &[("tokens", 10)]))
        .ask(0, with_id("a", &[0, 2, 1], &[("tokens", 10)]))
        .ask(0, with_id("a", &[1, 0, 2], &[("tokens", 10)])))
}

fn shadow(policy: &Policy) -> Result<Policy, Error> {
    Policy::builder(policy.name()).limits(policy.limits().cloned()).shadow(true).build()
}

fn shadow_inside() -> Result<Story, Error> {
    let why =
        "a policy in shadow mode never refuses the ask, and is charged only what it has room for";
    let parties = [("u1", user()?), ("t7", shadow(&team()?)?), ("main", account()?)];
    Ok(Story::new("shadow-inside", why, parties)
        .acquire(0, &ALL, &[("tokens", 90)])
        .acquire(0, &ALL, &[("tokens", 90)])
        .acquire(0, &ALL, &[("tokens", 90)])
        .settle(1, 1, &[("tokens", 5)]))
}

fn shadow_first() -> Result<Story, Error> {
    let why = "an id belongs to the first charge even if that is in shadow mode and was charged nothing; a release forgets it";
    let parties = [("t7", shadow(&team()?)?), ("main", account()?)];
    Ok(Story::new("shadow-first", why, parties)
        .acquire(0, &[0], &[("tokens", 90)])
        .ask(0, with_id("a", &[0, 1], &[("tokens", 50)]))
        .ask(1, with_id("a", &[0, 1], &[("tokens", 50)]))
        .release(1, 1)
        .ask(2, with_id("a", &[0, 1], &[("tokens", 50)])))
}

fn changed_numbers() -> Result<Story, Error> {
    let why = "a party whose numbers changed keeps its use; the others are not touched by that";
    let wider =
        Policy::new("team", [Limit::new("tpm", "tokens", TokenBucket::per_minute(60).burst(150))])?;
    Ok(three("changed-numbers", why)?
        .acquire(0, &ALL, &[("tokens", 90)])
        .acquire(0, &ALL, &[("tokens", 20)])
        .change(&wider)
        .acquire(0, &ALL, &[("tokens", 70)])
        .acquire(0, &ALL, &[("tokens", 20)]))
}

fn debt() -> Result<Story, Error> {
    let why = "a charge without a decision charges every party, beyond its limit too, once per id";
    let charge = |seconds, story: Story| {
        story.step(seconds, ActionForm::Charge(with_id("late", &ALL, &[("tokens", 130)])))
    };
    let story = charge(1, charge(0, three("debt", why)?));
    Ok(story.acquire(1, &ALL, &[("tokens", 1)]).acquire(32, &[0, 1], &[("tokens", 1)]))
}

fn jobs() -> Result<Policy, Error> {
    Policy::new("jobs", [Limit::new("running", "requests", Concurrency::new(1, MINUTE))])
}

fn slots() -> Result<Story, Error> {
    let why = "slots in one charge: the ask is refused while they are held, renewing extends them, settling frees them";
    Ok(Story::new("slots", why, [("u1", user()?), ("gpu", jobs()?)])
        .acquire(0, &[0, 1], &[])
        .acquire(1, &[0, 1], &[])
        .step(30, ActionForm::Renew { permit: 0 })
        .acquire(61, &[0, 1], &[])
        .settle(61, 0, &[])
        .acquire(61, &[0, 1], &[]))
}

fn slots_lost() -> Result<Story, Error> {
    let why = "a repeat whose slots have expired is a new ask";
    Ok(Story::new("slots-lost", why, [("u1", user()?), ("gpu", jobs()?)])
        .ask(0, with_id("a", &[0, 1], &[]))
        .ask(59, with_id("a", &[0, 1], &[]))
        .ask(60, with_id("a", &[0, 1], &[])))
}

fn never() -> Result<Story, Error> {
    let why =
        "an ask of which one charge can never fit is refused for ever, whatever the others say";
    Ok(three("never", why)?
        .acquire(0, &ALL, &[("tokens", 101)])
        .acquire(0, &ALL, &[("requests", 3), ("tokens", 100)])
        .acquire(0, &ALL, &[("tokens", 101)]))
}

fn duplicate() -> Result<Story, Error> {
    let why = "the same policy and subject twice is an error, and changes nothing";
    Ok(three("duplicate", why)?.acquire(0, &[0, 1, 0], &[("tokens", 1)]))
}

fn unknown_unit() -> Result<Story, Error> {
    let why = "a unit that one charge has is enough; one that no charge has is an error";
    Ok(three("unknown-unit", why)?
        .acquire(0, &[0, 1], &[("tokens", 1)])
        .acquire(0, &[0, 1], &[("pages", 1)])
        .ask(0, AskForm { own_costs: own(1, &[("pages", 1)]), ..ask(&[0, 1], &[]) }))
}

fn closed() -> Result<Story, Error> {
    let why = "a limit that is closed for one party refuses the whole ask until then";
    let close = ActionForm::Close { party: 2, limit: "tpd".to_owned(), until_us: at(20) };
    Ok(three("closed", why)?
        .step(0, close)
        .acquire(1, &ALL, &[("tokens", 10)])
        .acquire(1, &[0, 1], &[("tokens", 10)])
        .acquire(20, &ALL, &[("tokens", 10)]))
}

fn reset() -> Result<Story, Error> {
    let why = "resetting the first party makes its ids new; resetting another one does not";
    Ok(three("reset", why)?
        .ask(0, with_id("a", &ALL, &[("tokens", 10)]))
        .step(0, ActionForm::Reset { party: 1 })
        .ask(1, with_id("a", &ALL, &[("tokens", 10)]))
        .step(1, ActionForm::Reset { party: 0 })
        .ask(2, with_id("a", &ALL, &[("tokens", 10)])))
}

fn clock_back() -> Result<Story, Error> {
    let why = "each party decides no earlier than it was last charged";
    Ok(three("clock-back", why)?
        .acquire(10, &[1], &[("tokens", 100)])
        .acquire(5, &[0, 1], &[("tokens", 1)])
        .acquire(5, &[0, 2], &[("tokens", 1)])
        .acquire(11, &[0, 1], &[("tokens", 1)]))
}

fn expired_id() -> Result<Story, Error> {
    let why = "an id is remembered for its horizon and then new";
    Ok(three("expired-id", why)?
        .ask(0, with_id("a", &ALL, &[("tokens", 10)]))
        .ask(119, with_id("a", &ALL, &[("tokens", 10)]))
        .ask(120, with_id("a", &ALL, &[("tokens", 10)])))
}

struct Story(JointVector, Option<PolicyForm>);

impl Story {
    fn new<'a>(
        name: &str,
        why: &str,
        parties: impl IntoIterator<Item = (&'a str, Policy)>,
    ) -> Self {
        let party = |(subject, policy): (&str, Policy)| PartyForm {
            subject: subject.to_owned(),
            policy: PolicyForm::from_policy(&policy),
        };
        let parties = parties.into_iter().map(party).collect();
        let (name, why) = (name.to_owned(), why.to_owned());
        Self(JointVector { name, why, parties, steps: Vec::new() }, None)
    }

    fn change(mut self, policy: &Policy) -> Self {
        self.1 = Some(PolicyForm::from_policy(policy));
        self
    }

    fn acquire(self, seconds: u64, parties: &[usize], costs: &[(&str, u64)]) -> Self {
        self.ask(seconds, ask(parties, costs))
    }

    fn acquire_at(self, at_us: u64, parties: &[usize], costs: &[(&str, u64)]) -> Self {
        self.step_at(at_us, ActionForm::Acquire(ask(parties, costs)))
    }

    fn ask(self, seconds: u64, form: AskForm) -> Self {
        self.step(seconds, ActionForm::Acquire(form))
    }

    fn settle(self, seconds: u64, permit: usize, actual: &[(&str, u64)]) -> Self {
        self.step(seconds, ActionForm::Settle { permit, actual: named(actual) })
    }

    fn release(self, seconds: u64, permit: usize) -> Self {
        self.step(seconds, ActionForm::Release { permit })
    }

    fn step(self, seconds: u64, action: ActionForm) -> Self {
        self.step_at(at(seconds), action)
    }

    fn step_at(mut self, at_us: u64, action: ActionForm) -> Self {
        let (policy, expect) = (self.1.take(), Answer::Changed { changed: false });
        self.0.steps.push(StepForm { at_us, policy, action, expect, standings: Vec::new() });
        self
    }
}

fn ask(parties: &[usize], costs: &[(&str, u64)]) -> AskForm {
    AskForm { parties: parties.to_vec(), costs: named(costs), own_costs: Vec::new(), id: None }
}

fn with_id(id: &str, parties: &[usize], costs: &[(&str, u64)]) -> AskForm {
    AskForm { id: Some(id.to_owned()), ..ask(parties, costs) }
}

fn own(charge: usize, costs: &[(&str, u64)]) -> Vec<(usize, BTreeMap<String, u64>)> {
    vec![(charge, named(costs))]
}

fn named(costs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    costs.iter().map(|(unit, amount)| ((*unit).to_owned(), *amount)).collect()
}
