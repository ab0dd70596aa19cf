//! The arguments of one request, and how commands read them.

use std::ops::Range;

use tollgate::{Costs, Error, ErrorKind};
use tollgate_protocol::json::StandingQuery;

/// The arguments of one request; the first is the name of the command.
#[derive(Clone, Copy)]
pub(super) struct Args<'a> {
    pub(super) bytes: &'a [u8],
    /// Where each argument is in `bytes`.
    pub(super) ranges: &'a [Range<usize>],
}

impl<'a> Args<'a> {
    pub(super) fn len(self) -> usize {
        self.ranges.len()
    }

    pub(super) fn get(self, index: usize) -> Option<&'a [u8]> {
        self.ranges.get(index).map(|range| &self.bytes[range.clone()])
    }

    /// Returns whether the argument at `index` is `name`, in upper or lower case.
    pub(super) fn is(self, index: usize, name: &[u8]) -> bool {
        self.get(index).is_some_and(|arg| arg.eq_ignore_ascii_case(name))
    }

    /// Returns the argument at `index`, which users call `name`, as text.
    pub(super) fn text(self, index: usize, name: &str) -> Result<&'a str, Error> {
        std::str::from_utf8(self.get(index).unwrap_or_default())
            .map_err(|_| invalid(format!("{name} must be UTF-8")))
    }

    /// Returns the argument at `index` as text. An error about a missing one quotes `usage`.
    pub(super) fn required(self, index: usize, usage: &str) -> Result<&'a str, Error> {
        if self.len() <= index {
            return Err(wrong_count(usage));
        }
        self.text(index, "every argument")
    }

    /// Returns the argument at `index` as a non-negative integer.
    pub(super) fn integer(self, index: usize, usage: &str) -> Result<u64, Error> {
        let text = self.required(index, usage)?;
        text.parse().map_err(|_| invalid(format!("{text:?} must be a whole number; {usage}")))
    }

    /// Returns the only argument after the name.
    pub(super) fn only(self, usage: &str) -> Result<&'a str, Error> {
        self.exactly(2, usage)?;
        self.required(1, usage)
    }

    /// Returns the only two arguments after the name: a policy and a subject.
    pub(super) fn policy_and_subject(self, usage: &str) -> Result<StandingQuery, Error> {
        self.exactly(3, usage)?;
        let (policy, subject) = (self.required(1, usage)?, self.required(2, usage)?);
        Ok(StandingQuery { policy: policy.to_owned(), subject: subject.to_owned() })
    }

    /// Fails unless there are `count` arguments, the name included.
    pub(super) fn exactly(self, count: usize, usage: &str) -> Result<(), Error> {
        if self.len() == count { Ok(()) } else { Err(wrong_count(usage)) }
    }

    /// Adds the unit and the amount that follow `COST` at `index` to `costs`.
    pub(super) fn cost(self, index: usize, costs: &mut Costs, usage: &str) -> Result<(), Error> {
        let unit = self.required(index + 1, usage)?;
        let amount = self.integer(index + 2, usage)?;
        if costs.get(unit).is_some() {
            return Err(invalid(format!("unit {unit:?} is named twice")));
        }
        costs.set(unit, amount);
        Ok(())
    }
}

pub(super) fn wrong_count(usage: &str) -> Error {
    invalid(format!("wrong number of arguments; {usage}"))
}

pub(super) fn unknown_option(option: &[u8], usage: &str) -> Error {
    let option = String::from_utf8_lossy(option);
    invalid(format!("unknown option {option:?}; {usage}"))
}

pub(super) fn invalid(text: String) -> Error {
    Error::new(ErrorKind::Invalid, text)
}
