//! The seam that everything stands on: a gate answers asks.
//!
//! A store behind [`Atomic`](crate::Atomic), a strategy around a gate, an observer around a gate and the client of a
//! broker are all gates, so they stack. There are no default methods: a wrapper that forgets one does not compile.
//!
//! # The classic mistake
//! Asking first and charging later:
//! ```text
//! if gate.standing(&policy, "p7").await?[0].remaining > 0 { call().await }   // two callers both see the last one
//! ```
//! [`Gate::acquire`] is one question and one charge: whoever gets a permit may go.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tollgate_core::{Ask, Costs, Decision, Permit, Policy, Standing, Timestamp};

use crate::error::Error;

/// A future on the heap. Gates are trait objects, so their futures are too.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Anything that answers asks.
pub trait Gate: Debug + Send + Sync + 'static {
    /// May this go through now, and if not, when? Charges every limit or none; a denial charges nothing.
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>>;

    /// The same from a gate that never waits, without a future: what watches such a gate saves itself one. Nothing from
    /// any other, which has done nothing then.
    fn acquire_at_once(&self, ask: &Ask<'_>) -> Option<Result<Decision, Error>> {
        let _ = ask;
        None
    }

    /// Replaces the estimate by the actual cost and frees slots. The second time changes nothing. Says whether
    /// anything changed.
    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>>;

    /// The call was not made: gives everything back that time has not given back already. Says whether anything
    /// changed.
    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>>;

    /// Keeps a slot alive for another time to live.
    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>>;

    /// Charges without deciding: debt, or arrears posted later. Takes no slots.
    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>>;

    /// Closes one limit of the ask's policy and subject until a time, because the provider said no. Says whether
    /// anything changed.
    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>>;

    /// Where `subject` stands on every limit of `policy`, consuming nothing.
    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>>;

    /// Forgets everything about `subject`, for an operator who knows why. Says whether there was anything.
    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>>;
}

/// Writes those verbs of a wrapper that go to the gate inside as they are. Each is named, so that a verb that should do
/// more is not passed on by forgetting it: `tollgate::pass_on!(gate: renew, charge);`.
#[macro_export]
macro_rules! pass_on {
    (@settle $inner:tt) => {
        fn settle<'a>(&'a self, permit: &'a $crate::Permit, actual: &'a $crate::Costs) -> $crate::BoxFuture<'a, Result<bool, $crate::Error>> {
            $crate::Gate::settle(&self.$inner, permit, actual)
        }
    };
    (@release $inner:tt) => {
        fn release<'a>(&'a self, permit: &'a $crate::Permit) -> $crate::BoxFuture<'a, Result<bool, $crate::Error>> {
            $crate::Gate::release(&self.$inner, permit)
        }
    };
    (@renew $inner:tt) => {
        fn renew<'a>(&'a self, permit: &'a $crate::Permit) -> $crate::BoxFuture<'a, Result<$crate::Permit, $crate::Error>> {
            $crate::Gate::renew(&self.$inner, permit)
        }
    };
    (@charge $inner:tt) => {
        fn charge<'a>(&'a self, ask: &'a $crate::Ask<'a>) -> $crate::BoxFuture<'a, Result<$crate::Permit, $crate::Error>> {
            $crate::Gate::charge(&self.$inner, ask)
        }
    };
    (@close_until $inner:tt) => {
        fn close_until<'a>(&'a self, ask: &'a $crate::Ask<'a>, limit: &'a str, until: $crate::Timestamp) -> $crate::BoxFuture<'a, Result<bool, $crate::Error>> {
            $crate::Gate::close_until(&self.$inner, ask, limit, until)
        }
    };
    (@standing $inner:tt) => {
        fn standing<'a>(&'a self, policy: &'a $crate::Policy, subject: &'a str) -> $crate::BoxFuture<'a, Result<Vec<$crate::Standing>, $crate::Error>> {
            $crate::Gate::standing(&self.$inner, policy, subject)
        }
    };
    (@reset $inner:tt) => {
        fn reset<'a>(&'a self, policy: &'a $crate::Policy, subject: &'a str) -> $crate::BoxFuture<'a, Result<bool, $crate::Error>> {
            $crate::Gate::reset(&self.$inner, policy, subject)
        }
    };
    ($inner:tt: $($verb:ident),+) => {
        $($crate::pass_on!(@$verb $inner);)+
    };
}

/// A shared gate is a gate.
impl<G: Gate + ?Sized> Gate for Arc<G> {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        (**self).acquire(ask)
    }

    fn acquire_at_once(&self, ask: &Ask<'_>) -> Option<Result<Decision, Error>> {
        (**self).acquire_at_once(ask)
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        (**self).settle(permit, actual)
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        (**self).release(permit)
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        (**self).renew(permit)
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        (**self).charge(ask)
    }

    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        (**self).close_until(ask, limit, until)
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        (**self).standing(policy, subject)
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        (**self).reset(policy, subject)
    }
}

// A gate that could not be a trait object could not be stacked.
const _: fn(&dyn Gate) = |_| {};
