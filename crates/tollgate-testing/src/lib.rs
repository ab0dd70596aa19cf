#![doc = include_str!("../README.md")]

pub mod audit;
pub mod checkers;
pub mod conformance;
pub mod fakes;
pub mod faulty;
pub mod generate;
pub mod model;
pub mod overrides;
pub mod redis_cell;
pub mod sabotage;
pub mod script;
pub mod servers;
pub mod sim;
pub mod vectors;
