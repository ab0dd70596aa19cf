//! What the server serves: a gate, the policies in force, the permit key and a clock.
//!
//! Everything that protocols have in common is here, so that each of them only translates.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;

use tollgate::audit::AuditLog;
use tollgate::incident::{Incident, Recorder, Violation, report_violation};
use tollgate::overrides::OverrideStore;
use tollgate::{
    Ask, Clock, Costs, Decision, Error, ErrorKind, Event, Gate, Observer, Permit, Policies, Policy,
    Queue, Span, Standing, Timestamp,
};

use crate::access::Access;
use crate::audit::{AuditSettings, Auditor};
use crate::bounds::{READY_WAIT_MAX, WAIT_MAX};
use crate::closing::Closing;
use crate::grpc::envoy::EnvoyMap;
use crate::keys::{KeyHash, Keys, Refused, Scopes};
use crate::rules::Rules;
use crate::stats::Stats;
use crate::token;
use crate::wire::{
    AcquireRequest, AuditQuery, AuditResponse, AuditStats, CloseRequest, LatencyStats,
    LimitedSubject, StandingQuery, StatsResponse, StoreHealth, TopQuery, TopResponse,
    ViolationRequest,
};
use crate::within::within;

/// The subject that readiness looks up; it never asks, so it never holds anything.
const READY_SUBJECT: &str = "tollgate-ready";

/// A gate with everything that it takes to serve it.
pub struct App {
    gate: Queue<Arc<dyn Gate>>,
    rules: Rules,
    envoy: RwLock<Arc<EnvoyMap>>,
    key: token::Key,
    access: Access,
    legacy_fields: bool,
    clock: Arc<dyn Clock>,
    stats: Stats,
    audit: Auditor,
    health: Option<Box<dyn Fn() -> StoreHealth + Send + Sync>>,
    closing: watch::Sender<bool>,
    watching: Watching,
    metrics: Option<Box<dyn Fn() -> MetricsPage + Send + Sync>>,
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
    #[must_use]
    pub fn new(
        gate: Arc<dyn Gate>,
        policies: Policies,
        key: [u8; token::KEY_BYTES],
        clock: Arc<dyn Clock>,
    ) -> Self {
        let closing = watch::Sender::new(false);
        let waiting = Closing::new(Arc::clone(&clock), closing.subscribe());
        Self {
            gate: Queue::new(gate, Arc::new(waiting)),
            rules: Rules::new(policies),
            envoy: RwLock::default(),
            key: key.into(),
            access: Access::open(),
            legacy_fields: false,
            stats: Stats::since(clock.now()),
            audit: Auditor::new(AuditSettings::default(), None, clock.now()),
            health: None,
            clock,
            closing,
            watching: Watching { recorder: Arc::default(), observer: Arc::new(Nobody) },
            metrics: None,
        }
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
    pub fn replace_policies(&self, policies: Policies) {
        self.rules.replace_file(policies);
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
        // Where everybody may do everything, nothing is hashed.
        let hash = key.filter(|_| self.access.is_guarded()).map(KeyHash::of);
        self.access.find(hash.as_ref(), self.now()).map(|grant| grant.scopes)
    }

    pub(crate) const fn access(&self) -> &Access {
        &self.access
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    pub(crate) const fn key(&self) -> &token::Key {
        &self.key
    }

    pub(crate) fn stats(&self) -> StatsResponse {
        let now = self.clock.now();
        let latency = self.stats.latency(now);
        let written = self.audit.written();
        StatsResponse {
            since: Some(self.stats.began()),
            now: Some(now),
            policies: self.stats.read(&self.policies()),
            latency: LatencyStats {
                decisions: latency.decisions,
                within_ms: latency.within.as_millis_ceil(),
                p50_us: latency.p50.as_micros(),
                p99_us: latency.p99.as_micros(),
            },
            store: self.health.as_ref().map(|health| health()).unwrap_or_default(),
            audit: AuditStats { recorded: written.recorded, dropped: written.dropped },
        }
    }

    pub(crate) const fn auditor(&self) -> &Auditor {
        &self.audit
    }

    /// Who was limited, when and why.
    pub(crate) async fn audited(&self, query: &AuditQuery) -> Result<AuditResponse, Error> {
        let query = query.resolve(self.clock.now())?;
        let found = self.audit.find(&query, &*self.clock).await?;
        Ok(AuditResponse {
            records: found.page.records.iter().map(Into::into).collect(),
            next: found.page.next,
            partial: found.is_partial,
        })
    }

    /// Who was limited most often.
    pub(crate) async fn top(&self, query: TopQuery) -> Result<TopResponse, Error> {
        let limit = AuditQuery { limit: query.limit, ..Default::default() };
        let limit = limit.resolve(self.clock.now())?.limit;
        let (subjects, since) = self.audit.top(limit, &*self.clock).await;
        let subjects = subjects.into_iter().map(|limited| LimitedSubject {
            policy: limited.policy.to_string(),
            subject: limited.subject.to_string(),
            count: limited.count,
            error: limited.error,
        });
        Ok(TopResponse { since: Some(since), subjects: subjects.collect() })
    }

    pub(crate) fn policy(&self, name: &str) -> Result<Policy, Error> {
        self.policies().get(name).cloned()
    }

    /// Decides `request` under `policy`, waiting for room if it says so, and counts the answer.
    pub(crate) async fn acquire(
        &self,
        policy: &Policy,
        request: &AcquireRequest,
    ) -> Result<Decision, Error> {
        let mut ask = request.ask(policy);
        if !request.behind.is_empty() {
            let of = |costs: &BTreeMap<String, u64>| {
                policy.amounts(&costs.iter().map(|(unit, amount)| (&**unit, *amount)).collect())
            };
            ask = ask.behind(request.behind.iter().map(of).collect::<Result<_, _>>()?);
        }
        match request.wait_ms {
            None | Some(0) => self.decide(&ask).await,
            Some(wait_ms) => {
                // Few wait, and everybody would carry the room for it.
                let decided = Box::pin(self.acquire_within(&ask, wait_ms)).await;
                self.note(&ask, decided.as_ref());
                decided
            }
        }
    }

    /// Decides `ask` now, and counts the answer.
    pub(crate) async fn decide(&self, ask: &Ask<'_>) -> Result<Decision, Error> {
        let began = self.clock.monotonic();
        let decided = match self.gate.acquire_at_once(ask) {
            Some(decided) => decided,
            None => self.gate.acquire(ask).await,
        };
        let took = self.clock.monotonic().as_micros().saturating_sub(began.as_micros());
        self.stats.took(Span::from_micros(took));
        self.note(ask, decided.as_ref());
        decided
    }

    /// Counts an answer, and writes it down if it is one for the audit.
    fn note(&self, ask: &Ask<'_>, answer: Result<&Decision, &Error>) {
        self.stats.count(ask.policy(), answer);
        if let Ok(decision) = answer {
            self.audit.decided(ask, decision, &*self.clock);
        }
    }

    pub(crate) fn gate(&self) -> &impl Gate {
        &self.gate
    }

    async fn acquire_within(&self, ask: &Ask<'_>, wait_ms: u64) -> Result<Decision, Error> {
        let wait = Span::from_millis(wait_ms);
        if WAIT_MAX < wait {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("wait_ms {wait_ms} must be at most {}", WAIT_MAX.as_millis_ceil()),
            ));
        }
        self.gate.acquire_within(ask, self.clock.now() + wait).await
    }

