//! The response: a status per descriptor, and the headers that Envoy adds.
//!
//! A policy has several limits, and a status has room for one: the one with the longest wait if it is over, otherwise the
//! one with the least left.

use tollgate::policy::{Period, Rule};
use tollgate::{Costs, Denial, Limit, Policy, Span, Standing, Timestamp};
use tollgate_protocol::json::window_secs;
use tollgate_protocol::protobuf::Duration;
use tollgate_protocol::protobuf::envoy::config::core::v3::HeaderValue;
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::RateLimitResponse;
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};

use super::rules::{EnvoyAnswer, EnvoyRule};
use crate::http::rate_limit_headers as headers;

/// The outcome of one descriptor.
pub(super) struct DescriptorOutcome {
    policy: Policy,
    standings: Vec<Standing>,
    is_over: bool,
    /// The limit that the status shows.
    shown: usize,
    denial: Option<Denial>,
    /// Whether a policy in shadow mode would have refused.
    is_shadow_denied: bool,
}

impl DescriptorOutcome {
    pub(super) fn admitted(policy: Policy, standings: Vec<Standing>) -> Self {
        let shown = headers::tightest(&standings);
        let (is_over, denial) = (false, None);
        Self { policy, standings, is_over, shown, denial, is_shadow_denied: false }
    }

    pub(super) const fn shadow_denied(mut self, is_denied: bool) -> Self {
        self.is_shadow_denied = is_denied;
        self
    }

    pub(super) const fn is_shadow_denied(&self) -> bool {
        self.is_shadow_denied
    }

    /// Returns the outcome of a standing that was only read. It is over if less than one hit, or than `hits`, is left; a
    /// policy in shadow mode never is.
    pub(super) fn read(policy: Policy, standings: Vec<Standing>, hits: &Costs) -> Self {
        let is_short = |standing: &Standing| {
            let hits = hits.get(&standing.unit).filter(|_| !policy.is_shadow());
            hits.is_some_and(|hits| standing.remaining < hits.max(1))
        };
        let short = standings.iter().enumerate().filter(|(_, standing)| is_short(standing));
        // A limit that never grows takes longest.
        let binding =
            short.max_by_key(|(_, standing)| (standing.reset_at.is_none(), standing.reset_at));
        let binding = binding.map(|(index, _)| index);
        let outcome = Self::admitted(policy, standings);
        Self { is_over: binding.is_some(), shown: binding.unwrap_or(outcome.shown), ..outcome }
    }

    /// Returns the outcome of the charge at `index` of a denied ask. It is over only if a limit of its own refuses.
    pub(super) fn denied(policy: Policy, index: usize, denial: &Denial) -> Self {
        let Some(denial) = denial.for_charge(index) else {
            let charge = denial.joint.as_deref().and_then(|joint| joint.charges.get(index));
            let limits = charge.map_or_else(Vec::new, |charge| charge.limits.clone());
            return Self::admitted(policy, limits);
        };
        let standings = denial.limits.clone();
        let shown = standings.iter().position(|standing| standing.name == denial.limit);
        let (shown, denial) = (shown.unwrap_or(0), Some(denial));
        Self { policy, standings, is_over: true, shown, denial, is_shadow_denied: false }
    }

    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the seconds until more is left; `None` if it never is, or if nothing is used.
    pub(super) fn reset_secs(&self, now: Timestamp) -> Option<u64> {
        let wait = match &self.denial {
            Some(denial) => denial.retry_after(),
            None => self.standing()?.reset_at.map(|at| at.since(now)),
        };
        wait.map(Span::as_secs_ceil)
    }

    pub(super) fn standing(&self) -> Option<&Standing> {
        self.standings.get(self.shown)
    }

    fn status(&self, now: Timestamp) -> DescriptorStatus {
        let code = if self.is_over { Code::OverLimit } else { Code::Ok };
        let duration =
            |secs| Duration { seconds: i64::try_from(secs).unwrap_or(i64::MAX), nanos: 0 };
        DescriptorStatus {
            code: code.into(),
            // An unlimited subject has no standings.
            current_limit: self
                .standing()
                .and_then(|_| self.policy.limits().nth(self.shown))
                .map(current_limit),
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

/// Returns Envoy's name for the window of `rule`, if it has one.
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

pub(super) fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The statuses so far, and the headers of the most relevant descriptor.
#[derive(Default)]
pub(super) struct ResponseBuilder {
    statuses: Vec<DescriptorStatus>,
    is_over: bool,
    /// Whether it is over, its rank, and its headers.
    shown: Option<(bool, u64, Vec<HeaderValue>)>,
}

impl ResponseBuilder {
    /// Adds a descriptor with an answer that needs no limit.
    pub(super) fn add_answer(&mut self, answer: EnvoyAnswer) {
        let code = match answer {
            EnvoyAnswer::Allow => Code::Ok,
            EnvoyAnswer::Deny => Code::OverLimit,
        };
        self.is_over |= code == Code::OverLimit;
        self.statuses.push(DescriptorStatus { code: code.into(), ..DescriptorStatus::default() });
    }

    pub(super) fn add(&mut self, outcome: &DescriptorOutcome, rule: &EnvoyRule, now: Timestamp) {
        self.is_over |= outcome.is_over;
        self.statuses.push(outcome.status(now));
        // A request is admitted once the last descriptor that is over has room; one that never has ranks highest.
        let rank = if outcome.is_over {
            outcome.reset_secs(now).unwrap_or(u64::MAX)
        } else {
            outcome.standing().map_or(0, |standing| u64::MAX - standing.remaining)
        };
        let is_higher = self
            .shown
            .as_ref()
            .is_none_or(|(is_over, most, _)| (*is_over, *most) < (outcome.is_over, rank));
        if is_higher {
            self.shown = Some((outcome.is_over, rank, headers_of(outcome, rule, now)));
        }
    }

    pub(super) fn build(self) -> RateLimitResponse {
        let code = if self.is_over { Code::OverLimit } else { Code::Ok };
        RateLimitResponse {
            overall_code: code.into(),
            statuses: self.statuses,
            response_headers_to_add: self.shown.map(|(.., headers)| headers).unwrap_or_default(),
            ..RateLimitResponse::default()
        }
    }
}

fn headers_of(outcome: &DescriptorOutcome, rule: &EnvoyRule, now: Timestamp) -> Vec<HeaderValue> {
    if outcome.policy.is_unlimited() {
        return Vec::new();
    }
    let text = |value: Option<axum::http::HeaderValue>| {
        value.and_then(|value| value.to_str().map(str::to_owned).ok())
    };
    let reset = outcome.reset_secs(now);
    let mut pairs = vec![
        ("ratelimit", text(headers::rate_limit(&outcome.standings, now, outcome.denial.as_ref()))),
        ("ratelimit-policy", text(headers::rate_limit_policy(&outcome.policy))),
        ("retry-after", reset.filter(|_| outcome.is_over).map(|secs| secs.to_string())),
    ];
    if rule.has_legacy_fields()
        && let Some(standing) = outcome.standing()
    {
        let legacy = headers::legacy(standing, reset);
        pairs.extend(legacy.map(|(name, value)| (name, Some(value.to_string()))));
    }
    let header = |(key, value): (&str, Option<String>)| {
        value.map(|value| HeaderValue { key: key.to_owned(), value, raw_value: Vec::new() })
    };
    pairs.into_iter().filter_map(header).collect()
}
