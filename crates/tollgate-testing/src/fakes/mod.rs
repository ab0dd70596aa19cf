//! Services that no emulator has: they behave like the real ones as far as their documents and their users tell, enforce
//! their quotas, count what reaches them, and can be made to fail.

pub mod drs;
pub mod gemini;
