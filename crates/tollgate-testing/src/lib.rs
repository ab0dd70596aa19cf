#![doc = include_str!("../README.md")]

pub mod checkers;
pub mod conformance;
pub mod faulty;
pub mod generate;
pub mod model;
pub mod sabotage;
pub mod script;
pub mod servers;
pub mod sim;
pub mod vectors;
