//! The policies in force: what the configuration says, with the overrides of the store on top.
//!
//! Both can change at any time and each for itself, so both are kept, and what is in force is made anew from them.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tokio::sync::Semaphore;
use tollgate::overrides::{MemoryOverrides, OverrideStore};
use tollgate::spec::OverrideSpec;
use tollgate::{Clock, Error, ErrorKind, Policies, Policy};

use crate::bounds::OVERRIDES_EVERY;
use crate::overrides::{Overrides, Unfit};
use crate::resp::THROTTLE_POLICY;
use crate::wire::{FROM_API, OverrideDescription, PoliciesResponse};

/// Whether a policy of a server may be called `name`. `cl.throttle` is what the keys of the command `CL.THROTTLE` are kept
/// under, so a policy of that name would share its entries with whoever may ask.
///
/// # Errors
/// If it may not.
pub fn check_policy_name(name: &str) -> Result<(), Error> {
    if name == THROTTLE_POLICY {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "no policy may be called {name:?}, because the command CL.THROTTLE keeps its keys under it; \
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

/// The policies, and where their overrides are kept.
#[derive(Debug)]
pub(crate) struct Rules {
    in_force: RwLock<Arc<Policies>>,
    made_of: Mutex<Parts>,
    /// Nothing while the overrides end with the process.
    shared: Option<Arc<dyn OverrideStore>>,
    own: MemoryOverrides,
    /// Held while somebody talks to the store, so that what is read last is also what is put in force last.
    turn: Semaphore,
}

#[derive(Debug, Default)]
struct Parts {
    file: Policies,
    overrides: Overrides,
    unfit: Vec<Unfit>,
}

impl Rules {
    pub(crate) fn new(file: Policies) -> Result<Self, Error> {
        let file = checked(file)?;
        Ok(Self {
            in_force: RwLock::new(Arc::new(file.clone())),
            made_of: Mutex::new(Parts { file, ..Parts::default() }),
            shared: None,
            own: MemoryOverrides::default(),
            turn: Semaphore::new(1),
        })
    }

    pub(crate) fn keep_in(&mut self, store: Arc<dyn OverrideStore>) {
        self.shared = Some(store);
    }

    pub(crate) fn in_force(&self) -> Arc<Policies> {
        Arc::clone(&self.in_force.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn replace_file(&self, file: Policies) -> Result<(), Error> {
        let file = checked(file)?;
        self.remake(|parts| parts.file = file);
        Ok(())
    }

    /// Changes what the policies are made of, and makes them anew.
    fn remake(&self, change: impl FnOnce(&mut Parts)) {
        let mut parts = self.made_of.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut parts);
        let (policies, unfit) = parts.overrides.over(&parts.file);
        for Unfit { policy, subject, why } in &unfit {
            tracing::warn!(policy, subject, why, "an override has no effect");
        }
        parts.unfit = unfit;
        *self.in_force.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policies);
    }

    fn store(&self) -> &dyn OverrideStore {
        self.shared.as_deref().unwrap_or(&self.own)
    }

    /// Puts in force what the store has, if that is other than what is known.
    pub(crate) async fn refresh(&self) -> Result<(), Error> {
        let _turn = self.turn.acquire().await;
        let known = self.with(|parts| parts.overrides.clone());
        if let Some(overrides) = known.newer(self.store()).await? {
            self.remake(|parts| parts.overrides = overrides);
        }
        Ok(())
    }

    /// Follows what others change in the store. It never ends, and says once when it cannot.
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

    /// Sets an override for good.
    pub(crate) async fn put(
        &self,
        policy: &str,
        spec: &OverrideSpec,
        clock: &dyn Clock,
    ) -> Result<OverrideDescription, Error> {
        let file = self.with(|parts| parts.file.get(policy).cloned())?;
        self.change(clock, |overrides| overrides.put(&file, spec)).await?;
        let policies = self.in_force();
        let policy = policies.get(policy)?.for_subject(&spec.subject);
        Ok(OverrideDescription::of(&spec.subject, policy, FROM_API))
    }

    /// Removes an override, also one of a policy that is no more. Says whether there was one.
    pub(crate) async fn remove(
        &self,
        policy: &str,
        subject: &str,
        clock: &dyn Clock,
    ) -> Result<bool, Error> {
        let removed = self.change(clock, |all| all.remove(policy, subject)).await?;
        if !removed {
            // A name that nobody knows is more likely a mistake than an override that is gone.
            self.with(|parts| parts.file.get(policy).map(drop))?;
        }
        Ok(removed)
    }

    async fn change(
        &self,
        clock: &dyn Clock,
        change: impl Fn(&mut Overrides) -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        let _turn = self.turn.acquire().await;
        let (overrides, changed) = Overrides::change(self.store(), clock.now(), change).await?;
        self.remake(|parts| parts.overrides = overrides);
        Ok(changed)
    }

    pub(crate) fn describe(&self) -> PoliciesResponse {
        self.with(|parts| parts.overrides.describe(&self.in_force(), &parts.unfit))
    }

    fn with<T>(&self, look: impl FnOnce(&Parts) -> T) -> T {
        look(&self.made_of.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
