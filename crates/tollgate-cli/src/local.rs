//! Calls on the configured store, without a broker.
//!
//! A command holds the data folder only while it decides, so that concurrent commands take turns.

use std::sync::Arc;

use tollgate::incident::{Incident, Violation, report_violation};
use tollgate::policy::Policies;
use tollgate::{Ask, Clock, Error, ErrorKind, Gate, GateExt, Policy};
use tollgate_protocol::json::{
    AcquireResponse, Changed, FROM_API, OverrideDescription, PermitRequest, Renewed, SettleRequest,
    StandingQuery, StandingResponse, ViolationRequest,
};
use tollgate_protocol::permit_token;
use tollgate_server::overrides::Overrides;

use crate::call::{Call, Reply};
use tollgate_config::Config;
use tollgate_config::open::{self, Opened, SHUTDOWN_MAX};
use tollgate_config::sinks;
use tollgate_terminal::Failure;

/// The configured store and policies.
#[derive(Debug)]
pub(crate) struct Local {
    config: Config,
    clock: Arc<dyn Clock>,
}

impl Local {
    pub(crate) const fn new(config: Config, clock: Arc<dyn Clock>) -> Self {
        Self { config, clock }
    }

    /// Opens the store, makes the call, and shuts the store down.
    pub(crate) async fn answer(&self, call: &Call) -> Result<Reply, Failure> {
        if !call.needs_store() {
            return Ok(self.change_policies(call).await?);
        }
        // An invalid call must not create a folder.
        self.check(call)?;
        let opened = self.open(call).await?;
        let reply = self.decide(call, &opened).await;
        let closed = opened.shutdown(self.clock.now() + SHUTDOWN_MAX).await;
        let reply = reply?;
        // A reply counts only if the store persisted it.
        closed?;
        Ok(reply)
    }

