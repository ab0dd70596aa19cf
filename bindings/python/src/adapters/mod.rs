//! What the adapters in Python need of the engine: fields of HTTP, meters of LLM calls, buckets of AWS calls.

mod aws;
mod fields;
mod usage;

use pyo3::prelude::{Bound, PyModule, PyModuleMethods as _, PyResult};
use pyo3::wrap_pyfunction;

pub(crate) use fields::Denial;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<fields::Denial>()?;
    module.add_function(wrap_pyfunction!(fields::admitted_fields, module)?)?;
    module.add_class::<usage::Meter>()?;
    module.add_class::<usage::ProviderRefusal>()?;
    module.add_function(wrap_pyfunction!(usage::llm_error_body, module)?)?;
    module.add_class::<aws::Bucket>()?;
    module.add_class::<aws::JobSlots>()?;
    module.add_class::<aws::JobSlot>()?;
    Ok(())
}
