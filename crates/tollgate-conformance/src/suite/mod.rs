//! The conformance suite for every gate.
//!
//! A case is a function of a [`Fixture`] that returns what went wrong, so that a test can show that a sabotaged gate fails.
//! Differences between stores are [`Capabilities`], never a copy of a case.
//!
//! ```
//! use std::sync::Arc;
//! use tollgate::clock::ManualClock;
//! use tollgate::Memory;
//! use tollgate_conformance::Fixture;
//!
//! let clock = ManualClock::new();
//! let gate = Memory::with(Arc::new(clock.clone()), 10_000);
//! tollgate_conformance::run_all(&Fixture::new(Arc::new(gate), clock)).unwrap();
//! ```

mod agreement;
mod contention;
mod joint;
mod promises;

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::Gate;
use tollgate::clock::ManualClock;
use tollgate_core::{Error, ErrorKind, Operation, Outcome};

use crate::vectors;

/// How a gate may differ from others.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// How many random scripts are compared with the core; fewer for a slow store.
    pub stories: u32,
    /// How many concurrent tasks the contention cases have.
    pub tasks: usize,
    /// Whether arrears are charged limit by limit; otherwise the costs are charged by unit.
    pub arrears: bool,
    /// Whether asks may have several charges.
    pub joint: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { stories: 200, tasks: 64, arrears: true, joint: false }
    }
}

/// A gate under test, its clock, and a runtime to drive it.
#[derive(Debug)]
pub struct Fixture {
    gate: Arc<dyn Gate>,
    clock: ManualClock,
    runtime: tokio::runtime::Runtime,
    capabilities: Capabilities,
    bounded_refunds: bool,
    exact_logs: bool,
    subjects: AtomicU64,
    /// Dropped after the gate.
    resources: Vec<Box<dyn Any + Send>>,
}

impl Fixture {
    /// Tests `gate`, which decides by `clock`.
    ///
    /// # Panics
    /// If no thread can be started.
    #[must_use]
    pub fn new(gate: Arc<dyn Gate>, clock: ManualClock) -> Self {
        Self::open(clock, std::future::ready(gate))
    }

    /// Tests the gate that `open` returns, which decides by `clock`. The runtime of the fixture runs `open`, and lives as
    /// long as the gate.
    ///
    /// # Panics
    /// If no thread can be started.
    #[must_use]
    pub fn open(clock: ManualClock, open: impl Future<Output = Arc<dyn Gate>>) -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().expect("two threads");
        Self {
            gate: runtime.block_on(open),
            clock,
            runtime,
            capabilities: Capabilities::default(),
            bounded_refunds: false,
            exact_logs: false,
            subjects: AtomicU64::new(0),
            resources: Vec::new(),
        }
    }

    /// Keeps `resource`, such as a server, until the gate is dropped.
    #[must_use]
    pub fn holding(mut self, resource: impl Any + Send) -> Self {
        self.resources.push(Box::new(resource));
        self
    }

    /// Replaces the capabilities.
    #[must_use]
    pub const fn with_capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// Allows continuous buckets to credit less than the core: after a refund, a standing may be stricter than the core's,
    /// never looser.
    #[must_use]
    pub const fn with_bounded_refunds(mut self) -> Self {
        self.bounded_refunds = true;
        self
    }

    /// Tests the format of earlier programs: a rolling window without `resolution` keeps an [exact
    /// log](tollgate_core::Policy::with_exact_logs), and an ask that is repeated after its permit was settled is charged again.
    /// Random scripts run under such policies, and vectors about the grid are skipped.
    #[must_use]
    pub const fn with_exact_logs(mut self) -> Self {
        self.exact_logs = true;
        self
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Returns a subject that was not used on this gate.
    fn subject(&self) -> String {
        format!("subject-{}", self.subjects.fetch_add(1, Ordering::Relaxed))
    }

    /// Runs an operation on the gate, on the synchronous fast path if the gate has one.
    fn run(&self, operation: &Operation<'_>) -> Result<Outcome, Error> {
        let outcome = match self.gate.try_run(operation) {
            Some(outcome) => outcome,
            None => self.block_on(self.gate.run(*operation)),
        };
        outcome.map_err(|error| to_core(&error))
    }
}

