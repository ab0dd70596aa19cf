//! Commands about the connection, which clients send when they connect. What Redis does beyond this is refused.

use super::super::args::Args;
use super::super::replies::Replies;
use super::{ConnectionRequest, Flow};

pub(super) fn ping(ConnectionRequest { args, replies, .. }: ConnectionRequest<'_>) -> Flow {
    match args.get(1) {
        Some(text) => replies.bulk(text),
        None => replies.simple("PONG"),
    }
    Flow::Continue
}

pub(super) fn echo(ConnectionRequest { args, replies, .. }: ConnectionRequest<'_>) -> Flow {
    match args.get(1) {
        Some(text) if args.len() == 2 => replies.bulk(text),
        _ => replies.error("ERR", "wrong number of arguments for 'echo' command"),
    }
    Flow::Continue
}

/// `RESET`: forgets the key and goes back to RESP2.
pub(super) fn reset(ConnectionRequest { session, replies, .. }: ConnectionRequest<'_>) -> Flow {
    session.reset();
    replies.is_resp3 = false;
    replies.simple("RESET");
    Flow::Continue
}

pub(super) fn quit(ConnectionRequest { replies, .. }: ConnectionRequest<'_>) -> Flow {
    replies.simple("OK");
    Flow::Close
}

/// `CLIENT`: accepts names of clients and libraries, and ignores them.
pub(super) fn client(ConnectionRequest { args, replies, .. }: ConnectionRequest<'_>) -> Flow {
    match subcommand(args).as_deref() {
        Some("SETNAME" | "SETINFO" | "NO-EVICT" | "NO-TOUCH") => replies.simple("OK"),
        Some("GETNAME") => replies.null(),
        _ => unknown_subcommand("CLIENT", "SETNAME, SETINFO, GETNAME", args, replies),
    }
    Flow::Continue
}

/// `SELECT 0`. Keys are not separated by database, and a client that relies on it has to know.
pub(super) fn select(ConnectionRequest { args, replies, .. }: ConnectionRequest<'_>) -> Flow {
    let is_integer =
        |arg: &[u8]| std::str::from_utf8(arg).is_ok_and(|text| text.parse::<i32>().is_ok());
    match (args.get(1), args.len()) {
        (Some(b"0"), 2) => replies.simple("OK"),
        (Some(index), 2) if !is_integer(index) => {
            replies.error("ERR", "value is not an integer or out of range");
        }
        (_, 2) => replies.error("ERR", "DB index is out of range; there is only 0"),
        _ => replies.error("ERR", "wrong number of arguments for 'select' command"),
    }
    Flow::Continue
}

/// `CONFIG GET`: finds nothing.
pub(super) fn config(ConnectionRequest { args, replies, .. }: ConnectionRequest<'_>) -> Flow {
    match subcommand(args).as_deref() {
        Some("GET") => replies.map(0),
        _ => unknown_subcommand("CONFIG", "GET, which finds nothing", args, replies),
    }
    Flow::Continue
}

fn subcommand(args: Args<'_>) -> Option<String> {
    args.get(1).map(|arg| String::from_utf8_lossy(arg).to_ascii_uppercase())
}

fn unknown_subcommand(name: &str, known: &str, args: Args<'_>, replies: &mut Replies) {
    let arg = String::from_utf8_lossy(args.get(1).unwrap_or_default());
    replies.error("ERR", &format!("unknown subcommand '{arg}' of {name}; known: {known}"));
}
