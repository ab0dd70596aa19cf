//! Services that no emulator has, just enough of them to be wrong in the ways the real ones are.

pub mod drs;
