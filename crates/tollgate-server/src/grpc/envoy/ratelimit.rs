//! Requests of the domains of an envoyproxy/ratelimit configuration.
//!
//! The limits that apply are decided as one ask, so a refused request charges nothing. Two things differ from native rules:
//! - **Quota mode**: such limits refuse a request only if all of them do. Those that are over are left out, and the others are
//!   asked again; a refusal is free, so this is exact.
//! - **Hits that a descriptor names** (`hits_addend`) are charged even if they do not fit. Envoy reports what a stream used when it
//!   is over, and a report that is refused would otherwise never be counted.

use serde_json::{Map, Value};
use tollgate::core::REQUESTS;
use tollgate::{Ask, Error, ErrorKind, GateExt as _, Policy, Timestamp};
use tollgate_protocol::protobuf::Duration;
use tollgate_protocol::protobuf::envoy::config::core::v3::HeaderValue;
use tollgate_protocol::protobuf::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
};
use tollgate_protocol::protobuf::{self, Struct};
use tollgate_ratelimit_config::{Match, Quantity, RateLimitConfig, Resolved, Unit};

use super::limit_stats::Hits;
use super::response::{DescriptorOutcome, narrow};
use super::{DescriptorCharge, decide_together};
use crate::access::Caller;
use crate::app::App;
use crate::proxy_subject::bounded;

/// A configuration of envoyproxy/ratelimit, and how requests are answered.
#[derive(Debug)]
pub struct RateLimits {
    config: RateLimitConfig,
    options: RateLimitOptions,
}

/// How requests are answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitOptions {
    /// From which part of a limit on hits are counted as near it, in thousandths.
    pub near_limit_per_mille: u32,
    /// Whether no request is refused.
    pub shadow: bool,
    /// Whether all limits are in quota mode.
    pub quota: bool,
    /// The names of the headers that responses get: limit, remaining, reset.
    pub response_headers: Option<[String; 3]>,
    /// The names of the headers that requests to the upstream get.
    pub request_headers: Option<[String; 3]>,
    /// Whether responses describe the request and carry the metadata of limits that are not exceeded.
    pub dynamic_metadata: bool,
}

impl Default for RateLimitOptions {
    fn default() -> Self {
        Self {
            near_limit_per_mille: 800,
            shadow: false,
            quota: false,
            response_headers: None,
            request_headers: None,
            dynamic_metadata: false,
        }
    }
}

impl RateLimits {
    /// Answers requests of the domains of `config`.
    #[must_use]
    pub const fn new(config: RateLimitConfig, options: RateLimitOptions) -> Self {
        Self { config, options }
    }

    /// Returns the configuration.
    #[must_use]
    pub const fn config(&self) -> &RateLimitConfig {
        &self.config
    }
}

/// One descriptor of a request.
struct Applied<'a> {
    hits: u64,
    found: Option<Match<'a>>,
    is_quota: bool,
    kind: Kind,
}

enum Kind {
    /// No limit applies.
    Free,
    Unlimited,
    /// Nothing is admitted.
    Blocked(Unit),
    /// The charge at this index.
    Charged(usize),
}

/// A charge, and whether its limit is in quota mode.
struct QuotaCharge {
    charge: DescriptorCharge,
    is_quota: bool,
    /// Whether a descriptor named the hits.
    is_reported: bool,
}

/// Decides `request`, whose domain is configured.
pub(super) async fn decide(
    app: &App,
    caller: &Caller,
    limits: &RateLimits,
    request: &RateLimitRequest,
) -> Result<RateLimitResponse, Error> {
    let began = app.clock().monotonic();
    let answered = answer(app, caller, limits, request).await;
    let took = app.clock().monotonic().as_micros().saturating_sub(began.as_micros());
    match &answered {
        Ok(_) => app.limit_stats().answered(tollgate::Span::from_micros(took)),
        Err(error) => app.limit_stats().failed(error.kind() != ErrorKind::Invalid),
    }
    answered
}

