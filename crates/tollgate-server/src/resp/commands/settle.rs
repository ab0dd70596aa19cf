//! `TG.SETTLE`: replaces the estimate of a permit by the actual cost.

use tollgate::{Costs, Error};
use tollgate_protocol::json::{Changed, ChargeActual, SettleRequest};

use super::super::args::unknown_option;
use super::super::replies::Replies;
use super::Request;

const USAGE: &str = "write TG.SETTLE permit [COST unit n …] [CHARGE index COST unit n … …], where the costs after CHARGE are \
                     of that charge alone, counted from 0";

pub(super) async fn run(
    Request { app, caller, args, .. }: Request<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    let permit = args.required(1, USAGE)?.to_owned();
    let mut request = SettleRequest { permit, actual: Costs::new(), charges: Vec::new() };
    let mut at = 2;
    while let Some(option) = args.get(at) {
        if option.eq_ignore_ascii_case(b"CHARGE") {
            let charge = usize::try_from(args.integer(at + 1, USAGE)?).unwrap_or(usize::MAX);
            request.charges.push(ChargeActual { charge, actual: Costs::new() });
            at += 2;
        } else if option.eq_ignore_ascii_case(b"COST") {
            let charge = request.charges.last_mut().map(|charge| &mut charge.actual);
            args.cost(at, charge.unwrap_or(&mut request.actual), USAGE)?;
            at += 3;
        } else {
            return Err(unknown_option(option, USAGE));
        }
    }
    replies.value(&Changed { changed: app.settle(caller, &request).await? })
}
