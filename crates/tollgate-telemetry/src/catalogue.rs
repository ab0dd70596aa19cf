//! The catalogue of metrics, shared by all sinks.
//!
//! Labels are policies, limits and fixed words, never subjects, so that the configuration bounds the number of series.

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A histogram of durations, in buckets of [`DURATION_BOUNDS_US`](crate::DURATION_BOUNDS_US).
    Duration,
    /// A histogram of durations of jobs, in buckets of [`JOB_BOUNDS_SECS`](crate::JOB_BOUNDS_SECS).
    JobDuration,
    /// A histogram of durations of calls to a provider, in buckets of [`CALL_BOUNDS_MS`](crate::CALL_BOUNDS_MS).
    CallDuration,
    /// A histogram of attempts, from 1.
    Attempts,
}

/// One metric, with its names in all sinks.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name in Prometheus, without the suffix `_total` of counters.
    pub name: &'static str,
    /// One sentence, without full stop.
    pub help: &'static str,
    /// Its type.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// The name in CloudWatch and the labels that are dimensions there. There is always another series without
    /// dimensions, because alarms match dimensions exactly.
    pub cloudwatch: Option<(&'static str, &'static [&'static str])>,
}

impl Metric {
    /// Returns the name in OpenTelemetry.
    #[must_use]
    pub fn otel(&self) -> String {
        self.name.replacen('_', ".", 1)
    }

    /// Returns the name in Prometheus: of the samples for a counter or gauge, of the family otherwise.
    #[must_use]
    pub fn prometheus(&self) -> String {
        let suffix = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{suffix}", self.name)
    }

    /// Returns the unit in CloudWatch.
    #[must_use]
    pub const fn cloudwatch_unit(&self) -> &'static str {
        match self.kind {
            Kind::Duration | Kind::CallDuration => "Milliseconds",
            Kind::JobDuration => "Seconds",
            Kind::Counter | Kind::Gauge | Kind::Attempts => "Count",
        }
    }
}

const POLICY: &[&str] = &["policy"];
const LIMIT: &[&str] = &["policy", "limit"];
const SINK: &[&str] = &["sink"];
const END: &[&str] = &["end"];
const OUTCOME: &[&str] = &["outcome"];
const UNTIL: &[&str] = &["until"];
const UPSTREAM: &[&str] = &["upstream", "model"];

macro_rules! metrics {
    ($($id:ident = $name:literal, $kind:ident, $labels:expr, $cloudwatch:expr, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub(crate) static $id: Metric =
                Metric { name: $name, help: $help, kind: Kind::$kind, labels: $labels, cloudwatch: $cloudwatch };
        )*
        /// Every metric, in the order in which the sinks list them.
        pub static METRICS: &[&Metric] = &[$(&$id),*];
    };
}

