//! The sinks, each behind its own feature.

#[cfg(any(feature = "cloudwatch", feature = "sns"))]
pub mod aws;
#[cfg(any(feature = "cloudwatch", feature = "emf", feature = "prometheus", feature = "otel"))]
mod buckets;
#[cfg(feature = "cloudwatch")]
pub mod cloudwatch;
#[cfg(any(feature = "cloudwatch", feature = "emf"))]
mod datum;
#[cfg(feature = "emf")]
pub mod emf;
#[cfg(feature = "json")]
pub mod file;
#[cfg(feature = "json")]
pub mod log;
#[cfg(feature = "otel")]
pub mod otlp;
#[cfg(feature = "prometheus")]
pub mod prometheus;
#[cfg(feature = "sns")]
pub mod sns;
#[cfg(any(feature = "json", feature = "emf"))]
mod writer;
