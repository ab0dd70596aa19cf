//! The promises of a gate, one function each, on numbers that a person can follow.

use tollgate::{Clock, Gate};
use tollgate_core::{
    Arrears, Ask, CalendarWindow, Concurrency, Costs, Decision, Denial, Entry, Known, Limit,
    Operation, Period, Permit, Policy, RollingWindow, Rule, Span, TokenBucket, Wait, apply,
    standings,
};

use super::{Fixture, ensure};

const MINUTE: Span = Span::from_mins(1);

/// One policy for each rule, each with room for five.
pub(super) fn each_rule() -> Result<Vec<Policy>, String> {
    let rules: [(&str, Rule); 6] = [
        ("continuous", TokenBucket::per_minute(5).into()),
        ("interval", TokenBucket::per_minute(5).at_boundaries().into()),
        ("rolling", RollingWindow::new(5, MINUTE).into()),
        ("coarse", RollingWindow::new(5, MINUTE).resolution(6).into()),
        ("calendar", CalendarWindow::new(5, Period::Day).in_zone("America/Los_Angeles").into()),
        ("slots", Concurrency::new(5, MINUTE).into()),
    ];
    let policies = rules.into_iter().map(|(name, rule)| {
        Policy::new(name, [Limit::new("only", "requests", rule)]).map_err(|error| error.to_string())
    });
    policies.collect()
}

pub(super) fn gemini() -> Result<Policy, String> {
    let day = CalendarWindow::new(25, Period::Day).in_zone("America/Los_Angeles");
    Policy::new(
        "gemini",
        [
            Limit::new("rpm", "requests", RollingWindow::new(5, MINUTE)),
            Limit::new("tpm", "tokens", RollingWindow::new(250_000, MINUTE)),
            Limit::new("rpd", "requests", day),
        ],
    )
    .map_err(|error| error.to_string())
}

pub(super) async fn acquire(gate: &dyn Gate, ask: &Ask<'_>) -> Result<Decision, String> {
    gate.acquire(ask).await.map_err(|error| error.to_string())
}

async fn admit(gate: &dyn Gate, ask: &Ask<'_>) -> Result<Permit, String> {
    acquire(gate, ask).await?.permit().ok_or_else(|| format!("denied: {ask:?}"))
}

async fn deny(gate: &dyn Gate, ask: &Ask<'_>) -> Result<Denial, String> {
    acquire(gate, ask).await?.denial().ok_or_else(|| format!("admitted: {ask:?}"))
}

async fn remaining(gate: &dyn Gate, policy: &Policy, subject: &str) -> Result<Vec<u64>, String> {
    let standings = gate.standing(policy, subject).await.map_err(|error| error.to_string())?;
    Ok(standings.iter().map(|standing| standing.remaining).collect())
}

/// Promise 4: denied one microsecond before the promised time, admitted at it, for every rule (R000.2, R004.3).
///
/// # Errors
/// The rule and the wait that was not true.
pub fn waits_honestly(fixture: &Fixture) -> Result<(), String> {
    let gate = &*fixture.gate;
    for policy in each_rule()? {
        let subject = fixture.subject();
        fixture.block_on(async {
            for _ in 0..5 {
                fixture.clock.advance(Span::from_micros(1_234_567));
                admit(gate, &Ask::new(&policy, subject.as_str())).await?;
            }
            let ask = Ask::new(&policy, subject.as_str());
            let Wait::Until(until) = deny(gate, &ask).await?.bound() else {
                return Err(format!("{}: never, though one would fit later", policy.name()));
            };
            fixture.clock.set(until - Span::from_micros(1));
            let early = deny(gate, &ask).await?;
            ensure(early.bound() == Wait::Until(until), || {
                format!("{}: promised {until:?}, then {:?}", policy.name(), early.bound())
            })?;
            fixture.clock.set(until);
            admit(gate, &ask).await.map(drop)
        })?;
    }
    Ok(())
}

/// Promise 3: a denied ask changes nothing, however often it comes (R000.1).
///
/// # Errors
/// What a refusal changed.
pub fn refuses_without_charging(fixture: &Fixture) -> Result<(), String> {
    let gate = &*fixture.gate;
    for policy in each_rule()? {
        let subject = fixture.subject();
        fixture.block_on(async {
            admit(gate, &Ask::new(&policy, subject.as_str()).cost("requests", 3)).await?;
            let before = gate.standing(&policy, &subject).await.map_err(|e| e.to_string())?;
            for _ in 0..10 {
                deny(gate, &Ask::new(&policy, subject.as_str()).cost("requests", 3)).await?;
            }
            let after = gate.standing(&policy, &subject).await.map_err(|e| e.to_string())?;
            ensure(before == after, || {
                format!("{}: {before:?} became {after:?} by refusals", policy.name())
            })?;
            admit(gate, &Ask::new(&policy, subject.as_str()).cost("requests", 2)).await.map(drop)
        })?;
    }
    Ok(())
}

