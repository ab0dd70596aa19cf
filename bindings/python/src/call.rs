//! Awaitables.
//!
//! An awaitable is its own iterator. If the gate decides at once, the first step ends it, without a future of asyncio and without
//! another thread. Otherwise the operation runs on the runtime, and a future of the running loop is only the signal to look
//! for its result. The result stays with the operation until a step takes it, so an admission that nobody takes, because the task
//! was cancelled in between, is released when the operation is dropped.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::prelude::{Bound, Py, PyAnyMethods as _, PyErr, PyResult, Python};
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyAny, PyType};
use pyo3::{pyclass, pymethods};
use tollgate_bindings::runtime::{self, Running};
use tollgate_bindings::{
    self as bindings, AcquireRequest, BoxFuture, Decision, Error, Incident, Standing,
};

use crate::error::{denied, raise};
use crate::permit::{Permit, SyncPermit};
use crate::value;

/// What operations return.
pub(crate) enum Value {
    Nothing,
    Changed(bool),
    Decision(Decision),
    Permit(bindings::Permit),
    Standings(Vec<Standing>),
    Incident(Box<Incident>),
}

/// An operation that returns a [`Value`].
pub(crate) type Work = BoxFuture<'static, Result<Value, Error>>;

/// Maps the result of an operation to a [`Value`].
pub(crate) fn work<T: Send + 'static>(
    future: BoxFuture<'static, Result<T, Error>>,
    value: fn(T) -> Value,
) -> Work {
    Box::pin(async move { future.await.map(value) })
}

/// Which permits an operation returns.
#[derive(Clone, Copy)]
pub(crate) enum Flavour {
    Async,
    Sync,
}

/// Converts a result, which is claimed here.
pub(crate) fn claim(
    py: Python<'_>,
    result: Result<Value, Error>,
    flavour: Flavour,
) -> PyResult<Py<PyAny>> {
    use pyo3::IntoPyObjectExt as _;
    let permit = |permit: bindings::Permit| match flavour {
        Flavour::Async => Py::new(py, Permit::new(permit)).map(Py::into_any),
        Flavour::Sync => Py::new(py, SyncPermit::new(permit)).map(Py::into_any),
    };
    match result.map_err(|error| raise(py, &error))? {
        Value::Nothing => Ok(py.None()),
        Value::Changed(changed) => changed.into_py_any(py),
        Value::Decision(Decision::Admitted(admitted)) => permit(admitted.claim()),
        Value::Decision(Decision::Denied(denial)) => Err(denied(py, &denial)),
        Value::Permit(own) => permit(own),
        Value::Standings(standings) => value::standings(py, &standings)?.into_py_any(py),
        Value::Incident(incident) => Py::new(py, value::Incident(*incident)).map(Py::into_any),
    }
}

/// Runs `work` in this thread, without the interpreter, and looks at signals while it waits.
pub(crate) fn block_on<T: Send>(py: Python<'_>, mut work: BoxFuture<'static, T>) -> PyResult<T> {
    if let Some(done) = runtime::poll_once(&mut work).map_err(|error| raise(py, &error))? {
        return Ok(done);
    }
    let check = || Python::attach(|py| py.check_signals().map_err(Stopped::Signal));
    py.detach(|| runtime::block_on_checking(work, SIGNAL_INTERVAL, check)).map_err(|stopped| {
        match stopped {
            Stopped::Signal(error) => error,
            Stopped::Failed(error) => raise(py, &error),
        }
    })
}

/// How often a thread that waits looks at signals.
const SIGNAL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(50);

enum Stopped {
    Signal(PyErr),
    Failed(Error),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The steps of an awaitable.
pub(crate) enum Steps {
    Work(Work),
    Done(Result<Value, Error>),
    Waiting {
        running: Running<Result<Value, Error>>,
        /// The iterator of the future that wakes the task.
        signal: Py<PyAny>,
    },
    Over,
}

impl Steps {
    /// Returns the result, or what the task has to yield.
    fn step(&mut self, py: Python<'_>) -> PyResult<Step> {
        if let Self::Work(work) = self {
            if let Some(done) = runtime::poll_once(work).map_err(|error| raise(py, &error))? {
                *self = Self::Over;
                return Ok(Step::Done(done));
            }
            self.run(py)?;
        }
        match std::mem::replace(self, Self::Over) {
            Self::Done(done) => Ok(Step::Done(done)),
            Self::Waiting { running, signal } => {
                if let Some(done) = running.take() {
                    return Ok(Step::Done(done));
                }
                let yielded = signal.call_method0(py, "__next__")?;
                *self = Self::Waiting { running, signal };
                Ok(Step::Yield(yielded))
            }
            Self::Work(_) | Self::Over => {
                Err(PyRuntimeError::new_err("this was awaited already; call the gate again"))
            }
        }
    }

