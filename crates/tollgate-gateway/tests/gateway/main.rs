//! The gateway over real connections, in front of fake providers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod bounds;
mod cancelling;
mod configuration;
mod hygiene;
mod long_streams;
mod provider_errors;
mod routing;
mod settling;
mod shutdown;
mod slots;
mod slow_readers;
mod support;
mod waiting;
