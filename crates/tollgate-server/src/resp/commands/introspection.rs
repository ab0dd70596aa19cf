//! `COMMAND` and `INFO`: which commands there are, and what the server counted.

use super::super::replies::Replies;
use super::{ConnectionRequest, Flow, NAMES};

pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Some clients check this before they use RESP3.
const REDIS_VERSION: &str = "7.0.0";

/// `COMMAND`, `COMMAND COUNT`, `COMMAND INFO [name …]`, `COMMAND DOCS`. There are no docs.
pub(super) fn command(ConnectionRequest { args, replies, .. }: ConnectionRequest<'_>) -> Flow {
    if args.is(1, b"COUNT") {
        replies.integer(i64::try_from(NAMES.len()).unwrap_or_default());
    } else if args.is(1, b"INFO") && 2 < args.len() {
        replies.array(args.len() - 2);
        for arg in (2..args.len()).filter_map(|index| args.get(index)) {
            match NAMES.iter().find(|name| name.eq_ignore_ascii_case(arg)) {
                Some(name) => describe(name, replies),
                None => replies.null(),
            }
        }
    } else if args.len() == 1 || args.is(1, b"INFO") {
        replies.array(NAMES.len());
        NAMES.iter().for_each(|name| describe(name, replies));
    } else {
        replies.map(0);
    }
    Flow::Continue
}

/// Writes the name, the number of arguments (at least one), flags, and no keys.
fn describe(name: &[u8], replies: &mut Replies) {
    replies.array(6);
    replies.bulk(&name.to_ascii_lowercase());
    replies.integer(-1);
    replies.array(0);
    (0..3).for_each(|_| replies.integer(0));
}

pub(super) fn info(ConnectionRequest { service, replies, .. }: ConnectionRequest<'_>) -> Flow {
    let mut text = format!(
        "# Server\r\ntollgate_version:{VERSION}\r\nredis_version:{REDIS_VERSION}\r\n# Policies\r\n"
    );
    for policy in service.app.stats().policies {
        text += &format!(
            "{}:admitted={},refused={},failed={},degraded={}\r\n",
            policy.name, policy.admitted, policy.refused, policy.failed, policy.degraded
        );
    }
    replies.bulk(text.as_bytes());
    Flow::Continue
}