    /// Lets the runtime finish the work, and a future of the running loop wait for it.
    fn run(&mut self, py: Python<'_>) -> PyResult<()> {
        static RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static WAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let running_loop = RUNNING_LOOP.import(py, "asyncio", "get_running_loop")?.call0()?;
        let wake = WAKE.import(py, "tollgate_rs._native", "_wake")?.clone().unbind();
        let future = running_loop.call_method0("create_future")?;
        let signal = future.call_method0("__await__")?.unbind();
        let Self::Work(work) = std::mem::replace(self, Self::Over) else { return Ok(()) };
        let call_soon = running_loop.getattr("call_soon_threadsafe")?.unbind();
        let future = future.unbind();
        let notify = move || {
            // The interpreter may end, or the loop may be closed: then no task waits.
            Python::try_attach(|py| drop(call_soon.call1(py, (wake, future))));
        };
        let running = runtime::run(work, notify).map_err(|error| raise(py, &error))?;
        *self = Self::Waiting { running, signal };
        Ok(())
    }
}

enum Step {
    Done(Result<Value, Error>),
    Yield(Py<PyAny>),
}

/// Returns the error that ends an iterator with `value`.
fn stop(value: Py<PyAny>) -> PyErr {
    PyStopIteration::new_err((value,))
}

/// Returns the exception that was thrown into an iterator.
fn thrown(kind: &Bound<'_, PyAny>, error: Option<&Bound<'_, PyAny>>) -> PyErr {
    match error.filter(|error| !error.is_none()) {
        Some(error) => PyErr::from_value(error.clone()),
        None if kind.is_instance_of::<PyType>() => match kind.call0() {
            Ok(error) => PyErr::from_value(error),
            Err(error) => error,
        },
        None => PyErr::from_value(kind.clone()),
    }
}

/// The result of an operation, to be awaited once.
#[pyclass(frozen, module = "tollgate_rs._native", generic)]
pub(crate) struct Call {
    steps: Mutex<Steps>,
    /// Returned instead of the value.
    instead: Option<Py<PyAny>>,
    /// Whether an error is logged: the block that this ends has a result that must not be lost.
    is_quiet: bool,
}

impl Call {
    pub(crate) fn new(work: Work) -> Self {
        Self::with(Steps::Work(work))
    }

    pub(crate) fn done(value: Value) -> Self {
        Self::with(Steps::Done(Ok(value)))
    }

    fn with(steps: Steps) -> Self {
        Self { steps: Mutex::new(steps), instead: None, is_quiet: false }
    }

    pub(crate) fn returning(mut self, value: Py<PyAny>) -> Self {
        self.instead = Some(value);
        self
    }

    pub(crate) fn quiet(mut self) -> Self {
        self.is_quiet = true;
        self
    }

    fn steps(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Call {
    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let step = self.steps().step(py)?;
        match step {
            Step::Yield(future) => Ok(future),
            Step::Done(Err(error)) if self.is_quiet => {
                log(py, &error)?;
                Err(stop(py.None()))
            }
            Step::Done(result) => {
                let value = claim(py, result, Flavour::Async)?;
                Err(stop(self.instead.as_ref().map_or(value, |instead| instead.clone_ref(py))))
            }
        }
    }

    fn send(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let _ = value;
        self.__next__(py)
    }

    #[pyo3(signature = (kind, error = None, traceback = None))]
    fn throw(
        &self,
        kind: &Bound<'_, PyAny>,
        error: Option<&Bound<'_, PyAny>>,
        traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let _ = traceback;
        self.close();
        Err(thrown(kind, error))
    }

    fn close(&self) {
        let steps = std::mem::replace(&mut *self.steps(), Steps::Over);
        drop(steps);
    }
}

/// Logs that a settlement at the end of a block failed. The estimate stays charged, which errs to the strict side.
pub(crate) fn log(py: Python<'_>, error: &Error) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", ("tollgate_rs",))?;
    let text = "the permit was not settled, so its estimate stays charged: %s";
    logger.call_method1("warning", (text, error.to_string()))?;
    Ok(())
}

/// An ask that is decided when it is awaited or entered.
#[pyclass(frozen, module = "tollgate_rs._native")]
pub(crate) struct Acquire {
    gate: bindings::Gate,
    state: Mutex<AcquireState>,
}

struct AcquireState {
    request: Option<AcquireRequest>,
    steps: Steps,
    is_block: bool,
    permit: Option<Py<Permit>>,
}

impl Acquire {
    pub(crate) const fn new(gate: bindings::Gate, request: AcquireRequest) -> Self {
        let request = Some(request);
        let state = AcquireState { request, steps: Steps::Over, is_block: false, permit: None };
        Self { gate, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, AcquireState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Acquire {
    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut state = self.state();
        if let Some(request) = state.request.take() {
            state.steps = match self.gate.try_acquire(&request) {
                Some(decided) => Steps::Done(decided.map(Value::Decision)),
                None => Steps::Work(work(self.gate.acquire(request), Value::Decision)),
            };
        }
        let decision = match state.steps.step(py)? {
            Step::Yield(future) => return Ok(future),
            Step::Done(result) => result.map_err(|error| raise(py, &error))?,
        };
        match decision {
            Value::Decision(Decision::Admitted(admitted)) => {
                let permit = Py::new(py, Permit::new(admitted.claim()))?;
                if state.is_block {
                    permit.get().enter();
                    state.permit = Some(permit.clone_ref(py));
                }
                Err(stop(permit.into_any()))
            }
            Value::Decision(Decision::Denied(denial)) => Err(denied(py, &denial)),
            other => claim(py, Ok(other), Flavour::Async).and_then(|value| Err(stop(value))),
        }
    }

    fn send(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let _ = value;
        self.__next__(py)
    }

    #[pyo3(signature = (kind, error = None, traceback = None))]
    fn throw(
        &self,
        kind: &Bound<'_, PyAny>,
        error: Option<&Bound<'_, PyAny>>,
        traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let _ = traceback;
        self.close();
        Err(thrown(kind, error))
    }

    fn close(&self) {
        let mut state = self.state();
        state.request = None;
        let steps = std::mem::replace(&mut state.steps, Steps::Over);
        drop(state);
        drop(steps);
    }

    fn __aenter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf.get().state().is_block = true;
        slf
    }

    fn __aexit__(
        &self,
        kind: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> Call {
        let _ = (kind, error, traceback);
        let permit = self.state().permit.take();
        let Some(ending) = permit.and_then(|permit| permit.get().leave()) else {
            return Call::done(Value::Nothing);
        };
        Call::new(work(ending, |_| Value::Nothing)).quiet()
    }
}
