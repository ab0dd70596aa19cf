//! Permits, and admissions that nobody has claimed yet.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::{Context, Waker};

use tollgate::gate::BoxFuture;
use tollgate::{Costs, GateExt as _, Span, Standing, Timestamp};
use tollgate_protocol::json::{ChargeActual, SettleRequest};
use tollgate_protocol::permit_token::charges_of;

use crate::finish::FinishOnDrop;
use crate::gate::Open;
use crate::{Error, ErrorKind, Incident, runtime};

/// An admission on its way to the caller. Unless it is claimed, it is released when dropped.
#[derive(Debug)]
pub struct Admitted(Option<Permit>);

impl Admitted {
    pub(crate) fn new(inner: tollgate::Permit, open: Arc<Open>) -> Self {
        Self(Some(Permit { inner, open }))
    }

    /// Returns the permit, which the caller settles or releases from now on.
    #[must_use]
    pub fn claim(mut self) -> Permit {
        self.0.take().expect("an admission is claimed once")
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let Some(permit) = self.0.take() else { return };
        let Ok(runtime) = runtime::handle() else { return };
        let _context = runtime.enter();
        let mut release = permit.release();
        // The error has no receiver. Slots expire, and the rest stays charged.
        if release.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            runtime.spawn(release);
        }
    }
}

/// Proof of admission. It belongs to the process that got it; its [token](Permit::token) crosses processes.
#[derive(Clone, Debug)]
pub struct Permit {
    inner: tollgate::Permit,
    open: Arc<Open>,
}

impl Permit {
    pub(crate) fn new(inner: tollgate::Permit, open: Arc<Open>) -> Self {
        Self { inner, open }
    }

    /// Reports a unit of `actual` that no charge has.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) with the units there are.
    pub fn check_units(&self, actual: &Costs) -> Result<(), Error> {
        let units: BTreeSet<&str> =
            charges_of(&self.inner).flat_map(|charge| charge.policy().units()).collect();
        match actual.iter().find(|(unit, _)| !units.contains(unit)) {
            None => Ok(()),
            Some((unit, _)) => {
                let known = units.into_iter().collect::<Vec<_>>().join(", ");
                Err(Error::invalid(format!(
                    "no policy of the permit has a limit on {unit:?}; they count {known}"
                )))
            }
        }
    }

    /// Replaces the estimate by `actual` and frees slots; a unit that is not named keeps its estimate. `charges` settles single
    /// charges by their index; without `actual`, only those. Idempotent; resolves to whether anything changed. It is sent
    /// even if the future is dropped.
    #[must_use]
    pub fn settle(
        &self,
        actual: Costs,
        charges: Vec<ChargeActual>,
    ) -> BoxFuture<'static, Result<bool, Error>> {
        let permit = self.clone();
        self.finished(async move {
            let gate = permit.open.gate_here()?;
            let request = SettleRequest { permit: String::new(), actual, charges };
            let mut is_changed = false;
            for (part, actual) in request.own(&permit.inner)? {
                is_changed |= gate.settle(&part, actual).await?;
            }
            if request.settles_all() {
                is_changed |= gate.settle(&permit.inner, &request.actual).await?;
            }
            Ok(is_changed)
        })
    }

    /// Gives everything back: the call was not made. Idempotent; resolves to whether anything changed. It is sent even if the
    /// future is dropped.
    #[must_use]
    pub fn release(&self) -> BoxFuture<'static, Result<bool, Error>> {
        let permit = self.clone();
        self.finished(async move { Ok(permit.open.gate_here()?.release(&permit.inner).await?) })
    }

    /// Extends the slots of the permit by another time to live.
    #[must_use]
    pub fn renew(&self) -> BoxFuture<'static, Result<Self, Error>> {
        let permit = self.clone();
        self.finished(async move {
            let inner = permit.open.gate_here()?.renew(&permit.inner).await?;
            Ok(Self { inner, open: Arc::clone(&permit.open) })
        })
    }

    /// Reports that the provider refused this call, and closes `limit`, or the one with the smallest part left, for
    /// `retry_after`.
    #[must_use]
    pub fn violation(
        &self,
        limit: Option<String>,
        retry_after: Span,
    ) -> BoxFuture<'static, Result<Incident, Error>> {
        let permit = self.clone();
        self.finished(async move {
            let charges = charges_of(&permit.inner);
            let charges = charges.map(|charge| (charge.policy(), charge.subject()));
            permit.open.violation(charges.collect(), limit.as_deref(), retry_after).await
        })
    }

    fn finished<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Error>> {
        Box::pin(FinishOnDrop::new(work, |_| Box::pin(std::future::ready(()))))
    }

    /// Returns the permit as text that another process can settle or release, with
    /// [`Gate::permit`](crate::Gate::permit).
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a permit that a strategy gave from tokens in this process.
    pub fn token(&self) -> Result<String, Error> {
        if charges_of(&self.inner).any(tollgate::Permit::is_local) {
            return Err(Error::invalid(
                "this permit was given from tokens that this process leased or owes, so only this process can settle it; \
                 use the atomic strategy for permits that cross processes",
            ));
        }
        Ok(self.open.seal(&self.inner))
    }

    /// Returns whether ending the call without an actual cost changes anything at the store: slots are freed.
    #[must_use]
    pub fn holds_slots(&self) -> bool {
        self.inner.expires_at().is_some()
    }

    /// Returns the policy and the subject of each charge.
    pub fn charges(&self) -> impl Iterator<Item = (&str, &str)> {
        charges_of(&self.inner).map(|charge| (charge.policy().name(), charge.subject()))
    }

    /// Returns the charged amounts of each charge, in the order of [`charges`](Self::charges).
    pub fn costs(&self) -> impl Iterator<Item = Costs> {
        charges_of(&self.inner).map(tollgate::Permit::costs)
    }

    /// Returns the standing of each charge right after the decision; empty for a permit from a token.
    pub fn limits(&self) -> impl Iterator<Item = &[Standing]> {
        charges_of(&self.inner).map(|charge| &*charge.limits)
    }

    /// Returns when it was decided, on the clock that decided.
    #[must_use]
    pub const fn decided_at(&self) -> Timestamp {
        self.inner.grant().at
    }

    /// Returns the time by which the admitted call should reach the provider, if a limit has a margin.
    #[must_use]
    pub fn use_by(&self) -> Option<Timestamp> {
        self.inner.use_by()
    }

    /// Returns when its slots expire, if it holds any.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.inner.expires_at()
    }

    /// Returns whether the decision was made without the store.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        charges_of(&self.inner).any(|charge| charge.degraded)
    }

    /// Returns whether a policy in shadow mode let it through. Such a charge counts nothing.
    #[must_use]
    pub fn is_shadow_denied(&self) -> bool {
        charges_of(&self.inner).any(|charge| charge.shadow_denied.is_some())
    }

    /// Returns the process that got it.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.open.process()
    }
}

/// Returns the error of a permit of process `owner` in another process.
#[cold]
pub(crate) fn foreign(owner: u32) -> Error {
    Error::new(
        ErrorKind::Forked,
        format!(
            "the permit belongs to process {owner}, which this one was forked from; settle it there, or pass its token"
        ),
    )
}