/// Promise 2: every limit of a policy is charged, or none (R000.1, R000.6).
///
/// # Errors
/// What was charged by a denial, or left out by an admission.
pub fn is_all_or_nothing(fixture: &Fixture) -> Result<(), String> {
    let (gate, policy, subject) = (&*fixture.gate, gemini()?, fixture.subject());
    fixture.block_on(async {
        admit(gate, &Ask::new(&policy, subject.as_str()).cost("tokens", 200_000)).await?;
        let denial =
            deny(gate, &Ask::new(&policy, subject.as_str()).cost("tokens", 60_000)).await?;
        ensure(&*denial.limit == "tpm", || format!("{} binds, not tpm", denial.limit))?;
        let left = remaining(gate, &policy, &subject).await?;
        ensure(left == [4, 50_000, 24], || format!("after a denial {left:?} are left"))?;
        admit(gate, &Ask::new(&policy, subject.as_str()).cost("tokens", 50_000)).await?;
        let left = remaining(gate, &policy, &subject).await?;
        ensure(left == [3, 0, 23], || format!("after an admission {left:?} are left"))
    })
}

/// Promise 5: the same id is charged once, gets the same permit, and is a conflict with other costs (R000.12).
///
/// # Errors
/// What a repeat changed.
pub fn recognises_repeats(fixture: &Fixture) -> Result<(), String> {
    let (gate, policy, subject) = (&*fixture.gate, gemini()?, fixture.subject());
    fixture.block_on(async {
        let ask = Ask::new(&policy, subject.as_str()).cost("tokens", 1_000).id("once");
        let first = admit(gate, &ask).await?;
        fixture.clock.advance(Span::from_secs(7));
        let again = admit(gate, &ask).await?;
        ensure(first.grant() == again.grant(), || format!("{first:?} came back as {again:?}"))?;
        let left = remaining(gate, &policy, &subject).await?;
        ensure(left == [4, 249_000, 24], || format!("after a repeat {left:?} are left"))?;
        let other = Ask::new(&policy, subject.as_str()).cost("tokens", 2_000).id("once");
        match gate.acquire(&other).await {
            Err(error) if error.kind() == tollgate::ErrorKind::Conflict => {}
            answer => return Err(format!("other costs under the same id: {answer:?}")),
        }
        fixture.clock.advance(tollgate_core::bounds::ID_HORIZON);
        let later = admit(gate, &ask).await?;
        ensure(first.grant() != later.grant(), || "an id outlived its horizon".to_owned())
    })
}

/// An id whose permit was released, or whose slot is gone, is a new ask: whoever repeats it goes ahead again.
///
/// # Errors
/// What went through without being charged.
pub fn charges_again_after_release(fixture: &Fixture) -> Result<(), String> {
    let gate = &*fixture.gate;
    for policy in each_rule()? {
        let subject = fixture.subject();
        let ask = Ask::new(&policy, subject.as_str()).cost("requests", 5).id("again");
        fixture.block_on(async {
            let first: Permit = admit(gate, &ask).await?;
            gate.release(&first).await.map_err(|error| error.to_string())?;
            let second = admit(gate, &ask).await?;
            ensure(first.grant() != second.grant(), || {
                format!("{}: a released permit came back", policy.name())
            })?;
            let left = remaining(gate, &policy, &subject).await?;
            ensure(left == [0], || {
                format!("{}: charged anew, and {left:?} are left", policy.name())
            })?;
            if second.expires_at().is_some() {
                fixture.clock.advance(MINUTE);
                let third = admit(gate, &ask).await?;
                ensure(second.grant() != third.grant(), || "a repeat without its slot".to_owned())?;
            }
            Ok::<(), String>(())
        })?;
    }
    Ok(())
}

