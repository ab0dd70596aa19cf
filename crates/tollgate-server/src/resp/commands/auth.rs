//! `AUTH` and `HELLO`. Errors are worded as Redis words them, because clients look at them.

use super::super::args::Args;
use super::super::replies::Replies;
use super::introspection::VERSION;
use super::{ConnectionRequest, Flow};
use crate::access::Session;
use crate::app::App;
use crate::keys::{KeyHash, Refused};

/// Writes the error for a session that may not run the command `name`.
pub(super) fn refuse(refused: Refused, name: &[u8], replies: &mut Replies) {
    match refused {
        Refused::Missing => replies.error("NOAUTH", "Authentication required."),
        Refused::Wrong => replies.error("WRONGPASS", "the key is not one of this server's"),
        Refused::Expired(_) | Refused::Token(_) => replies.error("NOAUTH", &refused.to_string()),
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

/// `AUTH [user] key`. The user is ignored: a key identifies its holder.
pub(super) fn auth(
    ConnectionRequest { service, args, session, replies }: ConnectionRequest<'_>,
) -> Flow {
    let key = match args.len() {
        2 => args.get(1),
        3 => args.get(2),
        _ => {
            replies.error("ERR", "wrong number of arguments for 'auth' command");
            return Flow::Continue;
        }
    };
    if authenticate(&service.app, key.unwrap_or_default(), session, replies) {
        replies.simple("OK");
    }
    Flow::Continue
}

/// `HELLO [2|3 [AUTH user key] [SETNAME name]]`: chooses the version of the protocol, and authenticates.
pub(super) fn hello(
    ConnectionRequest { service, args, session, replies }: ConnectionRequest<'_>,
) -> Flow {
    greet(&service.app, args, session, replies);
    Flow::Continue
}

fn greet(app: &App, args: Args<'_>, session: &mut Session, replies: &mut Replies) {
    let is_resp3 = match args.get(1) {
        Some(b"3") => true,
        Some(b"2") => false,
        None => replies.is_resp3,
        Some(_) => {
            return replies.error("NOPROTO", "unsupported protocol version; 2 and 3 are spoken");
        }
    };
    let mut at = 2;
    while let Some(option) = args.get(at) {
        match (args.get(at + 1), args.get(at + 2)) {
            (Some(_), Some(key)) if option.eq_ignore_ascii_case(b"AUTH") => {
                if !authenticate(app, key, session, replies) {
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

/// Authenticates the session with `key`. Writes an error and returns false if the key is refused.
fn authenticate(app: &App, key: &[u8], session: &mut Session, replies: &mut Replies) -> bool {
    if !app.access().is_guarded() {
        replies.error("ERR", "this server asks for no password; leave AUTH out");
        return false;
    }
    let key = String::from_utf8_lossy(key);
    let taken = session.authenticate(&key, app.access(), app.now());
    let count = |_: &Refused| app.unauthenticated(Some(&KeyHash::from_key(&key)), None);
    let refused = match taken.inspect_err(count) {
        Ok(()) => return true,
        Err(expired @ Refused::Expired(_)) => expired.to_string(),
        Err(_) => "invalid username-password pair or user is disabled.".to_owned(),
    };
    replies.error("WRONGPASS", &refused);
    false
}
