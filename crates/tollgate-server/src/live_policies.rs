//! The policies in force: those of the configuration with the overrides of the store applied.
//!
//! Both change independently, so both are kept, and each change recomputes the result.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tokio::sync::{Semaphore, watch};
use tollgate::overrides::{MemoryOverrides, OverrideStore};
use tollgate::policy::Policies;
use tollgate::spec::{OverrideSpec, PolicySpec};
use tollgate::{Clock, Error, ErrorKind, Policy};

use crate::bounds::OVERRIDES_EVERY;
use crate::overrides::{Overrides, Unfit};
use crate::resp::THROTTLE_POLICY;
use tollgate_protocol::json::{FROM_API, OverrideDescription, PoliciesResponse};

/// Checks that `name` is not `cl.throttle`, which holds the keys of the command `CL.THROTTLE`.
///
/// # Errors
/// If the name is reserved.
pub fn check_policy_name(name: &str) -> Result<(), Error> {
    if name == THROTTLE_POLICY {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "the policy name {name:?} is reserved for the keys of the command CL.THROTTLE; \
                 choose another name"
            ),
        ));
    }
    Ok(())
}

fn checked(policies: Policies) -> Result<Policies, Error> {
    policies.iter().map(Policy::name).try_for_each(check_policy_name)?;
    Ok(policies)
}

type OwnedPolicyCheck = dyn Fn(&Policy) -> Result<(), Error> + Send + Sync;

/// The policies in force, and the store of their overrides.
pub(crate) struct LivePolicies {
    in_force: RwLock<Arc<Policies>>,
    changes: watch::Sender<()>,
    sources: Mutex<Sources>,
    /// The store of overrides; without one they end with the process.
    shared: Option<Arc<dyn OverrideStore>>,
    own: MemoryOverrides,
    /// Serializes calls to the store, so that the last read is also the last applied.
    store_access: Semaphore,
    /// Checks whether policies made by API fit the store and the strategy.
    check: Box<OwnedPolicyCheck>,
}

impl fmt::Debug for LivePolicies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LivePolicies").field("in_force", &self.in_force).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Sources {
    file: Policies,
    overrides: Overrides,
    unfit: Vec<Unfit>,
}

impl LivePolicies {
    pub(crate) fn new(file: Policies) -> Result<Self, Error> {
        let file = checked(file)?;
        Ok(Self {
            in_force: RwLock::new(Arc::new(file.clone())),
            changes: watch::Sender::default(),
            sources: Mutex::new(Sources { file, ..Sources::default() }),
            shared: None,
            own: MemoryOverrides::default(),
            store_access: Semaphore::new(1),
            check: Box::new(|_| Ok(())),
        })
    }

    pub(crate) fn keep_in(&mut self, store: Arc<dyn OverrideStore>) {
        self.shared = Some(store);
    }

    pub(crate) fn check_with(
        &mut self,
        check: impl Fn(&Policy) -> Result<(), Error> + Send + Sync + 'static,
    ) {
        self.check = Box::new(check);
    }

    pub(crate) fn in_force(&self) -> Arc<Policies> {
        Arc::clone(&self.in_force.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn replace_file(&self, file: Policies) -> Result<(), Error> {
        let file = checked(file)?;
        self.update(|sources| sources.file = file);
        Ok(())
    }

    /// Changes the sources and recomputes the policies in force.
    fn update(&self, change: impl FnOnce(&mut Sources)) {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut sources);
        let (policies, unfit) = sources.overrides.apply(&sources.file, &*self.check);
        for Unfit { policy, subject, why } in &unfit {
            tracing::warn!(policy, subject, why, "an override has no effect");
        }
        sources.unfit = unfit;
        *self.in_force.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policies);
        self.changes.send_replace(());
    }