fn to_core(error: &tollgate::Error) -> Error {
    let kind = match error.kind() {
        tollgate::ErrorKind::Conflict => ErrorKind::Conflict,
        tollgate::ErrorKind::Contended => ErrorKind::Contended,
        tollgate::ErrorKind::Expired => ErrorKind::Expired,
        tollgate::ErrorKind::Invalid => ErrorKind::Invalid,
        _ => ErrorKind::Corrupt,
    };
    Error::new(kind, error.to_string())
}

/// What a case returns; the error says what went wrong.
type Checked<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

type Case = fn(&Fixture) -> Checked;

const CASES: &[(&str, Case)] = &[
    ("passes_vectors", agreement::passes_vectors),
    ("agrees_with_core", agreement::agrees_with_core),
    ("waits_honestly", promises::waits_honestly),
    ("refuses_without_charging", promises::refuses_without_charging),
    ("is_all_or_nothing", promises::is_all_or_nothing),
    ("recognises_repeats", promises::recognises_repeats),
    ("charges_again_after_release", promises::charges_again_after_release),
    ("charges_arrears", promises::charges_arrears),
    ("gives_back_once", promises::gives_back_once),
    ("refuses_what_never_fits", promises::refuses_what_never_fits),
    ("bad_asks_change_nothing", promises::bad_asks_change_nothing),
    ("keeps_use_when_numbers_change", promises::keeps_use_when_numbers_change),
    ("admits_exactly_the_limit", contention::admits_exactly_the_limit),
    ("keeps_subjects_apart", contention::keeps_subjects_apart),
    ("charges_a_shared_id_once", contention::charges_a_shared_id_once),
    ("loses_no_slot", contention::loses_no_slot),
    ("passes_joint_vectors", joint::passes_vectors),
    ("agrees_with_the_joint_model", joint::agrees_with_model),
    ("charges_all_or_none_at_once", joint::charges_all_or_none_at_once),
    ("refused_asks_take_nothing_meanwhile", joint::refused_asks_take_nothing_meanwhile),
    ("charges_a_shared_joint_id_once", joint::charges_a_shared_id_once),
];

/// Runs every case on one fixture.
///
/// # Errors
/// Every case that failed, with what went wrong.
pub fn run_all(fixture: &Fixture) -> Result<(), String> {
    let failures: Vec<String> = CASES
        .iter()
        .filter_map(|(name, case)| case(fixture).err().map(|why| format!("{name}: {why}")))
        .collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Runs the case `name`.
///
/// # Errors
/// What went wrong.
pub fn run_case(name: &str, fixture: &Fixture) -> Result<(), String> {
    let case = CASES.iter().find(|(known, _)| *known == name);
    let (_, case) = case.ok_or_else(|| format!("no case is called {name:?}"))?;
    case(fixture).map_err(|why| why.to_string())
}

/// Runs the golden vector `name`.
///
/// # Errors
/// What went wrong.
pub fn run_vector(name: &str, fixture: &Fixture) -> Result<(), String> {
    let vector = vectors::load(name)?;
    agreement::passes_vector(&vector, fixture).map_err(|why| why.to_string())
}

/// Fails with a text unless `holds`.
pub(crate) fn ensure(holds: bool, why: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(why().into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The macro lists the names by hand.
    #[test]
    fn the_macro_declares_every_case_and_every_vector() {
        let declared: Vec<&str> = include_str!("../macros.rs").split_whitespace().collect();
        for (name, _) in CASES.iter().filter(|(name, _)| *name != "passes_vectors") {
            assert!(declared.contains(name), "{name}");
        }
        for vector in vectors::load_all().unwrap() {
            assert!(declared.contains(&vector.name.replace('-', "_").as_str()), "{}", vector.name);
        }
    }
}
