//! `TG.ACQUIRE` and what follows it: the calls of the HTTP face, word for word.
//!
//! An answer has the same members as the body of the same call over HTTP, as a map (flat in RESP2). A refusal is an
//! answer, with `admitted` 0; an error starts with its kind in capitals.

use serde::Serialize;
use tollgate::{Costs, Error, ErrorKind};

use super::Words;
use super::reply::Replies;
use crate::app::App;
use crate::wire::{AcquireRequest, Answer, Changed, Renewed, StandingQuery, StandingResponse};

pub(super) async fn acquire(
    app: &App,
    words: Words<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    const USAGE: &str = "write TG.ACQUIRE policy subject [COST unit n …] [ID id] [WAIT ms]";
    let mut request = AcquireRequest {
        policy: words.text_or(1, USAGE)?.to_owned(),
        subject: words.text_or(2, USAGE)?.to_owned(),
        ..AcquireRequest::default()
    };
    let mut at = 3;
    while let Some(option) = words.get(at) {
        if option.eq_ignore_ascii_case(b"COST") {
            cost(words, at, &mut request.costs, USAGE)?;
            at += 3;
        } else if option.eq_ignore_ascii_case(b"ID") {
            request.id = Some(words.text_or(at + 1, USAGE)?.to_owned());
            at += 2;
        } else if option.eq_ignore_ascii_case(b"WAIT") {
            request.wait_ms = Some(whole(words, at + 1, USAGE)?);
            at += 2;
        } else {
            return Err(unknown(option, USAGE));
        }
    }
    let policy = app.policy(&request.policy)?;
    let decision = app.acquire(&policy, &request).await?;
    reply(replies, &Answer::of(&decision, app.key(), app.now()))
}

pub(super) async fn settle(
    app: &App,
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
    let changed = app.settle(permit, &actual).await?;
    reply(replies, &Changed { changed })
}

pub(super) async fn release(
    app: &App,
    words: Words<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    let permit = only(words, "write TG.RELEASE permit")?;
    let changed = app.release(permit).await?;
    reply(replies, &Changed { changed })
}

pub(super) async fn renew(app: &App, words: Words<'_>, replies: &mut Replies) -> Result<(), Error> {
    let permit = app.renew(only(words, "write TG.RENEW permit")?).await?;
    reply(replies, &Renewed::of(&permit, app.key()))
}

pub(super) async fn standing(
    app: &App,
    words: Words<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    const USAGE: &str = "write TG.STANDING policy subject";
    if words.len() != 3 {
        return Err(wrong(USAGE));
    }
    let query = StandingQuery {
        policy: words.text_or(1, USAGE)?.to_owned(),
        subject: words.text_or(2, USAGE)?.to_owned(),
    };
    let standings = app.standing(&query).await?;
    reply(replies, &StandingResponse::of(&query.policy, &query.subject, &standings, app.now()))
}

fn reply(replies: &mut Replies, answer: &impl Serialize) -> Result<(), Error> {
    let value = serde_json::to_value(answer).map_err(|error| {
        Error::new(ErrorKind::Corrupt, "an answer does not encode").caused_by(error)
    })?;
    replies.value(&value);
    Ok(())
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

fn wrong(usage: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("wrong number of arguments; {usage}"))
}

fn unknown(option: &[u8], usage: &str) -> Error {
    let option = String::from_utf8_lossy(option);
    Error::new(ErrorKind::Invalid, format!("{option:?} is no option here; {usage}"))
}
