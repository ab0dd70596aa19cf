//! The Redis protocol, so that every language has a client already.
//!
//! A connection's requests are answered in their order, one after the other; those that arrived together are answered in
//! one write. `CL.THROTTLE` and `DEL` are for programs that know redis-cell, `TG.*` are the calls of the HTTP face.

mod ahead;
mod auth;
mod connection;
mod frame;
mod manage;
mod names;
mod native;
mod patience;
mod reply;
mod serialize;
mod throttle;

use std::ops::Range;
use std::sync::Arc;

use tollgate::{Error, ErrorKind};

use crate::access::Session;
use crate::app::App;
use crate::failures;
use crate::wire::{caller_text, kind_name};
use names::{LONGEST_NAME, NAMES};
use reply::Replies;
use throttle::Throttles;

pub(crate) use connection::serve;
pub use throttle::POLICY as THROTTLE_POLICY;

/// What all connections have in common.
#[derive(Debug)]
pub(crate) struct Resp {
    app: Arc<App>,
    throttles: Throttles,
}

impl Resp {
    pub(crate) fn new(app: Arc<App>) -> Self {
        let throttles = Throttles::new(app.limits().throttle_subjects_max);
        Self { app, throttles }
    }

    /// Answers one request. Says whether the connection goes on.
    async fn answer(&self, words: Words<'_>, session: &mut Session, replies: &mut Replies) -> bool {
        let Some(name) = words.get(0) else { return true };
        let mut upper = [0; LONGEST_NAME];
        let name = upper_case(name, &mut upper);
        let app = &*self.app;
        if is_http(name, words) {
            replies.error("ERR", HTTP_HERE);
            return false;
        }
        let caller = match auth::check(app, name, session) {
            Ok(caller) => caller,
            Err(refused) => {
                auth::refuse(refused, name, replies);
                return true;
            }
        };
        let answered = match name {
            b"CL.THROTTLE" => throttle::answer(app, caller, &self.throttles, words, replies).await,
            b"DEL" => throttle::delete(app, caller, &self.throttles, words, replies).await,
            b"TG.ACQUIRE" => native::acquire(app, caller, words, replies).await,
            b"TG.SETTLE" => native::settle(app, caller, words, replies).await,
            b"TG.RELEASE" => native::release(app, caller, words, replies).await,
            b"TG.RENEW" => native::renew(app, caller, words, replies).await,
            b"TG.STANDING" => native::standing(app, caller, words, replies).await,
            b"TG.CHARGE" => manage::charge(app, caller, words, replies).await,
            b"TG.CLOSE" => manage::close(app, caller, words, replies).await,
            b"TG.RESET" => manage::reset(app, caller, words, replies).await,
            b"QUIT" => {
                replies.simple("OK");
                return false;
            }
            _ => {
                self.answer_connection(name, words, session, replies);
                Ok(())
            }
        };
        if let Err(error) = answered {
            failures::log(&error);
            replies.error(&kind_name(error.kind()).to_ascii_uppercase(), &caller_text(&error));
        }
        true
    }

    /// What clients send about the connection itself, most of them before anything else.
    fn answer_connection(
        &self,
        name: &[u8],
        words: Words<'_>,
        session: &mut Session,
        replies: &mut Replies,
    ) {
        match name {
            b"PING" => match words.get(1) {
                Some(text) => replies.bulk(text),
                None => replies.simple("PONG"),
            },
            b"ECHO" => match words.get(1) {
                Some(text) if words.len() == 2 => replies.bulk(text),
                _ => replies.error("ERR", "wrong number of arguments for 'echo' command"),
            },
            b"HELLO" => auth::hello(&self.app, words, session, replies),
            b"AUTH" => auth::answer(&self.app, words, session, replies),
            b"RESET" => {
                session.reset();
                replies.is_resp3 = false;
                replies.simple("RESET");
            }
            b"CLIENT" => match subcommand(words).as_deref() {
                // Names of clients and of libraries: nothing here depends on them.
                Some("SETNAME" | "SETINFO" | "NO-EVICT" | "NO-TOUCH") => replies.simple("OK"),
                Some("GETNAME") => replies.null(),
                _ => unknown_subcommand("CLIENT", "SETNAME, SETINFO, GETNAME", words, replies),
            },
            // Keys are not separated by database, and a client that relies on it has to know.
            b"SELECT" => match (words.get(1), words.len()) {
                (Some(b"0"), 2) => replies.simple("OK"),
                (Some(index), 2) if !is_integer(index) => {
                    replies.error("ERR", "value is not an integer or out of range");
                }
                (_, 2) => replies.error("ERR", "DB index is out of range; there is only 0"),
                _ => replies.error("ERR", "wrong number of arguments for 'select' command"),
            },
            b"COMMAND" => names::answer(words, replies),
            b"CONFIG" => match subcommand(words).as_deref() {
                Some("GET") => replies.map(0),
                _ => unknown_subcommand("CONFIG", "GET, which finds nothing", words, replies),
            },
            b"INFO" => replies.bulk(self.info().as_bytes()),
            _ => {
                // In the words of Redis, which clients look for.
                let name = String::from_utf8_lossy(words.get(0).unwrap_or_default());
                let known = NAMES.join(", ");
                replies.error("ERR", &format!("unknown command {name:?}; known: {known}"));
            }
        }
    }