async fn answer(
    app: &App,
    caller: &Caller,
    limits: &RateLimits,
    request: &RateLimitRequest,
) -> Result<RateLimitResponse, Error> {
    let (applied, charges) = apply(app, caller, limits, request)?;
    let outcomes = decide_charges(app, &charges, &applied).await?;
    let now = app.now();
    let mut statuses = Vec::with_capacity(applied.len());
    for descriptor in &applied {
        let is_over = match descriptor.kind {
            Kind::Charged(index) => outcomes[index].is_over(),
            _ => descriptor.is_blocked(),
        };
        count(app, limits, descriptor, is_over, &outcomes);
        statuses.push(descriptor.status(is_over, &outcomes, now));
    }
    let is_over = |index: usize| statuses[index].code() == Code::OverLimit;
    let quota = || (0..applied.len()).filter(|index| applied[*index].is_quota);
    let is_rate_over = (0..applied.len()).any(|index| !applied[index].is_quota && is_over(index));
    let is_quota_over = quota().next().is_some() && quota().all(is_over);
    let mut code = if is_rate_over || is_quota_over { Code::OverLimit } else { Code::Ok };
    if code == Code::OverLimit && limits.options.shadow {
        app.limit_stats().shadowed();
        code = Code::Ok;
    }
    let nearest = nearest(&statuses, &applied);
    let headers = |names: &Option<[String; 3]>| match (names, nearest) {
        (Some(names), Some(status)) => headers(names, status),
        _ => Vec::new(),
    };
    let dynamic_metadata = limits.options.dynamic_metadata.then(|| {
        let passed = applied.iter().zip(&statuses);
        let passed = passed.filter(|(_, status)| status.code() == Code::Ok);
        metadata(request, passed.filter_map(|(descriptor, _)| descriptor.found.as_ref()))
    });
    Ok(RateLimitResponse {
        overall_code: code.into(),
        response_headers_to_add: headers(&limits.options.response_headers),
        request_headers_to_add: headers(&limits.options.request_headers),
        statuses,
        dynamic_metadata,
        ..RateLimitResponse::default()
    })
}

/// Finds the limits of the descriptors of `request`. Hits on the same limit and subject are one charge.
fn apply<'a>(
    app: &App,
    caller: &Caller,
    limits: &'a RateLimits,
    request: &RateLimitRequest,
) -> Result<(Vec<Applied<'a>>, Vec<QuotaCharge>), Error> {
    fn pairs(descriptor: &RateLimitDescriptor) -> Vec<(&str, &str)> {
        descriptor.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str())).collect()
    }
    let entries: Vec<_> = request.descriptors.iter().map(pairs).collect();
    let resolved = limits.config.resolve(&request.domain, &entries);
    let mut charges: Vec<QuotaCharge> = Vec::new();
    let mut applied = Vec::with_capacity(resolved.len());
    for (descriptor, resolved) in request.descriptors.iter().zip(resolved) {
        let hits = descriptor.hits_addend.unwrap_or_else(|| u64::from(request.hits_addend.max(1)));
        let found = match resolved {
            Resolved::Limited(found) => Some(found),
            Resolved::Replaced | Resolved::Exempt => None,
            Resolved::Unmatched => {
                app.unmatched().record(&request.domain, true, &descriptor.entries, app.now());
                None
            }
        };
        let is_quota = limits.options.quota || found.as_ref().is_some_and(|it| it.rule.quota_mode);
        let kind = match found.as_ref().map(|found| (found.rule.quantity, found)) {
            None => Kind::Free,
            Some((Quantity::Unlimited, _)) => Kind::Unlimited,
            Some((Quantity::Blocked(unit), _)) => Kind::Blocked(unit),
            Some((Quantity::PerUnit(..), found)) => {
                let policy = policy_of(app, caller, found)?;
                let subject = bounded(found.subject.clone());
                caller.check_about(policy.name(), &subject)?;
                let is_reported = descriptor.hits_addend.is_some();
                Kind::Charged(add(&mut charges, policy, subject, hits, is_quota, is_reported))
            }
        };
        let is_quota = is_quota && !matches!(kind, Kind::Unlimited);
        applied.push(Applied { hits, found, is_quota, kind });
    }
    Ok((applied, charges))
}

/// Adds `hits` to the charge of `policy` and `subject`, and returns its index.
fn add(
    charges: &mut Vec<QuotaCharge>,
    policy: Policy,
    subject: String,
    hits: u64,
    is_quota: bool,
    is_reported: bool,
) -> usize {
    let is_same =
        |it: &QuotaCharge| it.charge.policy.name() == policy.name() && it.charge.subject == subject;
    let index = charges.iter().position(is_same).unwrap_or_else(|| {
        let charge = DescriptorCharge { policy, subject, hits: tollgate::Costs::new() };
        charges.push(QuotaCharge { charge, is_quota, is_reported: false });
        charges.len() - 1
    });
    charges[index].charge.add(REQUESTS, hits);
    charges[index].is_reported |= is_reported;
    index
}

/// Returns the policy in force: an override may have changed its numbers.
fn policy_of(app: &App, caller: &Caller, found: &Match<'_>) -> Result<Policy, Error> {
    let Some(policy) = &found.rule.policy else {
        let text = format!("the limit {} has no policy", found.rule.key());
        return Err(Error::new(ErrorKind::Invalid, text));
    };
    match app.policy(caller, policy.name()) {
        // Policies are replaced before the configuration, and a request in between still finds a limit that is withdrawn.
        Err(error) if error.kind() == ErrorKind::UnknownPolicy => Ok(policy.clone()),
        found => found,
    }
}

