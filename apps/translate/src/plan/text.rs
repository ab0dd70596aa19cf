//! Formatting of a plan for people.

use std::fmt;

use tollgate_core::{Refill, Rule};

use super::{Binding, Plan};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "model     {}", self.model)?;
        writeln!(
            f,
            "chunks    {} of up to {} tokens, {} segments",
            self.chunks,
            grouped(self.chunk_tokens),
            grouped(self.segments as u64)
        )?;
        writeln!(
            f,
            "requests  {}, more if answers have to be asked for again",
            grouped(self.requests)
        )?;
        writeln!(
            f,
            "tokens    {} sent, about {} received",
            grouped(self.input_tokens),
            grouped(self.output_tokens)
        )?;
        match self.cost_micros {
            Some(cost) => {
                writeln!(f, "cost      about {cost} at the list price, nothing on a free tier")?;
            }
            None => writeln!(f, "cost      unknown: no price for this model")?,
        }
        writeln!(f, "pace      {}", pace(&self.binding))?;
        match self.ends_at {
            None => writeln!(f, "ends      never, as it is set")?,
            Some(end) => {
                let takes = end.since(self.starts_at).humanize();
                write!(f, "ends      in {takes}, at {}", whole_seconds(end))?;
                match self.days {
                    Some(days) if 1 < days => writeln!(f, ", on {days} days")?,
                    _ => writeln!(f)?,
                }
            }
        }
        for warning in &self.warnings {
            writeln!(f, "warning   {}", warning.text)?;
            for suggestion in &warning.suggestions {
                writeln!(f, "          would help: {suggestion}")?;
            }
        }
        Ok(())
    }
}

/// Rounds a time up to seconds.
fn whole_seconds(time: tollgate_core::Timestamp) -> tollgate_core::Timestamp {
    tollgate_core::Timestamp::from_secs(time.as_micros().div_ceil(1_000_000))
}

/// Describes what limits the pace.
pub(super) fn pace(binding: &Binding) -> String {
    match binding {
        Binding::Limit { name, unit, limit, per } => {
            format!("set by the limit {name}: {} {unit} {per}", grouped(*limit))
        }
        Binding::Workers { workers } => format!("set by {workers} workers"),
        Binding::Nothing => "set by nothing: all requests start at once".to_owned(),
    }
}

/// Describes the window of a rule, as in "per day".
pub(super) fn per(rule: &Rule) -> String {
    match rule {
        Rule::RollingWindow(rule) => format!("in any {}", rule.window),
        Rule::CalendarWindow(rule) => format!("per {} in {}", rule.period, rule.zone),
        Rule::TokenBucket(rule) => {
            let how = if rule.mode == Refill::Interval { "at once" } else { "steadily" };
            format!("at once, refilled by {} per {} {how}", rule.refill, rule.period)
        }
        _ => "at once".to_owned(),
    }
}

/// Formats a number with thousands separators.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}
