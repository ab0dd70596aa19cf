//! `TG.ACQUIRE` and what follows it: the calls of the HTTP face, word for word.
//!
//! An answer has the same members as the body of the same call over HTTP, as a map (flat in RESP2). A refusal is an
//! answer, with `admitted` 0; an error starts with its kind in capitals.

use serde::Serialize;
use tollgate::{Costs, Error, ErrorKind};

use super::Words;
use super::reply::Replies;
use crate::access::Caller;
use crate::app::App;
use crate::wire::{AcquireRequest, Answer, Changed, Renewed, StandingQuery};

pub(super) async fn acquire(
    app: &App,
    caller: &Caller,
    words: Words<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    const USAGE: &str = "write TG.ACQUIRE policy subject [COST unit n …] [ID id] [IDTTL ms] [WAIT ms] [BEHIND costs], \
                         where costs is a list in JSON, as in [{\"requests\": 1}]";
    let request = asked(words, USAGE)?;
    let policy = app.policy(&request.policy)?;
    let decision = app.acquire(caller, &policy, &request).await?;
    reply(replies, &Answer::of(&decision, app.permit_keys().sealing(), app.now()))
}

/// Whether `words` are an ask that waits for room.
pub(super) fn waits(words: Words<'_>) -> bool {
    may_wait(words)
        && asked(words, "").is_ok_and(|request| request.wait_ms.is_some_and(|wait_ms| 0 < wait_ms))
}

/// Whether `words` look like one, without reading all of them.
pub(super) fn may_wait(words: Words<'_>) -> bool {
    let is = |place: usize, name: &[u8]| {
        words.get(place).is_some_and(|word| word.eq_ignore_ascii_case(name))
    };
    is(0, b"TG.ACQUIRE") && (3..words.len()).any(|place| is(place, b"WAIT"))
}

/// What `TG.ACQUIRE` and `TG.CHARGE` say; `usage` is what would be right.
pub(super) fn asked(words: Words<'_>, usage: &str) -> Result<AcquireRequest, Error> {
    let mut request = AcquireRequest {
        policy: words.text_or(1, usage)?.to_owned(),
        subject: words.text_or(2, usage)?.to_owned(),
        ..AcquireRequest::default()
    };
    let mut at = 3;
    while let Some(option) = words.get(at) {
        let is = |name: &[u8]| option.eq_ignore_ascii_case(name);
        if is(b"COST") {
            cost(words, at, &mut request.costs, usage)?;
            at += 1;
        } else if is(b"ID") {
            request.id = Some(words.text_or(at + 1, usage)?.to_owned());
        } else if is(b"IDTTL") {
            request.id_ttl_ms = Some(whole(words, at + 1, usage)?);
        } else if is(b"WAIT") {
            request.wait_ms = Some(whole(words, at + 1, usage)?);
        } else if is(b"BEHIND") {
            let text = words.text_or(at + 1, usage)?;
            request.behind = serde_json::from_str(text).map_err(|error| {
                Error::new(ErrorKind::Invalid, format!("BEHIND {error}; {usage}"))
            })?;
        } else {
            return Err(unknown(option, usage));
        }
        at += 2;
    }
    Ok(request)
}

pub(super) async fn settle(
    app: &App,
    caller: &Caller,
    words: Words<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    const USAGE: &str = "write TG.SETTLE permit [COST unit n …]";
    let permit = words.text_or(1, USAGE)?;
    let mut actual = Costs::new();
    let mut at = 2;
    while let Some(option) = words.get(at) {
        if !option.eq_ignore_ascii_case(b"COST") {
            return Err(unknown(option, USAGE));
        }
        cost(words, at, &mut actual, USAGE)?;
        at += 3;
    }
    let changed = app.settle(caller, permit, &actual).await?;
    reply(replies, &Changed { changed })
}

pub(super) async fn release(
    app: &App,
    caller: &Caller,
    words: Words<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    let permit = only(words, "write TG.RELEASE permit")?;
    let changed = app.release(caller, permit).await?;
    reply(replies, &Changed { changed })
}

pub(super) async fn renew(
    app: &App,
    caller: &Caller,
    words: Words<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    let permit = app.renew(caller, only(words, "write TG.RENEW permit")?).await?;
    reply(replies, &Renewed::of(&permit, app.permit_keys().sealing()))
}

pub(super) async fn standing(
    app: &App,
    caller: &Caller,
    words: Words<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    let query = named(words, "write TG.STANDING policy subject")?;
    reply(replies, &app.standing_response(caller, &query).await?)
}

/// The policy and the subject, and nothing else.
pub(super) fn named(words: Words<'_>, usage: &str) -> Result<StandingQuery, Error> {
    if words.len() != 3 {
        return Err(wrong(usage));
    }
    Ok(StandingQuery {
        policy: words.text_or(1, usage)?.to_owned(),
        subject: words.text_or(2, usage)?.to_owned(),
    })
}

pub(super) fn reply(replies: &mut Replies, answer: &impl Serialize) -> Result<(), Error> {
    let before = replies.bytes().len();
    answer.serialize(&mut *replies).map_err(|error| {
        replies.cut(before);
        Error::new(ErrorKind::Corrupt, "an answer does not encode").caused_by(error)
    })
}

/// The unit and the amount after `COST` at `at`.
fn cost(words: Words<'_>, at: usize, costs: &mut Costs, usage: &str) -> Result<(), Error> {
    let unit = words.text_or(at + 1, usage)?;
    let amount = whole(words, at + 2, usage)?;
    if costs.get(unit).is_some() {
        return Err(Error::new(ErrorKind::Invalid, format!("unit {unit:?} is named twice")));
    }
    costs.set(unit, amount);
    Ok(())
}

fn only<'a>(words: Words<'a>, usage: &str) -> Result<&'a str, Error> {
    if words.len() == 2 { words.text_or(1, usage) } else { Err(wrong(usage)) }
}

fn whole(words: Words<'_>, at: usize, usage: &str) -> Result<u64, Error> {
    let text = words.text_or(at, usage)?;
    text.parse().map_err(|_| {
        Error::new(ErrorKind::Invalid, format!("{text:?} must be a whole number; {usage}"))
    })
}

pub(super) fn wrong(usage: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("wrong number of arguments; {usage}"))
}

fn unknown(option: &[u8], usage: &str) -> Error {
    let option = String::from_utf8_lossy(option);
    Error::new(ErrorKind::Invalid, format!("{option:?} is no option here; {usage}"))
}
