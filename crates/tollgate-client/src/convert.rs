//! Requests from asks, errors about unexpected responses, and renewed permits.

use tollgate::core::Charge;
use tollgate::{Ask, Costs, Error, ErrorKind, Permit, Policy};
use tollgate_protocol::json::{self, AcquireRequest, ChargeActual, SettleRequest};
use tollgate_protocol::permit_token::{self, charges_of};

use crate::grpc::{id_ttl_ms, named};
use crate::target::seal_of;

/// Returns the error for a response that this version does not understand.
pub(crate) fn unexpected(text: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{text}; is the broker of another version?"))
}

/// Returns `permit` with the grants and the seal of its renewal.
pub(crate) fn renewed(permit: &Permit, seal: &str) -> Result<Permit, Error> {
    let known: Vec<&Permit> = charges_of(permit).collect();
    let policies = known.iter().map(|charge| charge.policy());
    permit_token::read(seal, policies, |index, charge| {
        charge.limits.clone_from(&known[index].limits);
        charge.shadow_denied.clone_from(&known[index].shadow_denied);
        Ok(())
    })
}

/// Returns the policy of each charge of `ask`.
pub(crate) fn policies<'a>(ask: &'a Ask<'_>) -> impl Iterator<Item = &'a Policy> {
    ask.charges().map(Charge::policy)
}

/// Returns the request of `ask`. Every unit is named, so that none gets its default at the broker.
pub(crate) fn acquire_request(ask: &Ask<'_>) -> AcquireRequest {
    let id = ask.id_text().map(str::to_owned);
    let tenant = ask.named_tenant().map(|(tenant, _)| tenant.to_owned());
    let request =
        AcquireRequest { id, id_ttl_ms: id_ttl_ms(ask), tenant, ..AcquireRequest::default() };
    if !ask.has_several_charges() {
        let in_front = ask.in_front().iter();
        return AcquireRequest {
            policy: ask.policy().name().to_owned(),
            subject: ask.subject().to_owned(),
            costs: ask.costs(),
            behind: in_front.map(|amounts| named(&ask.policy().costs(amounts))).collect(),
            ..request
        };
    }
    let mut shared = Costs::new();
    let charges = ask.charges().enumerate().map(|(index, charge)| {
        let costs = charge.policy().costs(charge.amounts());
        let costs = if ask.has_own_costs(index) {
            Some(costs)
        } else {
            for (unit, amount) in costs.iter() {
                shared.set(unit, amount);
            }
            None
        };
        let (policy, subject) = (charge.policy().name().to_owned(), charge.subject().to_owned());
        json::Charge { policy, subject, costs }
    });
    let charges = charges.collect();
    AcquireRequest { charges, costs: shared, ..request }
}

/// Returns the request that settles `permit`: all of it, or the one charge that it is a part of.
pub(crate) fn settle_request(permit: &Permit, actual: &Costs) -> Result<SettleRequest, Error> {
    let (seal, actual) = (seal_of(permit)?.to_owned(), actual.clone());
    Ok(match permit_token::part_index(permit) {
        Some(charge) => {
            let charges = vec![ChargeActual { charge, actual }];
            SettleRequest { permit: seal, actual: Costs::new(), charges }
        }
        None => SettleRequest { permit: seal, actual, charges: Vec::new() },
    })
}

/// Returns the seal of `permit`, for an operation that takes permits only whole.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a part of a permit: the broker would release or renew all of it.
pub(crate) fn whole_seal(permit: &Permit) -> Result<&str, Error> {
    let seal = seal_of(permit)?;
    match permit_token::part_index(permit) {
        None => Ok(seal),
        Some(charge) => Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "this is charge {charge} of a permit of several charges; release or renew the whole permit"
            ),
        )),
    }
}
