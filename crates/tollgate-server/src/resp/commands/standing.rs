//! `TG.STANDING`: returns the standing of a subject, consuming nothing.

use tollgate::Error;

use super::super::replies::Replies;
use super::Request;

pub(super) async fn run(
    Request { app, caller, args, .. }: Request<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    let query = args.policy_and_subject("write TG.STANDING policy subject")?;
    replies.value(&app.standing_response(caller, &query).await?)
}
