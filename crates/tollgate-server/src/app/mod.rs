//! What the server serves: a gate, the policies in force, the permit key and a clock.
//!
//! Everything that protocols have in common is here, so that each of them only translates. What callers do is in
//! `verbs`, and what is to be seen in `look`.

mod look;
mod settings;
mod verbs;

use std::fmt;
use std::future::pending;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use futures_util::FutureExt as _;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinError;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use tollgate::audit::{AuditLog, Outcome, Record};
use tollgate::incident::Recorder;
use tollgate::overrides::OverrideStore;
use tollgate::{
    Clock, Error, ErrorKind, Event, Gate, Observer, Policies, Policy, Queue, Span, Timestamp,
};

use crate::access::{Access, Caller, Certificate};
use crate::audit::{AuditSettings, Auditor};
use crate::bounds::{REFUSED_EVERY, TRANSLATIONS_AT_ONCE};
use crate::closing::Closing;
use crate::grpc::envoy::EnvoyMap;
use crate::keys::{KeyHash, Keys, Refused, Scope, Scopes};
use crate::resp::THROTTLE_POLICY;
use crate::rules::Rules;
use crate::stats::Stats;
use crate::token;
use crate::translations::Translations;
use crate::wire::StoreHealth;
pub use settings::Settings;

/// A gate with everything that it takes to serve it.
pub struct App {
    gate: Queue<Arc<dyn Gate>>,
    rules: Rules,
    envoy: RwLock<Arc<EnvoyMap>>,
    permit_keys: RwLock<Arc<token::Keys>>,
    access: Access,
    legacy_fields: bool,
    settings: Settings,
    clock: Arc<dyn Clock>,
    stats: Stats,
    audit: Auditor,
    health: Option<Box<dyn Fn() -> StoreHealth + Send + Sync>>,
    stopping: watch::Sender<bool>,
    closing: watch::Sender<bool>,
    /// When the audit last heard of a caller without a right key, in microseconds.
    refused_at: AtomicU64,
    #[allow(clippy::disallowed_types, reason = "held while the store is asked, so that one asks")]
    readiness: tokio::sync::Mutex<Option<(Timestamp, Result<(), Error>)>>,
    finishing: TaskTracker,
    watching: Watching,
    metrics: Option<Box<dyn Fn() -> MetricsPage + Send + Sync>>,
    serves_only_metrics: bool,
    translations: Option<Arc<dyn Translations>>,
    /// Places for documents that arrive.
    uploads: Semaphore,
}

/// Who hears of incidents, and remembers what led to them.
#[derive(Debug)]
struct Watching {
    recorder: Arc<Recorder>,
    observer: Arc<dyn Observer>,
}

#[derive(Debug)]
struct Nobody;

impl Observer for Nobody {
    fn observe(&self, _: &Event<'_>) {}
}

/// A page of metrics, in the format that its media type says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsPage {
    /// The media type.
    pub media_type: &'static str,
    /// The page.
    pub text: String,
}

impl App {
    /// Serves `gate` to everybody under `policies`, with a line in front of it for asks that wait. Permits are sealed with `key`, which
    /// all servers of one store share.
    ///
    /// # Errors
    /// If a policy has a name that is not for policies; see [`check_policy_name`](crate::check_policy_name).
    pub fn new(
        gate: Arc<dyn Gate>,
        policies: Policies,
        key: [u8; token::KEY_BYTES],
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let closing = watch::Sender::new(false);
        let waiting = Closing::new(Arc::clone(&clock), closing.subscribe());
        Ok(Self {
            gate: Queue::new(gate, Arc::new(waiting)),
            rules: Rules::new(policies)?,
            envoy: RwLock::default(),
            permit_keys: RwLock::new(Arc::new(token::Keys::new(key))),
            access: Access::open(),
            legacy_fields: false,
            settings: Settings::default(),
            stats: Stats::since(clock.now()),
            audit: Auditor::new(AuditSettings::default(), None, clock.now()),
            health: None,
            clock,
            stopping: watch::Sender::new(false),
            closing,
            refused_at: AtomicU64::new(0),
            readiness: Default::default(),
            finishing: TaskTracker::new(),
            watching: Watching { recorder: Arc::default(), observer: Arc::new(Nobody) },
            metrics: None,
            serves_only_metrics: false,
            translations: None,
            uploads: Semaphore::new(TRANSLATIONS_AT_ONCE),
        })
    }

    /// Tells `observer` of every incident, with what `recorder` remembers. Both should watch the gate too.
    #[must_use]
    pub fn incidents(mut self, recorder: Arc<Recorder>, observer: Arc<dyn Observer>) -> Self {
        self.watching = Watching { recorder, observer };
        self
    }

    /// Answers `GET /metrics` with what `page` makes; without it there is nothing there.
    #[must_use]
    pub fn metrics(mut self, page: impl Fn() -> MetricsPage + Send + Sync + 'static) -> Self {
        self.metrics = Some(Box::new(page));
        self
    }

