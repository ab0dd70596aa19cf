//! Statuses, and the fields that Envoy adds to the response.
//!
//! A policy has several limits and a status has room for one: that with the longest wait if it is over, otherwise that
//! with the least left.

use prost_types::Duration;
use tollgate::{Denial, Limit, Period, Policy, Rule, Span, Standing, Timestamp};

use super::map::EnvoyRule;
use crate::http::fields;
use crate::proto::envoy::config::core::v3::HeaderValue;
use crate::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use crate::wire::window_secs;

/// What became of one descriptor.
pub(super) struct Found {
    policy: Policy,
    standings: Vec<Standing>,
    is_over: bool,
    /// The limit that the status shows.
    shown: usize,
    denial: Option<Denial>,
}

impl Found {
    pub(super) fn admitted(policy: Policy, standings: Vec<Standing>) -> Self {
        let shown = fields::tightest(&standings);
        Self { policy, standings, is_over: false, shown, denial: None }
    }

    /// Nothing was taken. It is over if there is less left than one hit, or than `hits`; a policy in shadow mode never is.
    pub(super) fn looked(policy: Policy, standings: Vec<Standing>, unit: &str, hits: u64) -> Self {
        let is_short = |standing: &Standing| {
            !policy.is_shadow() && *standing.unit == *unit && standing.remaining < hits.max(1)
        };
        let short = standings.iter().enumerate().filter(|(_, standing)| is_short(standing));
        // What cannot grow takes longest of all.
        let binding =
            short.max_by_key(|(_, standing)| (standing.reset_at.is_none(), standing.reset_at));
        let binding = binding.map(|(place, _)| place);
        let found = Self::admitted(policy, standings);
        Self { is_over: binding.is_some(), shown: binding.unwrap_or(found.shown), ..found }
    }

    pub(super) fn denied(policy: Policy, denial: Denial) -> Self {
        let standings = denial.limits.clone();
        let shown = standings.iter().position(|standing| standing.name == denial.limit);
        Self { policy, standings, is_over: true, shown: shown.unwrap_or(0), denial: Some(denial) }
    }

    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// How long until more is left, in whole seconds; nothing if it never is, or if nothing is used.
    fn reset_secs(&self, now: Timestamp) -> Option<u64> {
        let wait = match &self.denial {
            Some(denial) => denial.retry_after(),
            None => self.standing()?.reset_at.map(|at| at.since(now)),
        };
        wait.map(Span::as_secs_ceil)
    }

    fn standing(&self) -> Option<&Standing> {
        self.standings.get(self.shown)
    }

    fn status(&self, now: Timestamp) -> DescriptorStatus {
        let code = if self.is_over { Code::OverLimit } else { Code::Ok };
        let duration =
            |secs| Duration { seconds: i64::try_from(secs).unwrap_or(i64::MAX), nanos: 0 };
        DescriptorStatus {
            code: code.into(),
            current_limit: self.policy.limits().nth(self.shown).map(current_limit),
            limit_remaining: self.standing().map_or(0, |standing| narrow(standing.remaining)),
            duration_until_reset: self.reset_secs(now).map(duration),
        }
    }
}

fn current_limit(limit: &Limit) -> RateLimit {
    RateLimit {
        name: limit.name().to_owned(),
        requests_per_unit: narrow(limit.rule().limit()),
        unit: unit_of(limit.rule()).into(),
    }
}

/// Envoy knows six lengths of time; a window of another length has none of these names.
fn unit_of(rule: &Rule) -> Unit {
    if let Rule::CalendarWindow(window) = rule
        && window.period == Period::Month
    {
        return Unit::Month;
    }
    match window_secs(rule) {
        Some(1) => Unit::Second,
        Some(60) => Unit::Minute,
        Some(3_600) => Unit::Hour,
        Some(86_400) => Unit::Day,
        _ => Unit::Unknown,
    }
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The statuses so far, and the fields of the descriptor that matters most.
#[derive(Default)]
pub(super) struct Answers {
    statuses: Vec<DescriptorStatus>,
    is_over: bool,
    /// Whether it is over, how much it matters among its like, and its fields.
    shown: Option<(bool, u64, Vec<HeaderValue>)>,
}

impl Answers {
    /// A descriptor that no rule knows has no limit.
    pub(super) fn unmatched(&mut self) {
        let code = Code::Ok.into();
        self.statuses.push(DescriptorStatus { code, ..DescriptorStatus::default() });
    }

    pub(super) fn add(&mut self, found: &Found, rule: &EnvoyRule, now: Timestamp) {
        self.is_over |= found.is_over;
        self.statuses.push(found.status(now));
        // A request is admitted when the last of those that are over has room; one that never has is later than any.
        let weight = if found.is_over {
            found.reset_secs(now).unwrap_or(u64::MAX)
        } else {
            u64::MAX - found.standing().map_or(0, |standing| standing.remaining)
        };
        let matters_more = self
            .shown
            .as_ref()
            .is_none_or(|(is_over, most, _)| (*is_over, *most) < (found.is_over, weight));
        if matters_more {
            self.shown = Some((found.is_over, weight, fields_of(found, rule, now)));
        }
    }

    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) fn response(self) -> RateLimitResponse {
        let code = if self.is_over { Code::OverLimit } else { Code::Ok };
        RateLimitResponse {
            overall_code: code.into(),
            statuses: self.statuses,
            response_headers_to_add: self.shown.map(|(.., fields)| fields).unwrap_or_default(),
            ..RateLimitResponse::default()
        }
    }
}

fn fields_of(found: &Found, rule: &EnvoyRule, now: Timestamp) -> Vec<HeaderValue> {
    let text = |value: Option<axum::http::HeaderValue>| {
        value.and_then(|value| value.to_str().map(str::to_owned).ok())
    };
    let reset = found.reset_secs(now);
    let mut pairs = vec![
        ("ratelimit", text(fields::rate_limit(&found.standings, now, found.denial.as_ref()))),
        ("ratelimit-policy", text(fields::rate_limit_policy(&found.policy))),
        ("retry-after", reset.filter(|_| found.is_over).map(|secs| secs.to_string())),
    ];
    if rule.has_legacy_fields()
        && let Some(standing) = found.standing()
    {
        let fields = fields::legacy(standing, reset);
        pairs.extend(fields.map(|(name, value)| (name, Some(value.to_string()))));
    }
    let field = |(key, value): (&str, Option<String>)| {
        value.map(|value| HeaderValue { key: key.to_owned(), value, raw_value: Vec::new() })
    };
    pairs.into_iter().filter_map(field).collect()
}