impl Applied<'_> {
    /// Returns whether nothing is admitted, and the limit is enforced.
    fn is_blocked(&self) -> bool {
        let is_shadow = self.found.as_ref().is_some_and(|found| found.rule.shadow_mode);
        matches!(self.kind, Kind::Blocked(_)) && 0 < self.hits && !is_shadow
    }

    fn status(
        &self,
        is_over: bool,
        outcomes: &[DescriptorOutcome],
        now: Timestamp,
    ) -> DescriptorStatus {
        let code = if is_over { Code::OverLimit } else { Code::Ok };
        let status = DescriptorStatus { code: code.into(), ..DescriptorStatus::default() };
        let name = || self.found.as_ref().map_or_else(String::new, |found| found.rule.name.clone());
        let limit = |requests_per_unit, unit: Unit| RateLimit {
            requests_per_unit,
            unit: unit_number(unit),
            name: name(),
        };
        let unit = match self.found.as_ref().map(|found| found.rule.quantity) {
            Some(Quantity::PerUnit(_, unit) | Quantity::Blocked(unit)) => unit,
            _ => Unit::Second,
        };
        match self.kind {
            Kind::Free => status,
            Kind::Unlimited => DescriptorStatus { limit_remaining: u32::MAX, ..status },
            Kind::Blocked(unit) => {
                let length = unit.seconds();
                let left = length - now.as_micros() / 1_000_000 % length;
                DescriptorStatus {
                    current_limit: Some(limit(0, unit)),
                    duration_until_reset: Some(duration(left)),
                    ..status
                }
            }
            Kind::Charged(index) => {
                let outcome = &outcomes[index];
                let standing = outcome.standing();
                DescriptorStatus {
                    current_limit: standing.map(|standing| limit(narrow(standing.limit), unit)),
                    limit_remaining: match standing {
                        Some(standing) if !is_over => narrow(standing.remaining),
                        _ => 0,
                    },
                    duration_until_reset: outcome.reset_secs(now).map(duration),
                    ..status
                }
            }
        }
    }
}

fn duration(secs: u64) -> Duration {
    Duration { seconds: i64::try_from(secs).unwrap_or(i64::MAX), nanos: 0 }
}

/// Returns the number of the enumeration `RateLimitResponse.RateLimit.Unit`.
const fn unit_number(unit: Unit) -> i32 {
    match unit {
        Unit::Second => 1,
        Unit::Minute => 2,
        Unit::Hour => 3,
        Unit::Day => 4,
        Unit::Month => 5,
        Unit::Year => 6,
        Unit::Week => 7,
    }
}

