//! The application behind every protocol: a gate with its policies, keys, audit and clock.
//!
//! Protocols only translate requests and responses. `operations` has what callers do, `queries` what they read, and `mounted` what
//! a protocol of another crate needs.

mod history;
mod mounted;
mod operations;
mod options;
mod queries;

use std::fmt;
use std::future::pending;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use futures_util::FutureExt as _;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinError;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use tollgate::audit::{AuditLog, Outcome, Record};
use tollgate::incident::Recorder;
use tollgate::internal::edge::random;
use tollgate::observe::{Event, Observer};
use tollgate::overrides::OverrideStore;
use tollgate::policy::Policies;
use tollgate::{Ask, Clock, Error, Gate, Policy, Queue, Timestamp};

use crate::access::{Access, Caller, Certificate};
use crate::audit::{AuditOptions, Auditor};
use crate::bounds::{REFUSED_EVERY, TRANSLATIONS_AT_ONCE};
use crate::grpc::envoy::{EnvoyMap, LimitStats, Unmatched};
use crate::history::{History, WatchedSubjects};
use crate::jwt::{JwtVerifier, KeySet};
use crate::keys::{KeyHash, Keys, Refused, Scope, Scopes};
use crate::live_policies::LivePolicies;
use crate::shutdown_clock::ShutdownClock;
use crate::stats::Stats;
use crate::translations::Translations;
pub use options::ServerOptions;
use tollgate_protocol::json::{GatewayStats, StoreHealth};
use tollgate_protocol::permit_token;

/// A gate with everything that is needed to serve it.
pub struct App {
    gate: Queue<Arc<dyn Gate>>,
    live_policies: LivePolicies,
    envoy: RwLock<Arc<EnvoyMap>>,
    unmatched: Unmatched,
    limit_stats: LimitStats,
    permit_keys: RwLock<Arc<permit_token::Keys>>,
    access: Access,
    legacy_fields: bool,
    options: ServerOptions,
    clock: Arc<dyn Clock>,
    stats: Stats,
    /// Identifies this server until it stops.
    broker_id: String,
    history: History,
    watched: WatchedSubjects,
    keeps_history: bool,
    audit: Auditor,
    health: Option<Box<dyn Fn() -> StoreHealth + Send + Sync>>,
    stopping: watch::Sender<bool>,
    closing: watch::Sender<bool>,
    /// When the audit last recorded a failed authentication, in microseconds.
    refused_at: AtomicU64,
    #[allow(
        clippy::disallowed_types,
        reason = "held during the call to the store, so that there is one at a time"
    )]
    readiness: tokio::sync::Mutex<Option<(Timestamp, Result<(), Error>)>>,
    /// Mutations that run to completion even if their client disconnects.
    mutations: TaskTracker,
    incidents: Incidents,
    metrics: Option<Box<dyn Fn() -> MetricsPage + Send + Sync>>,
    serves_only_metrics: bool,
    serves_only_rate_limits: bool,
    translations: Option<Arc<dyn Translations>>,
    /// Bounds the documents that are uploaded at once.
    uploads: Semaphore,
    gateway: OnceLock<Box<dyn Fn() -> GatewayStats + Send + Sync>>,
    jwt: Option<Arc<JwtVerifier>>,
}

/// The observer of incidents, and the history for them.
#[derive(Debug)]
struct Incidents {
    recorder: Arc<Recorder>,
    observer: Arc<dyn Observer>,
}

#[derive(Debug)]
struct NoObserver;

impl Observer for NoObserver {
    fn observe(&self, _: &Event<'_>) {}
}

/// A page of metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsPage {
    /// The media type.
    pub media_type: &'static str,
    /// The page.
    pub text: String,
}

