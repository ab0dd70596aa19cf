//! `TG.CHARGE`: charges without deciding.

use tollgate::Error;
use tollgate_protocol::json::Admitted;

use super::super::args::invalid;
use super::super::replies::Replies;
use super::{Request, acquire};

const USAGE: &str = "write TG.CHARGE policy subject [COST unit n …] [AND policy subject [COST unit n …] …] [ID id] \
                     [IDTTL ms]";

pub(super) async fn run(
    Request { app, caller, args, .. }: Request<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    let request = acquire::parse(args, USAGE)?;
    if request.wait_ms.is_some() || !request.behind.is_empty() || request.tenant.is_some() {
        let text = format!("a charge never waits; leave WAIT, TENANT and BEHIND out: {USAGE}");
        return Err(invalid(text));
    }
    let permit = app.charge(caller, request.into()).await?;
    replies.value(&Admitted::new(&permit, app.permit_keys().sealing(), app.now()))
}
