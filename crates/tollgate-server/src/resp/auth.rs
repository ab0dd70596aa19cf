//! `AUTH`, `HELLO`, and which commands need what: errors are worded as Redis words them, because clients look at them.

use super::reply::Replies;
use super::{VERSION, Words};
use crate::access::{Caller, Session};
use crate::app::App;
use crate::keys::{Refused, Scope};

/// The caller on the connection, if it may use the command `name`.
pub(super) fn check<'a>(
    app: &App,
    name: &[u8],
    session: &'a mut Session,
) -> Result<&'a Caller, Refused> {
    let scope = match name {
        b"AUTH" | b"HELLO" | b"QUIT" | b"RESET" => return Ok(&Caller::ANYBODY),
        b"TG.STANDING" | b"INFO" => Some(Scope::Inspect),
        b"CL.THROTTLE" | b"TG.ACQUIRE" | b"TG.SETTLE" | b"TG.RELEASE" | b"TG.RENEW" => {
            Some(Scope::Acquire)
        }
        b"DEL" | b"TG.CHARGE" | b"TG.CLOSE" | b"TG.RESET" => Some(Scope::Administer),
        _ => None,
    };
    let caller = session.check(scope, app.access(), || app.now())?;
    if name == b"INFO" {
        caller.check_unbound()?;
    }
    Ok(caller)
}

/// The error for a connection that may not use the command `name`.
pub(super) fn refuse(refused: Refused, name: &[u8], replies: &mut Replies) {
    match refused {
        Refused::Missing => replies.error("NOAUTH", "Authentication required."),
        Refused::Wrong => replies.error("WRONGPASS", "the key is not one of this server's"),
        Refused::Expired(_) => replies.error("NOAUTH", &refused.to_string()),
        Refused::Scope(scope) => {
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            let text = format!(
                "this key has no permissions to run the '{name}' command; it needs the scope {}",
                scope.name()
            );
            replies.error("NOPERM", &text);
        }
        Refused::Bound => replies.error("NOPERM", &refused.to_string()),
    }
}

/// `AUTH [user] key`. The user may be any: a key says who it is.
pub(super) fn answer(app: &App, words: Words<'_>, session: &mut Session, replies: &mut Replies) {
    let key = match words.len() {
        2 => words.get(1),
        3 => words.get(2),
        _ => return replies.error("ERR", "wrong number of arguments for 'auth' command"),
    };
    if take(app, key.unwrap_or_default(), session, replies) {
        replies.simple("OK");
    }
}

/// `HELLO [2|3 [AUTH user key] [SETNAME name]]`: which version to speak from now on, and who speaks.
pub(super) fn hello(app: &App, words: Words<'_>, session: &mut Session, replies: &mut Replies) {
    let is_resp3 = match words.get(1) {
        Some(b"3") => true,
        Some(b"2") => false,
        None => replies.is_resp3,
        Some(_) => {
            return replies.error("NOPROTO", "unsupported protocol version; 2 and 3 are spoken");
        }
    };
    let mut at = 2;
    while let Some(option) = words.get(at) {
        match (words.get(at + 1), words.get(at + 2)) {
            (Some(_), Some(key)) if option.eq_ignore_ascii_case(b"AUTH") => {
                if !take(app, key, session, replies) {
                    return;
                }
                at += 3;
            }
            (Some(_), _) if option.eq_ignore_ascii_case(b"SETNAME") => at += 2,
            _ => {
                let option = String::from_utf8_lossy(option);
                return replies.error("ERR", &format!("Syntax error in HELLO option '{option}'"));
            }
        }
    }
    if session.check(None, app.access(), || app.now()).is_err() {
        let text = "HELLO must be called with the client already authenticated, otherwise the \
                    HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client \
                    and select the RESP protocol version at the same time";
        return replies.error("NOAUTH", text);
    }
    replies.is_resp3 = is_resp3;
    replies.map(6);
    for (name, text) in [("server", "tollgate"), ("version", VERSION)] {
        replies.bulk(name.as_bytes());
        replies.bulk(text.as_bytes());
    }
    replies.bulk(b"proto");
    replies.integer(if is_resp3 { 3 } else { 2 });
    for (name, text) in [("mode", "standalone"), ("role", "master")] {
        replies.bulk(name.as_bytes());
        replies.bulk(text.as_bytes());
    }
    replies.bulk(b"modules");
    replies.array(0);
}

/// Takes `key` for the connection; if it is refused, that is the answer.
fn take(app: &App, key: &[u8], session: &mut Session, replies: &mut Replies) -> bool {
    if !app.access().is_guarded() {
        replies.error("ERR", "this server asks for no password; leave AUTH out");
        return false;
    }
    let key = String::from_utf8_lossy(key);
    let taken = session.take(&key, app.access(), app.now());
    match taken.inspect_err(|_| app.unauthenticated()) {
        Ok(()) => true,
        Err(expired @ Refused::Expired(_)) => {
            replies.error("WRONGPASS", &expired.to_string());
            false
        }
        Err(_) => {
            let text = "invalid username-password pair or user is disabled.";
            replies.error("WRONGPASS", text);
            false
        }
    }
}