    fn info(&self) -> String {
        let stats = self.app.stats();
        let mut text = format!(
            "# Server\r\ntollgate_version:{VERSION}\r\nredis_version:{REDIS_VERSION}\r\n# Policies\r\n"
        );
        for policy in stats.policies {
            text += &format!(
                "{}:admitted={},refused={},failed={},degraded={}\r\n",
                policy.name, policy.admitted, policy.refused, policy.failed, policy.degraded
            );
        }
        text
    }
}

fn subcommand(words: Words<'_>) -> Option<String> {
    words.get(1).map(|word| String::from_utf8_lossy(word).to_ascii_uppercase())
}

/// Whether `word` is an integer as Redis reads the index of a database.
fn is_integer(word: &[u8]) -> bool {
    std::str::from_utf8(word).is_ok_and(|word| word.parse::<i32>().is_ok())
}

fn unknown_subcommand(name: &str, known: &str, words: Words<'_>, replies: &mut Replies) {
    let word = String::from_utf8_lossy(words.get(1).unwrap_or_default());
    replies.error("ERR", &format!("unknown subcommand '{word}' of {name}; known: {known}"));
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Some clients look at this before they use RESP3.
const REDIS_VERSION: &str = "7.0.0";

const HTTP_HERE: &str = "this port speaks the Redis protocol; HTTP is spoken on another. \
                         Nothing that follows is executed, and the connection ends";

/// Whether somebody speaks HTTP. It may be a web page of any site, which can have a browser send lines of its choice here,
/// after a head that it does not choose.
fn is_http(name: &[u8], words: Words<'_>) -> bool {
    match name {
        b"POST" | b"HOST:" => true,
        // Programs that take this for a Redis send commands of such names too, but as arrays.
        b"GET" | b"HEAD" | b"PUT" | b"PATCH" | b"DELETE" | b"OPTIONS" | b"CONNECT" | b"TRACE"
        | b"PRI" => words.bytes.first() != Some(&b'*'),
        _ => false,
    }
}

fn upper_case<'a>(name: &[u8], room: &'a mut [u8; LONGEST_NAME]) -> &'a [u8] {
    // A name that is too long is none that is known.
    let Some(upper) = room.get_mut(..name.len()) else { return b"" };
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    upper
}

/// The words of one request.
#[derive(Clone, Copy)]
struct Words<'a> {
    bytes: &'a [u8],
    places: &'a [Range<usize>],
}

impl<'a> Words<'a> {
    fn len(self) -> usize {
        self.places.len()
    }

    fn get(self, place: usize) -> Option<&'a [u8]> {
        self.places.get(place).map(|range| &self.bytes[range.clone()])
    }

    /// The word at `place`, which callers call `name`, as text.
    fn text(self, place: usize, name: &str) -> Result<&'a str, Error> {
        std::str::from_utf8(self.get(place).unwrap_or_default())
            .map_err(|_| Error::new(ErrorKind::Invalid, format!("{name} must be UTF-8")))
    }

    /// The word at `place` as text; without it, `usage` says what would be right.
    fn text_or(self, place: usize, usage: &str) -> Result<&'a str, Error> {
        if self.len() <= place {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("wrong number of arguments; {usage}"),
            ));
        }
        self.text(place, "every argument")
    }
}
