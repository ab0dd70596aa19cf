//! The table of commands. A new command is a function in a file of this folder and one line of the table.

mod acquire;
mod auth;
mod charge;
mod close;
mod connection;
mod introspection;
mod release;
mod renew;
mod reset;
mod settle;
mod standing;
pub(super) mod throttle;

use tollgate_protocol::json::{caller_text, kind_name};

use super::RespService;
use super::args::Args;
use super::replies::Replies;
use crate::access::{Caller, Session};
use crate::app::App;
use crate::error_log;
use crate::keys::{Refused, Scope};
pub(super) use acquire::{may_wait, waits};
use throttle::Throttles;

/// The input of a command on the gate.
#[derive(Clone, Copy)]
struct Request<'a> {
    app: &'a App,
    throttles: &'a Throttles,
    caller: &'a Caller,
    args: Args<'a>,
}

/// The input of a command about the connection.
struct ConnectionRequest<'a> {
    service: &'a RespService,
    args: Args<'a>,
    session: &'a mut Session,
    replies: &'a mut Replies,
}

/// Whether a connection stays open after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Continue,
    Close,
}

/// Who may run a command.
#[derive(Clone, Copy)]
enum Access {
    /// Everybody, without a key.
    Open,
    /// Any valid key.
    AnyKey,
    /// A key with the scope.
    Scope(Scope),
    /// A key with the scope, for every policy and subject.
    Unbound(Scope),
}

use Access::{AnyKey, Open, Unbound};
const ACQUIRE: Access = Access::Scope(Scope::Acquire);
const INSPECT: Access = Access::Scope(Scope::Inspect);
const ADMINISTER: Access = Access::Scope(Scope::Administer);

/// Expands to the list of names, the access rules and the dispatcher. A `match` on names rather than a map of function
/// pointers: each future is part of the connection's, without an allocation per request.
macro_rules! commands {
    (
        gate { $($name:literal $access:expr => $run:path;)+ }
        connection { $($other:literal $other_access:expr => $other_run:path;)+ }
    ) => {
        /// The names of all commands.
        const NAMES: &[&[u8]] = &[$($name,)+ $($other,)+];

        fn access_to(name: &[u8]) -> Access {
            match name {
                $($name => $access,)+
                $($other => $other_access,)+
                _ => AnyKey,
            }
        }

        async fn dispatch(
            service: &RespService,
            name: &[u8],
            args: Args<'_>,
            session: &mut Session,
            replies: &mut Replies,
        ) -> Flow {
            let caller = match check(&service.app, access_to(name), session) {
                Ok(caller) => caller,
                Err(refused) => {
                    if refused.status() == 401 {
                        let (hash, certificate) = session.credentials();
                        service.app.unauthenticated(hash, certificate);
                    }
                    auth::refuse(refused, name, replies);
                    return Flow::Continue;
                }
            };
            let RespService { app, throttles } = service;
            let request = Request { app, throttles, caller, args };
            let done = match name {
                $($name => $run(request, replies).await,)+
                $($other => {
                    return $other_run(ConnectionRequest { service, args, session, replies });
                })+
                _ => return unknown(args, replies),
            };
            if let Err(error) = done {
                error_log::log(&error);
                replies.error(&kind_name(error.kind()).to_ascii_uppercase(), &caller_text(&error));
            }
            Flow::Continue
        }
    };
}

commands! {
    gate {
        b"CL.THROTTLE" ACQUIRE => throttle::run;
        b"DEL" ADMINISTER => throttle::delete;
        b"TG.ACQUIRE" ACQUIRE => acquire::run;
        b"TG.SETTLE" ACQUIRE => settle::run;
        b"TG.RELEASE" ACQUIRE => release::run;
        b"TG.RENEW" ACQUIRE => renew::run;
        b"TG.STANDING" INSPECT => standing::run;
        b"TG.CHARGE" ADMINISTER => charge::run;
        b"TG.CLOSE" ADMINISTER => close::run;
        b"TG.RESET" ADMINISTER => reset::run;
    }
    connection {
        b"PING" AnyKey => connection::ping;
        b"ECHO" AnyKey => connection::echo;
        b"HELLO" Open => auth::hello;
        b"AUTH" Open => auth::auth;
        b"CLIENT" AnyKey => connection::client;
        b"SELECT" AnyKey => connection::select;
        b"RESET" Open => connection::reset;
        b"COMMAND" AnyKey => introspection::command;
        b"CONFIG" AnyKey => connection::config;
        b"INFO" Unbound(Scope::Inspect) => introspection::info;
        b"QUIT" Open => connection::quit;
    }
}

/// Longer than every name.
const NAME_BYTES_MAX: usize = 16;

const NOT_HTTP: &str = "this port speaks the Redis protocol; HTTP is spoken on another. \
                        Nothing that follows is executed, and the connection ends";

/// Runs the command in `args` and writes its reply.
pub(super) async fn run(
    service: &RespService,
    args: Args<'_>,
    session: &mut Session,
    replies: &mut Replies,
) -> Flow {
    let Some(name) = args.get(0) else { return Flow::Continue };
    let mut buffer = [0; NAME_BYTES_MAX];
    let name = upper_case(name, &mut buffer);
    if is_http(name, args) {
        replies.error("ERR", NOT_HTTP);
        return Flow::Close;
    }
    dispatch(service, name, args, session, replies).await
}

/// Returns the caller of `session`, if it has `access`.
fn check<'a>(app: &App, access: Access, session: &'a mut Session) -> Result<&'a Caller, Refused> {
    let scope = match access {
        Access::Open => return Ok(&Caller::ANONYMOUS),
        Access::AnyKey => None,
        Access::Scope(scope) | Access::Unbound(scope) => Some(scope),
    };
    let caller = session.check(scope, app.access(), || app.now())?;
    if matches!(access, Access::Unbound(_)) {
        caller.check_unbound()?;
    }
    Ok(caller)
}

/// Replies in the words of Redis, which clients look for.
fn unknown(args: Args<'_>, replies: &mut Replies) -> Flow {
    let name = String::from_utf8_lossy(args.get(0).unwrap_or_default());
    let known: Vec<_> = NAMES.iter().map(|name| String::from_utf8_lossy(name)).collect();
    replies.error("ERR", &format!("unknown command {name:?}; known: {}", known.join(", ")));
    Flow::Continue
}

/// Returns whether the client speaks HTTP. It may be a web page of any site, which can make a browser send lines of its
/// choice here, after a head that it does not choose.
fn is_http(name: &[u8], args: Args<'_>) -> bool {
    match name {
        b"POST" | b"HOST:" => true,
        // Programs that expect a Redis server send commands of these names, too, but as arrays.
        b"GET" | b"HEAD" | b"PUT" | b"PATCH" | b"DELETE" | b"OPTIONS" | b"CONNECT" | b"TRACE"
        | b"PRI" => args.bytes.first() != Some(&b'*'),
        _ => false,
    }
}

/// Converts `name` to upper case; an overlong name, which no command has, to nothing.
fn upper_case<'a>(name: &[u8], buffer: &'a mut [u8; NAME_BYTES_MAX]) -> &'a [u8] {
    let Some(upper) = buffer.get_mut(..name.len()) else { return b"" };
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    upper
}
