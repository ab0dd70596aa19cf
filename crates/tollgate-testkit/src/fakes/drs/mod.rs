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
pub use wire::{Reply, Response};

use faults::Faults;
use jobs::State;

pub const OPERATIONS: [&str; 7] = [
    "DescribeSourceServers",
    "DescribeJobs",
    "DescribeJobLogItems",
    "StartRecovery",
    "DescribeRecoveryInstances",
    "TerminateRecoveryInstances",
    "GetLaunchConfiguration",
];

/// The account, and the behaviour of the service.
#[derive(Clone, Debug)]
pub struct Settings {
    pub servers: usize,
    /// The most items of a page.
    pub page_max: usize,
    /// Calls per second and burst; `None` throttles nothing.
    pub rate: Option<(u64, u64)>,
    /// The value of `Retry-After`.
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
    /// Random faults.
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
    /// Creates an account whose jobs advance by `clock`.
    pub fn new(clock: Arc<dyn Clock>, settings: Settings) -> Self {
        let faults = Faults::new(settings.chances);
        let inner = Inner { state: State::new(&settings), arrivals: Arrivals::default(), faults };
        Self { clock, settings, inner: Mutex::new(inner) }
    }

    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Returns the id of a server; numbers start at 0.
    pub fn server_id(number: usize) -> String {
        jobs::server_id(number)
    }

    /// Injects `fault` into the next `times` calls of `operation`; of any operation for `None`.
    pub fn inject(&self, operation: Option<&'static str>, times: u32, fault: Fault) {
        self.inner().faults.add(operation, times, fault);
    }

    /// Starts `count` jobs of another client, which run until [`end_foreign_jobs`](Self::end_foreign_jobs).
    pub fn start_foreign_jobs(&self, count: usize) {
        let now = self.clock.now();
        let mut inner = self.inner();
        (0..count).for_each(|_| inner.state.start_foreign(now));
    }

    pub fn end_foreign_jobs(&self, count: usize) {
        let now = self.clock.now();
        self.inner().state.end_foreign(count, now);
    }

    pub fn arrivals(&self) -> Arrivals {
        self.inner().arrivals.clone()
    }

    /// Returns the number of jobs that are not completed.
    pub fn active_jobs(&self) -> usize {
        let now = self.clock.now();
        let mut inner = self.inner();
        inner.state.advance(&self.settings, now);
        inner.state.active().count()
    }

    /// Returns the number of jobs ever started.
    pub fn jobs_started(&self) -> usize {
        self.inner().state.jobs.len()
    }

    /// Handles a call of `operation` with `body`.
    pub fn handle(&self, operation: &str, body: &[u8]) -> Reply {
        let now = self.clock.now();
        let mut inner = self.inner();
        let fault = inner.faults.next(operation);
        inner.arrivals.record(now, operation);
        if let Some(Fault::Throttled) = fault {
            return Reply::Now(wire::throttled(self.settings.retry_after));
        }
        if let Some(reply) = fault.as_ref().and_then(Fault::instead) {
            return reply;
        }
        inner.state.advance(&self.settings, now);
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
