#![doc = include_str!("../README.md")]

pub mod audit;
pub mod checkers;
pub mod faulty;
pub mod generate;
pub mod joint;
mod macros;
pub mod model;
pub mod overrides;
pub mod sabotage;
pub mod script;
pub mod sim;
mod suite;
pub mod vectors;

pub use suite::{Capabilities, Fixture, run_all, run_case, run_vector};
