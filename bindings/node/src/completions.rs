//! Results of operations that were not done at once, on their way back to the event loop.

use std::sync::Arc;

use napi::Env;
use napi::bindgen_prelude::{Either3, Either4, Function};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi_derive::napi;
use tollgate_bindings::{Batch, BoxFuture, Decision, Error, Gate, Permit, runtime};
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
pub struct Completions(Arc<Batch<Outcome>>);

/// The error of an operation.
#[napi(object, object_from_js = false)]
pub struct Failure {
    /// Its kind.
    pub kind: String,
    /// Its message.
    pub message: String,
}

#[napi]
impl Completions {
    /// Calls `wake` from the event loop when there is something to [`drain`](Self::drain).
    #[napi(constructor)]
    pub fn new(env: Env, wake: Function<'_, (), ()>) -> napi::Result<Self> {
        let wake: Wake = wake
            .build_threadsafe_function::<()>()
            .weak::<true>()
            .max_queue_size::<1>()
            .build_callback(|_| Ok(()))?;
        let batch = Arc::new(Batch::new(move || {
            // A full queue has a wake-up under way; one that is closing has no listener.
            wake.call((), ThreadsafeFunctionCallMode::NonBlocking);
        }));
        // A worker that ends takes nothing with it: what it waited for is cancelled, and admissions are released.
        env.add_env_cleanup_hook(Arc::clone(&batch), |batch| batch.close())?;
        Ok(Self(batch))
    }

    /// Starts what was submitted since the last call.
    #[napi]
    pub fn flush(&self) -> Result<()> {
        self.0.flush().map_err(|error| js_error(&error))
    }

    /// Returns what finished since the last call: the number of each operation, and then its result. One flat list, since an
    /// object for each of them would take longer to make than some decisions.
    #[napi]
    pub fn drain(&self) -> Vec<Either3<u32, JsOutput, Failure>> {
        let done = self.0.take();
        let mut list = Vec::with_capacity(2 * done.len());
        for (id, outcome) in done {
            list.push(Either3::A(id));
            list.push(match outcome {
                Ok(output) => Either3::B(output.into()),
                Err(error) => Either3::C(Failure {
                    kind: kind_name(error.kind()).to_owned(),
                    message: error.to_string(),
                }),
            });
        }
        list
    }

    /// Gives an operation up. An admission that has not arrived yet is released.
    #[napi]
    pub fn cancel(&self, id: u32) {
        self.0.cancel(id);
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
        Ok(Err(self.submit(work)))
    }

    /// Submits `work`, which is not done at once. Returns the number of its completion.
    pub(crate) fn submit(&self, work: BoxFuture<'static, Outcome>) -> u32 {
        self.0.submit(work)
    }
}