    /// Opens the store. Only an ask creates one.
    async fn open(&self, call: &Call) -> Result<Opened, Error> {
        let Config { store, fallback, .. } = &self.config;
        let clock = Arc::clone(&self.clock);
        match (open::missing_folder(store)?, call) {
            (None, _) | (_, Call::Acquire(_) | Call::Violation(_)) => {
                open::for_command(store, fallback, clock).await
            }
            (Some(path), Call::Settle(_) | Call::Release(_) | Call::Renew(_)) => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "there is no store at {} yet, so no permit can be from it; run it where the permit was given out, \
                     or name the broker with --server URL",
                    path.display()
                ),
            )),
            (Some(path), _) => open::empty(clock, path),
        }
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        match call {
            Call::Acquire(request) if request.tenant.is_some() => Err(Error::new(
                ErrorKind::Invalid,
                "--tenant is for a broker, where asks wait in a queue; name one with --server URL",
            )),
            Call::Acquire(request) => {
                let policies =
                    request.resolve(|name, _| self.config.policies.get(name).cloned())?;
                Ok(request.ask(&policies)?.check()?)
            }
            Call::Violation(ViolationRequest { permit: Some(permit), .. }) => {
                permit_token::check_shape(permit)
            }
            Call::Standing(StandingQuery { policy, subject })
            | Call::Reset(StandingQuery { policy, subject })
            | Call::Violation(ViolationRequest { policy, subject, .. }) => {
                let policy = self.config.policies.get(policy)?;
                Ok(Ask::new(policy, subject.as_str()).check()?)
            }
            Call::Settle(SettleRequest { permit, .. })
            | Call::Release(PermitRequest { permit })
            | Call::Renew(PermitRequest { permit }) => permit_token::check_shape(permit),
            Call::Policies | Call::Override { .. } | Call::Restore(_) => Ok(()),
        }
    }

    /// Makes a call about policies and overrides. The gate stays closed, so that it works while a broker holds the folder.
    async fn change_policies(&self, call: &Call) -> Result<Reply, Error> {
        let Config { store, fallback, policies, .. } = &self.config;
        let clock = Arc::clone(&self.clock);
        let Some(store) = open::overrides(store, fallback, clock).await? else {
            return match call {
                Call::Policies => Ok(Reply::Policies(policies.into())),
                _ => Err(open::memory_store_error()),
            };
        };
        let now = self.clock.now();
        let check = self.config.policy_check();
        Ok(match call {
            Call::Override { of, body } => {
                let known = Overrides::read(&*store).await?.with_policies(policies, &check).0;
                let policy = known.get(&of.policy)?;
                let spec = body.clone().for_subject(of.subject.clone());
                let put = |overrides: &mut Overrides| overrides.put(policy, &spec);
                let (overrides, _) = Overrides::change(&*store, now, put).await?;
                let (in_force, _) = overrides.apply(policies, &check);
                let policy = in_force.get(&of.policy)?;
                let own = policy.override_of(&of.subject).unwrap_or(policy);
                Reply::Override(OverrideDescription::new(&of.subject, own, FROM_API))
            }
            Call::Restore(of) => {
                let remove = |overrides: &mut Overrides| overrides.remove(&of.policy, &of.subject);
                let (_, changed) = Overrides::change(&*store, now, remove).await?;
                if !changed {
                    policies.get(&of.policy)?;
                }
                Reply::Changed(Changed { changed })
            }
            _ => {
                let overrides = Overrides::read(&*store).await?;
                let (in_force, unfit) = overrides.apply(policies, &check);
                Reply::Policies(overrides.describe(&in_force, &unfit))
            }
        })
    }

    /// Returns the policies with the overrides in the store.
    async fn in_force(&self, opened: &Opened) -> Result<Policies, Error> {
        let overrides = match opened.overrides() {
            Some(store) => Overrides::read(&*store).await?,
            None => Overrides::default(),
        };
        Ok(overrides.apply(&self.config.policies, &self.config.policy_check()).0)
    }

    async fn decide(&self, call: &Call, opened: &Opened) -> Result<Reply, Error> {
        let policies = self.in_force(opened).await?;
        let (gate, mut key) = (opened.gate(), permit_token::Key::from(opened.key()));
        if self.config.store.older_format().is_some() {
            key = key.without_ids();
        }
        let key = &key;
        let open_permit =
            |text: &str| permit_token::decode(text, key, |name| policies.get(name).cloned());
        Ok(match call {
            Call::Acquire(request) => {
                let policies = request.resolve(|name, _| policies.get(name).cloned())?;
                let decision = gate.acquire(&request.ask(&policies)?).await?;
                Reply::Decided(AcquireResponse::new(&decision, key, self.clock.now()))
            }
            Call::Settle(request) => {
                let permit = open_permit(&request.permit)?;
                let mut changed = false;
                for (part, actual) in request.own(&permit)? {
                    changed |= gate.settle(&part, actual).await?;
                }
                if request.settles_all() {
                    changed |= gate.settle(&permit, &request.actual).await?;
                }
                Reply::Changed(Changed { changed })
            }
            Call::Release(request) => {
                let permit = open_permit(&request.permit)?;
                Reply::Changed(Changed { changed: gate.release(&permit).await? })
            }
            Call::Renew(request) => {
                let permit = gate.renew(&open_permit(&request.permit)?).await?;
                Reply::Renewed(Renewed::new(&permit, key))
            }
            Call::Standing(query) => {
                let policy = policies.get(&query.policy)?;
                let standings = gate.standing(policy, &query.subject).await?;
                let now = self.clock.now();
                let standing = StandingResponse::new(policy, &query.subject, &standings, now);
                Reply::Standing(standing)
            }
            Call::Reset(query) => {
                let policy = policies.get(&query.policy)?;
                Reply::Changed(Changed { changed: gate.reset(policy, &query.subject).await? })
            }
            Call::Violation(request) => {
                let permit = request.permit.as_deref().map(open_permit).transpose()?;
                let charges = match &permit {
                    Some(permit) => {
                        let charges = request.charges(permit)?.into_iter();
                        charges.map(|charge| (charge.policy(), charge.subject())).collect()
                    }
                    None => vec![(policies.get(&request.policy)?, request.subject.as_str())],
                };
                Reply::Incident(Box::new(self.violation(&charges, request, &*gate).await?))
            }
            Call::Policies | Call::Override { .. } | Call::Restore(_) => {
                self.change_policies(call).await?
            }
        })
    }

    /// Reports a violation about `charges`, and feeds the telemetry sinks, since there is no broker to do it.
    async fn violation(
        &self,
        charges: &[(&Policy, &str)],
        request: &ViolationRequest,
        gate: &dyn Gate,
    ) -> Result<Incident, Error> {
        let Some(ask) = Ask::for_subjects(charges.iter().copied()) else {
            return Err(Error::new(ErrorKind::Invalid, "a violation is about a charge"));
        };
        let violation = Violation {
            ask: &ask,
            limit: request.limit.as_deref(),
            retry_after: request.retry_after()?,
        };
        let running = sinks::start(&self.config.telemetry, &self.clock).await?;
        let (recorder, observer) = (&running.recorder, &*running.telemetry);
        let incident = report_violation(gate, recorder, observer, &*self.clock, &violation).await;
        running.shutdown(self.clock.now() + SHUTDOWN_MAX).await;
        incident
    }
}
