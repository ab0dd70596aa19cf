//! `CL.THROTTLE key max_burst count period [quantity]`, compatible with redis-cell, and `DEL key [key …]`.
//!
//! A key has one number, the theoretical arrival time (TAT) of the generic cell rate algorithm: the time at which
//! everything admitted has been repaid. Each command is evaluated with its own numbers:
//!
//! ```text
//! emission interval  T = period ÷ count, whole nanoseconds, rounded down
//! tolerance          L = T × (max_burst + 1)
//! admitted           if max(TAT, now) + T × quantity − L ≤ now; TAT becomes max(TAT, now) + T × quantity
//! ```
//! The store keeps TAT − now as the debt of a bucket that refills one nanosecond per nanosecond. The numbers of a
//! command are only the capacity of that bucket (L), which is no part of the stored shape, and the cost of the ask
//! (T × quantity). So TAT stays the same when they change, and every command is one atomic operation of the store. All
//! these policies are called [`POLICY`], and a key is a subject of it.
//!
//! ```text
//! 1) 0      whether it was limited
//! 2) 16     the limit: max_burst + 1             x-ratelimit-limit
//! 3) 15     how many are left                    x-ratelimit-remaining
//! 4) -1     seconds until it would go through,   retry-after
//!           or -1: it went through, or never will
//! 5) 2      seconds until all of it is back      x-ratelimit-reset
//! ```
//! Seconds are rounded up if there is at least a millisecond more, and down otherwise. A quantity of 0 takes nothing. A
//! negative one, with which redis-cell gives back without asking who took, is refused: release a permit instead.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use foldhash::fast::RandomState;
use tollgate::core::bounds::{FINE_CAPACITY_MAX, NUMBER_MAX, SPAN_MAX, SUBJECT_BYTES_MAX};
use tollgate::{
    Ask, Decision, Error, ErrorKind, GateExt, Limit, Policy, Span, Standing, TokenBucket,
};

use super::super::args::{Args, invalid, wrong_count};
use super::super::replies::Replies;
use super::Request;
use crate::app::App;
use crate::bounds::THROTTLES_MAX;

/// The name of every policy that a call of `CL.THROTTLE` carries.
pub const POLICY: &str = "cl.throttle";

const USAGE: &str = "write CL.THROTTLE key max_burst count period [quantity]";

const NANOS_PER_SEC: u64 = 1_000_000_000;
const NANOS_PER_MILLI: u64 = 1_000_000;
const NANOS_PER_MICRO: u64 = 1_000;

/// What the audit says was asked for.
static REQUESTS: LazyLock<Arc<str>> = LazyLock::new(|| "requests".into());

/// The numbers of a call: burst, count, period.
type Numbers = [u64; 3];

/// A cache of the quotas of earlier calls.
#[derive(Debug)]
pub(crate) struct Throttles {
    known: RwLock<HashMap<Numbers, Quota, RandomState>>,
    subjects_max: Option<u64>,
}

impl Throttles {
    /// Creates an empty cache of policies with at most `subjects_max` keys.
    pub(crate) fn new(subjects_max: Option<u64>) -> Self {
        Self { known: RwLock::default(), subjects_max }
    }

    fn quota(&self, numbers: Numbers) -> Result<Quota, Error> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(quota) = known.get(&numbers) {
            return Ok(quota.clone());
        }
        drop(known);
        let quota = Quota::new(numbers, self.subjects_max)?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if THROTTLES_MAX <= known.len() {
            known.clear();
        }
        known.insert(numbers, quota.clone());
        Ok(quota)
    }
}

/// The unit in which debt is counted: nanoseconds, or microseconds where the tolerance is longer than every store holds
/// exactly in nanoseconds (52 days). A key that changes between them keeps its TAT, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tick {
    Nano,
    Micro,
}

impl Tick {
    const fn unit(self) -> &'static str {
        match self {
            Self::Nano => "ns",
            Self::Micro => "us",
        }
    }

    const fn nanos(self) -> u64 {
        match self {
            Self::Nano => 1,
            Self::Micro => NANOS_PER_MICRO,
        }
    }
}

/// The numbers of a call as the generic cell rate algorithm needs them.
#[derive(Clone, Debug)]
struct Quota {
    policy: Policy,
    tick: Tick,
    /// The emission interval, in ticks.
    interval: u64,
    /// The capacity of the bucket, in ticks.
    tolerance: u64,
}