/// Decides the charges with hits as one ask, without those in quota mode that are over while others are not.
async fn decide_charges(
    app: &App,
    charges: &[QuotaCharge],
    applied: &[Applied<'_>],
) -> Result<Vec<DescriptorOutcome>, Error> {
    let mut outcomes: Vec<Option<DescriptorOutcome>> = Vec::with_capacity(charges.len());
    let mut is_refused = applied.iter().any(|it| it.is_blocked() && !it.is_quota);
    for QuotaCharge { charge, is_quota, .. } in charges {
        let read = if charge.has_hits() { None } else { Some(charge.read(app).await?) };
        is_refused |= !is_quota && read.as_ref().is_some_and(DescriptorOutcome::is_over);
        outcomes.push(read);
    }
    // Whether a descriptor in quota mode passes without being counted.
    let is_free = applied
        .iter()
        .any(|it| it.is_quota && !matches!(it.kind, Kind::Charged(_)) && !it.is_blocked());
    let has_quota = applied.iter().any(|it| it.is_quota);
    let mut charged = vec![false; charges.len()];
    loop {
        let pending: Vec<usize> = (0..charges.len()).filter(|it| outcomes[*it].is_none()).collect();
        let may_pass = |index: usize| {
            charges[index].is_quota && outcomes[index].as_ref().is_none_or(|it| !it.is_over())
        };
        is_refused |= has_quota && !is_free && !(0..charges.len()).any(may_pass);
        if is_refused || pending.is_empty() {
            for index in pending {
                outcomes[index] = Some(charges[index].charge.read(app).await?);
            }
            break;
        }
        let asked: Vec<&DescriptorCharge> =
            pending.iter().map(|index| &charges[*index].charge).collect();
        let decided = decide_together(app, &asked).await?;
        let is_admitted = !decided.iter().any(DescriptorOutcome::is_over);
        let is_hard = |(index, outcome): (&usize, &DescriptorOutcome)| {
            !charges[*index].is_quota && outcome.is_over()
        };
        let is_final = is_admitted || pending.iter().zip(&decided).any(is_hard);
        for (index, outcome) in pending.into_iter().zip(decided) {
            charged[index] = is_admitted;
            if is_final || outcome.is_over() {
                outcomes[index] = Some(outcome);
            }
        }
        if is_final {
            break;
        }
    }
    for (QuotaCharge { charge, is_reported, .. }, is_charged) in charges.iter().zip(charged) {
        if *is_reported && !is_charged && charge.has_hits() {
            let ask = Ask::new(&charge.policy, &*charge.subject).with_costs(&charge.costs());
            app.gate().charge(&ask).await?;
        }
    }
    Ok(outcomes.into_iter().flatten().collect())
}

/// Counts the hits of a descriptor.
fn count(
    app: &App,
    limits: &RateLimits,
    descriptor: &Applied<'_>,
    is_over: bool,
    outcomes: &[DescriptorOutcome],
) {
    let Some(found) = &descriptor.found else { return };
    let hits = descriptor.hits;
    let is_shadow = found.rule.shadow_mode;
    let (is_over, near) = match descriptor.kind {
        Kind::Charged(index) => {
            let outcome = &outcomes[index];
            let near = outcome.standing().map_or(0, |standing| {
                let threshold =
                    standing.limit.saturating_mul(limits.options.near_limit_per_mille.into())
                        / 1_000;
                // `used` includes the hits.
                standing.used.saturating_sub(threshold).min(hits)
            });
            (is_over || outcome.is_shadow_denied(), near)
        }
        Kind::Blocked(_) => (0 < hits, 0),
        Kind::Free | Kind::Unlimited => (false, 0),
    };
    app.limit_stats().count(&found.stats, Hits { hits, is_over, near, is_shadow });
}

/// Returns the status that headers describe: the last that is over and not in quota mode, else the one with the least left.
fn nearest<'a>(
    statuses: &'a [DescriptorStatus],
    applied: &[Applied<'_>],
) -> Option<&'a DescriptorStatus> {
    let limited =
        || statuses.iter().zip(applied).filter(|(status, _)| status.current_limit.is_some());
    let is_over = |(status, it): &(&DescriptorStatus, &Applied<'_>)| {
        status.code() == Code::OverLimit && !it.is_quota
    };
    let over = limited().rfind(is_over);
    let least = || limited().min_by_key(|(status, _)| status.limit_remaining);
    over.or_else(least).map(|(status, _)| status)
}

fn headers(names: &[String; 3], status: &DescriptorStatus) -> Vec<HeaderValue> {
    let values = [
        status.current_limit.as_ref().map_or(0, |limit| u64::from(limit.requests_per_unit)),
        u64::from(status.limit_remaining),
        status.duration_until_reset.as_ref().map_or(0, |it| it.seconds.unsigned_abs()),
    ];
    let header = |(key, value): (&String, u64)| HeaderValue {
        key: key.clone(),
        value: value.to_string(),
        raw_value: Vec::new(),
    };
    names.iter().zip(values).map(header).collect()
}

/// Returns the dynamic metadata: the request, and the metadata of the limits that are not exceeded.
fn metadata<'a>(request: &RateLimitRequest, passed: impl Iterator<Item = &'a Match<'a>>) -> Struct {
    let descriptor = |descriptor: &RateLimitDescriptor| {
        let entries = descriptor.entries.iter();
        let entries = entries.map(|entry| Value::from(format!("{}={}", entry.key, entry.value)));
        let mut fields = Map::new();
        fields.insert("entries".to_owned(), entries.collect());
        if let Some(hits) = descriptor.hits_addend {
            fields.insert("hitsAddend".to_owned(), hits.into());
        }
        Value::Object(fields)
    };
    let mut fields = Map::new();
    fields.insert("domain".to_owned(), request.domain.clone().into());
    let descriptors = request.descriptors.iter().map(descriptor).collect();
    fields.insert("descriptors".to_owned(), descriptors);
    if request.hits_addend != 0 {
        fields.insert("hitsAddend".to_owned(), request.hits_addend.into());
    }
    let mut merged = Map::new();
    for found in passed {
        if let Some(metadata) = &found.rule.metadata {
            merge(&mut merged, metadata);
        }
    }
    if !merged.is_empty() {
        fields.insert("metadata".to_owned(), Value::Object(merged));
    }
    protobuf::json_struct(&fields)
}

/// Adds what `into` does not have yet.
fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            (Some(_), _) => {}
            (None, _) => drop(into.insert(key.clone(), value.clone())),
        }
    }
}
