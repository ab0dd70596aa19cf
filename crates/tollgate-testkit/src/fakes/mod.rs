//! Services without an emulator. They follow the documentation and the reports of users, enforce quotas, count requests and
//! inject faults.

pub mod drs;
pub mod gemini;
mod http;
pub mod llm;
mod quota;
mod scaled;
mod trouble;
