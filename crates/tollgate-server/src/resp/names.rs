//! Which commands there are: `COMMAND`, which clients ask when they connect and to complete names.

use super::Words;
use super::reply::Replies;

/// Every command, as `COMMAND` and errors list them.
pub(super) const NAMES: [&str; 21] = [
    "CL.THROTTLE",
    "DEL",
    "TG.ACQUIRE",
    "TG.SETTLE",
    "TG.RELEASE",
    "TG.RENEW",
    "TG.STANDING",
    "TG.CHARGE",
    "TG.CLOSE",
    "TG.RESET",
    "PING",
    "ECHO",
    "HELLO",
    "AUTH",
    "CLIENT",
    "SELECT",
    "RESET",
    "COMMAND",
    "CONFIG",
    "INFO",
    "QUIT",
];

pub(super) const LONGEST_NAME: usize = 16;

/// `COMMAND`, `COMMAND COUNT`, `COMMAND INFO [name …]`, `COMMAND DOCS`. There are no docs.
pub(super) fn answer(words: Words<'_>, replies: &mut Replies) {
    let is = |option: &[u8]| words.get(1).is_some_and(|word| word.eq_ignore_ascii_case(option));
    if is(b"COUNT") {
        replies.integer(i64::try_from(NAMES.len()).unwrap_or_default());
    } else if is(b"INFO") && 2 < words.len() {
        replies.array(words.len() - 2);
        for word in (2..words.len()).filter_map(|place| words.get(place)) {
            match NAMES.iter().find(|name| name.as_bytes().eq_ignore_ascii_case(word)) {
                Some(name) => info(name, replies),
                None => replies.null(),
            }
        }
    } else if words.len() == 1 || is(b"INFO") {
        replies.array(NAMES.len());
        NAMES.iter().for_each(|name| info(name, replies));
    } else {
        replies.map(0);
    }
}

/// Name, number of words (at least one), flags, and no keys.
fn info(name: &str, replies: &mut Replies) {
    replies.array(6);
    replies.bulk(name.to_ascii_lowercase().as_bytes());
    replies.integer(-1);
    replies.array(0);
    (0..3).for_each(|_| replies.integer(0));
}
