//! Tests of what the tests rely on.

mod servers;
mod sim;
