//! With `--shared`, one process of all machines at a time recovers a set of servers.

use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest as _, Sha256};
use tokio::task::JoinHandle;
use tollgate::{
    Ask, Clock, Concurrency, Decision, ErrorKind, Gate, Limit, Permit, Policy, Span, Timestamp,
};
use tollgate_aws::campaign::Campaign;

use super::Desk;
use crate::failure::Failure;

/// How long a lease outlives a holder that died.
const TTL: Span = Span::from_mins(1);

/// The pause between renewals.
const RENEWAL: Span = Span::from_secs(15);

/// A slot of a concurrency limit of one in the shared store, renewed in the background.
#[derive(Debug)]
pub(super) struct Lease {
    gate: Arc<dyn Gate>,
    clock: Arc<dyn Clock>,
    held: Arc<Mutex<Held>>,
    renewing: JoinHandle<()>,
}

#[derive(Clone, Debug)]
struct Held {
    permit: Permit,
    /// When the last request that was granted was sent, by this machine's clock: the store counts from later.
    since: Timestamp,
}

impl Lease {
    /// Takes the lease on the servers of `campaign`, or says until when somebody else has it.
    pub(super) async fn take(
        gate: &Arc<dyn Gate>,
        desk: &Desk,
        campaign: &Campaign,
    ) -> Result<Self, Failure> {
        let (gate, clock) = (Arc::clone(gate), Arc::clone(desk.client.clock()));
        let limit = Limit::new("recoveries", "recoveries", Concurrency::new(1, TTL));
        let policy = Policy::new("aws.drs.recovery", [limit]).map_err(tollgate::Error::from)?;
        let subject = subject(desk, campaign);
        let since = clock.now();
        let ask = Ask::new(&policy, &*subject).cost("recoveries", 1);
        let permit = match gate.acquire(&ask).await? {
            Decision::Admitted(permit) => permit,
            Decision::Denied(denial) => {
                let until = denial.expires_at.unwrap_or(since + TTL);
                return Err(Failure::new(
                    ErrorKind::Contended,
                    format!(
                        "another process recovers these servers and has their lease in the shared store; wait for it, or \
                         stop it. If it died, the lease is free at {until}"
                    ),
                ));
            }
        };
        let held = Arc::new(Mutex::new(Held { permit, since }));
        let renewing =
            tokio::spawn(renew(Arc::clone(&gate), Arc::clone(&clock), Arc::clone(&held)));
        Ok(Self { gate, clock, held, renewing })
    }

    /// Refuses once it may have expired: another process may have taken it over.
    pub(super) fn check(&self) -> Result<(), tollgate_aws::Error> {
        let since = self.held.lock().unwrap_or_else(PoisonError::into_inner).since;
        if self.clock.now().since(since) < TTL {
            return Ok(());
        }
        Err(tollgate_aws::Error::Invalid(format!(
            "the lease on these servers in the shared store was not renewed for {TTL}, so another process may have taken \
             over; nothing more was started"
        )))
    }

    /// Gives it back, so that nobody has to wait until it expires.
    pub(super) async fn release(self) {
        self.renewing.abort();
        let permit = self.held.lock().unwrap_or_else(PoisonError::into_inner).permit.clone();
        if let Err(error) = self.gate.release(&permit).await {
            tracing::warn!(%error, "the lease was not given back and expires by itself");
        }
    }
}

async fn renew(gate: Arc<dyn Gate>, clock: Arc<dyn Clock>, held: Arc<Mutex<Held>>) {
    loop {
        clock.sleep_until(clock.now() + RENEWAL).await;
        let permit = held.lock().unwrap_or_else(PoisonError::into_inner).permit.clone();
        let since = clock.now();
        match gate.renew(&permit).await {
            Ok(permit) => {
                *held.lock().unwrap_or_else(PoisonError::into_inner) = Held { permit, since };
            }
            Err(error) => tracing::warn!(%error, "the lease was not renewed"),
        }
    }
}

/// The account, the region and the set of servers: the same for a copy of the state file and for the same list of
/// servers elsewhere.
fn subject(desk: &Desk, campaign: &Campaign) -> String {
    let mut servers: Vec<&str> = campaign.servers().map(|(id, _)| id).collect();
    servers.sort_unstable();
    let digest = Sha256::digest(servers.join("\n"));
    let set: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{}/{}/{set}", desk.client.account(), desk.client.region())
}
