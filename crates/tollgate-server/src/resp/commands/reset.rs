//! `TG.RESET`: forgets what a subject used.

use tollgate::Error;
use tollgate_protocol::json::Changed;

use super::super::replies::Replies;
use super::Request;

pub(super) async fn run(
    Request { app, caller, args, .. }: Request<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    let query = args.policy_and_subject("write TG.RESET policy subject")?;
    replies.value(&Changed { changed: app.reset(caller, &query).await? })
}
