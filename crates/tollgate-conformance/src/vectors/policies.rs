//! Policies to and from their form in a vector.

use tollgate_core::{
    CalendarWindow, Concurrency, Headroom, Limit, Policy, Refill, RollingWindow, Rule, Span,
    TokenBucket,
};

use super::format::{LimitForm, PolicyForm, RuleForm};

impl PolicyForm {
    /// The form of `policy`.
    pub fn from_policy(policy: &Policy) -> Self {
        Self {
            name: policy.name().to_owned(),
            shadow: policy.is_shadow(),
            block_ttl_us: policy.block_ttl().as_micros(),
            limits: policy.limits().map(LimitForm::from_limit).collect(),
        }
    }

    /// The policy of this form.
    pub fn policy(&self) -> Result<Policy, String> {
        let limits: Result<Vec<Limit>, String> = self.limits.iter().map(LimitForm::limit).collect();
        let builder = Policy::builder(&self.name).limits(limits?).shadow(self.shadow);
        let block_ttl = Span::from_micros(self.block_ttl_us);
        builder.block_ttl(block_ttl).build().map_err(|error| error.to_string())
    }
}

impl LimitForm {
    fn from_limit(limit: &Limit) -> Self {
        let (headroom, headroom_percent) = match limit.headroom_setting() {
            Headroom::Units(units) => (units, 0),
            Headroom::Percent(percent) => (0, percent),
        };
        Self {
            name: limit.name().to_owned(),
            unit: limit.unit().to_owned(),
            rule: RuleForm::from_rule(limit.rule()),
            headroom,
            headroom_percent,
            margin_us: limit.margin_setting().as_micros(),
        }
    }

    fn limit(&self) -> Result<Limit, String> {
        let headroom = match self.headroom_percent {
            0 => Headroom::Units(self.headroom),
            percent => Headroom::Percent(percent),
        };
        let limit = Limit::new(&self.name, &self.unit, self.rule.rule()?);
        Ok(limit.headroom(headroom).margin(Span::from_micros(self.margin_us)))
    }
}

impl RuleForm {
    fn from_rule(rule: &Rule) -> Self {
        match rule {
            Rule::TokenBucket(TokenBucket { capacity, refill, period, mode }) => {
                Self::TokenBucket {
                    capacity: *capacity,
                    refill: *refill,
                    period_us: period.as_micros(),
                    mode: match mode {
                        Refill::Continuous => "continuous".to_owned(),
                        Refill::Interval => "interval".to_owned(),
                    },
                }
            }
            Rule::RollingWindow(RollingWindow { limit, window, resolution }) => {
                Self::RollingWindow {
                    limit: *limit,
                    window_us: window.as_micros(),
                    resolution: *resolution,
                }
            }
            Rule::CalendarWindow(CalendarWindow { limit, period, zone }) => Self::CalendarWindow {
                limit: *limit,
                period: period.to_string(),
                time_zone: zone.clone(),
            },
            Rule::Concurrency(Concurrency { limit, ttl }) => {
                Self::Concurrency { limit: *limit, ttl_us: ttl.as_micros() }
            }
            other => unreachable!("the vectors do not know the rule {}", other.name()),
        }
    }

    fn rule(&self) -> Result<Rule, String> {
        Ok(match self {
            Self::TokenBucket { capacity, refill, period_us, mode } => {
                let bucket =
                    TokenBucket::per(*refill, Span::from_micros(*period_us)).burst(*capacity);
                match mode.as_str() {
                    "continuous" => bucket.into(),
                    "interval" => bucket.at_boundaries().into(),
                    other => {
                        return Err(format!("{other:?} is not a mode: continuous or interval"));
                    }
                }
            }
            Self::RollingWindow { limit, window_us, resolution } => RollingWindow {
                limit: *limit,
                window: Span::from_micros(*window_us),
                resolution: *resolution,
            }
            .into(),
            Self::CalendarWindow { limit, period, time_zone } => {
                let period =
                    period.parse().map_err(|error: tollgate_core::Error| error.to_string())?;
                CalendarWindow::new(*limit, period).in_zone(time_zone).into()
            }
            Self::Concurrency { limit, ttl_us } => {
                Concurrency::new(*limit, Span::from_micros(*ttl_us)).into()
            }
        })
    }
}
