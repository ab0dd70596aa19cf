//! Tests of what the tests rely on.

mod fake_drs;
mod gemini;
mod servers;