impl App {
    /// Creates an application without API keys. Asks that wait are queued in front of `gate`. Permits are sealed with
    /// `key`, which all servers of one store share.
    ///
    /// # Errors
    /// If a policy has a reserved name; see [`check_policy_name`](crate::check_policy_name).
    pub fn new(
        gate: Arc<dyn Gate>,
        policies: Policies,
        key: [u8; permit_token::KEY_BYTES],
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let closing = watch::Sender::new(false);
        let waiting = ShutdownClock::new(Arc::clone(&clock), closing.subscribe());
        Ok(Self {
            gate: Queue::new(gate, Arc::new(waiting)),
            live_policies: LivePolicies::new(policies)?,
            envoy: RwLock::default(),
            unmatched: Unmatched::default(),
            limit_stats: LimitStats::default(),
            permit_keys: RwLock::new(Arc::new(permit_token::Keys::new(key))),
            access: Access::open(),
            legacy_fields: false,
            options: ServerOptions::default(),
            stats: Stats::since(clock.now()),
            broker_id: format!("{:08x}", random()),
            history: History::since(clock.now()),
            watched: WatchedSubjects::default(),
            keeps_history: false,
            audit: Auditor::new(AuditOptions::default(), None, clock.now()),
            health: None,
            clock,
            stopping: watch::Sender::new(false),
            closing,
            refused_at: AtomicU64::new(0),
            readiness: Default::default(),
            mutations: TaskTracker::new(),
            incidents: Incidents { recorder: Arc::default(), observer: Arc::new(NoObserver) },
            metrics: None,
            serves_only_metrics: false,
            serves_only_rate_limits: false,
            translations: None,
            uploads: Semaphore::new(TRANSLATIONS_AT_ONCE),
            gateway: OnceLock::new(),
            jwt: None,
        })
    }

    /// Reports every incident to `observer`, with the history of `recorder`. Both should observe the gate, too.
    #[must_use]
    pub fn incidents(mut self, recorder: Arc<Recorder>, observer: Arc<dyn Observer>) -> Self {
        self.incidents = Incidents { recorder, observer };
        self
    }

    /// Serves `page` at `GET /metrics`; the default is 404.
    #[must_use]
    pub fn metrics(mut self, page: impl Fn() -> MetricsPage + Send + Sync + 'static) -> Self {
        self.metrics = Some(Box::new(page));
        self
    }

    /// Serves only `GET /metrics` and `GET /healthz`, for a program that is not a broker. A key needs the scope `inspect`.
    #[must_use]
    pub const fn only_metrics(mut self) -> Self {
        self.serves_only_metrics = true;
        self
    }

    pub(crate) const fn serves_only_metrics(&self) -> bool {
        self.serves_only_metrics
    }

    /// Serves only what envoyproxy/ratelimit serves: Envoy's rate limit service, health and reflection over gRPC, and
    /// `/healthcheck` and `/json` over HTTP.
    #[must_use]
    pub const fn only_rate_limits(mut self) -> Self {
        self.serves_only_rate_limits = true;
        self
    }

    pub(crate) const fn serves_only_rate_limits(&self) -> bool {
        self.serves_only_rate_limits
    }

    /// Returns the counters of the limits of an envoyproxy/ratelimit configuration.
    pub const fn limit_stats(&self) -> &LimitStats {
        &self.limit_stats
    }

    pub(crate) const fn unmatched(&self) -> &Unmatched {
        &self.unmatched
    }

    /// Serves `jobs` at `/v1/translations`; the default is 404.
    #[must_use]
    pub fn translations(mut self, jobs: Arc<dyn Translations>) -> Self {
        self.translations = Some(jobs);
        self
    }

    /// Returns the translation jobs and the semaphore of uploads.
    pub(crate) fn translation_jobs(&self) -> Option<(&dyn Translations, &Semaphore)> {
        self.translations.as_deref().map(|jobs| (jobs, &self.uploads))
    }

    pub(crate) fn metrics_page(&self) -> Option<MetricsPage> {
        let mut page = self.metrics.as_ref()?();
        // The end mark of OpenMetrics stays last.
        let end = page.text.rfind("# EOF").unwrap_or(page.text.len());
        page.text.insert_str(end, &(self.limit_stats.text(true) + &self.unmatched.text()));
        Some(page)
    }

    /// Adds the headers `X-RateLimit-Limit`, `-Remaining` and `-Reset` to decisions over HTTP, for old clients.
    #[must_use]
    pub const fn legacy_fields(mut self, wanted: bool) -> Self {
        self.legacy_fields = wanted;
        self
    }

    pub(crate) const fn has_legacy_fields(&self) -> bool {
        self.legacy_fields
    }

    /// Replaces the options.
    #[must_use]
    pub fn with_options(mut self, options: ServerOptions) -> Self {
        self.options = options;
        self
    }

    /// Accepts JSON Web Tokens that `verifier` verifies, beside the API keys. Their subject may ask for itself.
    #[must_use]
    pub fn jwt_verifier(mut self, verifier: Arc<JwtVerifier>) -> Self {
        self.jwt = Some(verifier);
        self
    }

