//! The native module of the npm package `tollgate`: a thin layer of classes over `tollgate-bindings`.
//!
//! Operations that can be decided at once return their result. The others return a number, and their result arrives in
//! `Completions`, one wake-up of the event loop for as many as are done.

#![cfg_attr(
    test,
    allow(dead_code, reason = "the macros export nothing in a test build, which clippy checks")
)]

mod clock;
mod completions;
mod convert;
mod gate;
mod meter;
mod permit;