    /// Serves `GET /metrics` and `GET /healthz` over HTTP and nothing else, for a program that is no broker. A key needs the
    /// scope `inspect`, as at a broker.
    #[must_use]
    pub const fn only_metrics(mut self) -> Self {
        self.serves_only_metrics = true;
        self
    }

    pub(crate) const fn serves_only_metrics(&self) -> bool {
        self.serves_only_metrics
    }

    /// Serves `/v1/translations` with the jobs of `jobs`; without it these calls answer 404.
    #[must_use]
    pub fn translations(mut self, jobs: Arc<dyn Translations>) -> Self {
        self.translations = Some(jobs);
        self
    }

    /// The translation jobs, and places for documents that arrive.
    pub(crate) fn translation_jobs(&self) -> Option<(&dyn Translations, &Semaphore)> {
        self.translations.as_deref().map(|jobs| (jobs, &self.uploads))
    }

    pub(crate) fn metrics_page(&self) -> Option<MetricsPage> {
        self.metrics.as_ref().map(|page| page())
    }

    /// Adds up to `jitter` to each wait, for servers that share a store.
    #[must_use]
    pub fn wait_jitter(mut self, jitter: Span) -> Self {
        self.gate = self.gate.jitter(jitter);
        self
    }

    /// Answers asks over HTTP with the fields `X-RateLimit-Limit`, `-Remaining` and `-Reset` too, for old clients.
    #[must_use]
    pub const fn legacy_fields(mut self, wanted: bool) -> Self {
        self.legacy_fields = wanted;
        self
    }

    pub(crate) const fn has_legacy_fields(&self) -> bool {
        self.legacy_fields
    }

    /// Replaces the settings.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Writes down what `settings` say, in `log`; without one in memory.
    #[must_use]
    pub fn audit(mut self, settings: AuditSettings, log: Option<Arc<dyn AuditLog>>) -> Self {
        self.audit = Auditor::new(settings, log, self.clock.now());
        self
    }

    /// Answers questions about the store with what `health` says.
    #[must_use]
    pub fn health(mut self, health: impl Fn() -> StoreHealth + Send + Sync + 'static) -> Self {
        self.health = Some(Box::new(health));
        self
    }

    /// The policies in force.
    #[must_use]
    pub fn policies(&self) -> Arc<Policies> {
        self.rules.in_force()
    }

    /// Puts other policies in force, with the overrides that were made by API. Asks that are being decided go on under the
    /// old ones.
    ///
    /// # Errors
    /// As for [`new`](Self::new); then those in force stay.
    pub fn replace_policies(&self, policies: Policies) -> Result<(), Error> {
        self.rules.replace_file(policies)
    }

    /// Keeps the overrides that are made by API in `store`, and follows what other servers on it change; without one they
    /// end with the process. What is there already is in force after [`refresh_overrides`](Self::refresh_overrides).
    #[must_use]
    pub fn overrides(mut self, store: Arc<dyn OverrideStore>) -> Self {
        self.rules.keep_in(store);
        self
    }

    /// Reads the overrides from where they are kept. A server that runs does it every
    /// [`OVERRIDES_EVERY`](crate::bounds::OVERRIDES_EVERY).
    ///
    /// # Errors
    /// If they cannot be read; those that are known stay in force.
    pub async fn refresh_overrides(&self) -> Result<(), Error> {
        self.rules.refresh().await
    }

