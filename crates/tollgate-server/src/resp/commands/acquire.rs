//! `TG.ACQUIRE`: decides an ask, waiting for room if it says so.
//!
//! As for all `TG.*` commands the reply has the members of the HTTP response, as a map (flat in RESP2). A denial is a
//! reply with `admitted` 0; an error starts with its kind in capitals.

use tollgate::Error;
use tollgate_protocol::json::{AcquireRequest, AcquireResponse, Charge};

use super::super::args::{Args, invalid, unknown_option};
use super::super::replies::Replies;
use super::Request;

const USAGE: &str = "write TG.ACQUIRE policy subject [COST unit n …] [AND policy subject [COST unit n …] …] [ID id] \
                     [IDTTL ms] [WAIT ms] [TENANT tenant] [BEHIND costs], where costs is a list in JSON, as in [{\"requests\": 1}]";

pub(super) async fn run(
    Request { app, caller, args, .. }: Request<'_>,
    replies: &mut Replies,
) -> Result<(), Error> {
    let request = parse(args, USAGE)?;
    let policies = app.policies_of(caller, &request)?;
    let decision = app.acquire(&policies, &request).await?;
    replies.value(&AcquireResponse::new(&decision, app.permit_keys().sealing(), app.now()))
}

/// Returns whether `args` are an ask that waits for room.
pub(crate) fn waits(args: Args<'_>) -> bool {
    may_wait(args)
        && parse(args, "").is_ok_and(|request| request.wait_ms.is_some_and(|wait_ms| 0 < wait_ms))
}

/// Returns whether `args` look like an ask that waits, without parsing them.
pub(crate) fn may_wait(args: Args<'_>) -> bool {
    args.is(0, b"TG.ACQUIRE") && (3..args.len()).any(|index| args.is(index, b"WAIT"))
}

/// Parses the arguments of `TG.ACQUIRE` and `TG.CHARGE`; errors quote `usage`.
///
/// A `COST` before the first `AND` is a cost of the ask, and applies to every charge that names none. After an `AND` it is a
/// cost of that charge alone. `OWN unit n` gives costs of its own to the first charge, too.
pub(super) fn parse(args: Args<'_>, usage: &str) -> Result<AcquireRequest, Error> {
    let charge_at = |at: usize| {
        let (policy, subject) = (args.required(at, usage)?, args.required(at + 1, usage)?);
        Ok::<_, Error>(Charge {
            policy: policy.to_owned(),
            subject: subject.to_owned(),
            costs: None,
        })
    };
    let mut request = AcquireRequest::default();
    let mut charges = vec![charge_at(1)?];
    let mut at = 3;
    while let Some(option) = args.get(at) {
        let is = |name: &[u8]| option.eq_ignore_ascii_case(name);
        let is_first = charges.len() == 1;
        if is(b"COST") && is_first {
            args.cost(at, &mut request.costs, usage)?;
            at += 1;
        } else if is(b"COST") || is(b"OWN") {
            if let Some(charge) = charges.last_mut() {
                args.cost(at, charge.costs.get_or_insert_default(), usage)?;
            }
            at += 1;
        } else if is(b"AND") {
            charges.push(charge_at(at + 1)?);
            at += 1;
        } else if is(b"ID") {
            request.id = Some(args.required(at + 1, usage)?.to_owned());
        } else if is(b"IDTTL") {
            request.id_ttl_ms = Some(args.integer(at + 1, usage)?);
        } else if is(b"WAIT") {
            request.wait_ms = Some(args.integer(at + 1, usage)?);
        } else if is(b"TENANT") {
            request.tenant = Some(args.required(at + 1, usage)?.to_owned());
        } else if is(b"BEHIND") {
            let text = args.required(at + 1, usage)?;
            request.behind = serde_json::from_str(text)
                .map_err(|error| invalid(format!("BEHIND {error}; {usage}")))?;
        } else {
            return Err(unknown_option(option, usage));
        }
        at += 2;
    }
    match <[Charge; 1]>::try_from(charges) {
        Ok([Charge { policy, subject, costs: None }]) => {
            Ok(AcquireRequest { policy, subject, ..request })
        }
        Ok(charges) => Ok(AcquireRequest { charges: charges.to_vec(), ..request }),
        Err(charges) => Ok(AcquireRequest { charges, ..request }),
    }
}
