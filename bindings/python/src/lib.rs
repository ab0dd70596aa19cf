//! The native module `tollgate_rs._native`: Python types around `tollgate-bindings`. Its API is documented in `_native.pyi`.
#![allow(missing_docs, reason = "the stubs of the module have the documentation")]

mod adapters;
mod call;
mod convert;
mod error;
mod gate;
mod permit;
mod value;

use pyo3::prelude::{Bound, PyAnyMethods as _, PyModule, PyModuleMethods as _, PyResult, Python};
use pyo3::types::PyAny;
use pyo3::{pyfunction, pymodule, wrap_pyfunction};
use tollgate_bindings::{fork, runtime};

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<gate::Gate>()?;
    module.add_class::<call::Call>()?;
    module.add_class::<call::Acquire>()?;
    module.add_class::<permit::Permit>()?;
    module.add_class::<permit::SyncPermit>()?;
    module.add_class::<value::Standing>()?;
    module.add_class::<value::Incident>()?;
    module.add_class::<value::ManualClock>()?;
    module.add_function(wrap_pyfunction!(shutdown, module)?)?;
    module.add_function(wrap_pyfunction!(before_fork, module)?)?;
    module.add_function(wrap_pyfunction!(after_fork_in_parent, module)?)?;
    module.add_function(wrap_pyfunction!(after_fork_in_child, module)?)?;
    module.add_function(wrap_pyfunction!(_wake, module)?)?;
    adapters::register(module)?;
    // The package has a list of what is public.
    module.delattr("__all__")
}

#[pyfunction]
fn shutdown(py: Python<'_>) {
    py.detach(runtime::shutdown);
}

#[pyfunction]
fn before_fork(py: Python<'_>) {
    py.detach(fork::before);
}

#[pyfunction]
fn after_fork_in_parent() {
    fork::after_in_parent();
}

#[pyfunction]
fn after_fork_in_child() {
    fork::after_in_child();
}

/// Wakes the task that awaits `future`, on the thread of its loop.
#[pyfunction]
fn _wake(future: &Bound<'_, PyAny>) -> PyResult<()> {
    if !future.call_method0("done")?.is_truthy()? {
        future.call_method1("set_result", (future.py().None(),))?;
    }
    Ok(())
}
