//! Services without an emulator. They follow the documentation and the reports of users, enforce quotas, count requests and
//! inject faults.

pub mod drs;
pub mod gemini;
mod http;
pub mod llm;
mod management_server;
mod quota;
mod scaled;
mod trouble;

pub use management_server::{ClientRequest, ManagementServer, RATE_LIMIT_CONFIG};
