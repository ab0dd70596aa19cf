//! A gate of a package: a store, a strategy, a queue, and what a fork does to them.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use tokio::sync::{OnceCell, watch};
use tollgate::clock::SystemClock;
use tollgate::core::Wait;
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::incident::{Recorder, Violation, report_violation};
use tollgate::observe::{Event, Observer};
use tollgate::policy::Policies;
use tollgate::spec::PolicySpec;
use tollgate::{Ask, Clock, Denial, Gate as CoreGate, GateExt as _, Policy, Queue, Span, Standing};
use tollgate_config::StoreConfig;
use tollgate_config::open::{self, Opened, SHUTDOWN_MAX};
use tollgate_protocol::json::{AcquireRequest, AskPolicies, ChargeRequest};
use tollgate_protocol::permit_token::{self, KEY_BYTES};

use crate::finish::{FinishOnDrop, Finishing};
use crate::permit::{Admitted, Permit, foreign};
use crate::runtime::{self, lock};
use crate::{Error, ErrorKind, Incident, ManualClock, Source};

/// The longest wait of an ask.
pub const WAIT_MAX: Span = Span::from_hours(24);

/// The jitter of waiters on a store that other processes share.
const JITTER: Span = Span::from_millis(5);

/// The answer to an ask. Errors mean "could not decide".
#[derive(Debug)]
pub enum Decision {
    /// Go ahead: [claim](Admitted::claim) the permit, then settle or release it.
    Admitted(Admitted),
    /// Not now.
    Denied(Box<Denial>),
}

/// A gate. Clones share it.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    source: Source,
    clock: Arc<dyn Clock>,
    process: RwLock<Arc<Process>>,
    is_closed: AtomicBool,
}

/// The state of a gate in one process.
#[derive(Debug)]
struct Process {
    id: u32,
    open: OnceCell<Arc<Open>>,
}

/// An open store with its queue.
#[derive(Debug)]
pub(crate) struct Open {
    process: u32,
    gate: Arc<Queue<Finishing>>,
    policies: Policies,
    clock: Arc<dyn Clock>,
    keys: watch::Receiver<[u8; KEY_BYTES]>,
    /// A store that brokers of an older version share.
    has_older_format: bool,
    owner: Mutex<Option<Owner>>,
}

#[derive(Debug)]
enum Owner {
    Opened(Opened),
    #[cfg(feature = "embedded")]
    Folder(Arc<crate::folder::Folder>),
}

/// The gates that [`runtime::shutdown`] closes.
static GATES: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

pub(crate) fn open_gates() -> Vec<Gate> {
    std::mem::take(&mut *lock(&GATES)).iter().filter_map(Weak::upgrade).map(Gate).collect()
}

/// Returns the data folders of the gates of this process.
#[cfg(feature = "embedded")]
pub(crate) fn open_folders() -> Vec<Arc<crate::folder::Folder>> {
    let gates: Vec<_> = lock(&GATES).iter().filter_map(Weak::upgrade).collect();
    let folder = |gate: Arc<Inner>| {
        let process = gate.process().ok()?;
        match &*lock(&process.open.get()?.owner) {
            Some(Owner::Folder(folder)) => Some(Arc::clone(folder)),
            _ => None,
        }
    };
    gates.into_iter().filter_map(folder).collect()
}

impl Gate {
    /// Opens the store of `source`, with `clock` instead of the machine's for tests.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if the store cannot be reached, [`Invalid`](ErrorKind::Invalid) if it rejects
    /// the configuration.
    pub async fn open(source: Source, clock: Option<ManualClock>) -> Result<Self, Error> {
        let clock: Arc<dyn Clock> = match clock {
            Some(clock) => Arc::new(clock),
            None => Arc::new(SystemClock),
        };
        let process = RwLock::new(Arc::new(Process::new()));
        let inner = Arc::new(Inner { source, clock, process, is_closed: AtomicBool::new(false) });
        inner.open().await?;
        let mut gates = lock(&GATES);
        gates.retain(|gate| gate.strong_count() != 0);
        gates.push(Arc::downgrade(&inner));
        Ok(Self(inner))
    }