impl Quota {
    fn new([max_burst, count, period]: Numbers, subjects_max: Option<u64>) -> Result<Self, Error> {
        let nanos = emission_interval(count, period);
        if nanos == 0 {
            let text =
                "count per period must be at most one per nanosecond; lower count or raise period";
            return Err(invalid(text.to_owned()));
        }
        let bursts = u128::from(max_burst) + 1;
        let tolerance = |interval: u64| {
            let ticks = u64::try_from(u128::from(interval) * bursts).ok();
            ticks.filter(|ticks| *ticks <= FINE_CAPACITY_MAX).map(|ticks| (interval, ticks))
        };
        let (tick, (interval, tolerance)) = if let Some(exact) = tolerance(nanos) {
            (Tick::Nano, exact)
        } else if let Some(rounded) =
            tolerance(nanos / NANOS_PER_MICRO).filter(|_| NANOS_PER_MILLI <= nanos)
        {
            (Tick::Micro, rounded)
        } else {
            return Err(invalid(format!(
                "(max_burst + 1) × period ÷ count must be at most {} days, or {} days where period ÷ count is below 1 ms; \
                 lower max_burst or raise count",
                days(Tick::Micro),
                days(Tick::Nano),
            )));
        };
        let ticks_per_sec = NANOS_PER_SEC / tick.nanos();
        let debt = TokenBucket::per_second(ticks_per_sec).burst(tolerance);
        let debt = Limit::new("throttle", tick.unit(), debt);
        let policy = Policy::builder(POLICY).limit(debt).capacity_per_ask();
        let policy = policy.subjects_max(subjects_max).build()?;
        Ok(Self { policy, tick, interval, tolerance })
    }

    /// The cost of `quantity`. One that does not fit into the tolerance never fits, and it is irrelevant by how much.
    fn cost(&self, quantity: u64) -> u64 {
        self.interval.saturating_mul(quantity).min(NUMBER_MAX)
    }

    /// How many fit into `room` ticks, in whole microseconds as redis-cell divides. Where the interval is below one, it
    /// divides by zero; there it is the exact number.
    fn remaining(&self, room: u64) -> u64 {
        let micros = |ticks: u64| ticks.saturating_mul(self.tick.nanos()) / NANOS_PER_MICRO;
        match micros(self.interval) {
            0 => room / self.interval,
            interval => micros(room) / interval,
        }
    }

    /// Seconds, rounded as redis-cell rounds them.
    fn seconds(&self, ticks: u64) -> u64 {
        let nanos = ticks.saturating_mul(self.tick.nanos());
        nanos / NANOS_PER_SEC + u64::from(NANOS_PER_MILLI <= nanos % NANOS_PER_SEC)
    }

    fn ticks(&self, span: Span) -> u64 {
        span.as_micros().saturating_mul(NANOS_PER_MICRO / self.tick.nanos())
    }
}

/// `period` seconds ÷ `count` in whole nanoseconds. redis-cell divides floating-point numbers, which for periods above
/// 104 days may round up.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the quotient is positive, at most ten years of nanoseconds, and meant to be truncated"
)]
fn emission_interval(count: u64, period: u64) -> u64 {
    let nanos = period.saturating_mul(NANOS_PER_SEC);
    (nanos as f64 / count as f64) as u64
}

/// The longest tolerance that is counted in `tick`, in whole days.
const fn days(tick: Tick) -> u64 {
    FINE_CAPACITY_MAX / (86_400 * NANOS_PER_SEC / tick.nanos())
}

/// `CL.THROTTLE`.
pub(super) async fn run(
    Request { app, throttles, caller, args }: Request<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    if !(5..=6).contains(&args.len()) {
        return Err(wrong_count(USAGE));
    }
    let key = args.text(1, "key")?;
    if key.is_empty() || SUBJECT_BYTES_MAX < key.len() {
        let text = format!("a key must be 1 to {SUBJECT_BYTES_MAX} bytes long, not {}", key.len());
        return Err(invalid(text));
    }
    caller.check_about(POLICY, key)?;
    let numbers = [
        number(args, 2, "max_burst", 0..=NUMBER_MAX - 1)?,
        number(args, 3, "count", 1..=NUMBER_MAX)?,
        number(args, 4, "period", 1..=SPAN_MAX.as_secs_ceil())?,
    ];
    let quantity = if args.len() == 6 { number(args, 5, "quantity", 0..=NUMBER_MAX)? } else { 1 };
    let quota = throttles.quota(numbers)?;
    let outcome = if quantity == 0 {
        peek(app, &quota, key).await
    } else {
        take(app, &quota, key, quantity).await
    };
    let outcome = outcome.map_err(explain)?;
    replies.array(5);
    replies.integer(i64::from(outcome.is_limited));
    replies.integer(signed(numbers[0].saturating_add(1)));
    replies.integer(signed(quota.remaining(outcome.room)));
    replies.integer(outcome.retry_after.map_or(-1, |ticks| signed(quota.seconds(ticks))));
    replies.integer(signed(quota.seconds(outcome.reset_after)));
    Ok(())
}

/// The outcome of a call, in ticks.
struct Outcome {
    is_limited: bool,
    room: u64,
    retry_after: Option<u64>,
    reset_after: u64,
}

