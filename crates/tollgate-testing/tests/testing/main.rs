//! Tests of what the tests rely on.

mod gemini;
mod servers;
mod sim;
