//! Policies as people and programs write them: in `tollgate.toml`, and as JSON over HTTP.
//!
//! A [`Policy`](crate::Policy) is checked and ready to decide; a spec is configuration text. Specs keep durations
//! and rates as they were written, so that a mistake is reported with its field, and what a policy
//! shows of itself reads like what made it. [`PolicySpec::build`] makes the
//! policy, [`PolicySpec::from_policy`] the spec.
//!
//! ```
//! use tollgate::spec::{LimitSpec, PolicySpec};
//!
//! let api = PolicySpec {
//!     name: "api".to_owned(),
//!     limits: vec![LimitSpec {
//!         name: "burst".to_owned(),
//!         unit: Some("requests".to_owned()),
//!         rule: Some("token-bucket".to_owned()),
//!         capacity: Some(20),
//!         refill: Some("10/s".to_owned()),
//!         ..LimitSpec::default()
//!     }],
//!     ..PolicySpec::default()
//! };
//! let policy = api.build()?;
//! assert_eq!(PolicySpec::from_policy(&policy), api);
//! # Ok::<(), tollgate::Error>(())
//! ```

pub(crate) mod fault;
mod limit;
mod plan;
mod policy;
mod rate;
#[cfg(test)]
mod tests;

pub use limit::LimitSpec;
#[doc(hidden)]
pub use plan::with_plans;
pub use plan::{PlanLimit, PlanSpec};
pub use policy::{OverrideSpec, PolicySpec};
pub use rate::HeadroomSpec;
