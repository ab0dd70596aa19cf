//! The promises of a gate, one case each, with numbers that can be checked by hand.

use tollgate::{Clock, Gate, GateExt};
use tollgate_core::{
    Arrears, Ask, CalendarWindow, Concurrency, Costs, Denial, Entry, Known, Limit, Operation,
    Period, Permit, Policy, RollingWindow, Rule, Span, Standing, TokenBucket, Wait, apply,
    standings,
};

use super::{Checked, Fixture, ensure};

const MINUTE: Span = Span::from_mins(1);

/// One policy for each rule, each with room for five.
pub(super) fn each_rule() -> Checked<Vec<Policy>> {
    let rules: [(&str, Rule); 6] = [
        ("continuous", TokenBucket::per_minute(5).into()),
        ("interval", TokenBucket::per_minute(5).at_boundaries().into()),
        ("rolling", RollingWindow::new(5, MINUTE).into()),
        ("coarse", RollingWindow::new(5, MINUTE).resolution(6).into()),
        ("calendar", CalendarWindow::new(5, Period::Day).in_zone("America/Los_Angeles").into()),
        ("slots", Concurrency::new(5, MINUTE).into()),
    ];
    let policy = |(name, rule)| Ok(Policy::new(name, [Limit::new("only", "requests", rule)])?);
    rules.into_iter().map(policy).collect()
}

pub(super) fn gemini() -> Checked<Policy> {
    let day = CalendarWindow::new(25, Period::Day).in_zone("America/Los_Angeles");
    let limits = [
        Limit::new("rpm", "requests", RollingWindow::new(5, MINUTE)),
        Limit::new("tpm", "tokens", RollingWindow::new(250_000, MINUTE)),
        Limit::new("rpd", "requests", day),
    ];
    Ok(Policy::new("gemini", limits)?)
}

/// A new subject under one policy.
struct Caller<'a> {
    gate: &'a dyn Gate,
    policy: &'a Policy,
    subject: String,
}

impl Fixture {
    fn caller<'a>(&'a self, policy: &'a Policy) -> Caller<'a> {
        Caller { gate: &*self.gate, policy, subject: self.subject() }
    }
}

impl Caller<'_> {
    fn ask(&self) -> Ask<'_> {
        Ask::new(self.policy, self.subject.as_str())
    }

    fn requests(&self, amount: u64) -> Ask<'_> {
        self.ask().cost("requests", amount)
    }

    fn tokens(&self, amount: u64) -> Ask<'_> {
        self.ask().cost("tokens", amount)
    }

    async fn admit(&self, ask: &Ask<'_>) -> Checked<Permit> {
        let permit = self.gate.acquire(ask).await?.into_permit();
        permit.ok_or_else(|| format!("denied: {ask:?}").into())
    }

    async fn deny(&self, ask: &Ask<'_>) -> Checked<Denial> {
        let denial = self.gate.acquire(ask).await?.into_denial();
        denial.ok_or_else(|| format!("admitted: {ask:?}").into())
    }

    async fn standing(&self) -> Checked<Vec<Standing>> {
        Ok(self.gate.standing(self.policy, &self.subject).await?)
    }

    /// Checks what is left of each limit.
    async fn has_left(&self, when: &str, expected: &[u64]) -> Checked {
        let standing = self.standing().await?;
        let left: Vec<u64> = standing.iter().map(|standing| standing.remaining).collect();
        let name = self.policy.name();
        ensure(left == expected, || format!("{name}: {when}, {left:?} are left, not {expected:?}"))
    }
}

/// Promise 4: denied one microsecond before the promised time, admitted at it, for every rule.
pub(super) fn waits_honestly(fixture: &Fixture) -> Checked {
    for policy in each_rule()? {
        let caller = fixture.caller(&policy);
        fixture.block_on(async {
            for _ in 0..5 {
                fixture.clock.advance(Span::from_micros(1_234_567));
                caller.admit(&caller.ask()).await?;
            }
            let Wait::Until(until) = caller.deny(&caller.ask()).await?.bound() else {
                return Err(format!("{}: denied for ever", policy.name()).into());
            };
            fixture.clock.set(until - Span::from_micros(1));
            let early = caller.deny(&caller.ask()).await?;
            ensure(early.bound() == Wait::Until(until), || {
                format!("{}: promised {until:?}, then {:?}", policy.name(), early.bound())
            })?;
            fixture.clock.set(until);
            caller.admit(&caller.ask()).await.map(drop)
        })?;
    }
    Ok(())
}

/// Promise 3: a denied ask changes nothing, however often it is repeated.
pub(super) fn refuses_without_charging(fixture: &Fixture) -> Checked {
    for policy in each_rule()? {
        let caller = fixture.caller(&policy);
        fixture.block_on(async {
            caller.admit(&caller.requests(3)).await?;
            let before = caller.standing().await?;
            for _ in 0..10 {
                caller.deny(&caller.requests(3)).await?;
            }
            let after = caller.standing().await?;
            ensure(before == after, || {
                format!("{}: denials changed {before:?} to {after:?}", policy.name())
            })?;
            caller.admit(&caller.requests(2)).await.map(drop)
        })?;
    }
    Ok(())
}