    /// Decides without a future, if the gate can decide at once. Returns `None`, without side effects, if it has to call a store
    /// or to wait: then use [`acquire`](Self::acquire).
    #[must_use]
    pub fn try_acquire(&self, request: &AcquireRequest) -> Option<Result<Decision, Error>> {
        let process = match self.0.process() {
            Ok(process) => process,
            Err(error) => return Some(Err(error)),
        };
        let open = process.open.get()?;
        let policies = match open.policies_of(request) {
            Ok(policies) => policies,
            Err(error) => return Some(Err(error)),
        };
        let outcome = match request.ask(&policies) {
            Ok(ask) => open.gate.try_run(&Operation::Acquire(&ask))?,
            Err(error) => return Some(Err(error.into())),
        };
        let may_wait = request.wait_ms.is_some_and(|wait| wait != 0);
        match outcome {
            Ok(Outcome::Decided(tollgate::Decision::Denied(denial)))
                if may_wait && denial.wait != Wait::Never =>
            {
                None
            }
            Ok(Outcome::Decided(decision)) => Some(Ok(open.decision(decision))),
            Ok(other) => Some(Err(unexpected(&other))),
            Err(error) => Some(Err(error.into())),
        }
    }

    /// Decides, and waits up to the `wait_ms` of `request` for room. Dropping the future takes nothing.
    #[must_use]
    pub fn acquire(&self, request: AcquireRequest) -> BoxFuture<'static, Result<Decision, Error>> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let open = inner.open().await?;
            let policies = open.policies_of(&request)?;
            let ask = request.ask(&policies)?;
            let decision = match request.wait_ms.map_or(Span::ZERO, Span::from_millis) {
                Span::ZERO => open.gate.acquire(&ask).await?,
                wait => open.gate.acquire_within(&ask, open.clock.now() + wait).await?,
            };
            Ok(open.decision(decision))
        })
    }

    /// Charges without deciding: a cost that is known only afterwards. It is sent even if the future is dropped.
    #[must_use]
    pub fn charge(&self, request: ChargeRequest) -> BoxFuture<'static, Result<Permit, Error>> {
        let inner = Arc::clone(&self.0);
        let work = async move {
            let open = inner.open().await?;
            let request = AcquireRequest::from(request);
            let policies = open.policies_of(&request)?;
            let permit = open.gate.charge(&request.charge(&policies)?).await?;
            Ok(Permit::new(permit, open))
        };
        Box::pin(FinishOnDrop::new(work, |_| Box::pin(std::future::ready(()))))
    }

    /// Returns the standing of `subject` on every limit of `policy`, consuming nothing.
    #[must_use]
    pub fn standing(
        &self,
        policy: String,
        subject: String,
    ) -> BoxFuture<'static, Result<Vec<Standing>, Error>> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let open = inner.open().await?;
            Ok(open.gate.standing(open.policies.get(&policy)?, &subject).await?)
        })
    }

    /// Deletes what is counted for `subject` under `policy`, for an operator. Resolves to whether there was anything.
    #[must_use]
    pub fn reset(
        &self,
        policy: String,
        subject: String,
    ) -> BoxFuture<'static, Result<bool, Error>> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let open = inner.open().await?;
            Ok(open.gate.reset(open.policies.get(&policy)?, &subject).await?)
        })
    }

    /// Reports that a provider refused a call that was admitted for `policy` and `subject`, and closes `limit`, or the one with
    /// the smallest part left, for `retry_after`. With a permit, use [`Permit::violation`].
    #[must_use]
    pub fn violation(
        &self,
        policy: String,
        subject: String,
        limit: Option<String>,
        retry_after: Span,
    ) -> BoxFuture<'static, Result<Incident, Error>> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let open = inner.open().await?;
            let charges = vec![(open.policies.get(&policy)?, subject.as_str())];
            open.violation(charges, limit.as_deref(), retry_after).await
        })
    }

    /// Returns the permit of a [token](Permit::token), also of another process on the same store.
    #[must_use]
    pub fn permit(&self, token: String) -> BoxFuture<'static, Result<Permit, Error>> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let open = inner.open().await?;
            let permit =
                permit_token::decode(&token, &open.key(), |name| open.policies.get(name).cloned())?;
            Ok(Permit::new(permit, open))
        })
    }

    /// Returns the policies.
    #[must_use]
    pub fn policies(&self) -> Vec<PolicySpec> {
        self.0.source.config.policies.iter().map(PolicySpec::from_policy).collect()
    }

    /// Returns the policy called `name` as it is in force for `subject`, without overrides that the store has.
    ///
    /// # Errors
    /// [`UnknownPolicy`](ErrorKind::UnknownPolicy) with the names there are.
    pub fn policy(&self, name: &str, subject: &str) -> Result<Policy, Error> {
        Ok(self.0.source.config.policies.get(name)?.for_subject(subject).clone())
    }

    /// Returns the kind of the store, such as `redis`.
    #[must_use]
    pub fn store_kind(&self) -> &'static str {
        self.0.source.config.store.kind()
    }

    /// Returns the time of the gate's clock.
    #[must_use]
    pub fn now(&self) -> tollgate::Timestamp {
        self.0.clock.now()
    }

    /// Returns whether the store is away and decisions are made without it.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        let Ok(process) = self.0.process() else { return false };
        let Some(open) = process.open.get() else { return false };
        match &*lock(&open.owner) {
            Some(Owner::Opened(opened)) => opened.health(self.store_kind())().degraded,
            _ => false,
        }
    }

    /// Returns how many asks wait in this process.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let process = self.0.process().ok();
        process.and_then(|process| process.open.get().map(|open| open.gate.waiting())).unwrap_or(0)
    }

    /// Closes the gate: posts what a strategy owes, returns leased tokens, unlocks a folder. Later operations are errors.
    /// Idempotent.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if the store did not take everything within five seconds.
    #[must_use]
    pub fn close(&self) -> BoxFuture<'static, Result<(), Error>> {
        self.0.is_closed.store(true, Ordering::Release);
        let process = Arc::clone(&self.0.process.read().unwrap_or_else(PoisonError::into_inner));
        // The state of the parent belongs to the parent.
        let open = process.open.get().filter(|_| process.id == process::id()).cloned();
        let work = async move {
            match open {
                Some(open) => open.close().await,
                None => Ok(()),
            }
        };
        Box::pin(FinishOnDrop::new(work, |_| Box::pin(std::future::ready(()))))
    }
}

