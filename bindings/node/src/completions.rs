//! Results of operations that were not done at once, on their way back to the event loop.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use napi::Env;
use napi::bindgen_prelude::{Either4, Function};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi_derive::napi;
use tollgate_bindings::runtime::{self, Running};
use tollgate_bindings::{BoxFuture, Decision, Error, Gate, Permit};
use tollgate_protocol::json::Denied;

use crate::convert::{Result, js_error, kind_name, to_json};
use crate::gate::NativeGate;
use crate::permit::NativePermit;

/// The result of an operation.
pub(crate) enum Output {
    Decision(Decision),
    Permit(Permit),
    Gate(Gate),
    Json(String),
    Changed(bool),
}

/// An output in JavaScript: a denial is the JSON of its problem document.
pub(crate) type JsOutput = Either4<NativePermit, NativeGate, String, bool>;

impl From<Output> for JsOutput {
    fn from(output: Output) -> Self {
        match output {
            Output::Decision(Decision::Admitted(admitted)) => {
                Self::A(NativePermit::new(admitted.claim()))
            }
            Output::Decision(Decision::Denied(denial)) => Self::C(to_json(&Denied::from(&*denial))),
            Output::Permit(permit) => Self::A(NativePermit::new(permit)),
            Output::Gate(gate) => Self::B(NativeGate::new(gate)),
            Output::Json(json) => Self::C(json),
            Output::Changed(changed) => Self::D(changed),
        }
    }
}

type Outcome = Result<Output, Error>;

/// Wakes the event loop. Weak: JavaScript keeps the process alive while operations are under way.
type Wake = ThreadsafeFunction<(), (), (), napi::Status, false, true, 1>;

/// The operations under way of one environment: the main thread, or a worker.
#[napi]
pub struct Completions(Arc<Shared>);

struct Shared {
    running: Mutex<HashMap<u32, Running<Outcome>>>,
    done: Mutex<Vec<u32>>,
    is_woken: AtomicBool,
    next: AtomicU32,
    wake: Wake,
}

/// A finished operation.
#[napi(object, object_from_js = false)]
pub struct Completion {
    /// What the operation returned when it started.
    pub id: u32,
    /// The kind of its error.
    pub kind: Option<String>,
    /// The message of its error.
    pub message: Option<String>,
    /// Its result.
    pub value: Option<JsOutput>,
}

#[napi]
impl Completions {
    /// Calls `wake` from the event loop when there is something to [`drain`](Self::drain).
    #[napi(constructor)]
    pub fn new(env: Env, wake: Function<'_, (), ()>) -> napi::Result<Self> {
        let wake = wake
            .build_threadsafe_function::<()>()
            .weak::<true>()
            .max_queue_size::<1>()
            .build_callback(|_| Ok(()))?;
        let shared = Arc::new(Shared {
            running: Mutex::default(),
            done: Mutex::default(),
            is_woken: AtomicBool::new(false),
            next: AtomicU32::new(0),
            wake,
        });
        // A worker that ends takes nothing with it: what it waited for is cancelled, and admissions are released.
        env.add_env_cleanup_hook(Arc::clone(&shared), |shared| {
            let unwanted = std::mem::take(&mut *lock(&shared.running));
            drop(unwanted);
        })?;
        Ok(Self(shared))
    }

    /// Returns what finished since the last call.
    #[napi]
    pub fn drain(&self) -> Vec<Completion> {
        self.0.is_woken.store(false, Ordering::Release);
        let done = std::mem::take(&mut *lock(&self.0.done));
        let completion = |id: u32| {
            let running = lock(&self.0.running).remove(&id)?;
            let completion = Completion { id, kind: None, message: None, value: None };
            Some(match running.take()? {
                Ok(output) => Completion { value: Some(output.into()), ..completion },
                Err(error) => Completion {
                    kind: Some(kind_name(error.kind()).to_owned()),
                    message: Some(error.to_string()),
                    ..completion
                },
            })
        };
        done.into_iter().filter_map(completion).collect()
    }

    /// Gives an operation up. Returns false if it is done: its result is in the next [`drain`](Self::drain), or was.
    #[napi]
    pub fn cancel(&self, id: u32) -> bool {
        let running = lock(&self.0.running).remove(&id);
        running.is_some()
    }
}

impl Completions {
    /// Starts `work`: `Ok(output)` if it is done at once, otherwise the number of its completion.
    pub(crate) fn start(
        &self,
        mut work: BoxFuture<'static, Outcome>,
    ) -> Result<Result<Output, u32>> {
        if let Some(outcome) = runtime::poll_once(&mut work).map_err(|error| js_error(&error))? {
            return outcome.map(Ok).map_err(|error| js_error(&error));
        }
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&self.0);
        // Held until the operation is in the table: it may be done on another thread before.
        let mut running = lock(&self.0.running);
        let operation = runtime::run(work, move || shared.finished(id));
        running.insert(id, operation.map_err(|error| js_error(&error))?);
        Ok(Err(id))
    }
}

impl Shared {
    fn finished(&self, id: u32) {
        lock(&self.done).push(id);
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            // A full queue has a wake-up under way; one that is closing has no listener.
            self.wake.call((), ThreadsafeFunctionCallMode::NonBlocking);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