/// Promise 2: every limit of a policy is charged, or none.
pub(super) fn is_all_or_nothing(fixture: &Fixture) -> Checked {
    let policy = gemini()?;
    let caller = fixture.caller(&policy);
    fixture.block_on(async {
        caller.admit(&caller.tokens(200_000)).await?;
        let denial = caller.deny(&caller.tokens(60_000)).await?;
        ensure(&*denial.limit == "tpm", || format!("{} binds, not tpm", denial.limit))?;
        caller.has_left("after a denial", &[4, 50_000, 24]).await?;
        caller.admit(&caller.tokens(50_000)).await?;
        caller.has_left("after an admission", &[3, 0, 23]).await
    })
}

/// Promise 5: the same id is charged once, gets the same permit, and is a conflict with other costs.
pub(super) fn recognises_repeats(fixture: &Fixture) -> Checked {
    let policy = gemini()?;
    let caller = fixture.caller(&policy);
    fixture.block_on(async {
        let ask = caller.tokens(1_000).id("once");
        let first = caller.admit(&ask).await?;
        fixture.clock.advance(Span::from_secs(7));
        let again = caller.admit(&ask).await?;
        ensure(first.grant() == again.grant(), || format!("{first:?} came back as {again:?}"))?;
        caller.has_left("after a repeat", &[4, 249_000, 24]).await?;
        match caller.gate.acquire(&caller.tokens(2_000).id("once")).await {
            Err(error) if error.kind() == tollgate::ErrorKind::Conflict => {}
            other => return Err(format!("other costs under the same id: {other:?}").into()),
        }
        fixture.clock.advance(tollgate_core::bounds::ID_HORIZON);
        let later = caller.admit(&ask).await?;
        ensure(first.grant() != later.grant(), || "an id outlived its horizon".to_owned())
    })
}

/// An id whose permit was released, or whose slot expired, is a new ask.
pub(super) fn charges_again_after_release(fixture: &Fixture) -> Checked {
    for policy in each_rule()? {
        let caller = fixture.caller(&policy);
        let ask = caller.requests(5).id("again");
        fixture.block_on(async {
            let first = caller.admit(&ask).await?;
            caller.gate.release(&first).await?;
            let second = caller.admit(&ask).await?;
            ensure(first.grant() != second.grant(), || {
                format!("{}: a released permit came back", policy.name())
            })?;
            caller.has_left("charged anew", &[0]).await?;
            if second.expires_at().is_some() {
                fixture.clock.advance(MINUTE);
                let third = caller.admit(&ask).await?;
                ensure(second.grant() != third.grant(), || "a repeat without its slot".to_owned())?;
            }
            Checked::Ok(())
        })?;
    }
    Ok(())
}

/// A refund makes room once: acquire, wait, acquire, release, and settling twice.
pub(super) fn gives_back_once(fixture: &Fixture) -> Checked {
    let bucket = TokenBucket::per_second(1).burst(10);
    let policy = Policy::new("refund", [Limit::new("bucket", "requests", bucket)])?;
    let caller = fixture.caller(&policy);
    fixture.block_on(async {
        let first = caller.admit(&caller.requests(10)).await?;
        fixture.clock.advance(Span::from_secs(10));
        let second = caller.admit(&caller.requests(10)).await?;
        caller.gate.release(&first).await?;
        caller.has_left("after releasing what had refilled", &[0]).await?;
        for _ in 0..2 {
            caller.gate.settle(&second, &Costs::new().with("requests", 4)).await?;
            caller.has_left("after settling 10 with 4", &[6]).await?;
        }
        Ok(())
    })
}

/// Spending without the store is charged limit by limit, once: a rolling window files it under its own times, a bucket
/// becomes empty at most, a calendar window counts all of it.
pub(super) fn charges_arrears(fixture: &Fixture) -> Checked {
    let policy = Policy::new(
        "arrears",
        [
            Limit::new("rate", "requests", TokenBucket::per_second(1).burst(10)),
            Limit::new("minute", "requests", RollingWindow::new(40, MINUTE)),
            Limit::new("month", "requests", CalendarWindow::new(100, Period::Month)),
            Limit::new("tokens", "tokens", RollingWindow::new(1_000, MINUTE)),
        ],
    )?;
    let caller = fixture.caller(&policy);
    let secs = Span::from_secs;
    let ask = caller.requests(12).cost("tokens", 300);
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
        let used: Vec<u64> = caller.standing().await?.iter().map(|limit| limit.used).collect();
        ensure(used == expected, || format!("{when}: {used:?} used, not {expected:?}"))
    };
    fixture.block_on(async {
        caller.admit(&caller.requests(6)).await?;
        fixture.clock.advance(secs(40));
        let first = caller.gate.charge(&post("first", 8, 0)).await?;
        used("posted", [8, 13, 18, 300], [12, 18, 18, 300]).await?;
        fixture.clock.advance(secs(5));
        // A repeat is older, and the same.
        let again = caller.gate.charge(&post("first", 3, 5)).await?;
        ensure(first.grant() == again.grant(), || format!("{first:?} came back as {again:?}"))?;
        used("posted again", [3, 13, 18, 300], [7, 18, 18, 300]).await?;
        if fixture.capabilities.arrears {
            let changed = caller.gate.release(&first).await?;
            ensure(!changed, || "arrears are final, and were given back".to_owned())?;
            used("released", [3, 13, 18, 300], [7, 18, 18, 300]).await?;
        }
        fixture.clock.advance(secs(5));
        used("the oldest left", [0, 10, 18, 300], [2, 18, 18, 300]).await?;
        for (id, rate) in [("second", 8), ("third", 8)] {
            caller.gate.charge(&post(id, rate, 0)).await?;
        }
        used("a bucket is not in debt", [10, 24, 42, 900], [26, 42, 42, 900]).await?;
        caller.gate.charge(&post("debt", 13, 0)).await?;
        used("but for what it never had", [13, 31, 54, 1_200], [38, 54, 54, 1_200]).await
    })?;
    if fixture.capabilities.arrears { charges_arrears_as_the_core_does(fixture) } else { Ok(()) }
}