impl Process {
    fn new() -> Self {
        Self { id: process::id(), open: OnceCell::new() }
    }
}

impl Inner {
    /// Returns the state in this process. After a fork it is a new one, which is not open yet.
    fn process(&self) -> Result<Arc<Process>, Error> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the gate is closed; open another one"));
        }
        let current = Arc::clone(&self.process.read().unwrap_or_else(PoisonError::into_inner));
        if current.id == process::id() {
            return Ok(current);
        }
        if let StoreConfig::Memory { .. } = self.source.config.store {
            return Err(Error::new(
                ErrorKind::Forked,
                format!(
                    "the memory store belongs to process {}, which this one was forked from; open the gate after the fork, \
                     or use a store that processes share",
                    current.id
                ),
            ));
        }
        let mut process = self.process.write().unwrap_or_else(PoisonError::into_inner);
        if process.id != process::id() {
            // Leaked: its threads are not in this process, and what it leased belongs to the parent.
            std::mem::forget(std::mem::replace(&mut *process, Arc::new(Process::new())));
        }
        std::mem::forget(current);
        Ok(Arc::clone(&process))
    }

    /// Returns the open store, which is opened again after a fork.
    async fn open(&self) -> Result<Arc<Open>, Error> {
        let process = self.process()?;
        let open = process.open.get_or_try_init(|| async {
            // On the runtime: a store starts tasks, and the first poll may be on another thread.
            let (source, clock) = (self.source.clone(), Arc::clone(&self.clock));
            let opening = runtime::handle()?.spawn(async move { Open::new(&source, clock).await });
            opening.await.map_err(|error| {
                Error::new(
                    ErrorKind::Unavailable,
                    format!("opening the store was cut off: {error}"),
                )
            })?
        });
        open.await.cloned()
    }
}

impl Open {
    async fn new(source: &Source, clock: Arc<dyn Clock>) -> Result<Arc<Self>, Error> {
        let config = &*source.config;
        let (store, owner, keys) = match &config.store {
            #[cfg(feature = "embedded")]
            StoreConfig::Embedded { .. } => {
                let folder =
                    crate::folder::Folder::open(Arc::clone(&source.config), &clock).await?;
                let keys = watch::Sender::new(folder.key()).subscribe();
                (Arc::clone(&folder) as Arc<dyn CoreGate>, Owner::Folder(folder), keys)
            }
            store => {
                let observer = Arc::new(NoObserver);
                let opening = open::for_server(store, config, "", Arc::clone(&clock), observer);
                let opened = Box::pin(opening).await?;
                let keys = match store {
                    // The broker verifies what it sealed; this wrapping only has to be the same in every process.
                    StoreConfig::Broker(_) => {
                        watch::Sender::new(permit_token::key_from("")).subscribe()
                    }
                    _ => opened.keys(),
                };
                (opened.gate(), Owner::Opened(opened), keys)
            }
        };
        let jitter = if config.store.remote_kind().is_some() { JITTER } else { Span::ZERO };
        let gate = Arc::new_cyclic(|queue: &Weak<Queue<Finishing>>| {
            let finishing = Finishing::new(store, Weak::clone(queue) as Weak<dyn CoreGate>);
            Queue::new(finishing, Arc::clone(&clock)).jitter(jitter)
        });
        Ok(Arc::new(Self {
            process: process::id(),
            gate,
            policies: config.policies.clone(),
            clock,
            keys,
            has_older_format: config.store.older_format().is_some(),
            owner: Mutex::new(Some(owner)),
        }))
    }

