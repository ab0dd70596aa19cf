//! The counters of envoyproxy/ratelimit, by the names of its Prometheus exporter.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tollgate::Span;

/// The most keys that are counted apart; `detailed_metric` makes one of every value.
const KEYS_MAX: usize = 10_000;

/// The upper bounds of the buckets of response times, in microseconds.
const BUCKETS: [u64; 10] =
    [250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 1_000_000];

/// Counts what limits did, since the start of the process.
#[derive(Debug, Default)]
pub struct LimitStats {
    limits: RwLock<BTreeMap<Arc<[String]>, Arc<Counters>>>,
    requests: AtomicU64,
    service_errors: AtomicU64,
    store_errors: AtomicU64,
    shadowed: AtomicU64,
    loaded: AtomicU64,
    not_loaded: AtomicU64,
    took: [AtomicU64; BUCKETS.len()],
    took_micros: AtomicU64,
}

#[derive(Debug, Default)]
struct Counters {
    total_hits: AtomicU64,
    over_limit: AtomicU64,
    near_limit: AtomicU64,
    within_limit: AtomicU64,
    shadow_mode: AtomicU64,
}

/// Selects one counter.
type Field = fn(&Counters) -> &AtomicU64;

/// What became of the hits of one descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hits {
    pub(super) hits: u64,
    pub(super) is_over: bool,
    /// How many of them are near the limit.
    pub(super) near: u64,
    /// Whether the limit is in shadow mode.
    pub(super) is_shadow: bool,
}

impl LimitStats {
    pub(super) fn count(&self, key: &Arc<[String]>, hits: Hits) {
        let counters = self.counters(key);
        let add = |counter: &AtomicU64, amount| counter.fetch_add(amount, Ordering::Relaxed);
        add(&counters.total_hits, hits.hits);
        if hits.is_over {
            add(&counters.over_limit, hits.hits);
            if hits.is_shadow {
                add(&counters.shadow_mode, hits.hits);
            }
        } else {
            add(&counters.within_limit, hits.hits);
            add(&counters.near_limit, hits.near);
        }
    }

    /// Counts a request that was answered within `took`.
    pub(super) fn answered(&self, took: Span) {
        let micros = took.as_micros();
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.took_micros.fetch_add(micros, Ordering::Relaxed);
        for (bound, count) in BUCKETS.iter().zip(&self.took) {
            if micros <= *bound {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Counts a request that could not be decided, because of the store or of itself.
    pub(super) fn failed(&self, is_store: bool) {
        let counter = if is_store { &self.store_errors } else { &self.service_errors };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a refusal that the global shadow mode turned into an admission.
    pub(super) fn shadowed(&self) {
        self.shadowed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an attempt to load a configuration.
    pub fn loaded(&self, is_good: bool) {
        let counter = if is_good { &self.loaded } else { &self.not_loaded };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn counters(&self, key: &Arc<[String]>) -> Arc<Counters> {
        let known = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(counters) = known.get(key) {
            return Arc::clone(counters);
        }
        drop(known);
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        let key = if limits.len() < KEYS_MAX || limits.contains_key(key) {
            Arc::clone(key)
        } else {
            let domain = key.first().cloned().unwrap_or_default();
            [domain, "other".to_owned()].into()
        };
        Arc::clone(limits.entry(key).or_default())
    }

    /// Returns the counters for Prometheus; empty if no configuration was expected. In OpenMetrics the name of a counter ends in `_total`,
    /// and these do not, so their type is `unknown` there.
    pub(crate) fn text(&self, is_open_metrics: bool) -> String {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let used = [&self.loaded, &self.not_loaded, &self.service_errors];
        if used.into_iter().all(|counter| read(counter) == 0) {
            return String::new();
        }
        let kind = if is_open_metrics { "unknown" } else { "counter" };
        let mut text = String::new();
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        let fields: [(&str, Field); 5] = [
            ("total_hits", |counters| &counters.total_hits),
            ("over_limit", |counters| &counters.over_limit),
            ("near_limit", |counters| &counters.near_limit),
            ("within_limit", |counters| &counters.within_limit),
            ("shadow_mode", |counters| &counters.shadow_mode),
        ];
        for (name, field) in fields {
            let name = format!("ratelimit_service_rate_limit_{name}");
            let _infallible = writeln!(text, "# TYPE {name} {kind}");
            for (key, counters) in limits.iter() {
                let _infallible =
                    writeln!(text, "{name}{{{}}} {}", labels(key), read(field(counters)));
            }
        }
        let method = "grpc_method=\"ShouldRateLimit\"";
        let single = [
            ("should_rate_limit_error", "err_type=\"service_error\"", &self.service_errors),
            ("should_rate_limit_error", "err_type=\"redis_error\"", &self.store_errors),
            ("total_requests", method, &self.requests),
            ("global_shadow_mode", "", &self.shadowed),
            ("config_load_success", "", &self.loaded),
            ("config_load_error", "", &self.not_loaded),
        ];
        let mut last = "";
        for (name, labels, counter) in single {
            if name != last {
                let _infallible = writeln!(text, "# TYPE ratelimit_service_{name} {kind}");
            }
            last = name;
            let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
            let _infallible = writeln!(text, "ratelimit_service_{name}{labels} {}", read(counter));
        }
        const TIME: &str = "ratelimit_service_response_time_seconds";
        let _infallible = writeln!(text, "# TYPE {TIME} histogram");
        for (bound, count) in BUCKETS.iter().zip(&self.took) {
            let bound = seconds(*bound);
            let _infallible =
                writeln!(text, "{TIME}_bucket{{{method},le=\"{bound}\"}} {}", read(count));
        }
        let (requests, sum) = (read(&self.requests), seconds(read(&self.took_micros)));
        let _infallible = writeln!(
            text,
            "{TIME}_bucket{{{method},le=\"+Inf\"}} {requests}\n{TIME}_sum{{{method}}} {sum}\n\
             {TIME}_count{{{method}}} {requests}"
        );
        text
    }

    /// Returns the counters by the names of statsd, one per line.
    pub(crate) fn lines(&self) -> String {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        for (key, counters) in limits.iter() {
            let key = key.join(".");
            for (name, counter) in [
                ("near_limit", &counters.near_limit),
                ("over_limit", &counters.over_limit),
                ("shadow_mode", &counters.shadow_mode),
                ("total_hits", &counters.total_hits),
                ("within_limit", &counters.within_limit),
            ] {
                let count = counter.load(Ordering::Relaxed);
                let _infallible =
                    writeln!(text, "ratelimit.service.rate_limit.{key}.{name}: {count}");
            }
        }
        text
    }
}

/// Returns `micros` in seconds, without trailing zeros.
fn seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn labels(key: &[String]) -> String {
    let mut text = String::new();
    for (level, part) in key.iter().enumerate() {
        let value = label(part);
        let _infallible = match level {
            0 => write!(text, "domain=\"{value}\""),
            _ => write!(text, ",key{level}=\"{value}\""),
        };
    }
    text
}

/// Escapes the value of a label.
pub(super) fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