    /// Opens a sealed permit under the policies in force.
    pub(crate) fn open(&self, permit: &str) -> Result<Permit, Error> {
        token::decode(permit, &self.key, |name| self.policy(name))
    }

    pub(crate) async fn settle(&self, permit: &str, actual: &Costs) -> Result<bool, Error> {
        self.gate.settle(&self.open(permit)?, actual).await
    }

    pub(crate) async fn release(&self, permit: &str) -> Result<bool, Error> {
        self.gate.release(&self.open(permit)?).await
    }

    pub(crate) async fn renew(&self, permit: &str) -> Result<Permit, Error> {
        self.gate.renew(&self.open(permit)?).await
    }

    pub(crate) async fn standing(&self, query: &StandingQuery) -> Result<Vec<Standing>, Error> {
        self.gate.standing(&self.policy(&query.policy)?, &query.subject).await
    }

    /// Writes down that a provider refused what was admitted, and closes the limit.
    pub(crate) async fn violation(&self, request: &ViolationRequest) -> Result<Incident, Error> {
        let policy = self.policy(&request.policy)?;
        let ask = Ask::new(&policy, request.subject.as_str());
        let violation = Violation {
            ask: &ask,
            limit: request.limit.as_deref(),
            retry_after: Span::from_millis(request.retry_after_ms),
        };
        let Watching { recorder, observer } = &self.watching;
        let (gate, clock) = (&self.gate, &*self.clock);
        let incident = report_violation(gate, recorder, &**observer, clock, &violation).await?;
        self.audit.violated(&ask, &incident.limit, violation.retry_after, clock.now());
        Ok(incident)
    }

    pub(crate) async fn reset(&self, query: &StandingQuery) -> Result<bool, Error> {
        self.gate.reset(&self.policy(&query.policy)?, &query.subject).await
    }

    /// Charges without deciding.
    pub(crate) async fn charge(&self, request: &AcquireRequest) -> Result<Permit, Error> {
        if request.wait_ms.is_some() || !request.behind.is_empty() {
            let text = "a charge is made at once; leave wait_ms and behind out";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let policy = self.policy(&request.policy)?;
        self.gate.charge(&request.charge(&policy)).await
    }

    pub(crate) async fn close_until(&self, request: &CloseRequest) -> Result<bool, Error> {
        let policy = self.policy(&request.policy)?;
        let ask = Ask::new(&policy, request.subject.as_str());
        self.gate.close_until(&ask, &request.limit, request.until).await
    }

    /// Whether the server takes requests and its store answers.
    pub(crate) async fn ready(&self) -> Result<(), Error> {
        let unavailable = |text: &str| Err(Error::new(ErrorKind::Unavailable, text));
        if *self.closing.borrow() {
            return unavailable("the server is stopping");
        }
        let policies = self.policies();
        let Some(policy) = policies.iter().next() else { return Ok(()) };
        let standing = self.gate.standing(policy, READY_SUBJECT);
        match within(&*self.clock, READY_WAIT_MAX, standing).await {
            Some(standing) => standing.map(|_| ()),
            None => unavailable("the store did not answer in time"),
        }
    }

    /// Says when the server closes.
    pub(crate) fn closing(&self) -> watch::Receiver<bool> {
        self.closing.subscribe()
    }

    /// Answers whoever waits, and from now on nobody waits.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }
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