    pub(crate) const fn process(&self) -> u32 {
        self.process
    }

    /// Returns the gate, unless this is another process than the one that opened it.
    pub(crate) fn gate_here(&self) -> Result<&Arc<Queue<Finishing>>, Error> {
        if self.process == process::id() { Ok(&self.gate) } else { Err(foreign(self.process)) }
    }

    fn key(&self) -> permit_token::Key {
        let key = permit_token::Key::from(*self.keys.borrow());
        if self.has_older_format { key.without_ids() } else { key }
    }

    pub(crate) fn seal(&self, permit: &tollgate::Permit) -> String {
        permit_token::encode(permit, &self.key())
    }

    fn policies_of(&self, request: &AcquireRequest) -> Result<AskPolicies, Error> {
        if let Some(wait) = request.wait_ms.map(Span::from_millis).filter(|wait| WAIT_MAX < *wait) {
            return Err(Error::invalid(format!(
                "a wait of {wait} is too long; at most {WAIT_MAX}"
            )));
        }
        Ok(request.resolve(|name, _| self.policies.get(name).cloned())?)
    }

    fn decision(self: &Arc<Self>, decision: tollgate::Decision) -> Decision {
        match decision {
            tollgate::Decision::Admitted(permit) => {
                Decision::Admitted(Admitted::new(permit, Arc::clone(self)))
            }
            tollgate::Decision::Denied(denial) => Decision::Denied(Box::new(denial)),
        }
    }

    pub(crate) async fn violation(
        &self,
        charges: Vec<(&Policy, &str)>,
        limit: Option<&str>,
        retry_after: Span,
    ) -> Result<Incident, Error> {
        let gate = self.gate_here()?;
        let ask = Ask::for_subjects(charges)
            .ok_or_else(|| Error::invalid("name at least one policy and subject"))?;
        let violation = Violation { ask: &ask, limit, retry_after };
        let recorder = Recorder::default();
        Ok(report_violation(gate, &recorder, &NoObserver, &*self.clock, &violation).await?)
    }

    async fn close(&self) -> Result<(), Error> {
        let owner = lock(&self.owner).take();
        match owner {
            None => Ok(()),
            #[cfg(feature = "embedded")]
            Some(Owner::Folder(folder)) => folder.close().await,
            Some(Owner::Opened(opened)) => {
                Ok(opened.shutdown(self.clock.now() + SHUTDOWN_MAX).await?)
            }
        }
    }
}

impl Drop for Inner {
    /// A gate that nobody uses any more is closed in the background.
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        if process.id != process::id() || self.is_closed.load(Ordering::Acquire) {
            return;
        }
        if let (Some(open), Ok(runtime)) = (process.open.get().cloned(), runtime::handle()) {
            runtime.spawn(async move { drop(open.close().await) });
        }
    }
}

/// For asks under policies that the configuration does not have, such as those of an AWS service.
impl CoreGate for Gate {
    fn run<'a>(
        &'a self,
        operation: Operation<'a>,
    ) -> BoxFuture<'a, Result<Outcome, tollgate::Error>> {
        Box::pin(async move {
            let open = self.0.open().await.map_err(|error| error.to_gate_error())?;
            open.gate.run(operation).await
        })
    }

    fn try_run(&self, operation: &Operation<'_>) -> Option<Result<Outcome, tollgate::Error>> {
        self.0.process().ok()?.open.get()?.gate.try_run(operation)
    }
}

/// The program that uses a package has no sinks of events.
#[derive(Debug)]
struct NoObserver;

impl Observer for NoObserver {
    fn observe(&self, _: &Event<'_>) {}
}

#[cold]
fn unexpected(outcome: &Outcome) -> Error {
    Error::new(ErrorKind::Corrupt, format!("unexpected outcome from the store: {outcome:?}"))
}
