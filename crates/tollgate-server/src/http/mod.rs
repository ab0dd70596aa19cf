//! The HTTP API. Bodies are JSON both ways; every error, an unknown path included, is a problem document.
//!
//! A request passes [`connection`], [`service`] (request id, host, routing), [`authorize`] (key), [`input`] (body) and its
//! handler in [`endpoints`]; [`reply`] builds the response.

mod authorize;
mod connection;
mod endpoints;
mod input;
mod openapi;
pub(crate) mod rate_limit_headers;
mod reply;
mod service;
mod version;

pub use connection::{Busy, ConnectionOptions, serve_connection};
pub use service::generate_request_id;

pub(crate) use authorize::{bearer, foreign_host};
pub(crate) use service::{HttpService, RequestId};