    /// Returns a receiver that is notified after each change from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    fn store(&self) -> &dyn OverrideStore {
        self.shared.as_deref().unwrap_or(&self.own)
    }

    /// Reads the overrides from the store, and applies them if they changed.
    pub(crate) async fn refresh(&self) -> Result<(), Error> {
        let _serialized = self.store_access.acquire().await;
        let known = self.with(|sources| sources.overrides.clone());
        if let Some(overrides) = known.newer(self.store()).await? {
            self.update(|sources| sources.overrides = overrides);
        }
        Ok(())
    }

    /// Returns `policy` for a caller whose token claims `plan`.
    pub(crate) fn claiming(&self, plan: &str, policy: &Policy) -> Result<Policy, Error> {
        let policies = self.in_force();
        let index = policies.plan_index(plan).map_err(|error| {
            let text = format!("the token claims a plan that is not configured: {error}");
            Error::new(ErrorKind::Forbidden, text)
        })?;
        Ok(policy.claiming(index))
    }

    /// Polls the store for changes of other servers. Never returns; logs once when a read fails.
    pub(crate) async fn follow(&self, clock: &dyn Clock) {
        if self.shared.is_none() {
            return std::future::pending().await;
        }
        let mut failing = false;
        loop {
            clock.sleep_until(clock.now() + OVERRIDES_EVERY).await;
            let done = self.refresh().await;
            match &done {
                Err(error) if !failing => {
                    tracing::warn!(%error, "the overrides cannot be read; those that are known stay in force");
                }
                Ok(()) if failing => tracing::info!("the overrides can be read again"),
                _ => {}
            }
            failing = done.is_err();
        }
    }

    /// Stores an override.
    pub(crate) async fn put(
        &self,
        policy: &str,
        spec: &OverrideSpec,
        clock: &dyn Clock,
    ) -> Result<OverrideDescription, Error> {
        let file = self.with(|sources| {
            let (policies, _) = sources.overrides.with_policies(&sources.file, &*self.check);
            policies.get(policy).cloned()
        })?;
        self.change(clock, |overrides| overrides.put(&file, spec)).await?;
        let policies = self.in_force();
        let policy = policies.get(policy)?;
        let own = policy.override_of(&spec.subject).unwrap_or(policy);
        Ok(OverrideDescription::new(&spec.subject, own, FROM_API))
    }

    /// Removes an override, also of a removed policy. Returns whether there was one.
    pub(crate) async fn remove(
        &self,
        policy: &str,
        subject: &str,
        clock: &dyn Clock,
    ) -> Result<bool, Error> {
        let removed = self.change(clock, |all| all.remove(policy, subject)).await?;
        if !removed {
            // An unknown policy is more likely a mistake than a removed override.
            self.in_force().get(policy)?;
        }
        Ok(removed)
    }

    /// Defines a policy that the configuration does not have.
    pub(crate) async fn define(&self, spec: &PolicySpec, clock: &dyn Clock) -> Result<(), Error> {
        let file = self.with(|sources| sources.file.clone());
        self.change(clock, |all| all.define(&file, spec, &*self.check)).await.map(drop)
    }

    /// Removes a policy that was made by API. Returns whether there was one.
    pub(crate) async fn undefine(&self, name: &str, clock: &dyn Clock) -> Result<bool, Error> {
        let file = self.with(|sources| sources.file.clone());
        self.change(clock, |all| all.undefine(&file, name)).await
    }

    /// Puts `subject` on `plan`.
    pub(crate) async fn assign(
        &self,
        subject: &str,
        plan: &str,
        clock: &dyn Clock,
    ) -> Result<(), Error> {
        let file = self.with(|sources| sources.file.clone());
        self.change(clock, |all| all.assign(&file, subject, plan)).await.map(drop)
    }

    /// Gives `subject` the plan of the configuration again. Returns the plan that it was put on.
    pub(crate) async fn unassign(
        &self,
        subject: &str,
        clock: &dyn Clock,
    ) -> Result<Option<String>, Error> {
        let plan = Mutex::new(None);
        let unassign = |all: &mut Overrides| {
            let removed = all.unassign(subject)?;
            let mut plan = plan.lock().unwrap_or_else(PoisonError::into_inner);
            plan.clone_from(&removed);
            Ok(removed.is_some())
        };
        self.change(clock, unassign).await?;
        Ok(plan.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    async fn change(
        &self,
        clock: &dyn Clock,
        change: impl Fn(&mut Overrides) -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        let _serialized = self.store_access.acquire().await;
        let (overrides, changed) = Overrides::change(self.store(), clock.now(), change).await?;
        self.update(|sources| sources.overrides = overrides);
        Ok(changed)
    }

    pub(crate) fn describe(&self) -> PoliciesResponse {
        self.with(|sources| sources.overrides.describe(&self.in_force(), &sources.unfit))
    }

    fn with<T>(&self, read: impl FnOnce(&Sources) -> T) -> T {
        read(&self.sources.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