    pub(crate) const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What Envoy's descriptors mean.
    pub(crate) fn envoy(&self) -> Arc<EnvoyMap> {
        Arc::clone(&self.envoy.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives Envoy's descriptors another meaning; without any, no descriptor is limited.
    pub fn replace_envoy(&self, map: EnvoyMap) {
        *self.envoy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
    }

    /// Lets in only who has one of `keys`, from now on; with none, everybody.
    pub fn replace_keys(&self, keys: Option<Keys>) {
        self.access.replace(keys);
    }

    /// What whoever sent `key` may do.
    ///
    /// # Errors
    /// If the server has keys and this is none of them, or is no longer valid.
    pub fn authenticate(&self, key: Option<&str>) -> Result<Scopes, Refused> {
        let caller = self.caller(key, None)?;
        Ok(Scope::ALL.into_iter().filter(|scope| caller.has(*scope)).collect())
    }

    /// Who sent `key`, or who has shown `certificate`. A refusal is counted as a failed authentication.
    pub(crate) fn caller(
        &self,
        key: Option<&str>,
        certificate: Option<&Certificate>,
    ) -> Result<Caller, Refused> {
        self.identify(key, certificate).inspect_err(|_| self.unauthenticated())
    }

    /// The same where a key is optional: nothing is counted.
    pub(crate) fn identify(
        &self,
        key: Option<&str>,
        certificate: Option<&Certificate>,
    ) -> Result<Caller, Refused> {
        // Where everybody may do everything, nothing is hashed.
        let hash = key.filter(|_| self.access.is_guarded()).map(KeyHash::of);
        self.access.find(hash.as_ref(), certificate, self.now())
    }

    /// Tells the audit and the observer what `caller` did, apart from asking.
    pub(crate) fn acted(&self, caller: &Caller, what: Outcome, policy: &str, subject: &str) {
        let by = caller.name();
        tracing::info!(policy, subject, key = by, "{what}");
        self.audit.acted(Record::action(what, policy, subject, by, self.now()));
        self.watching.observer.observe(&Event::Administered { action: what.name(), by });
    }

    /// Tells the observer that a caller had no right key; the audit at most every [`REFUSED_EVERY`], so that strangers do
    /// not push out what else is in it.
    #[cold]
    pub(crate) fn unauthenticated(&self) {
        let what = Outcome::Unauthenticated;
        self.watching.observer.observe(&Event::Administered { action: what.name(), by: "" });
        let (now, last) = (self.now(), self.refused_at.load(Ordering::Relaxed));
        let is_due = last == 0 || REFUSED_EVERY.as_micros() <= now.as_micros().abs_diff(last);
        let swap = |last| {
            let (new, order) = (now.as_micros(), Ordering::Relaxed);
            self.refused_at.compare_exchange(last, new, order, order).is_ok()
        };
        if is_due && swap(last) {
            self.audit.acted(Record::action(what, "", "", "", now));
        }
    }

    /// Tells the audit and the observer that the configuration was read again.
    pub fn reloaded(&self) {
        self.acted(&Caller::ANYBODY, Outcome::Reloaded, "", "");
    }

    pub(crate) const fn access(&self) -> &Access {
        &self.access
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// The keys of permits, of which the newest seals.
    pub(crate) fn permit_keys(&self) -> Arc<token::Keys> {
        Arc::clone(&self.permit_keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Seals permits without the ids of their asks, for a store that is shared with brokers that do not read them.
    #[must_use]
    pub fn without_ids_in_permits(mut self) -> Self {
        let keys = self.permit_keys.get_mut().unwrap_or_else(PoisonError::into_inner);
        *keys = Arc::new(keys.without_ids());
        self
    }

    /// Seals permits with `key` from now on. Permits under the keys before are still accepted, up to
    /// [`KEYS_MAX`](token::KEYS_MAX) of them.
    pub fn replace_permit_key(&self, key: [u8; token::KEY_BYTES]) {
        let mut keys = self.permit_keys.write().unwrap_or_else(PoisonError::into_inner);
        *keys = Arc::new(keys.renewed(key));
    }

    pub(crate) const fn auditor(&self) -> &Auditor {
        &self.audit
    }

    pub(crate) fn policy(&self, name: &str) -> Result<Policy, Error> {
        let found = self.policies().get(name).cloned();
        // Its keys are to be seen among the subjects, so somebody will look one up.
        found.map_err(|unknown| if name == THROTTLE_POLICY { carried() } else { unknown })
    }

    /// From now on the server is not ready, but still answers: load balancers take their time to notice.
    pub fn begin_stopping(&self) {
        self.stopping.send_replace(true);
    }

    /// Says when the server is about to stop.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    pub(crate) const fn limits(&self) -> &Settings {
        &self.settings
    }

    /// Says when the server closes.
    pub(crate) fn closing(&self) -> watch::Receiver<bool> {
        self.closing.subscribe()
    }

    /// Answers whoever waits, and from now on nobody waits.
    pub(crate) fn close(&self) {
        self.begin_stopping();
        self.closing.send_replace(true);
    }

    /// Does `work` to its end, from now on, though whoever asked for it leaves meanwhile: what is given back or settled
    /// is often the last that a caller does.
    pub(crate) fn finish<W>(&self, work: W) -> impl Future<Output = W::Output> + use<W>
    where
        W: Future<Output: Send> + Send + 'static,
    {
        let work = self.finishing.spawn(work.in_current_span());
        work.then(|done| async {
            match done.map_err(JoinError::try_into_panic) {
                Ok(output) => output,
                Err(Ok(panic)) => resume_unwind(panic),
                // Only the end of the runtime stops it.
                Err(Err(_)) => pending().await,
            }
        })
    }

    /// Resolves when everything is done that [`finish`](Self::finish) began.
    pub(crate) async fn finished(&self) {
        self.finishing.close();
        self.finishing.wait().await;
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

#[cold]
fn carried() -> Error {
    let text = format!(
        "{THROTTLE_POLICY:?} is no policy that can be named: each call of CL.THROTTLE carries its own numbers; \
         CL.THROTTLE with a quantity of 0 shows where a key stands, and DEL deletes it"
    );
    Error::new(ErrorKind::UnknownPolicy, text)
}

/// Without the key, which must not end up in a log.
impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App")
            .field("gate", &self.gate)
            .field("policies", &self.policies())
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}
