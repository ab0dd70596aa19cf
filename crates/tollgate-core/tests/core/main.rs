//! The core against the reference model, against its promises, and against the requirements it carries.

mod against_model;
mod desk;
mod giving_back;
mod promises;
