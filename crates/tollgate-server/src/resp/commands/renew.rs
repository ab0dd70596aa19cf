//! `TG.RENEW`: extends the slots of a permit.

use tollgate::Error;
use tollgate_protocol::json::Renewed;

use super::super::replies::Replies;
use super::Request;

pub(super) async fn run(
    Request { app, caller, args, .. }: Request<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    let permit = app.renew(caller, args.only("write TG.RENEW permit")?).await?;
    replies.value(&Renewed::new(&permit, app.permit_keys().sealing()))
}