metrics! {
    ACQUIRED = "tollgate_tokens_acquired", Counter, LIMIT, Some(("RateLimiterTokensAcquired", LIMIT)),
        "What was charged to a limit by asks that went through, in its unit";
    AVAILABLE = "tollgate_tokens_available", Gauge, LIMIT, Some(("RateLimiterTokensAvailable", LIMIT)),
        "What remained of a limit for the subject that asked last";
    TOOK = "tollgate_acquisition_duration_seconds", Duration, &["policy", "outcome"],
        Some(("RateLimiterAcquisitionLatency", POLICY)),
        "How long answers to asks took, by outcome";
    REFUSED = "tollgate_refusals", Counter, LIMIT, Some(("RateLimiterAcquisitionFailures", LIMIT)),
        "Asks that were denied, by the limit that binds";
    ERRORS = "tollgate_errors", Counter, POLICY, Some(("RateLimiterErrors", POLICY)),
        "Calls that could not be decided";
    SHADOW = "tollgate_shadow_denied", Counter, POLICY, Some(("RateLimiterShadowDenied", POLICY)),
        "Asks that went through only because their policy is in shadow mode";
    DEGRADED = "tollgate_degraded_decisions", Counter, POLICY, Some(("RateLimiterDegradedDecisions", POLICY)),
        "Decisions that were made without the store";
    STORE_TOOK = "tollgate_store_duration_seconds", Duration, POLICY, Some(("RateLimiterStoreLatency", POLICY)),
        "How long single tries of the store took";
    STORE_TRIES = "tollgate_store_tries", Counter, &["policy", "result"], Some(("RateLimiterStoreTries", POLICY)),
        "Tries of the store, by how they ended: answered, raced, throttled or failed";
    CONDITIONAL = "tollgate_store_conditional_failures", Counter, POLICY,
        Some(("RateLimiterConditionalFailures", POLICY)),
        "Tries of the store that another caller was ahead of";
    THROTTLED = "tollgate_store_throttled", Counter, POLICY, Some(("RateLimiterStoreThrottled", POLICY)),
        "Tries that the store refused for its own load";
    ATTEMPTS = "tollgate_store_attempts", Attempts, POLICY, Some(("RateLimiterStoreAttempts", POLICY)),
        "Which try of one call each try of the store was: the distribution of retries";
    UNPOSTED = "tollgate_unposted", Gauge, POLICY, Some(("RateLimiterUnposted", POLICY)),
        "Admitted requests that the store does not know of yet";
    UNPOSTED_MAX = "tollgate_unposted_max", Gauge, POLICY, Some(("RateLimiterUnpostedMax", POLICY)),
        "The most that unposted may become: this instance's share of a possible over-issue";
    OVER_ISSUED = "tollgate_over_issue", Counter, LIMIT, Some(("RateLimiterOverIssue", LIMIT)),
        "What was admitted without the store and found beyond a limit when it was posted, in its unit";
    VIOLATIONS = "tollgate_violations", Counter, LIMIT, Some(("RateLimiterViolations", LIMIT)),
        "Refusals by a provider of what was admitted";
    MENDED = "tollgate_entries_mended", Counter, POLICY, Some(("RateLimiterEntriesMended", POLICY)),
        "Entries from the future, written by a wrong clock, that were rewritten as used up";
    ADMINISTERED = "tollgate_administered", Counter, &["action", "key"], Some(("RateLimiterAdministered", &["action"])),
        "What was done apart from asking, by the API key that did it: resets, overrides, closes, violations, charges, reloads and failed authentications";
    FALLBACK = "tollgate_fallback_activated", Counter, &[], Some(("RateLimiterFallbackActivated", &[])),
        "How often decisions began to be made without the store";
    FALLBACK_ACTIVE = "tollgate_fallback_active", Gauge, &[], Some(("RateLimiterFallbackActive", &[])),
        "1 while decisions are made without the store, else 0";
    TRANSLATION_TOOK = "tollgate_translation_duration_seconds", JobDuration, &[], Some(("TranslationSpeed", &[])),
        "How long translations took from their start to their end, pauses included";
    TRANSLATION_WORDS = "tollgate_translation_words", Counter, &[], Some(("TranslationWords", &[])),
        "Words of source text that were translated";
    TRANSLATION_JOBS = "tollgate_translation_jobs", Counter, END, Some(("TranslationJobs", END)),
        "Translations that came to their end: completed, or completed_with_errors";
    TRANSLATION_PAUSES = "tollgate_translation_pauses", Counter, UNTIL, Some(("TranslationPauses", UNTIL)),
        "Pauses of translations, by what ends them: a time, or the operator";
    TRANSLATION_RUNNING = "tollgate_translation_jobs_running", Gauge, &[], Some(("TranslationJobsRunning", &[])),
        "Translations that this process works on";
    TRANSLATION_CALLS = "tollgate_translation_calls", Counter, OUTCOME, Some(("TranslationCalls", OUTCOME)),
        "Calls of translations to the provider, by outcome: answered, refused (429) or failed";
    TRANSLATION_VIOLATIONS = "tollgate_translation_violations", Counter, &[], Some(("RateLimitViolations", &[])),
        "Calls of translations that the provider answered 429";
    TRANSLATION_DENIALS = "tollgate_translation_denials", Counter, &[],
        Some(("DistributedRateLimiterAcquireFailures", &[])),
        "Asks of translations that were denied, or could not be decided";
    TRANSLATION_PARALLEL = "tollgate_translation_parallel", Gauge, &[], Some(("ParallelChunkProcessing", &[])),
        "Chunks that are at the provider";
    GATEWAY_CALLS = "tollgate_gateway_calls", Counter, &["upstream", "model", "outcome"], Some(("GatewayCalls", UPSTREAM)),
        "Calls through the gateway that reached a provider, by outcome: answered, refused, failed or aborted";
    GATEWAY_WAITED = "tollgate_gateway_wait_seconds", CallDuration, UPSTREAM, Some(("GatewayWait", UPSTREAM)),
        "How long admitted calls waited for their quota";
    GATEWAY_FIRST_BYTE = "tollgate_gateway_first_byte_seconds", CallDuration, UPSTREAM, Some(("GatewayFirstByte", UPSTREAM)),
        "How long the provider took from the request to the first byte of its response";
    GATEWAY_TOKENS = "tollgate_gateway_tokens", Counter, &["upstream", "model", "unit"], Some(("GatewayTokens", &["upstream", "model", "unit"])),
        "What calls were settled for, by unit";
    GATEWAY_PROVIDER_REFUSALS = "tollgate_gateway_provider_refusals", Counter, UPSTREAM, Some(("GatewayProviderRefusals", UPSTREAM)),
        "Attempts that the provider refused for its own limits or load (429, 503, 529), also if a later attempt was answered";
    GATEWAY_REFUSALS = "tollgate_gateway_refusals", Counter, &["model", "reason"], Some(("GatewayRefusals", &["reason"])),
        "Calls that the gateway itself refused, by reason";
    GATEWAY_ABORTED = "tollgate_gateway_streams_aborted", Counter, UPSTREAM, Some(("GatewayStreamsAborted", UPSTREAM)),
        "Responses that ended before their last byte, because the client or the provider disconnected";
    GATEWAY_WAITING = "tollgate_gateway_waiting", Gauge, &[], Some(("GatewayWaiting", &[])),
        "Calls that wait for their quota";
    GATEWAY_HELD_BYTES = "tollgate_gateway_held_bytes", Gauge, &[], Some(("GatewayHeldBytes", &[])),
        "Bytes of request bodies that the gateway holds";
    GATEWAY_IN_FLIGHT = "tollgate_gateway_in_flight", Gauge, &[], Some(("GatewayInFlight", &[])),
        "Calls that are at a provider";
    DROPPED = "tollgate_telemetry_dropped", Counter, SINK, Some(("RateLimiterTelemetryDropped", SINK)),
        "Events that a sink was too slow to take";
    SINK_FAILURES = "tollgate_telemetry_failures", Counter, SINK, Some(("RateLimiterTelemetryFailures", SINK)),
        "Writes of a sink that failed or took too long";
}

/// Returns a label as a dimension of CloudWatch, as in `Policy` or `ErrorType`.
#[must_use]
pub fn dimension(label: &str) -> String {
    let capital = |word: &str| {
        let mut letters = word.chars();
        let first = letters.next().map(char::to_uppercase).into_iter().flatten();
        first.chain(letters).collect::<String>()
    };
    label.split('_').map(capital).collect()
}
