//! `TG.RELEASE`: returns the whole charge of a permit.

use tollgate::Error;
use tollgate_protocol::json::Changed;

use super::super::replies::Replies;
use super::Request;

pub(super) async fn run(
    Request { app, caller, args, .. }: Request<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    let permit = args.only("write TG.RELEASE permit")?;
    replies.value(&Changed { changed: app.release(caller, permit).await? })
}
