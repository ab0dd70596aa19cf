//! A fake of AWS Elastic Disaster Recovery, which no emulator implements.
//!
//! It throttles by a token bucket, refuses at the quotas, lets one job at a time have a server, moves jobs on with a clock
//! that is passed in, and answers in pages. It fails on command in the ways that hurt: an answer that is lost after the
//! job was started, errors of the service, slow answers. And it writes down everything that reaches it, which is the
//! proof that no call goes out without a token.
//!
//! [`FakeDrs::handle`] is the service without a network; [`Server`] puts it on a port of loopback.

mod arrivals;
mod faults;
mod http;
mod jobs;
mod operations;
mod wire;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tollgate::{Clock, Span};

pub use arrivals::{Arrival, Arrivals, Over};
pub use faults::{Chances, Fault};
pub use http::Server;
pub use wire::{Answer, Reply};

use faults::Faults;
use jobs::State;

/// The operations it has.
pub const OPERATIONS: [&str; 7] = [
    "DescribeSourceServers",
    "DescribeJobs",
    "DescribeJobLogItems",
    "StartRecovery",
    "DescribeRecoveryInstances",
    "TerminateRecoveryInstances",
    "GetLaunchConfiguration",
];

/// What the account has, and how the service behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many source servers there are.
    pub servers: usize,
    /// The most items of a page, whatever a request asks for.
    pub page_max: usize,
    /// Calls per second and burst; nothing is throttled without it.
    pub rate: Option<(u64, u64)>,
    /// What `Retry-After` says.
    pub retry_after: Span,
    /// The most jobs that are not completed.
    pub jobs_max: usize,
    /// The most servers of one job.
    pub servers_per_job_max: usize,
    /// The most servers of all jobs that are not completed.
    pub servers_in_jobs_max: usize,
    /// How long a job is pending.
    pub pending_for: Span,
    /// How long a job runs after that.
    pub running_for: Span,
    /// Servers whose launch fails.
    pub failing: BTreeSet<String>,
    /// Faults that come by chance.
    pub chances: Chances,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            servers: 10,
            page_max: 50,
            rate: None,
            retry_after: Span::from_secs(1),
            jobs_max: 20,
            servers_per_job_max: 100,
            servers_in_jobs_max: 500,
            pending_for: Span::from_secs(5),
            running_for: Span::from_secs(30),
            failing: BTreeSet::new(),
            chances: Chances::default(),
        }
    }
}

/// The service: one account in one region.
#[derive(Debug)]
pub struct FakeDrs {
    clock: Arc<dyn Clock>,
    settings: Settings,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: State,
    arrivals: Arrivals,
    faults: Faults,
}

impl FakeDrs {
    /// An account with `settings` whose jobs move on by `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, settings: Settings) -> Self {
        let faults = Faults::new(settings.chances);
        let inner = Inner { state: State::new(&settings), arrivals: Arrivals::default(), faults };
        Self { clock, settings, inner: Mutex::new(inner) }
    }

    /// Its clock.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The id of server number `number`, from 0.
    #[must_use]
    pub fn server_id(number: usize) -> String {
        jobs::server_id(number)
    }

    /// The next `times` calls of `operation` (of any, if none is named) end as `fault` says.
    pub fn inject(&self, operation: Option<&'static str>, times: u32, fault: Fault) {
        self.inner().faults.add(operation, times, fault);
    }

    /// Starts `count` jobs of somebody else, which never end unless [`end_foreign_jobs`](Self::end_foreign_jobs) is called.
    pub fn start_foreign_jobs(&self, count: usize) {
        let now = self.clock.now();
        let mut inner = self.inner();
        (0..count).for_each(|_| inner.state.start_foreign(now));
    }

    /// Ends `count` of those jobs.
    pub fn end_foreign_jobs(&self, count: usize) {
        let now = self.clock.now();
        self.inner().state.end_foreign(count, now);
    }

    /// Everything that reached it.
    #[must_use]
    pub fn arrivals(&self) -> Arrivals {
        self.inner().arrivals.clone()
    }

    /// How many jobs are not completed now.
    #[must_use]
    pub fn active_jobs(&self) -> usize {
        let now = self.clock.now();
        let mut inner = self.inner();
        inner.state.move_on(&self.settings, now);
        inner.state.active().count()
    }

    /// How many jobs were ever started.
    #[must_use]
    pub fn jobs_started(&self) -> usize {
        self.inner().state.jobs.len()
    }

    /// What the service says to a call of `operation` with `body`.
    pub fn handle(&self, operation: &str, body: &[u8]) -> Reply {
        let now = self.clock.now();
        let mut inner = self.inner();
        let fault = inner.faults.next(operation);
        inner.arrivals.write_down(now, operation);
        if let Some(Fault::Throttled) = fault {
            return Reply::Now(wire::throttled(self.settings.retry_after));
        }
        if let Some(reply) = fault.as_ref().and_then(Fault::instead) {
            return reply;
        }
        inner.state.move_on(&self.settings, now);
        if !inner.state.throttle.takes(self.settings.rate, now) {
            return Reply::Now(wire::throttled(self.settings.retry_after));
        }
        let answer =
            match serde_json::from_slice::<Value>(if body.is_empty() { b"{}" } else { body }) {
                Ok(request) => {
                    operations::answer(&mut inner.state, &self.settings, now, operation, &request)
                }
                Err(error) => Err(wire::error(
                    400,
                    "ValidationException",
                    json!({ "message": error.to_string() }),
                )),
            };
        drop(inner);
        let answer = answer.unwrap_or_else(|refusal| refusal);
        match fault {
            Some(fault) => fault.after(answer),
            None => Reply::Now(answer),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