/// Evaluates a quantity of 0. It is limited where other numbers let TAT grow beyond this tolerance.
async fn peek(app: &App, quota: &Quota, key: &str) -> Result<Outcome, Error> {
    let standings = app.gate().standing(&quota.policy, key).await?;
    let (debt, room) = debt_and_room(&standings);
    let is_limited = quota.tolerance < debt;
    let retry_after = is_limited.then(|| debt - quota.tolerance);
    Ok(Outcome { is_limited, room, retry_after, reset_after: debt })
}

async fn take(app: &App, quota: &Quota, key: &str, quantity: u64) -> Result<Outcome, Error> {
    let cost = quota.cost(quantity);
    let ask = Ask::new(&quota.policy, key).cost(quota.tick.unit(), cost).without_refund();
    let in_requests = |decision: &mut Decision| {
        if let Decision::Denied(denial) = decision {
            (denial.unit, denial.asked) = (Arc::clone(&REQUESTS), quantity);
        }
    };
    let (wait, standings, now, degraded) = match app.decide_as(&ask, in_requests).await? {
        Decision::Admitted(permit) => {
            let now = permit.grant().at;
            (None, permit.limits, now, permit.degraded)
        }
        Decision::Denied(denial) => {
            (Some(denial.retry_after()), denial.limits, denial.decided_at, denial.degraded)
        }
    };
    let (debt, room) = debt_and_room(&standings);
    let is_limited = wait.is_some();
    let wait = wait.flatten();
    let (retry_after, reset_after) = if degraded {
        // A share of the bucket decided, and it refills at a share of the rate.
        let full_at = standings.first().and_then(|standing| standing.full_at);
        let reset_after = full_at.map_or(0, |full_at| quota.ticks(full_at.since(now)));
        (wait.map(|wait| quota.ticks(wait)), reset_after)
    } else {
        // Spans are whole microseconds, and this is exact.
        let exact = debt.saturating_add(cost).saturating_sub(quota.tolerance);
        (wait.map(|_| exact), debt)
    };
    Ok(Outcome { is_limited, room, retry_after, reset_after })
}

/// Returns TAT − now, and what is left of the tolerance; zero if the gate decided without a store.
fn debt_and_room(standings: &[Standing]) -> (u64, u64) {
    standings.first().map_or((0, 0), |standing| (standing.used, standing.remaining))
}

/// `DEL key [key …]`: deletes keys and replies how many existed.
pub(super) async fn delete(
    Request { app, throttles, caller, args }: Request<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    if args.len() < 2 {
        replies.error("ERR", "wrong number of arguments for 'del' command");
        return Ok(());
    }
    // Every entry of the policy is meant, whatever numbers it has.
    let Quota { policy, .. } = throttles.quota([0, 1, 1])?;
    let keys: Vec<&str> =
        (1..args.len()).map(|index| args.text(index, "key")).collect::<Result<_, _>>()?;
    keys.iter().try_for_each(|key| Ask::new(&policy, *key).check())?;
    keys.iter().try_for_each(|key| caller.check_about(POLICY, key))?;
    let mut deleted = 0;
    for key in keys {
        deleted += i64::from(app.reset_under(caller, &policy, key).await.map_err(explain)?);
    }
    replies.integer(deleted);
    Ok(())
}

/// Explains the errors that name a policy: this one has no section in the configuration.
fn explain(error: Error) -> Error {
    match error.kind() {
        // The policy exists here, so a gate sent its name to another broker.
        ErrorKind::UnknownPolicy => {
            let text = "this broker passes asks on to another by the names of policies, and CL.THROTTLE has none; \
                        ask CL.THROTTLE there, or name a policy in TG.ACQUIRE";
            Error::new(ErrorKind::UnknownPolicy, text).caused_by(error)
        }
        ErrorKind::Full => {
            let text =
                error.to_string().replace("its subjects_max", "throttle_subjects_max of [server]");
            Error::new(ErrorKind::Full, text).caused_by(error)
        }
        _ => error,
    }
}

fn number(
    args: Args<'_>,
    index: usize,
    name: &str,
    range: RangeInclusive<u64>,
) -> Result<u64, Error> {
    let arg = args.get(index).unwrap_or_default();
    parse_integer(arg).filter(|number| range.contains(number)).ok_or_else(|| {
        let (arg, least, most) = (String::from_utf8_lossy(arg), range.start(), range.end());
        invalid(format!("{name} {arg:?} must be a whole number from {least} to {most}; {USAGE}"))
    })
}

/// Parses an unsigned integer, with a fast path for up to 18 digits, which cannot overflow.
fn parse_integer(arg: &[u8]) -> Option<u64> {
    if (1..=18).contains(&arg.len()) && arg.iter().all(u8::is_ascii_digit) {
        return Some(arg.iter().fold(0, |number, byte| number * 10 + u64::from(byte - b'0')));
    }
    std::str::from_utf8(arg).ok()?.parse().ok()
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