/// Arrears of an unknown and of a known subject, under every rule.
fn charges_arrears_as_the_core_does(fixture: &Fixture) -> Checked {
    let clock = &fixture.clock;
    for policy in each_rule()? {
        let caller = fixture.caller(&policy);
        let mut entry = Entry::fresh(&policy, clock.now());
        for step in 0..12_u64 {
            let ages = [50, 31, 12, 3, 0].map(|age| (Span::from_secs(age), 1 + step % 3));
            let arrears: Arrears = [("only", ages.to_vec())].into_iter().collect();
            let ask = caller.requests(5).with_arrears(arrears);
            if step % 4 == 0 {
                fixture.block_on(caller.gate.charge(&ask))?;
                apply(&Operation::Charge(&ask), &mut entry, Known::New, clock.now())?;
            }
            let seen = fixture.block_on(caller.standing())?;
            let expected = standings(&entry, clock.now());
            ensure(seen == expected, || {
                format!("{}, step {step}: {seen:?}, not {expected:?}", policy.name())
            })?;
            clock.advance(Span::from_secs(7));
        }
    }
    Ok(())
}

/// A cost above the limit is denied for ever, and changes nothing.
pub(super) fn refuses_what_never_fits(fixture: &Fixture) -> Checked {
    for policy in each_rule()? {
        let caller = fixture.caller(&policy);
        let denial = fixture.block_on(caller.deny(&caller.requests(6)))?;
        ensure(denial.wait == Wait::Never && denial.asked == 6 && denial.most == 5, || {
            format!("{}: {denial:?}", policy.name())
        })?;
    }
    Ok(())
}

/// Invalid input is an error that names the problem, and changes nothing.
pub(super) fn bad_asks_change_nothing(fixture: &Fixture) -> Checked {
    let policy = gemini()?;
    let caller = fixture.caller(&policy);
    let long = "x".repeat(tollgate_core::bounds::SUBJECT_BYTES_MAX + 1);
    let asks = [
        (caller.ask().cost("bananas", 1), "bananas"),
        (caller.tokens(u64::MAX), "at most"),
        (Ask::new(&policy, ""), "subject"),
        (Ask::new(&policy, long.as_str()), "subject"),
        (caller.ask().id(""), "id"),
    ];
    fixture.block_on(async {
        for (ask, hint) in asks {
            let acquired = caller.gate.acquire(&ask).await.map(drop);
            for outcome in [acquired, caller.gate.charge(&ask).await.map(drop)] {
                match outcome {
                    Err(error)
                        if error.kind() == tollgate::ErrorKind::Invalid
                            && error.to_string().contains(hint) => {}
                    other => return Err(format!("{ask:?}: {other:?}").into()),
                }
            }
        }
        caller.has_left("after invalid asks", &[5, 250_000, 25]).await
    })
}

/// A change of a policy's numbers keeps the usage and gives no free burst.
pub(super) fn keeps_use_when_numbers_change(fixture: &Fixture) -> Checked {
    let policy = |burst| {
        let rule = TokenBucket::per_minute(60).burst(burst);
        Policy::new("numbers", [Limit::new("bucket", "requests", rule)])
    };
    let (small, large) = (policy(10)?, policy(30)?);
    let before = fixture.caller(&small);
    let after = Caller { policy: &large, subject: before.subject.clone(), ..before };
    fixture.block_on(async {
        before.admit(&before.requests(10)).await?;
        before.deny(&before.ask()).await?;
        after.has_left("10 of 30 used", &[20]).await?;
        after.admit(&after.requests(20)).await?;
        let wait = before.deny(&before.ask()).await?.retry_after();
        ensure(wait == Some(Span::from_secs(21)), || {
            format!("30 used of 10 must drain to 9 at 1/s, but the wait is {wait:?}")
        })
    })
}
