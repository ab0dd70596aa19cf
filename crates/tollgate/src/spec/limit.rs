//! A limit as written.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tollgate_core::{
    CalendarWindow, Concurrency, Headroom, Limit, Refill, RollingWindow, Rule, Span, TokenBucket,
};

use super::fault::Fault;
use super::rate::{HeadroomSpec, parse_rate, print_rate};
use crate::internal::nearest;

/// The rules, each with the fields that belong to it; `headroom` belongs to all, `margin` to all with a window or rate.
const RULES: [(&str, &[&str]); 4] = [
    ("token-bucket", &["capacity", "refill", "mode", "headroom", "margin"]),
    ("rolling-window", &["limit", "window", "resolution", "headroom", "margin"]),
    ("calendar-window", &["limit", "period", "time_zone", "headroom", "margin"]),
    ("concurrency", &["limit", "ttl", "headroom"]),
];

/// A limit as written in `tollgate.toml` or an HTTP body. Which fields it needs depends on its rule:
///
/// | rule | needs | takes |
/// |---|---|---|
/// | `token-bucket` | `capacity`, `refill` | `mode` |
/// | `rolling-window` | `limit`, `window` | `resolution` |
/// | `calendar-window` | `limit`, `period` | `time_zone` |
/// | `concurrency` | `limit`, `ttl` | |
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitSpec {
    /// The name, which denials and standings carry.
    #[serde(default)]
    pub name: String,
    /// The counted unit, such as `requests` or `tokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// `token-bucket`, `rolling-window`, `calendar-window` or `concurrency`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The most of a window, or the number of slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The length of a rolling window, as in `1m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    /// Into how many slots a rolling window is cut; without it the log is exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution: Option<u32>,
    /// The most that a bucket holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// The refill rate of a bucket, as in `10/s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refill: Option<String>,
    /// How it refills: `continuous` (default) or `interval`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The length of a calendar window: `minute`, `hour`, `day`, `week` or `month`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<String>,
    /// The time zone of a calendar window by its IANA name; `UTC` if none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// How long a slot is held if it is neither released nor renewed, as in `5m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
    /// The part that is never issued: a number of units, or a percentage as in `20%`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headroom: Option<HeadroomSpec>,
    /// The longest time from admission to arrival at the provider, as in `2s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<String>,
}

impl LimitSpec {
    /// Returns the spec of `limit`, without fields at their default except the time zone.
    #[must_use]
    pub fn from_limit(limit: &Limit) -> Self {
        let rule = limit.rule();
        let headroom = Some(limit.headroom_setting()).filter(|room| *room != Headroom::Units(0));
        let margin = Some(limit.margin_setting()).filter(|margin| !margin.is_zero());
        let mut spec = Self {
            name: limit.name().to_owned(),
            unit: Some(limit.unit().to_owned()),
            rule: Some(rule.name().to_owned()),
            headroom: headroom.map(HeadroomSpec::from_headroom),
            margin: margin.map(|margin| margin.to_string()),
            ..Self::default()
        };
        match rule {
            Rule::TokenBucket(bucket) => {
                spec.capacity = Some(bucket.capacity);
                spec.refill = Some(print_rate(bucket.refill, bucket.period));
                spec.mode = (bucket.mode == Refill::Interval).then(|| "interval".to_owned());
            }
            Rule::RollingWindow(rolling) => {
                spec.limit = Some(rolling.limit);
                spec.window = Some(rolling.window.to_string());
                spec.resolution = rolling.resolution;
            }
            Rule::CalendarWindow(calendar) => {
                spec.limit = Some(calendar.limit);
                spec.period = Some(calendar.period.to_string());
                spec.time_zone = Some(calendar.zone.clone());
            }
            Rule::Concurrency(slots) => {
                spec.limit = Some(slots.limit);
                spec.ttl = Some(slots.ttl.to_string());
            }
            _ => spec.limit = Some(rule.limit()),
        }
        spec
    }

    /// Returns the limit of this spec. Bounds are checked when the limit becomes part of a policy.
    pub(crate) fn resolve(&self) -> Result<Limit, Fault> {
        if self.name.is_empty() {
            return Err(Fault::new("needs name, as in name = \"rpm\""));
        }
        let unit = need("", "unit", self.unit.as_ref())?;
        let rule = self.resolve_rule(need("", "rule", self.rule.as_ref())?)?;
        let headroom = self.headroom.as_ref().map(HeadroomSpec::resolve).transpose()?;
        let margin = self.margin.as_ref().map(|text| parse("margin", text)).transpose()?;
        Ok(Limit::new(&self.name, unit, rule)
            .headroom(headroom.unwrap_or(Headroom::Units(0)))
            .margin(margin.unwrap_or(Span::ZERO)))
    }

