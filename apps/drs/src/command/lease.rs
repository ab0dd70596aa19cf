//! A lease in the shared store: with `--shared`, one process of all machines recovers a set of servers.

use std::sync::{Arc, Mutex, PoisonError};

use crate::campaign::Campaign;
use sha2::{Digest as _, Sha256};
use tokio::task::JoinHandle;
use tollgate::{
    Ask, Clock, Concurrency, Decision, ErrorKind, Gate, GateExt, Limit, Permit, Policy, Span,
    Timestamp,
};

use super::Session;
use tollgate_terminal::Failure;

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
    /// When the last granted request was sent, by the clock of this machine. The store counts from later.
    since: Timestamp,
}

impl Lease {
    /// Takes the lease on the servers of `campaign`. The error says when the lease of another process expires.
    pub(super) async fn take(
        gate: &Arc<dyn Gate>,
        session: &Session,
        campaign: &Campaign,
    ) -> Result<Self, Failure> {
        let (gate, clock) = (Arc::clone(gate), Arc::clone(session.client.clock()));
        let limit = Limit::new("recoveries", "recoveries", Concurrency::new(1, TTL));
        let policy = Policy::new("aws.drs.recovery", [limit]).map_err(tollgate::Error::from)?;
        let subject = subject(session, campaign);
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

    /// Returns an error if the lease may have expired, since another process may hold it.
    pub(super) fn check(&self) -> Result<(), crate::Error> {
        let since = self.held.lock().unwrap_or_else(PoisonError::into_inner).since;
        if self.clock.now().since(since) < TTL {
            return Ok(());
        }
        Err(crate::Error::Invalid(format!(
            "the lease on these servers in the shared store was not renewed for {TTL}, so another process may have taken \
             over; nothing more was started"
        )))
    }

    /// Releases the lease, so that others need not wait until it expires.
    pub(super) async fn release(self) {
        self.renewing.abort();
        let permit = self.held.lock().unwrap_or_else(PoisonError::into_inner).permit.clone();
        if let Err(error) = self.gate.release(&permit).await {
            tracing::warn!(%error, "the lease was not released and will expire");
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

/// Returns the account, the region and a digest of the servers: the same on every machine.
fn subject(session: &Session, campaign: &Campaign) -> String {
    let mut servers: Vec<&str> = campaign.servers().map(|(id, _)| id).collect();
    servers.sort_unstable();
    let digest = Sha256::digest(servers.join("\n"));
    let set: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{}/{}/{set}", session.client.account(), session.client.region())
}
