#![doc = include_str!("../README.md")]

mod call;
mod clock;
mod link;
mod machine;
mod store;
mod world;

pub use call::Call;
pub use clock::SimClock;
pub use link::{Link, Network};
pub use machine::Machine;
pub use store::{CompletedCall, Condition, SimStore, Watch};
pub use world::{Stuck, World};
