//! `CL.THROTTLE key max_burst count period [quantity]`, answered as redis-cell answers it.
//!
//! The call carries its own numbers, so its policy is made from them: a bucket of `max_burst + 1` that refills `count`
//! per `period` seconds. All of them are called [`POLICY`], and a key is a subject of it: a call with other numbers goes
//! on from where the key stands, without a free burst.
//!
//! ```text
//! 1) 0      whether it was limited
//! 2) 16     the limit: max_burst + 1             x-ratelimit-limit
//! 3) 15     how many are left                    x-ratelimit-remaining
//! 4) -1     seconds until it would go through,   retry-after
//!           or -1: it went through, or never will
//! 5) 2      seconds until all of it is back      x-ratelimit-reset
//! ```
//! Seconds are rounded up. A quantity of 0 looks and takes nothing. A negative one, with which redis-cell gives back
//! without asking who took, is refused: release a permit instead.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{PoisonError, RwLock};

use foldhash::fast::RandomState;
use tollgate::core::bounds::{NUMBER_MAX, SPAN_MAX};
use tollgate::{
    Ask, Decision, Error, ErrorKind, Gate, Limit, Policy, Span, Standing, Timestamp, TokenBucket,
};

use super::Words;
use super::reply::Replies;
use crate::app::App;
use crate::bounds::THROTTLES_MAX;

/// The name of every policy that a call carries.
pub(crate) const POLICY: &str = "cl.throttle";

const USAGE: &str = "write CL.THROTTLE key max_burst count period [quantity]";

/// The numbers of a call: burst, count, period.
type Numbers = [u64; 3];

/// The policies of calls that were made before. Forgetting one costs no more than making it again.
#[derive(Debug, Default)]
pub(super) struct Throttles(RwLock<HashMap<Numbers, Policy, RandomState>>);

impl Throttles {
    fn policy(&self, numbers: Numbers) -> Result<Policy, Error> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(policy) = known.get(&numbers) {
            return Ok(policy.clone());
        }
        drop(known);
        let policy = policy_of(numbers)?;
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if THROTTLES_MAX <= known.len() {
            known.clear();
        }
        known.insert(numbers, policy.clone());
        Ok(policy)
    }
}

fn policy_of([max_burst, count, period]: Numbers) -> Result<Policy, Error> {
    let capacity = max_burst.saturating_add(1);
    let bucket = TokenBucket::per(count, Span::from_secs(period)).burst(capacity);
    Ok(Policy::new(POLICY, [Limit::new("throttle", "requests", bucket)])?)
}

/// Answers one call.
pub(super) async fn answer(
    app: &App,
    throttles: &Throttles,
    words: Words<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    if !(5..=6).contains(&words.len()) {
        return Err(invalid(format!("wrong number of arguments; {USAGE}")));
    }
    let key = words.text(1, "key")?;
    let numbers = [
        number(words, 2, "max_burst", 0..=NUMBER_MAX - 1)?,
        number(words, 3, "count", 1..=NUMBER_MAX)?,
        number(words, 4, "period", 1..=SPAN_MAX.as_secs_ceil())?,
    ];
    let quantity = if words.len() == 6 { number(words, 5, "quantity", 0..=NUMBER_MAX)? } else { 1 };
    let policy = throttles.policy(numbers)?;
    let (limited, retry_after, standings, now) = if quantity == 0 {
        let standings = app.gate().standing(&policy, key).await.map_err(passed_on)?;
        (false, None, standings, app.now())
    } else {
        let ask = Ask::new(&policy, key).cost("requests", quantity);
        match app.decide(&ask).await.map_err(passed_on)? {
            Decision::Admitted(permit) => {
                let at = permit.grant().at;
                (false, None, permit.limits, at)
            }
            Decision::Denied(denial) => {
                (true, denial.retry_after(), denial.limits, denial.decided_at)
            }
        }
    };
    let standing = standings.first();
    replies.array(5);
    replies.integer(i64::from(limited));
    replies.integer(signed(numbers[0].saturating_add(1)));
    replies.integer(signed(standing.map_or(0, |standing| standing.remaining)));
    replies.integer(retry_after.map_or(-1, |wait| signed(wait.as_secs_ceil())));
    replies.integer(standing.map_or(0, |standing| reset_after(standing, now)));
    Ok(())
}

/// The policy is right here, so only a gate that names it to somebody else can fail to know it.
fn passed_on(error: Error) -> Error {
    if error.kind() != ErrorKind::UnknownPolicy {
        return error;
    }
    let text = "this broker passes asks on to another by the names of policies, and CL.THROTTLE has none; \
                ask CL.THROTTLE there, or name a policy in TG.ACQUIRE";
    Error::new(ErrorKind::UnknownPolicy, text).caused_by(error)
}

fn reset_after(standing: &Standing, now: Timestamp) -> i64 {
    standing.full_at.map_or(0, |full| signed(full.since(now).as_secs_ceil()))
}

fn number(
    words: Words<'_>,
    place: usize,
    name: &str,
    range: RangeInclusive<u64>,
) -> Result<u64, Error> {
    let word = words.get(place).unwrap_or_default();
    whole(word).filter(|number| range.contains(number)).ok_or_else(|| {
        let (word, least, most) = (String::from_utf8_lossy(word), range.start(), range.end());
        invalid(format!("{name} {word:?} must be a whole number from {least} to {most}; {USAGE}"))
    })
}

/// The whole number that `word` is.
fn whole(word: &[u8]) -> Option<u64> {
    // As many digits fit into any number, and nearly all words are that.
    if (1..=18).contains(&word.len()) && word.iter().all(u8::is_ascii_digit) {
        return Some(word.iter().fold(0, |number, byte| number * 10 + u64::from(byte - b'0')));
    }
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::Invalid, text)
}