    fn resolve_rule(&self, rule: &str) -> Result<Rule, Fault> {
        let Some((rule, fields)) = RULES.into_iter().find(|(name, _)| *name == rule) else {
            let names = RULES.map(|(name, _)| name);
            let likely = nearest(rule, names).map(|name| format!("did you mean {name}? "));
            let (likely, names) = (likely.unwrap_or_default(), names.join(", "));
            return Err(Fault::at(
                "rule",
                format!("there is no rule {rule:?}; {likely}known: {names}"),
            ));
        };
        for (field, is_given) in self.given() {
            if is_given && !fields.contains(&field) {
                let fields = fields.join(", ");
                return Err(Fault::at(
                    field,
                    format!("{rule} takes no {field}; it takes {fields}"),
                ));
            }
        }
        Ok(match rule {
            "token-bucket" => {
                let capacity = *need(rule, "capacity", self.capacity.as_ref())?;
                let (refill, period) = parse_rate(need(rule, "refill", self.refill.as_ref())?)?;
                TokenBucket { capacity, refill, period, mode: self.resolve_mode()? }.into()
            }
            "rolling-window" => {
                let limit = *need(rule, "limit", self.limit.as_ref())?;
                let window = parse("window", need(rule, "window", self.window.as_ref())?)?;
                RollingWindow { limit, window, resolution: self.resolution }.into()
            }
            "calendar-window" => {
                let limit = *need(rule, "limit", self.limit.as_ref())?;
                let period = parse("period", need(rule, "period", self.period.as_ref())?)?;
                let zone = self.time_zone.as_deref().unwrap_or("UTC");
                CalendarWindow::new(limit, period).in_zone(zone).into()
            }
            _ => {
                let limit = *need(rule, "limit", self.limit.as_ref())?;
                let ttl: Span = parse("ttl", need(rule, "ttl", self.ttl.as_ref())?)?;
                Concurrency::new(limit, ttl).into()
            }
        })
    }

    fn resolve_mode(&self) -> Result<Refill, Fault> {
        match self.mode.as_deref() {
            None | Some("continuous") => Ok(Refill::Continuous),
            Some("interval") => Ok(Refill::Interval),
            Some(other) => Err(Fault::at(
                "mode",
                format!("mode {other:?} is neither \"continuous\" nor \"interval\""),
            )),
        }
    }

    /// Every field that some rule has, and whether it is given.
    fn given(&self) -> [(&'static str, bool); 10] {
        [
            ("limit", self.limit.is_some()),
            ("window", self.window.is_some()),
            ("resolution", self.resolution.is_some()),
            ("capacity", self.capacity.is_some()),
            ("refill", self.refill.is_some()),
            ("mode", self.mode.is_some()),
            ("period", self.period.is_some()),
            ("time_zone", self.time_zone.is_some()),
            ("ttl", self.ttl.is_some()),
            ("margin", self.margin.is_some()),
        ]
    }

    /// This limit with a limit or capacity of 0.
    pub(crate) fn blocked(&self) -> Self {
        self.changed_by(&self.with_number(0))
    }

    /// The change of this limit to another limit or capacity.
    pub(crate) fn with_number(&self, number: u64) -> Self {
        let is_bucket = self.rule.as_deref() == Some("token-bucket");
        let (limit, capacity) = if is_bucket { (None, Some(number)) } else { (Some(number), None) };
        Self { name: self.name.clone(), limit, capacity, ..Self::default() }
    }

    /// This limit with everything that `changes` gives in its place.
    pub(crate) fn changed_by(&self, changes: &Self) -> Self {
        Self {
            name: self.name.clone(),
            unit: self.unit.clone(),
            rule: self.rule.clone(),
            limit: changes.limit.or(self.limit),
            window: changes.window.clone().or_else(|| self.window.clone()),
            resolution: changes.resolution.or(self.resolution),
            capacity: changes.capacity.or(self.capacity),
            refill: changes.refill.clone().or_else(|| self.refill.clone()),
            mode: changes.mode.clone().or_else(|| self.mode.clone()),
            period: changes.period.clone().or_else(|| self.period.clone()),
            time_zone: changes.time_zone.clone().or_else(|| self.time_zone.clone()),
            ttl: changes.ttl.clone().or_else(|| self.ttl.clone()),
            headroom: changes.headroom.clone().or_else(|| self.headroom.clone()),
            margin: changes.margin.clone().or_else(|| self.margin.clone()),
        }
    }

    /// Returns the fields that turn `base` into this limit; `None` if they are equal.
    pub(crate) fn changes_from(&self, base: &Self) -> Option<Self> {
        fn changed<T: Clone + PartialEq>(
            new: &Option<T>,
            old: &Option<T>,
            default: Option<T>,
        ) -> Option<T> {
            if new == old { None } else { new.clone().or(default) }
        }
        let changes = Self {
            name: self.name.clone(),
            unit: None,
            rule: None,
            limit: changed(&self.limit, &base.limit, None),
            window: changed(&self.window, &base.window, None),
            resolution: changed(&self.resolution, &base.resolution, None),
            capacity: changed(&self.capacity, &base.capacity, None),
            refill: changed(&self.refill, &base.refill, None),
            mode: changed(&self.mode, &base.mode, Some("continuous".to_owned())),
            period: changed(&self.period, &base.period, None),
            time_zone: changed(&self.time_zone, &base.time_zone, None),
            ttl: changed(&self.ttl, &base.ttl, None),
            headroom: changed(&self.headroom, &base.headroom, Some(HeadroomSpec::Units(0))),
            margin: changed(&self.margin, &base.margin, Some(Span::ZERO.to_string())),
        };
        (self != base).then_some(changes)
    }
}

/// Returns the value of a field that `rule` requires, or a fault with an example.
fn need<'a, T: ?Sized>(
    rule: &str,
    field: &'static str,
    value: Option<&'a T>,
) -> Result<&'a T, Fault> {
    let example = match field {
        "unit" => "\"requests\"",
        "rule" => "\"rolling-window\"",
        "limit" => "5",
        "window" => "\"1m\"",
        "capacity" => "20",
        "refill" => "\"10/s\"",
        "period" => "\"day\"",
        _ => "\"5m\"",
    };
    let subject = if rule.is_empty() { String::new() } else { format!("{rule} ") };
    value.ok_or_else(|| Fault::new(format!("{subject}needs {field}, as in {field} = {example}")))
}

fn parse<T: FromStr<Err = tollgate_core::Error>>(
    field: &'static str,
    text: &str,
) -> Result<T, Fault> {
    text.parse().map_err(|error| Fault::at(field, format!("{field} {error}")))
}