    /// Replaces the key set of the [verifier](Self::jwt_verifier), if there is one.
    pub fn replace_jwt_keys(&self, keys: KeySet) {
        if let Some(verifier) = &self.jwt {
            verifier.replace_keys(keys);
        }
    }

    pub(crate) fn jwt(&self) -> Option<&JwtVerifier> {
        self.jwt.as_deref()
    }

    /// Records the audit in `log`, or in memory without one.
    #[must_use]
    pub fn audit(mut self, options: AuditOptions, log: Option<Arc<dyn AuditLog>>) -> Self {
        self.audit = Auditor::new(options, log, self.clock.now());
        self
    }

    /// Samples the counts every ten seconds while the server runs, for `GET /v1/history`; by default they are sampled only when it is
    /// called.
    #[must_use]
    pub const fn history(mut self) -> Self {
        self.keeps_history = true;
        self
    }

    /// Reports the health of the store by `health`.
    #[must_use]
    pub fn health(mut self, health: impl Fn() -> StoreHealth + Send + Sync + 'static) -> Self {
        self.health = Some(Box::new(health));
        self
    }

    /// Reports the gateway that runs on this application by `read` in `GET /v1/stats`. Only the first call has an effect,
    /// because a gateway is built on an application and lives as long.
    pub fn report_gateway(&self, read: impl Fn() -> GatewayStats + Send + Sync + 'static) {
        drop(self.gateway.set(Box::new(read)));
    }

    /// Returns the policies in force.
    #[must_use]
    pub fn policies(&self) -> Arc<Policies> {
        self.live_policies.in_force()
    }

    /// Replaces the configured policies; overrides made by API stay. Asks in progress are decided under the old ones.
    ///
    /// # Errors
    /// As [`new`](Self::new); then nothing changes.
    pub fn replace_policies(&self, policies: Policies) -> Result<(), Error> {
        self.live_policies.replace_file(policies)
    }

    /// Keeps overrides made by API in `store` and follows the changes of other servers; without a store they end with the
    /// process. Existing ones apply after [`refresh_overrides`](Self::refresh_overrides).
    #[must_use]
    pub fn overrides(mut self, store: Arc<dyn OverrideStore>) -> Self {
        self.live_policies.keep_in(store);
        self
    }

