//! One suite for every gate: a store or a wrapper is done when it passes.
//!
//! The suite is plain functions over a [`Fixture`]. Each returns what went wrong as text, so that a sabotaged gate can be
//! shown to fail. Real differences between stores are [`Capabilities`], never a fork of a test.
//!
//! ```
//! use std::sync::Arc;
//! use tollgate::{Atomic, ManualClock, Memory};
//! use tollgate_testing::conformance::{self, Fixture};
//!
//! let clock = ManualClock::new();
//! let gate = Atomic::new(Memory::with(Arc::new(clock.clone()), 10_000));
//! conformance::run_all(&Fixture::new(Arc::new(gate), clock)).unwrap();
//! ```

mod agreement;
mod contention;
mod promises;

pub use agreement::{agrees_with_core, passes_vectors};
pub use contention::{
    admits_exactly_the_limit, charges_a_shared_id_once, keeps_subjects_apart, loses_no_slot,
};
pub use promises::{
    bad_asks_change_nothing, charges_again_after_release, charges_arrears, gives_back_once,
    is_all_or_nothing, keeps_use_when_numbers_change, recognises_repeats, refuses_what_never_fits,
    refuses_without_charging, waits_honestly,
};

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Gate, ManualClock};
use tollgate_core::{Error, ErrorKind, Operation, Outcome};

/// What a gate really does differently.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// How many random stories to compare with the core; fewer for a store that is slow to reach.
    pub stories: u32,
    /// How many tasks ask at once in the contention tests.
    pub tasks: usize,
    /// Whether arrears are charged limit by limit; otherwise the costs are charged by unit.
    pub arrears: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { stories: 200, tasks: 64, arrears: true }
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
}

impl Fixture {
    /// A gate that decides by `clock`, driven by a runtime of two threads.
    ///
    /// # Panics
    /// If the machine has no thread left.
    #[must_use]
    pub fn new(gate: Arc<dyn Gate>, clock: ManualClock) -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().expect("two threads");
        let (capabilities, subjects) = (Capabilities::default(), AtomicU64::new(0));
        Self {
            gate,
            clock,
            runtime,
            capabilities,
            bounded_refunds: false,
            exact_logs: false,
            subjects,
        }
    }

    /// The same gate with other capabilities.
    #[must_use]
    pub const fn with_capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// The same gate, whose continuous buckets credit a lower bound of what the core credits: a standing after giving back
    /// may be stricter than the core's, never looser.
    #[must_use]
    pub const fn with_bounded_refunds(mut self) -> Self {
        self.bounded_refunds = true;
        self
    }

    /// The same gate, which keeps the [exact log](tollgate_core::Policy::with_exact_logs) of a rolling window without `resolution`, as stores do
    /// that write the format of earlier programs. Stories are played under such policies, and vectors that are about the grid are
    /// left out.
    #[must_use]
    pub const fn with_exact_logs(mut self) -> Self {
        self.exact_logs = true;
        self
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// A subject that nobody has used on this gate.
    fn subject(&self) -> String {
        format!("subject-{}", self.subjects.fetch_add(1, Ordering::Relaxed))
    }

    /// Runs an operation through the gate's verbs.
    fn run(&self, operation: &Operation<'_>) -> Result<Outcome, Error> {
        self.block_on(through(&*self.gate, operation)).map_err(|error| to_core(&error))
    }
}

/// One operation through the verbs of a gate.
async fn through(gate: &dyn Gate, operation: &Operation<'_>) -> Result<Outcome, tollgate::Error> {
    Ok(match operation {
        Operation::Acquire(ask) => Outcome::Decided(gate.acquire(ask).await?),
        Operation::Charge(ask) => Outcome::Permitted(gate.charge(ask).await?),
        Operation::Settle(permit, actual) => Outcome::Settled(gate.settle(permit, actual).await?),
        Operation::Release(permit) => Outcome::Settled(gate.release(permit).await?),
        Operation::Renew(permit) => Outcome::Permitted(gate.renew(permit).await?),
        Operation::Close { policy, subject, limit, until } => {
            let ask = tollgate_core::Ask::new(policy, *subject);
            Outcome::Done(gate.close_until(&ask, limit, *until).await?)
        }
        Operation::Standing { policy, subject } => {
            Outcome::Stands(gate.standing(policy, subject).await?)
        }
        Operation::Reset { policy, subject } => Outcome::Done(gate.reset(policy, subject).await?),
    })
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

/// A test of the suite.
pub type Test = fn(&Fixture) -> Result<(), String>;

/// Every test of the suite, by name.
pub const ALL: &[(&str, Test)] = &[
    ("passes_vectors", passes_vectors),
    ("agrees_with_core", agrees_with_core),
    ("waits_honestly", waits_honestly),
    ("refuses_without_charging", refuses_without_charging),
    ("is_all_or_nothing", is_all_or_nothing),
    ("recognises_repeats", recognises_repeats),
    ("charges_again_after_release", charges_again_after_release),
    ("charges_arrears", charges_arrears),
    ("gives_back_once", gives_back_once),
    ("refuses_what_never_fits", refuses_what_never_fits),
    ("bad_asks_change_nothing", bad_asks_change_nothing),
    ("keeps_use_when_numbers_change", keeps_use_when_numbers_change),
    ("admits_exactly_the_limit", admits_exactly_the_limit),
    ("keeps_subjects_apart", keeps_subjects_apart),
    ("charges_a_shared_id_once", charges_a_shared_id_once),
    ("loses_no_slot", loses_no_slot),
];

/// Runs the whole suite.
///
/// # Errors
/// Every test that failed, with what went wrong.
pub fn run_all(fixture: &Fixture) -> Result<(), String> {
    let failures: Vec<String> = ALL
        .iter()
        .filter_map(|(name, test)| test(fixture).err().map(|why| format!("{name}: {why}")))
        .collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Fails with a text unless `holds`.
pub(crate) fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}
