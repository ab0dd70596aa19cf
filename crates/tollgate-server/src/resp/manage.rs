//! `TG.CHARGE`, `TG.CLOSE` and `TG.RESET`: what strategies and operators do, for keys that may administer.

use tollgate::{Error, ErrorKind, Timestamp};

use super::Words;
use super::native::{asked, named, reply, wrong};
use super::reply::Replies;
use crate::access::Caller;
use crate::app::App;
use crate::wire::{AcquireRequest, Admitted, Changed, ChargeRequest, CloseRequest};

pub(super) async fn charge(
    app: &App,
    caller: &Caller,
    words: Words<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    const USAGE: &str = "write TG.CHARGE policy subject [COST unit n …] [ID id] [IDTTL ms]";
    let AcquireRequest { policy, subject, costs, id, id_ttl_ms, wait_ms, behind } =
        asked(words, USAGE)?;
    if wait_ms.is_some() || !behind.is_empty() {
        let text = format!("a charge is made at once; leave WAIT and BEHIND out: {USAGE}");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let request = ChargeRequest { policy, subject, costs, id, id_ttl_ms };
    let permit = app.charge(caller, &request).await?;
    reply(replies, &Admitted::of(&permit, app.permit_keys().sealing(), app.now()))
}

pub(super) async fn close(
    app: &App,
    caller: &Caller,
    words: Words<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    const USAGE: &str =
        "write TG.CLOSE policy subject limit until, where until is as in 2026-11-15T05:45:00Z";
    if words.len() != 5 {
        return Err(wrong(USAGE));
    }
    let until: Timestamp = words.text_or(4, USAGE)?.parse()?;
    let request = CloseRequest {
        policy: words.text_or(1, USAGE)?.to_owned(),
        subject: words.text_or(2, USAGE)?.to_owned(),
        limit: words.text_or(3, USAGE)?.to_owned(),
        until,
    };
    reply(replies, &Changed { changed: app.close_until(caller, &request).await? })
}

pub(super) async fn reset(
    app: &App,
    caller: &Caller,
    words: Words<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    let query = named(words, "write TG.RESET policy subject")?;
    let changed = app.reset(caller, &query).await?;
    reply(replies, &Changed { changed })
}
