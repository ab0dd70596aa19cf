//! A limit of a policy: a name, a unit, a rule, headroom and margin.

use crate::bounds::{NAME_BYTES_MAX, NUMBER_MAX, RESOLUTION_MAX, SLOTS_MAX, SPAN_MAX};
use crate::error::Error;
use crate::rule::{Allowance, Gauge, Refill, Rule, TokenBucket};
use crate::time::Span;

/// The part of a limit that is never issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Headroom {
    /// So many units.
    Units(u64),
    /// So many percent of the limit, rounded up to whole units.
    Percent(u8),
}

impl Headroom {
    fn units_of(self, limit: u64) -> u64 {
        match self {
            Self::Units(units) => units,
            Self::Percent(percent) => {
                let units = (u128::from(limit) * u128::from(percent)).div_ceil(100);
                u64::try_from(units).unwrap_or(u64::MAX)
            }
        }
    }
}

/// A name, a unit and a rule.
///
/// ```
/// use tollgate_core::{Limit, RollingWindow, Span};
///
/// let rpm = Limit::new("rpm", "requests", RollingWindow::new(5, Span::from_mins(1)))
///     .margin(Span::from_secs(2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) rule: Rule,
    pub(crate) headroom: Headroom,
    pub(crate) margin: Span,
    /// Keeps the exact log of a rolling window whatever its numbers: stored entries from before the grid do.
    pub(crate) exact_log: bool,
}

impl Limit {
    /// A limit called `name` on `unit` by `rule`, with no headroom and no margin.
    #[must_use]
    pub fn new(name: impl Into<String>, unit: impl Into<String>, rule: impl Into<Rule>) -> Self {
        Self {
            name: name.into(),
            unit: unit.into(),
            rule: rule.into(),
            headroom: Headroom::Units(0),
            margin: Span::ZERO,
            exact_log: false,
        }
    }

    /// The same limit, of which `headroom` is never issued.
    #[must_use]
    pub const fn headroom(mut self, headroom: Headroom) -> Self {
        self.headroom = headroom;
        self
    }

    /// The same limit for a provider that sees a call up to `margin` after its admission: a window becomes that much
    /// longer, a bucket that much refill smaller, and the end of a calendar window counts in the next one too.
    #[must_use]
    pub fn margin(mut self, margin: impl Into<Span>) -> Self {
        self.margin = margin.into();
        self
    }

    /// The name of the limit.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The unit that the limit counts.
    #[must_use]
    pub fn unit(&self) -> &str {
        &self.unit
    }

    /// The rule, as configured.
    #[must_use]
    pub const fn rule(&self) -> &Rule {
        &self.rule
    }

    /// The headroom, as configured.
    #[must_use]
    pub const fn headroom_setting(&self) -> Headroom {
        self.headroom
    }

    /// The margin, as configured.
    #[must_use]
    pub const fn margin_setting(&self) -> Span {
        self.margin
    }

    /// The number of slots in the grid of a rolling window; `None` for its exact log and for other rules.
    pub(crate) fn slots(&self) -> Option<u32> {
        match &self.rule {
            Rule::RollingWindow(rule) if !self.exact_log => rule.slots(),
            _ => None,
        }
    }

    /// Checks every number and makes the rule ready to decide.
    pub(crate) fn gauge(&self, block_ttl: Span) -> Result<Gauge, Error> {
        self.check().map_err(|error| self.blame(&error))?;
        if let Headroom::Percent(100..) = self.headroom {
            return Err(self.blame(&Error::invalid("headroom must be below 100%")));
        }
        let reserve = self.headroom.units_of(self.rule.limit());
        let allowance = Allowance { reserve, margin: self.margin, block_ttl, slots: self.slots() };
        let gauge = self.rule.gauge(allowance).map_err(|error| self.blame(&error))?;
        if gauge.most() == 0 && !self.is_blocked() {
            return Err(self.blame(&Error::invalid(format!(
                "nothing is left to issue: of {} the headroom takes {reserve}, and a margin of {} with a block_ttl of \
                 {block_ttl} takes the rest; raise the limit or lower one of them",
                self.rule.limit(),
                self.margin
            ))));
        }
        Ok(gauge)
    }

    /// Whether the limit is 0, so that it refuses everything.
    pub(crate) const fn is_blocked(&self) -> bool {
        self.rule.limit() == 0
    }

    /// The error of a limit of 0 where nothing may be blocked.
    pub(crate) fn zero_error(&self) -> Error {
        let most = if matches!(self.rule, Rule::Concurrency(_)) { SLOTS_MAX } else { NUMBER_MAX };
        let error = check_number(self.number_field(), 0, most).err();
        self.blame(&error.unwrap_or_else(|| Error::invalid("the limit is 0")))
    }

    /// The name of the number as it is written, so that a reader finds it in the configuration.
    const fn number_field(&self) -> &'static str {
        if matches!(self.rule, Rule::TokenBucket(_)) { "capacity" } else { "limit" }
    }

    fn blame(&self, error: &Error) -> Error {
        Error::new(error.kind(), format!("limit {:?}: {error}", self.name))
    }

    fn check(&self) -> Result<(), Error> {
        check_name("limit name", &self.name)?;
        check_name("unit", &self.unit)?;
        if !self.is_blocked() {
            check_number(self.number_field(), self.rule.limit(), NUMBER_MAX)?;
        }
        check_span("margin", self.margin, Span::ZERO)?;
        let least = Span::from_micros(1);
        match &self.rule {
            Rule::TokenBucket(TokenBucket { mode: Refill::Interval, .. })
                if !self.margin.is_zero() =>
            {
                Err(Error::invalid(
                    "a margin cannot protect a bucket that is refilled at boundaries, because a late call is counted \
                     after the refill; use a calendar-window or a rolling-window",
                ))
            }
            Rule::TokenBucket(rule) => {
                check_number("refill", rule.refill, NUMBER_MAX)?;
                check_span("refill period", rule.period, least)
            }
            Rule::RollingWindow(rule) => {
                check_span("window", rule.window, least)?;
                match rule.resolution {
                    Some(slots) => {
                        check_number("resolution", u64::from(slots), u64::from(RESOLUTION_MAX))
                    }
                    None => Ok(()),
                }
            }
            Rule::CalendarWindow(_) if self.margin > Span::from_secs(60) => Err(Error::invalid(
                format!("a calendar-window takes a margin of at most 60s, not {}", self.margin),
            )),
            Rule::CalendarWindow(_) => Ok(()),
            Rule::Concurrency(_) if !self.margin.is_zero() => {
                Err(Error::invalid("concurrency has no window, so it takes no margin; remove it"))
            }
            Rule::Concurrency(rule) => {
                if !self.is_blocked() {
                    check_number("limit", rule.limit, SLOTS_MAX)?;
                }
                check_span("ttl", rule.ttl, least)
            }
        }
    }
}

/// Checks a name of a policy, limit or unit.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), Error> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(allowed) {
        return Err(Error::invalid(format!(
            "{what} {name:?} must be 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.'"
        )));
    }
    Ok(())
}

fn check_number(what: &str, number: u64, most: u64) -> Result<(), Error> {
    if number == 0 || most < number {
        return Err(Error::invalid(format!("{what} {number} must be between 1 and {most}")));
    }
    Ok(())
}

fn check_span(what: &str, span: Span, least: Span) -> Result<(), Error> {
    if span < least || SPAN_MAX < span {
        return Err(Error::invalid(format!(
            "{what} {span} must be between {least} and {SPAN_MAX}"
        )));
    }
    Ok(())
}
