//! The stored form of a policy's numbers, version 1: plain structures apart from the ones that decide, so that either can
//! change alone.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::policy::{Headroom, Limit, Policy};
use crate::rule::{CalendarWindow, Concurrency, Period, Refill, RollingWindow, Rule, TokenBucket};
use crate::time::Span;

#[derive(Serialize, Deserialize)]
pub(super) struct Shape {
    block_ttl: u64,
    limits: Vec<WireLimit>,
}

#[derive(Serialize, Deserialize)]
struct WireLimit {
    name: String,
    unit: String,
    rule: WireRule,
    headroom: WireHeadroom,
    margin: u64,
}

#[derive(Serialize, Deserialize)]
enum WireRule {
    Continuous { capacity: u64, refill: u64, period: u64 },
    Interval { capacity: u64, refill: u64, period: u64 },
    Window { limit: u64, window: u64, resolution: Option<u32> },
    Calendar { limit: u64, period: WirePeriod, zone: String },
    Slots { limit: u64, ttl: u64 },
}

#[derive(Serialize, Deserialize)]
enum WirePeriod {
    Minute,
    Hour,
    Day,
    Week,
    Month,
}

#[derive(Serialize, Deserialize)]
enum WireHeadroom {
    Units(u64),
    Percent(u8),
}

impl Shape {
    pub(super) fn new(limits: &[Limit], block_ttl: Span) -> Self {
        let limits = limits.iter().map(|limit| WireLimit {
            name: limit.name().to_owned(),
            unit: limit.unit().to_owned(),
            rule: WireRule::from(limit),
            headroom: match limit.headroom_setting() {
                Headroom::Units(units) => WireHeadroom::Units(units),
                Headroom::Percent(percent) => WireHeadroom::Percent(percent),
            },
            margin: limit.margin_setting().as_micros(),
        });
        Self { block_ttl: block_ttl.as_micros(), limits: limits.collect() }
    }

    pub(super) fn into_policy(self, name: &str) -> Result<Policy, Error> {
        let limits = self.limits.into_iter().map(|limit| {
            let exact_log = matches!(limit.rule, WireRule::Window { resolution: None, .. });
            let rule = Rule::from(limit.rule);
            Limit { exact_log, ..Limit::new(limit.name, limit.unit, rule) }
                .headroom(match limit.headroom {
                    WireHeadroom::Units(units) => Headroom::Units(units),
                    WireHeadroom::Percent(percent) => Headroom::Percent(percent),
                })
                .margin(Span::from_micros(limit.margin))
        });
        let block_ttl = Span::from_micros(self.block_ttl);
        // An entry of a subject that was blocked since is in the numbers of the block.
        Policy::builder(name).limits(limits).block_ttl(block_ttl).may_block().build()
    }
}

impl From<&Limit> for WireRule {
    fn from(limit: &Limit) -> Self {
        match limit.rule() {
            Rule::TokenBucket(TokenBucket { capacity, refill, period, mode }) => {
                let (capacity, refill, period) = (*capacity, *refill, period.as_micros());
                match mode {
                    Refill::Continuous => Self::Continuous { capacity, refill, period },
                    Refill::Interval => Self::Interval { capacity, refill, period },
                }
            }
            Rule::RollingWindow(rule) => Self::Window {
                limit: rule.limit,
                window: rule.window.as_micros(),
                resolution: limit.slots(),
            },
            Rule::CalendarWindow(CalendarWindow { limit, period, zone }) => Self::Calendar {
                limit: *limit,
                period: match period {
                    Period::Minute => WirePeriod::Minute,
                    Period::Hour => WirePeriod::Hour,
                    Period::Day => WirePeriod::Day,
                    Period::Week => WirePeriod::Week,
                    Period::Month => WirePeriod::Month,
                },
                zone: zone.clone(),
            },
            Rule::Concurrency(Concurrency { limit, ttl }) => {
                Self::Slots { limit: *limit, ttl: ttl.as_micros() }
            }
        }
    }
}

impl From<WireRule> for Rule {
    fn from(rule: WireRule) -> Self {
        let bucket = |capacity, refill, period, mode| {
            Self::TokenBucket(TokenBucket {
                capacity,
                refill,
                period: Span::from_micros(period),
                mode,
            })
        };
        match rule {
            WireRule::Continuous { capacity, refill, period } => {
                bucket(capacity, refill, period, Refill::Continuous)
            }
            WireRule::Interval { capacity, refill, period } => {
                bucket(capacity, refill, period, Refill::Interval)
            }
            WireRule::Window { limit, window, resolution } => Self::RollingWindow(RollingWindow {
                limit,
                window: Span::from_micros(window),
                resolution,
            }),
            WireRule::Calendar { limit, period, zone } => {
                let period = match period {
                    WirePeriod::Minute => Period::Minute,
                    WirePeriod::Hour => Period::Hour,
                    WirePeriod::Day => Period::Day,
                    WirePeriod::Week => Period::Week,
                    WirePeriod::Month => Period::Month,
                };
                Self::CalendarWindow(CalendarWindow { limit, period, zone })
            }
            WireRule::Slots { limit, ttl } => {
                Self::Concurrency(Concurrency { limit, ttl: Span::from_micros(ttl) })
            }
        }
    }
}