/// Giving back makes room once: the take, wait, take, release trap, and settling twice (design, section 4).
///
/// # Errors
/// Room that was made twice.
pub fn gives_back_once(fixture: &Fixture) -> Result<(), String> {
    let (gate, subject) = (&*fixture.gate, fixture.subject());
    let policy = Policy::new(
        "refund",
        [Limit::new("bucket", "requests", TokenBucket::per_second(1).burst(10))],
    )
    .map_err(|error| error.to_string())?;
    let ten = Ask::new(&policy, subject.as_str()).cost("requests", 10);
    fixture.block_on(async {
        let first = admit(gate, &ten).await?;
        fixture.clock.advance(Span::from_secs(10));
        let second = admit(gate, &ten).await?;
        gate.release(&first).await.map_err(|error| error.to_string())?;
        let left = remaining(gate, &policy, &subject).await?;
        ensure(left == [0], || format!("releasing what had refilled made room: {left:?}"))?;
        let half = Costs::new().with("requests", 4);
        for _ in 0..2 {
            gate.settle(&second, &half).await.map_err(|error| error.to_string())?;
            let left = remaining(gate, &policy, &subject).await?;
            ensure(left == [6], || format!("settled 10 with 4, and {left:?} are left"))?;
        }
        Ok(())
    })
}

/// What was spent without the store is charged limit by limit, once: a rolling window files it under its own times, a
/// bucket becomes empty at most, a calendar window counts all of it.
///
/// # Errors
/// The limit that was charged something else.
pub fn charges_arrears(fixture: &Fixture) -> Result<(), String> {
    let (gate, subject) = (&*fixture.gate, fixture.subject());
    let policy = Policy::new(
        "arrears",
        [
            Limit::new("rate", "requests", TokenBucket::per_second(1).burst(10)),
            Limit::new("minute", "requests", RollingWindow::new(40, MINUTE)),
            Limit::new("month", "requests", CalendarWindow::new(100, Period::Month)),
            Limit::new("tokens", "tokens", RollingWindow::new(1_000, MINUTE)),
        ],
    )
    .map_err(|error| error.to_string())?;
    let secs = Span::from_secs;
    let ask = Ask::new(&policy, subject.as_str()).cost("requests", 12).cost("tokens", 300);
    let post = |id: &'static str, rate: u64, shift: u64| {
        let arrears: Arrears = [
            ("rate", vec![(Span::ZERO, rate)]),
            ("minute", vec![(secs(70), 5), (secs(50 + shift), 3), (secs(10 + shift), 4)]),
            ("month", vec![(Span::ZERO, 12)]),
            ("tokens", vec![(secs(20 + shift), 300)]),
        ]
        .into_iter()
        .collect();
        ask.clone().id_for(id, Span::from_hours(1)).with_arrears(arrears)
    };
    let used = async |when: &str, expected: [u64; 4], by_unit: [u64; 4]| {
        let expected = if fixture.capabilities.arrears { expected } else { by_unit };
        let standings =
            gate.standing(&policy, &subject).await.map_err(|error| error.to_string())?;
        let used: Vec<u64> = standings.iter().map(|standing| standing.used).collect();
        ensure(used == expected, || format!("{when}: {used:?} used, not {expected:?}"))
    };
    fixture.block_on(async {
        admit(gate, &Ask::new(&policy, subject.as_str()).cost("requests", 6)).await?;
        fixture.clock.advance(secs(40));
        let first = gate.charge(&post("first", 8, 0)).await.map_err(|error| error.to_string())?;
        used("posted", [8, 13, 18, 300], [12, 18, 18, 300]).await?;
        fixture.clock.advance(secs(5));
        // Sent again it is older, and the same.
        let again = gate.charge(&post("first", 3, 5)).await.map_err(|error| error.to_string())?;
        ensure(first.grant() == again.grant(), || format!("{first:?} came back as {again:?}"))?;
        used("posted again", [3, 13, 18, 300], [7, 18, 18, 300]).await?;
        if fixture.capabilities.arrears {
            let changed = gate.release(&first).await.map_err(|error| error.to_string())?;
            ensure(!changed, || "arrears are final, and were given back".to_owned())?;
            used("released", [3, 13, 18, 300], [7, 18, 18, 300]).await?;
        }
        fixture.clock.advance(secs(5));
        used("the oldest left", [0, 10, 18, 300], [2, 18, 18, 300]).await?;
        for (id, rate) in [("second", 8), ("third", 8)] {
            gate.charge(&post(id, rate, 0)).await.map_err(|error| error.to_string())?;
        }
        used("a bucket is not in debt", [10, 24, 42, 900], [26, 42, 42, 900]).await?;
        gate.charge(&post("debt", 13, 0)).await.map_err(|error| error.to_string())?;
        used("but for what it never had", [13, 31, 54, 1_200], [38, 54, 54, 1_200]).await
    })?;
    if fixture.capabilities.arrears { charges_arrears_as_the_core_does(fixture) } else { Ok(()) }
}

