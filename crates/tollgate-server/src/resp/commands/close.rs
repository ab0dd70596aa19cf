//! `TG.CLOSE`: closes a limit until a time.

use tollgate::Error;
use tollgate_protocol::json::{Changed, CloseRequest};

use super::super::replies::Replies;
use super::Request;

const USAGE: &str =
    "write TG.CLOSE policy subject limit until, where until is as in 2026-11-15T05:45:00Z";

pub(super) async fn run(
    Request { app, caller, args, .. }: Request<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    args.exactly(5, USAGE)?;
    let request = CloseRequest {
        policy: args.required(1, USAGE)?.to_owned(),
        subject: args.required(2, USAGE)?.to_owned(),
        limit: args.required(3, USAGE)?.to_owned(),
        until: args.required(4, USAGE)?.parse()?,
    };
    replies.value(&Changed { changed: app.close_until(caller, &request).await? })
}
