//! Tests of what the tests rely on.

mod fake_drs;
mod gemini;
mod llm;
mod sdks;
mod servers;
