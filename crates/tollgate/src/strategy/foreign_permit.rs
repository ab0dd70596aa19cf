//! Permits that are settled at an instance that did not give them: behind a load balancer, or after a restart.
//!
//! What such a permit holds is accounted for where it was given, so nothing is given back for it here, and saying so is
//! no error. What the call cost beyond the estimate was spent all the same, and is charged.

use tollgate_core::bounds::PERMIT_TTL;
use tollgate_core::{Ask, Costs, Permit};

use crate::error::Error;
use crate::gate::{Gate, GateExt};

/// Charges `extra`, which `permit` cost beyond its estimate; says whether there was anything to charge. The id is the same
/// at every instance and lives as long as the permit, so that settling twice charges once.
pub(super) async fn charge_extra<G: Gate>(
    gate: &G,
    permit: &Permit,
    extra: &Costs,
) -> Result<bool, Error> {
    if extra.iter().all(|(_, amount)| amount == 0) {
        return Ok(false);
    }
    let grant = permit.grant();
    let id = format!("extra-{:x}-{:x}", grant.stamp, grant.at.as_micros());
    let ask = Ask::new(permit.policy(), permit.subject()).with_costs(extra);
    gate.charge(&ask.id_for(id, PERMIT_TTL)).await.map(|_| true)
}
