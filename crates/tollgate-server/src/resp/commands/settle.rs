//! `TG.SETTLE`: replaces the estimate of a permit by the actual cost.

use tollgate::{Costs, Error};
use tollgate_protocol::json::Changed;

use super::super::args::unknown_option;
use super::super::replies::Replies;
use super::Request;

const USAGE: &str = "write TG.SETTLE permit [COST unit n …]";

pub(super) async fn run(
    Request { app, caller, args, .. }: Request<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    let permit = args.required(1, USAGE)?;
    let mut actual = Costs::new();
    let mut at = 2;
    while let Some(option) = args.get(at) {
        if !option.eq_ignore_ascii_case(b"COST") {
            return Err(unknown_option(option, USAGE));
        }
        args.cost(at, &mut actual, USAGE)?;
        at += 3;
    }
    replies.value(&Changed { changed: app.settle(caller, permit, &actual).await? })
}