    /// Refuses policies made by API for which `check` fails, because the store or the strategy cannot keep them.
    #[must_use]
    pub fn check_policies(
        mut self,
        check: impl Fn(&Policy) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Self {
        self.live_policies.check_with(check);
        self
    }

    /// Reads the overrides from their store. A running server does it every
    /// [`OVERRIDES_EVERY`](crate::bounds::OVERRIDES_EVERY).
    ///
    /// # Errors
    /// If they cannot be read; then nothing changes.
    pub async fn refresh_overrides(&self) -> Result<(), Error> {
        self.live_policies.refresh().await
    }

    pub(crate) const fn live_policies(&self) -> &LivePolicies {
        &self.live_policies
    }

    pub(crate) fn envoy(&self) -> Arc<EnvoyMap> {
        Arc::clone(&self.envoy.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the rules for Envoy's descriptors. A descriptor without a rule is not limited.
    pub fn replace_envoy(&self, map: EnvoyMap) {
        *self.envoy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
    }

    /// Replaces the accepted API keys. With `None`, no key is required.
    pub fn replace_keys(&self, keys: Option<Keys>) {
        self.access.replace(keys);
    }

    /// Returns the scopes of `key`.
    ///
    /// # Errors
    /// If a key is required and this one is missing, unknown or expired.
    pub fn authenticate(&self, key: Option<&str>) -> Result<Scopes, Refused> {
        let caller = self.caller(key, None)?;
        Ok(Scope::ALL.into_iter().filter(|scope| caller.has(*scope)).collect())
    }

    /// Reports an administrative action of `caller` to the audit and the observer.
    pub(crate) fn record_action(
        &self,
        caller: &Caller,
        what: Outcome,
        policy: &str,
        subject: &str,
    ) {
        self.record(Record::action(what, policy, subject, caller.name(), self.now()));
    }

    /// Reports an administrative action of `caller` on every charge of `ask`, as one record.
    pub(crate) fn record_action_on(&self, caller: &Caller, what: Outcome, ask: &Ask<'_>) {
        let (policy, subject) = (ask.policy().name(), ask.subject());
        let record = Record::action(what, policy, subject, caller.name(), self.now());
        self.record(record.with_charges(ask));
    }

    fn record(&self, record: Record) {
        let (policy, subject, what) = (&*record.policy, &*record.subject, record.outcome);
        let by = record.by.as_deref().unwrap_or_default();
        tracing::info!(policy, subject, key = by, "{what}");
        self.count_action(what, by);
        self.audit.record_action(record);
    }

    /// Reports an action of the key called `by` to the observer.
    pub(crate) fn count_action(&self, what: Outcome, by: &str) {
        self.incidents.observer.observe(&Event::Administered { action: what.name(), by });
    }

    /// Reports a failed authentication with the key of `hash`, or with the one that `certificate` names, to the observer, and
    /// at most every [`REFUSED_EVERY`] to the audit, so that it does not displace other records.
    #[cold]
    pub(crate) fn unauthenticated(
        &self,
        hash: Option<&KeyHash>,
        certificate: Option<&Certificate>,
    ) {
        // An expired key has a name, which it had from the start.
        let expired = self.access.find(hash, certificate, Timestamp::EPOCH);
        self.record_unauthenticated(expired.as_ref().map_or("", Caller::name));
    }

    /// Returns whether the audit records a failed authentication now, and if so, does not for [`REFUSED_EVERY`].
    fn may_record_refusal(&self) -> bool {
        let (now, last) = (self.now(), self.refused_at.load(Ordering::Relaxed));
        let is_due = last == 0 || REFUSED_EVERY.as_micros() <= now.as_micros().abs_diff(last);
        let swap = |last| {
            let (new, order) = (now.as_micros(), Ordering::Relaxed);
            self.refused_at.compare_exchange(last, new, order, order).is_ok()
        };
        is_due && swap(last)
    }

    /// Reports that the configuration was reloaded to the audit and the observer.
    pub fn reloaded(&self) {
        self.record_action(&Caller::ANONYMOUS, Outcome::Reloaded, "", "");
    }

    pub(crate) const fn access(&self) -> &Access {
        &self.access
    }

    /// Returns the clock.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    pub(crate) fn permit_keys(&self) -> Arc<permit_token::Keys> {
        Arc::clone(&self.permit_keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Omits ask ids from permits, for a store that is shared with older brokers.
    #[must_use]
    pub fn without_ids_in_permits(mut self) -> Self {
        let keys = self.permit_keys.get_mut().unwrap_or_else(PoisonError::into_inner);
        *keys = Arc::new(keys.without_ids());
        self
    }

    /// Seals permits with `key` from now on. Earlier keys are still accepted, up to [`KEYS_MAX`](permit_token::KEYS_MAX).
    pub fn replace_permit_key(&self, key: [u8; permit_token::KEY_BYTES]) {
        let mut keys = self.permit_keys.write().unwrap_or_else(PoisonError::into_inner);
        *keys = Arc::new(keys.renewed(key));
    }

    pub(crate) const fn auditor(&self) -> &Auditor {
        &self.audit
    }

    /// Fails readiness but keeps serving, until load balancers notice.
    pub fn begin_stopping(&self) {
        self.stopping.send_replace(true);
    }

    /// Becomes true when the server is about to stop.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    pub(crate) const fn options(&self) -> &ServerOptions {
        &self.options
    }

    /// Becomes true when the server closes.
    #[must_use]
    pub fn closing(&self) -> watch::Receiver<bool> {
        self.closing.subscribe()
    }

    /// Wakes every queued ask and stops queueing.
    pub(crate) fn close(&self) {
        self.begin_stopping();
        self.closing.send_replace(true);
    }

    /// Starts `work` and runs it to completion even if the client disconnects: a settle or release is often the last call
    /// of a client.
    pub(crate) fn run_to_completion<W>(&self, work: W) -> impl Future<Output = W::Output> + use<W>
    where
        W: Future<Output: Send> + Send + 'static,
    {
        let work = self.mutations.spawn(work.in_current_span());
        work.then(|done| async {
            match done.map_err(JoinError::try_into_panic) {
                Ok(output) => output,
                Err(Ok(panic)) => resume_unwind(panic),
                // Only the end of the runtime cancels it.
                Err(Err(_)) => pending().await,
            }
        })
    }

    /// Waits for the work of [`run_to_completion`](Self::run_to_completion).
    pub(crate) async fn finish_mutations(&self) {
        self.mutations.close();
        self.mutations.wait().await;
    }

    /// Returns the time of the clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// Omits the keys.
impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App")
            .field("gate", &self.gate)
            .field("policies", &self.policies())
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}
