//! `TG.CHARGE`: charges without deciding.

use tollgate::Error;
use tollgate_protocol::json::{AcquireRequest, Admitted, ChargeRequest};

use super::super::args::invalid;
use super::super::replies::Replies;
use super::{Request, acquire};

const USAGE: &str = "write TG.CHARGE policy subject [COST unit n …] [ID id] [IDTTL ms]";

pub(super) async fn run(
    Request { app, caller, args, .. }: Request<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    let AcquireRequest { policy, subject, costs, id, id_ttl_ms, wait_ms, behind } =
        acquire::parse(args, USAGE)?;
    if wait_ms.is_some() || !behind.is_empty() {
        let text = format!("a charge never waits; leave WAIT and BEHIND out: {USAGE}");
        return Err(invalid(text));
    }
    let request = ChargeRequest { policy, subject, costs, id, id_ttl_ms };
    let permit = app.charge(caller, &request).await?;
    replies.value(&Admitted::new(&permit, app.permit_keys().sealing(), app.now()))
}