/// Arrears of a subject that the store does not know, and of one that it knows, under every rule.
fn charges_arrears_as_the_core_does(fixture: &Fixture) -> Result<(), String> {
    let (gate, clock) = (&*fixture.gate, &fixture.clock);
    for policy in each_rule()? {
        let subject = fixture.subject();
        let mut entry = Entry::fresh(&policy, clock.now());
        for step in 0..12_u64 {
            let ages = [50, 31, 12, 3, 0].map(|age| (Span::from_secs(age), 1 + step % 3));
            let arrears: Arrears = [("only", ages.to_vec())].into_iter().collect();
            let ask = Ask::new(&policy, subject.as_str()).cost("requests", 5).with_arrears(arrears);
            if step % 4 == 0 {
                fixture.block_on(gate.charge(&ask)).map_err(|error| error.to_string())?;
                apply(&Operation::Charge(&ask), &mut entry, Known::New, clock.now())
                    .map_err(|error| error.to_string())?;
            }
            let seen = fixture.block_on(gate.standing(&policy, &subject));
            let seen = seen.map_err(|error| error.to_string())?;
            let expected = standings(&entry, clock.now());
            ensure(seen == expected, || {
                format!("{}, step {step}: {seen:?}, not {expected:?}", policy.name())
            })?;
            clock.advance(Span::from_secs(7));
        }
    }
    Ok(())
}

/// A cost above the limit is denied for ever, before anything else, and changes nothing.
///
/// # Errors
/// What was answered instead.
pub fn refuses_what_never_fits(fixture: &Fixture) -> Result<(), String> {
    let gate = &*fixture.gate;
    for policy in each_rule()? {
        let subject = fixture.subject();
        let ask = Ask::new(&policy, subject.as_str()).cost("requests", 6);
        let denial = fixture.block_on(deny(gate, &ask))?;
        ensure(denial.wait == Wait::Never && denial.asked == 6 && denial.most == 5, || {
            format!("{}: {denial:?}", policy.name())
        })?;
    }
    Ok(())
}

/// Bad input is an error that says what was wrong, and changes nothing.
///
/// # Errors
/// What was accepted.
pub fn bad_asks_change_nothing(fixture: &Fixture) -> Result<(), String> {
    let (gate, policy, subject) = (&*fixture.gate, gemini()?, fixture.subject());
    let long = "x".repeat(tollgate_core::bounds::SUBJECT_BYTES_MAX + 1);
    let asks = [
        (Ask::new(&policy, subject.as_str()).cost("bananas", 1), "bananas"),
        (Ask::new(&policy, subject.as_str()).cost("tokens", u64::MAX), "at most"),
        (Ask::new(&policy, ""), "subject"),
        (Ask::new(&policy, long.as_str()), "subject"),
        (Ask::new(&policy, subject.as_str()).id(""), "id"),
    ];
    fixture.block_on(async {
        for (ask, hint) in asks {
            for answer in [gate.acquire(&ask).await.map(drop), gate.charge(&ask).await.map(drop)] {
                match answer {
                    Err(error)
                        if error.kind() == tollgate::ErrorKind::Invalid
                            && error.to_string().contains(hint) => {}
                    other => return Err(format!("{ask:?} was answered with {other:?}")),
                }
            }
        }
        let left = remaining(gate, &policy, &subject).await?;
        ensure(left == [5, 250_000, 25], || format!("bad asks left {left:?}"))
    })
}

/// Changing a policy's numbers keeps what was used and gives no free burst.
///
/// # Errors
/// What the change gave away or took.
pub fn keeps_use_when_numbers_change(fixture: &Fixture) -> Result<(), String> {
    let (gate, subject) = (&*fixture.gate, fixture.subject());
    let of = |burst| {
        let rule = TokenBucket::per_minute(60).burst(burst);
        Policy::new("numbers", [Limit::new("bucket", "requests", rule)]).map_err(|e| e.to_string())
    };
    let (small, large) = (of(10)?, of(30)?);
    fixture.block_on(async {
        admit(gate, &Ask::new(&small, subject.as_str()).cost("requests", 10)).await?;
        deny(gate, &Ask::new(&small, subject.as_str())).await?;
        let left = remaining(gate, &large, &subject).await?;
        ensure(left == [20], || format!("10 of 30 are used, and {left:?} are left"))?;
        admit(gate, &Ask::new(&large, subject.as_str()).cost("requests", 20)).await?;
        let denial = deny(gate, &Ask::new(&small, subject.as_str())).await?;
        let wait = denial.retry_after();
        ensure(wait == Some(Span::from_secs(21)), || {
            format!("30 used of 10 must drain to 9 at 1/s, but the wait is {wait:?}")
        })
    })
}
