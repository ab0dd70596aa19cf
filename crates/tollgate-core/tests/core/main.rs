//! The core against the reference model, against its promises, and against the requirements it carries.

mod against_model;
mod arrears;
mod backoff;
mod behind;
mod bounds;
mod calendar;
mod change;
mod clock;
mod codec;
mod construction;
mod demand;
mod desk;
mod exhaustive;
mod giving_back;
mod ids;
mod merge;
mod older;
mod promises;
mod refunds;
mod requirements;
mod share;
mod slot_waits;
